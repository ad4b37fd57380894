"""Measuring kernels that do the same work, to take the fastest.

They are measured where they will run: in the program, between their neighbours. What a kernel takes by itself tells
little where kernels overlap, or find in the cache what the one in front of them left there.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu import debug
from litegpu.errors import DeviceError
from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import CudaError, checked
from litegpu.gpu.backends.cuda.graph import make_launch
from litegpu.gpu.backends.cuda.timing import launch_seconds
from litegpu.gpu.kernels.context import Launch, NativeKernel
from litegpu.gpu.lang import KernelError
from litegpu.gpu.program import KernelCode, Port, Program
from litegpu.gpu.view import View

log = logging.getLogger("litegpu")

#: Of so many candidates as are measured in the program; where there are more, those that are the fastest alone.
IN_PROGRAM = 8
#: Two programs are timed in turn, so often, for about so many seconds each time, but so many inferences at least.
_ROUNDS, _SECONDS, _LEAST = 5, 0.004, 3
#: The part of a program's time that another kernel must save, and what of it another may take more at first.
_CLEARLY, _HOPELESS = 5e-4, 5e-3
_ALIGNMENT = 256
_FILLER = 0x3B  # two such bytes are the half 0.90, four the float 0.0029: none that takes a kernel longer than others


@dataclass(frozen=True)
class _Question:
    """Which kernel to take for launches that are alike: their places among all, and for each the candidates."""

    places: list[int]
    candidates: list[list[Launch]]

    def only(self, kept: Iterable[int]) -> _Question:
        kept = list(kept)
        return _Question(self.places, [[some[i] for i in kept] for some in self.candidates])

    def answered(self, launches: Sequence[Launch], which: int) -> list[Launch]:
        """The launches with one of the candidates in their places; the last one where there are fewer."""
        found = list(launches)
        for place, some in zip(self.places, self.candidates, strict=True):
            found[place] = some[min(which, len(some) - 1)]
        return found


class CudaTuner:
    """Times launches on a device; satisfies kernels.tuner.Tuner.

    `most`: how many candidates are looked at.
    """

    def __init__(self, device: CudaDeviceBase, most: int) -> None:
        self.device = device
        self.most = most
        self._known: dict[tuple[str, ...], list[float]] = {}

    def chosen(
        self, launches: Sequence[Launch], program_of: Callable[[Sequence[Launch]], Program] | None
    ) -> list[Launch]:
        """See kernels.tuner.Tuner. Launches of the same kernels with the same candidates, as in blocks that are
        repeated, are chosen together."""
        questions, found = _questions(launches), list(launches)
        if not questions:
            return found
        if program_of is None:
            for question in questions:
                times = self.times(question.candidates[0])
                found = question.answered(found, times.index(min(times)))
            return found
        if self.most > IN_PROGRAM:
            questions = [question.only(self._fastest_alone(question.candidates[0])) for question in questions]
        device: Any = self.device
        with _Search(device, found, program_of) as search:
            search.compile(questions)
            for question in questions:
                search.settle(question)
            return search.launches

    def _fastest_alone(self, launches: Sequence[Launch]) -> list[int]:
        """The first, and those that are the fastest by themselves."""
        times = self.times(launches)
        return [0, *sorted(range(1, len(times)), key=times.__getitem__)[: IN_PROGRAM - 1]]

    def times(self, launches: Sequence[Launch]) -> list[float]:
        """Seconds of each launch by itself; infinite for one that does not run on this device. What was once measured
        is known from then on."""
        kernels = [_native(launch) for launch in launches]
        key = tuple(k.source for k in kernels)
        if key not in self._known:
            codes = [kernel.code for kernel in kernels]
            loaded = self._load(codes)
            self._known[key] = [
                math.inf if one is None else self._time(launch, code, one)
                for launch, code, one in zip(launches, codes, loaded, strict=True)
            ]
            for seconds, launch in sorted(zip(self._known[key], launches, strict=True), key=lambda pair: pair[0]):
                debug.say(debug.TIMINGS, "tuning %s: %.2f us %s", launch.label, seconds * 1e6, launch.variant)
        return self._known[key]

    def _load(self, codes: list[KernelCode]) -> list[Any]:
        try:
            return list(self.device.kernels(codes))
        except DeviceError:  # which of them?
            found: list[Any] = []
            for code in codes:
                try:
                    found += self.device.kernels([code])
                except DeviceError as error:
                    log.debug("not a candidate: %s", error)
                    found.append(None)
            return found

    def _time(self, launch: Launch, code: KernelCode, loaded: Any) -> float:
        kernel = _native(launch)
        operands = [launch.operands[b.name] for b in kernel.buffers]
        sizes = [_size(operand) for operand in operands]
        with self.device.context:
            stream = checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)), "cuStreamCreate")
            memory = 0
            try:
                memory = int(checked(driver.cuMemAlloc(sum(sizes)), "cuMemAlloc"))
                checked(driver.cuMemsetD8Async(memory, _FILLER, sum(sizes), stream), "cuMemsetD8Async")
                addresses = [memory + sum(sizes[:i]) for i in range(len(sizes))]
                one = make_launch(
                    loaded, kernel.dispatch, kernel.workgroup, kernel.shared_bytes, launch.label, addresses
                )
                return launch_seconds(stream, one)
            except CudaError as error:
                raise DeviceError(
                    f"kernel {code.name!r} ({launch.label}) failed while it was timed: {error}"
                ) from error
            finally:
                if memory:
                    driver.cuMemFree(memory)
                driver.cuStreamDestroy(stream)


class _Search:
    """One kernel after the other is replaced in a program by others, as long as that makes it faster."""

    def __init__(
        self, device: Device, launches: list[Launch], program_of: Callable[[Sequence[Launch]], Program]
    ) -> None:
        self.launches = launches
        self._device = device
        self._program_of = program_of
        self._session: Any = None

    def __enter__(self) -> _Search:
        self._session = self._opened(self.launches)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def _opened(self, launches: Sequence[Launch]) -> Any:
        """A session that has run once: how fast a kernel is depends on its numbers, as does the power that it takes."""
        program = self._program_of(launches)
        session = self._device.session(program)
        try:
            for index, port in enumerate(program.inputs):
                session.write(index, _sample(port))
            session.run()
        except BaseException:
            session.close()
            raise
        return session

    def compile(self, questions: Sequence[_Question]) -> None:
        """All candidates, many at a time."""
        for which in range(1, max((len(question.candidates[0]) for question in questions), default=1)):
            launches = self.launches
            for question in questions:
                launches = question.answered(launches, which)
            with contextlib.suppress(DeviceError, KernelError):  # settle() finds out which
                self._device.images(self._program_of(launches))

    def settle(self, question: _Question) -> None:
        """Take the candidate with which the program is the fastest."""
        for which in range(1, len(question.candidates[0])):
            launches = question.answered(self.launches, which)
            first = question.candidates[0][which]
            try:
                other = self._opened(launches)
                try:
                    before, after = self._times(other)
                    debug.say(
                        debug.TIMINGS, "tuning %d x %s: %+.2f us of %.2f %s",
                        len(question.places), first.label, (after - before) * 1e6, before * 1e6, first.variant,
                    )  # fmt: skip
                    if after < before * (1 - _CLEARLY):
                        self.launches, self._session, other = launches, other, self._session
                finally:
                    other.close()
            except (DeviceError, KernelError) as error:
                if self._device.lost:
                    raise
                log.debug("not a candidate: %s", error)

    def _times(self, other: Any) -> tuple[float, float]:
        """Seconds of the program as it is, and of another: the least of several rounds in turn."""
        pair = self._session, other
        repeats = max(_LEAST, int(_SECONDS / max(self._session.time_graph(_LEAST), 1e-7)))
        found = [math.inf, math.inf]
        for round_ in range(_ROUNDS):
            found = [min(best, one.time_graph(repeats)) for best, one in zip(found, pair, strict=True)]
            if round_ and found[1] > found[0] * (1 + _HOPELESS):
                break
        return found[0], found[1]


def _sample(port: Port) -> np.ndarray:
    """Numbers as an input may have them: normal ones, all bytes, and other whole numbers that may be small indices."""
    rng, kind = np.random.default_rng(0), NUMPY[port.dtype]
    if kind.kind == "f":
        return rng.standard_normal(port.shape, np.float32).astype(kind)
    if kind.itemsize == 1:
        return np.frombuffer(rng.bytes(math.prod(port.shape)), kind).reshape(port.shape)
    return rng.integers(0, 2, port.shape).astype(kind)


def _questions(launches: Sequence[Launch]) -> list[_Question]:
    """One for all launches that are alike, those first that there are most of."""
    found: dict[tuple[object, ...], _Question] = {}
    for place, launch in enumerate(launches):
        if launch.others:
            candidates = [launch, *launch.others]
            key = tuple((_native(one).source, _native(one).dispatch) for one in candidates)
            question = found.setdefault(key, _Question([], []))
            question.places.append(place)
            question.candidates.append(candidates)
    return sorted(found.values(), key=lambda question: -len(question.places))


def _native(launch: Launch) -> NativeKernel:
    assert isinstance(launch.kernel, NativeKernel)
    return launch.kernel


def _size(operand: View | np.ndarray) -> int:
    n = operand.size * operand.dtype.nbytes if isinstance(operand, View) else operand.nbytes
    return -(-n // _ALIGNMENT) * _ALIGNMENT
