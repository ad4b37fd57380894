"""`LoadedModel.batcher()`: one model for many callers, whose rows run together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import numbers
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from litegpu import fork
from litegpu.arguments import converted, count
from litegpu.background import InferenceFuture, leave
from litegpu.batching.batch import Request, too_late
from litegpu.batching.collector import Rules
from litegpu.batching.lanes import Lanes
from litegpu.batching.native_calls import NativeCalls, native_calls
from litegpu.batching.sizes import AHEAD, AHEAD_IN_C, Replica, Sizable, chosen_sizes, rows_of_model
from litegpu.batching.statistics import BatcherStatistics
from litegpu.boundary import left_alone, typed_errors, typed_method
from litegpu.errors import DeadlineError, InvokeError, OptionError, TensorError
from litegpu.gpu.delegate.array_place import is_on_gpu

WHEN_FULL = ("wait", "raise")
#: Seconds after which a call that waits for room looks for itself.
_LOOK_AGAIN = 0.005
#: Seconds of the longest deadline.
_LONGEST = 365 * 86_400
_Array = np.ndarray
NAN_POLICIES = ("propagate", "raise")


@typed_errors
class Batcher:
    """Puts the calls of many threads and tasks together into batches; made by LoadedModel.batcher(), which says how.

        with model.batcher(max_batch=64, max_delay_ms=2) as batcher:
            scores = batcher(x)                      # in a thread: waits
            future = batcher.submit(x)               # concurrent.futures.Future
            scores = await batcher.call_async(x)     # in a task of asyncio

    A call takes what a call of the model takes, with one or more rows (at most max_batch), and gives what that would
    give: bit for bit what the model gives for a batch of a prepared size, with the row in it. Arrays may be changed as
    soon as submit() has returned. Results up to 64 KB are the caller's alone; larger ones are a part of the batch's
    array, which lives as long as one of its parts does (copy() what is to be kept for long).

    Any number of threads may use it. Leaving the context, and close(), compute what waits.
    """

    def __init__(
        self,
        model: Sizable,
        max_batch: int = 64,
        max_delay_ms: float = 2.0,
        *,
        sizes: Sequence[int] | None = None,
        max_waiting: int | None = None,
        when_full: str = "wait",
        nan_policy: str = "propagate",
        ahead: int | None = None,
    ) -> None:
        """See LoadedModel.batcher()."""
        max_batch = count("max_batch", max_batch)
        ahead = None if ahead is None else count("ahead", ahead)
        max_delay = _delay(max_delay_ms)
        most_waiting = 4 * max_batch if max_waiting is None else count("max_waiting", max_waiting)
        if when_full not in WHEN_FULL:
            raise OptionError(f"when_full is {when_full!r}; it must be one of {', '.join(WHEN_FULL)}")
        if nan_policy not in NAN_POLICIES:
            raise OptionError(f"nan_policy is {nan_policy!r}; it must be one of {', '.join(NAN_POLICIES)}")
        self.sizes = chosen_sizes(max_batch, sizes)
        self.max_batch = max_batch
        self._waits = when_full == "wait"
        self._refuses_nan = nan_policy == "raise"
        self._arguments = model._arguments
        self._details: dict[str, Any] = model.inputs
        rows = rows_of_model(model)
        self._rows = rows.inputs
        self._clock = time.monotonic
        self._native: NativeCalls | None = None
        replicas: list[Replica] = []
        try:
            for one in model.replicas:
                replicas.append(Replica(one, self.sizes, ahead or AHEAD, ahead or AHEAD_IN_C, rows.types))
            rules = Rules(max_batch, max_delay, most_waiting, self.sizes)
            if not self._refuses_nan:
                self._native = native_calls(replicas, self.sizes, rules, rows, model._as_result, raises=not self._waits)
            self._lanes = Lanes(
                replicas, self.sizes, rules, rows.outputs, model._as_result, self._clock, self._native,
                ahead or AHEAD,
            )  # fmt: skip
            fork.follow(self)
        except BaseException:
            for replica in replicas:
                replica.close(wait=False)
            raise

    @property
    def statistics(self) -> BatcherStatistics:
        """How full the batches were so far, and how long callers waited."""
        return self._lanes.statistics()

    @left_alone
    def __call__(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """The outputs for these rows, as the model's own call gives them.

        timeout: seconds after which DeadlineError is raised instead. (An input of that name goes into a dictionary.)
        Raises TensorError for what does not fit, which is this caller's alone; QueueFullError; InvokeError if the batch
        fails, or once the batcher is closed."""
        native = self._native
        if timeout is not None:
            timeout = _seconds(timeout)
        if native is not None and not native.off:
            if native.is_simple and timeout is None and len(args) == 1 and type(args[0]) is _Array and not kwargs:
                found = native.call_simple(args[0])
            else:
                found = self._called(native, args, kwargs, timeout)
            if found is not None:
                return found
        return self._called_in_python(args, kwargs, timeout)

    @typed_method
    def _called_in_python(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None) -> Any:
        if self._lanes.answers_here:
            raise InvokeError(
                "A callback of a batcher's future cannot wait for another call of the batcher, as that might need the "
                "thread that the callback runs in: give the call to submit()"
            )
        if self._lanes.interrupted_here:
            raise InvokeError(
                "A signal handler or a finalizer has interrupted a call of the batcher in this thread, and cannot wait "
                "for another one, as that might need the first to go on: give it to submit(), or set a flag"
            )
        request = self._request(args, kwargs, timeout, waited=True)
        try:
            self._enter(request)
            if not request.wait(self._left(request)):
                request.error = too_late("before the result was there")
                raise request.error
        except BaseException:
            request.gone = True
            raise
        return self._lanes.result(request)

    def submit(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> InferenceFuture[Any]:
        """The same in the background: a concurrent.futures.Future of the outputs, which can be cancelled until its
        batch begins, and awaited. `timeout` is looked at when the batch begins and when it ends. Waits where too many
        rows do, unless when_full="raise". In a signal handler or a finalizer that has interrupted a call in the same
        thread it does not wait: what goes wrong from then on is the future's."""
        request = self._request(args, kwargs, _seconds(timeout), waited=False)
        assert request.future is not None
        if self._lanes.interrupted_here:
            self._put_off(request)
        else:
            self._enter(request)
        return request.future

    async def call_async(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """The same for asyncio: waits without holding up the loop. A task that is cancelled takes its rows back if
        their batch has not begun."""
        native = self._native
        timeout = _seconds(timeout)
        if native is not None and not native.off:
            arrays = self._plain(args, kwargs)
            if arrays is not None:
                found = await (native.call_async(arrays) if timeout is None else self._in_time(native, arrays, timeout))
                if found is not None:
                    return found
        request = self._request(args, kwargs, timeout, waited=False)
        assert request.future is not None
        try:
            async with asyncio.timeout(self._left(request)):
                await self._enter_async(request)
                return await asyncio.wrap_future(request.future)
        except TimeoutError as error:  # of ours, or from the batcher, which has looked at the clock as well
            late = error if isinstance(error, DeadlineError) else too_late("before the result was there")
            request.error = request.error or late
            request.gone = True
            raise late from None

    def close(self, *, drain: bool = True) -> None:
        """Take no more calls, compute what waits (without `drain`: end it with InvokeError), and free the device's
        memory. May be called twice, and while others call: those get InvokeError. In a signal handler or a finalizer
        that has interrupted a call in the same thread it does not wait."""
        self._lanes.close(drain=drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        calm = kind is None or issubclass(kind, Exception)
        self._lanes.close(drain=calm, wait=calm)  # Ctrl-C does not wait

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_lanes") and not finalizing():
            self._lanes.close(drain=True, wait=False)

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle or copy a Batcher: make one where it is needed")

    def __repr__(self) -> str:
        if not hasattr(self, "_lanes"):
            return "<Batcher, not opened>"
        return f"<Batcher of sizes {', '.join(map(str, self.sizes))}: {self.statistics}>"

    @typed_method
    def _called(
        self, native: NativeCalls, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None
    ) -> Any:
        """The result through native code; None if it does not take these arguments."""
        arrays = self._plain(args, kwargs)
        if arrays is None:
            return None
        deadline = 0 if timeout is None else max(int((self._clock() + timeout) * 1e9), 1)
        return native.call(arrays, deadline)

    async def _in_time(self, native: NativeCalls, arrays: tuple[np.ndarray, ...], timeout: float) -> Any:
        """The same in a task that may be late."""
        try:
            async with asyncio.timeout(timeout):
                return await native.call_async(arrays)
        except TimeoutError:
            native.late, native.cancelled = native.late + 1, native.cancelled - 1
            raise too_late("before the result was there") from None

    def _plain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[np.ndarray, ...] | None:
        """The inputs in their order, if they are arrays of NumPy and nothing is wrong with the call otherwise."""
        if len(args) != len(self._rows) or kwargs:
            values = self._arguments(args, kwargs)
            args = tuple(values[name] for name in self._rows)
        for value in args:
            if type(value) is not np.ndarray:
                return None
        return args

    def _forked(self) -> None:
        self._native = None  # its threads are in the parent

    def _request(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], timeout: float | None, *, waited: bool
    ) -> Request:
        """The call, checked: what is wrong with it is found before it meets others."""
        arrays: dict[str, np.ndarray] = {}
        rows = 0
        for name, value in self._arguments(args, kwargs).items():
            array = arrays[name] = self._row_array(name, value)
            if not rows:
                rows = len(array)
            elif len(array) != rows:
                raise TensorError(f"Input '{name}' has {len(array)} rows, and another input {rows}")
        if not 0 < rows <= self.max_batch:
            raise TensorError(f"A call has from 1 to {self.max_batch} rows (max_batch), not {rows}")
        now = self._clock()
        return Request(arrays, rows, now, None if timeout is None else now + timeout, waited=waited)

    def _row_array(self, name: str, value: Any) -> np.ndarray:
        shape, dtype = self._rows[name]
        if type(value) is np.ndarray and value.dtype == dtype and value.shape[1:] == shape and value.ndim > len(shape):
            array = value  # as nearly always, and this takes a tenth of the time
        elif is_on_gpu(value):
            raise TensorError(f"Input '{name}' is in the memory of a GPU: batches are collected in host memory")
        else:
            array = converted(name, value, self._details[name])
            if array.shape[1:] != shape:
                raise TensorError(
                    f"Input '{name}' was prepared for rows of {list(shape)}, but the value has {list(array.shape[1:])}"
                )
        if self._refuses_nan and array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise TensorError(f"Input '{name}' has values that are not finite, which nan_policy='raise' refuses")
        return array

    def _left(self, request: Request) -> float | None:
        return None if request.deadline is None else request.deadline - self._clock()

    def _enter(self, request: Request) -> None:
        """Into a batch, as soon as there is room."""
        waits = self._waits and not self._lanes.answers_here
        while True:
            gate = threading.Lock()
            gate.acquire()

            def told(gate: Any = gate) -> None:
                with contextlib.suppress(RuntimeError):  # it is open
                    gate.release()

            if self._lanes.place(request, told if waits else None):
                return
            left = self._left(request)
            with _Hope(self._lanes, told) as hope:
                seconds = -1 if left is None else max(left, 0.0)
                if self._native is not None:  # calls there make room without a word
                    seconds = min(_LOOK_AGAIN, seconds) if seconds >= 0 else _LOOK_AGAIN
                hope.fulfilled = gate.acquire(timeout=seconds)
            if not hope.fulfilled and left is not None and left <= seconds:
                raise too_late("before there was room for its rows")

    def _put_off(self, request: Request) -> None:
        """The same in another thread, of copies, as the caller may change theirs."""
        assert request.arrays is not None
        request.arrays = {name: array.copy() for name, array in request.arrays.items()}

        def enter() -> None:
            try:
                self._enter(request)
            except BaseException as error:
                request.fail(error)

        leave(enter)

    async def _enter_async(self, request: Request) -> None:
        while True:
            loop = asyncio.get_running_loop()
            room = asyncio.Event()

            def told(loop: asyncio.AbstractEventLoop = loop, room: asyncio.Event = room) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(room.set)

            if self._lanes.place(request, told if self._waits else None):
                return
            with _Hope(self._lanes, told) as hope:
                if self._native is None:
                    await room.wait()
                else:  # as above
                    loop.call_later(_LOOK_AGAIN, room.set)
                    await room.wait()
                hope.fulfilled = True


class _Hope:
    """Somebody waits for room; who does not get it to the end leaves it to others."""

    def __init__(self, lanes: Lanes, told: Callable[[], object]) -> None:
        self._lanes, self._told = lanes, told
        self.fulfilled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.fulfilled:
            self._lanes.forget(self._told)


def _delay(milliseconds: object) -> float:
    """In seconds."""
    found = float(milliseconds) if isinstance(milliseconds, numbers.Real) else -1.0
    if not 0 <= found < math.inf:
        raise OptionError(f"max_delay_ms is {milliseconds!r}; it must be 0 or more")
    return found / 1e3


def _seconds(timeout: object) -> float | None:
    """Those that a call is given; None for ever, as what no clock has counts."""
    if timeout is None:
        return None
    seconds = float(timeout) if isinstance(timeout, numbers.Real) else -1.0
    if not seconds >= 0:
        raise OptionError(f"timeout is {timeout!r}; it must be 0 or more seconds")
    return seconds if seconds <= _LONGEST else None
