"""The native calls of a session, which are chosen by what is wanted of an inference and by where its inputs are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from litegpu.gpu.backends.abilities import PlainOutputs
from litegpu.gpu.backends.contract import SHORT_SECONDS
from litegpu.gpu.backends.cuda.copy import MOST_BYTES, is_pinned
from litegpu.gpu.backends.cuda.inputs import LEAST_ROUNDED
from litegpu.gpu.backends.cuda.launching import Launcher
from litegpu.gpu.backends.cuda.native_call import NOT_DONE, NOT_FINITE, NOT_TAKEN, NativeCall, SessionParts, Ways
from litegpu.gpu.backends.cuda.registered import EVERY, Registered
from litegpu.gpu.program import Program

#: Inputs and outputs together.
_MOST_PORTS = 32
#: Smaller inputs are copied sooner than found out about.
_LEAST_IN_PLACE = 128 << 10
#: Calls that are kept, latest last.
_MOST_CALLS = 8


class PlainCalls:
    """Of one session, whose lock is held in every method, as long as nothing is bound to it and `results.watched` stays
    as it is."""

    def __init__(self, parts: SessionParts, launcher: Launcher, registered: Registered, *, passive: bool) -> None:
        """`passive`: waits that are long are not to spin."""
        self._parts, self._launcher, self._registered, self._passive = parts, launcher, registered, passive
        self._device, self._results, self._memory = parts.device, parts.results, parts.memory
        self._calls: list[NativeCall] = []
        ports = list(enumerate(parts.program.inputs))
        self._large = [i for i, port in ports if port.nbytes >= _LEAST_IN_PLACE]
        rounded = [i for i, port in ports if port.rounded and port.nbytes >= LEAST_ROUNDED]
        self._rounded = rounded if parts.native.rounds else []
        self._sent = [i for i, port in ports if (port.nbytes // 2 if i in self._rounded else port.nbytes) > MOST_BYTES]
        self._count = 0
        self._times: Callable[[], dict[str, float]] | None = None  # of the last inference, that nobody has asked for

    @property
    def waits(self) -> bool:
        """Whether something is under way, or to be restored, that the session is to wait for first."""
        return self._launcher.running or self._memory.spoilt

    def run(
        self, arrays: Sequence[np.ndarray | None], wanted: PlainOutputs, wait: Callable[[], object]
    ) -> list[np.ndarray] | Literal[False] | None:
        """See PlainCaller.call_plain(). Nothing is under way; `wait` waits for what is then."""
        in_place = self._in_place(arrays) if self._large else ()
        rounded: tuple[int, ...] = ()
        for i in self._rounded:
            if i not in in_place and arrays[i] is not None:
                rounded = (*rounded, i)
        sent: tuple[int, ...] = ()
        for i in self._sent:
            if i not in in_place and arrays[i] is not None:
                sent = (*sent, i)
        call = self._calls[-1] if self._calls else None
        if call is None or call.wanted is not wanted or call.ways != (in_place, rounded, sent):
            call = self._call(wanted, Ways(in_place, rounded, sent))
        found = call.targets()
        if found is None:
            return None
        launcher = self._launcher
        self._results.drop()
        call.kept = [*arrays, *found] if in_place else found
        launcher.launched()
        result = call.all(*arrays, *found)
        if result == NOT_TAKEN:
            launcher.running = False
            return None
        self._times = call.times
        if result == NOT_DONE:
            result = self._rest_of(call, [*arrays, *found], wait)
        if result < 0:  # what is on the stream all the same is waited for before the next inference
            raise launcher.fail(-result)
        launcher.running, call.kept = False, ()
        return False if result == NOT_FINITE else found

    def take_times(self) -> dict[str, float]:
        """Seconds of the parts of the last inference; nothing if they were taken."""
        times, self._times = self._times, None
        return {} if times is None else times()

    def close(self) -> None:
        """The device's context is current, and nothing under way."""
        self._times = None
        while self._calls:
            self._calls.pop().close()

    def _call(self, wanted: PlainOutputs, ways: Ways) -> NativeCall:
        """The one for these, from now on the latest."""
        calls = self._calls
        for i, call in enumerate(calls):
            if call.wanted is wanted and call.ways == ways:
                calls.append(calls.pop(i))
                return call
        with self._device.context:
            if len(calls) == _MOST_CALLS:
                calls.pop(0).close()
            calls.append(NativeCall(self._parts, wanted, ways))
        return calls[-1]

    def _in_place(self, arrays: Sequence[np.ndarray | None]) -> tuple[int, ...]:
        """The inputs that lie where the device can read them."""
        self._count += 1
        found: tuple[int, ...] = ()
        for i in self._large:
            array = arrays[i]
            if array is None:
                continue
            if self._is_readable(i, array) and array.flags.c_contiguous:
                found = (*found, i)
        return found

    def _is_readable(self, index: int, array: np.ndarray) -> bool:
        """Whether the device can read input `index` where it is."""
        if index in self._sent:
            return is_pinned(array, self._device) or self._registered.known(array)
        if array.base is not None:
            return is_pinned(array, self._device)
        return self._registered.has(array) if self._count % EVERY else self._registered.known(array)

    def _rest_of(self, call: NativeCall, arrays: Sequence[np.ndarray | None], wait: Callable[[], object]) -> int:
        """What an inference comes to that takes longer than a native call waits."""
        passed, started = call.times(), time.perf_counter()
        wait()
        waited = passed["wait"] + time.perf_counter() - started
        call.may_spin(not self._passive or waited < SHORT_SECONDS)
        result = call.rest(*arrays)
        times = {**passed, "wait": waited, "read": call.times()["read"]}
        self._times = lambda: times
        return result


def has_few_ports(program: Program) -> bool:
    """Whether they are as many as a native call takes."""
    return len(program.inputs) + len(program.outputs) <= _MOST_PORTS
