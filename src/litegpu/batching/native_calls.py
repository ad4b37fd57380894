"""The quick way of a batcher: calls that wait, put together by native code without Python's lock.

native/rows.c does it, and says how; here are its numbers, the memory of its batches, and what it leaves to Python.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu import native
from litegpu.background import leave
from litegpu.batching import collector
from litegpu.batching.batch import COPIED_BYTES, too_late
from litegpu.batching.batch import own as own_error
from litegpu.batching.collector import Rules
from litegpu.batching.native_posts import Posts
from litegpu.batching.native_rows import (
    CLOSED,
    DONE,
    FAILED,
    FULL,
    HANDED,
    LATE,
    LATEST,
    MOST_PORTS,
    MOST_RANK,
    NEEDS_SLAB,
    PENDING,
    Call,
    Form,
    Numbers,
    Recipe,
    RowsFunctions,
    RowsSetup,
    form_of,
    functions_of,
    recipe_of,
)
from litegpu.batching.sizes import Replica, RowForm, Runner
from litegpu.batching.statistics import ToldInC
from litegpu.errors import InvokeError, LiteGpuError, QueueFullError
from litegpu.gpu.backends.abilities import NativeRun
from litegpu.replicas import named

log = logging.getLogger("litegpu")

#: Nanoseconds after which a call comes back to Python: on the main thread, for signals; elsewhere, for whatever else.
_SLICE, _LONG_SLICE = 4_000_000, 100_000_000
#: Errors of batches that are remembered, for callers that have not asked yet.
_ERRORS = 64
#: Threads for calls of tasks, besides one for each lane.
_EXTRA_THREADS = 1
#: A row of so many bytes takes longer to bring to the device than to make float16 of it, and float32 again there.
_WORTH_ROUNDING = 64 << 10
_HALF = np.dtype(np.float16)
_empty = np.empty


class _Own(threading.local):
    """What a thread has for its calls, in `free` while it is not in use: what threads share moves from processor to
    processor, which takes longer than to look for what is one's own."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.free = [self.another()]

    def another(self) -> Call:
        """For a call that is made in the middle of another one, in a handler of a signal say."""
        on_main = threading.current_thread() is threading.main_thread()
        return Call(self._size, _SLICE if on_main else _LONG_SLICE)


class NativeCalls:
    """Of one batcher: plain arrays in, results out, through native code. Its lanes are those of the replicas, one after
    the other; batches of Python's own borrow() them."""

    def __init__(
        self,
        functions: RowsFunctions,
        replicas: Sequence[Replica],
        sizes: Sequence[int],
        rules: Rules,
        form: RowForm,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        halves: Collection[str],
        runs: Sequence[Mapping[int, NativeRun]],
        as_result: Callable[[Sequence[Any]], Any],
        *,
        raises: bool,
    ) -> None:
        """`outputs`: shape of a row, and type. `halves`: inputs that come to the device as float16. `runs`: of each
        lane, by size. `raises`: rather than wait for room."""
        self.functions, self._replicas, self._sizes = functions, replicas, sizes
        self._inputs, self._outputs, self.halves = form.inputs, outputs, halves
        rows = (*form.inputs.values(), *outputs)
        kept = [_HALF if name in halves else dtype for name, (_, dtype) in form.inputs.items()]
        kept += [dtype for _, dtype in outputs]
        #: Of rows in slabs.
        self._kept = [(shape, dtype) for (shape, _), dtype in zip(rows, kept, strict=True)]
        self._as_result = as_result
        self._rules = rules
        self._homes = [home for home, replica in enumerate(replicas) for _ in replica.lanes]
        self._runners = [lane for replica in replicas for lane in replica.lanes]
        self._shapes = [[(n, *shape) for n in range(rules.most + 1)] for shape, _ in outputs]  # by output and rows
        self._types = [dtype for _, dtype in outputs]
        self.is_simple = len(form.inputs) == len(outputs) == 1
        self._errors: dict[int, BaseException] = {}
        self._slabs: list[list[np.ndarray]] = []  # by tag; memory of inputs, then of results
        self._growing = threading.Lock()
        self.off = False
        self.late = self.cancelled = 0  # calls whose time was over, and those of tasks that were cancelled
        self.raises = raises
        self._posts: Posts | None = None
        forms = (Form * len(rows))(*(form_of(*row, dtype) for row, dtype in zip(rows, kept, strict=True)))
        recipes = (Recipe * (len(runs) * len(sizes)))(*(
            recipe_of(
                lane[size], list(self._runners[i][size].inputs.values()), self._runners[i][size].outputs,
                in_turn=size >= collector.LARGE_SIZE,
            )
            for i, lane in enumerate(runs)
            for size in sizes
        ))  # fmt: skip
        one = runs[0][sizes[0]]
        homes, batches = (ctypes.c_int * len(runs))(*self._homes), (ctypes.c_int * len(sizes))(*sizes)
        setup = RowsSetup(
            *(getattr(one, name) for name in NativeRun.FUNCTIONS),
            len(form.inputs), len(outputs), len(runs), len(sizes), rules.most,
            len(runs) + len(replicas) + -(-rules.waiting // rules.most), rules.waiting, raises, collector.LARGE_SIZE,
            native.processors(), int(rules.delay * 1e9),
            *(ctypes.addressof(table) for table in (forms, homes, batches, recipes)),
        )  # fmt: skip
        self._call_size = functions.call_size()
        self._own = _Own(self._call_size)
        self._spare: list[Call] = []
        self.rows = functions.new(ctypes.addressof(setup), ctypes.sizeof(setup))
        if not self.rows:
            raise MemoryError("no memory for the batcher")
        self._native = functions.caller(self.rows)
        #: Rows that wait in Python, for native code to know, and rows that wait there.
        self.outside, self.inside = (ctypes.c_int.from_address(self.rows + 4 * i) for i in range(2))
        for home in (*self._homes, *range(len(replicas))):
            self.grow(home)

    def call(self, inputs: tuple[Any, ...], deadline: int = 0) -> Any:
        """What a call with these arrays, of NumPy, gives; None if they are not plain, or native code is not to be used
        any more. `deadline`: nanoseconds of the clock, 0 for none. Raises as Batcher's calls do."""
        outputs = self._new_outputs(inputs)
        if outputs is None:
            return None
        call: Call | None = None
        try:
            call = self._own.free.pop() if self._own.free else self._own.another()
            if deadline:
                call.ends(deadline)
            found = self._native(call.address, *inputs, *outputs)
            return self._as_result(outputs) if self._ended(call, found, inputs, outputs) else None
        except BaseException:
            if call is not None:
                self._abandon(call, inputs, outputs)
            raise

    def call_simple(self, array: np.ndarray) -> Any:
        """The same for the only input of a model with one output, without a deadline. Every microsecond here holds up
        all threads."""
        try:
            output = _empty(self._shapes[0][len(array)], self._types[0])
        except (TypeError, IndexError):
            return None
        call: Call | None = None
        try:
            own = self._own
            try:
                call = own.free.pop()
            except IndexError:
                call = own.another()
            found = self._native(call.address, array, output)
            if found == DONE:
                own.free.append(call)
                return output
            return output if self._ended(call, found, (array,), (output,)) else None
        except BaseException:
            if call is not None:
                self._abandon(call, (array,), (output,))
            raise

    async def call_async(self, inputs: tuple[Any, ...]) -> Any:
        """The same for a task of asyncio, without a deadline."""
        outputs = self._new_outputs(inputs)
        if outputs is None:
            return None
        if self._posts is None:
            self._posts = Posts(self, len(self._homes) + _EXTRA_THREADS)
        if not self._posts.works:
            return None
        try:
            found, serial = await self._posts.outcome(inputs, outputs)
        except BaseException:
            self.cancelled += 1
            raise
        return self._as_result(outputs) if self._is_done(found, serial) else None

    def new_call(self) -> Call:
        """Memory for a call, which nobody waits for in a thread."""
        try:
            return self._spare.pop()
        except IndexError:
            return Call(self._call_size, 0)

    def spare(self, call: Call) -> None:
        """Such a call has ended."""
        self._spare.append(call)

    def _new_outputs(self, inputs: tuple[Any, ...]) -> list[np.ndarray] | None:
        """Arrays for the outputs; None for inputs without rows, or of too many."""
        try:
            rows = len(inputs[0])
            return [_empty(shapes[rows], dtype) for shapes, dtype in zip(self._shapes, self._types, strict=True)]
        except (TypeError, IndexError):
            return None

    def _ended(self, call: Call, found: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Whether the call that has come to `found` ends with results, sooner or later; else it has to be made in
        Python. Raises what it ends with."""
        while found != DONE:
            if found == NEEDS_SLAB:
                self.grow(call.told)
            elif found == HANDED:
                leave(functools.partial(self.compute, call.told))
            elif found != PENDING:
                break
            found = self._native(call.address, *inputs, *outputs)
        if found == LATE:
            self.late += 1
            raise too_late("before the result was there" if call.told else "before there was room for its rows")
        call.ends(0)
        self._own.free.append(call)
        return self._is_done(found, call.serial)

    def _is_done(self, found: int, serial: int) -> bool:
        """Whether a call that has come to `found` has results; else it has to be made in Python. Raises what it ends
        with."""
        if found == FAILED:
            raise own_error(self._errors.get(serial) or InvokeError("the batch failed"))
        if found == CLOSED:
            raise InvokeError("The batcher is closed")
        if found == FULL:
            raise QueueFullError(
                f"{self.inside.value + self.outside.value} rows wait already, and there is room for "
                f"{self._rules.waiting}: call later, or give max_waiting or when_full='wait'"
            )
        return found == DONE

    def _abandon(self, call: Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if not self.functions.abandon(self.rows, call.address):  # its batch runs, and nobody else looks after it
            call.ends(0)

            def see_to_it() -> None:
                self._ended(call, PENDING, inputs, outputs)

            leave(see_to_it)

    def grow(self, home: int) -> None:
        """Memory for one more batch, where that is allowed."""
        with self._growing:
            replica, most = self._replicas[home], self._rules.most
            memory = [replica.empty((most, *shape), dtype) for shape, dtype in self._kept]
            self._slabs.append(memory)  # for good, also if an interruption comes next
            addresses = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for array in memory))
            if not self.functions.add_slab(self.rows, home, len(self._slabs) - 1, addresses):
                self._slabs.pop()

    def compute(self, number: int) -> None:
        """Compute a batch that native code could not, in the ordinary way."""
        told = (ctypes.c_int64 * 4)()
        if not self.functions.take(self.rows, number, told):
            return
        lane, size, tag, serial = told
        runner = self._runners[lane][size]
        try:
            given = {name: np.zeros((size, *shape), dtype) for name, (shape, dtype) in self._inputs.items()}
            addresses = (ctypes.c_void_p * len(given))(*(array.ctypes.data for array in given.values()))
            self.functions.given(self.rows, number, addresses)
            results = self._slabs[tag][len(given) :]
            for result, array in zip(results, runner.run(given), strict=True):
                result[:size] = array
        except BaseException as error:
            while len(self._errors) > _ERRORS:
                self._errors.pop(next(iter(self._errors)))
            self._errors[serial] = self._named(error, lane)
        finally:
            self.check(lane)
            self.functions.watch(self.rows, runner.watched)
            self.functions.finish(self.rows, number, serial not in self._errors)

    def _named(self, error: BaseException, lane: int) -> BaseException:
        if len(self._replicas) == 1 or not isinstance(error, LiteGpuError):
            return error
        return named(error, self._replicas[self._homes[lane]].label)

    def check(self, lane: int) -> None:
        """Leave native code alone from now on if a lane's runners are not what they were, or their device is lost."""
        if self._replicas[self._homes[lane]].is_lost or not all(one.same for one in self._runners[lane].values()):
            self.turn_off()

    def turn_off(self) -> None:
        """Have every call made in Python, also those that wait."""
        self.off = True
        self.functions.turn_off(self.rows)

    def borrow(self, lane: int) -> None:
        """Have a lane for a batch of Python's own until give_back()."""
        while not self.functions.borrow(self.rows, lane, _SLICE):
            self._compute_handed()

    def give_back(self, lane: int) -> None:
        self.functions.give_back(self.rows, lane)

    def close(self, *, drain: bool) -> None:
        """Take no more calls; without `drain` end those that wait with InvokeError."""
        self.functions.close(self.rows, drain)

    def settle(self) -> None:
        """Return when nothing runs or waits, once closed, and no thread is left."""
        while not self.functions.idle(self.rows, _SLICE):
            self._compute_handed()
        self.functions.stop_posts(self.rows)
        if self._posts is not None:
            self._posts.close()

    def _compute_handed(self) -> None:
        """What is left to Python, where no event loop may be there any more to see to it."""
        number = self.functions.handed(self.rows)
        if number >= 0:
            self.compute(number)

    def numbers(self) -> ToldInC:
        """What was done so far."""
        told, sizes, times = Numbers(), (ctypes.c_uint64 * len(self._sizes))(), (ctypes.c_double * (3 * LATEST))()
        pointers = map(ctypes.addressof, (told, sizes, times))
        self.functions.statistics(self.rows, *pointers)
        waits, latencies, runs = np.ctypeslib.as_array(times).reshape(3, LATEST).tolist()
        return ToldInC(
            sizes=dict(zip(self._sizes, sizes, strict=True)), calls=told.calls, rows=told.rows, refused=told.refused,
            failed=told.failed, late=self.late, cancelled=self.cancelled,
            waiting=told.waiting, running=told.running, expected=told.expected, waits=waits[: told.waits],
            latencies=latencies[: told.waits], runs=runs[: told.runs],
        )  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "rows", None):
            self.functions.free(self.rows)


def native_calls(
    replicas: Sequence[Replica],
    sizes: Sequence[int],
    rules: Rules,
    form: RowForm,
    as_result: Callable[[Sequence[Any]], Any],
    *,
    raises: bool,
) -> NativeCalls | None:
    """The quick way, where there is one: native code can be had and can compute all batches, every output has the
    batch, and rows of results are small enough to be copied."""
    if not all(form.outputs):
        return None
    lanes = [lane for replica in replicas for lane in replica.lanes]
    runners = [runner for lane in lanes for runner in lane.values()]
    if not runners or any(runner.native_run(form.types) is None for runner in runners):
        return None
    outputs = replicas[0].output_rows()
    rows = (*form.inputs.values(), *outputs)
    if len(form.inputs) > MOST_PORTS or len(outputs) > MOST_PORTS:
        return None
    if any(len(shape) >= MOST_RANK or not math.prod(shape) for shape, _ in rows):
        return None
    if any(math.prod(shape) * dtype.itemsize > COPIED_BYTES for shape, dtype in outputs):
        return None
    library = native.build()
    if library is None:
        log.debug("A batcher without native code: %s", native.problem())
        return None
    functions = functions_of(library)
    halves = _halves(form, runners) if functions.rounds else []
    runs = [{size: runner.native_run(form.types, halves) for size, runner in lane.items()} for lane in lanes]
    plain = [{size: run for size, run in lane.items() if run is not None} for lane in runs]
    if plain != runs:
        return None
    return NativeCalls(functions, replicas, sizes, rules, form, outputs, halves, plain, as_result, raises=raises)


def _halves(form: RowForm, runners: Sequence[Runner]) -> list[str]:
    """The inputs that come to the device as float16."""
    return [
        name for name, (shape, dtype) in form.inputs.items()
        if math.prod(shape) * dtype.itemsize >= _WORTH_ROUNDING and all(name in runner.rounded for runner in runners)
    ]  # fmt: skip
