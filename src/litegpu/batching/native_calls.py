"""The quick way of a batcher: calls that wait, put together by native code without Python's lock.

native/rows.c does it, and says how; here are its numbers, the memory of its batches, and what it leaves to Python.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu import native
from litegpu.background import leave
from litegpu.batching.batch import COPIED_BYTES, Slab, own, too_late
from litegpu.batching.collector import Rules
from litegpu.batching.sizes import Replica, RowForm
from litegpu.batching.statistics import Told
from litegpu.errors import InvokeError, LiteGpuError, QueueFullError
from litegpu.gpu.backends.abilities import NativeRun
from litegpu.native import NativeLibrary
from litegpu.replicas import named

log = logging.getLogger("litegpu")

_DONE, _PENDING, _FAILED, _CLOSED, _FULL, _NEEDS_SLAB, _NOT_PLAIN, _LATE, _HANDED, _OFF = range(10)
_MOST_PORTS, _MOST_RANK, _LATEST = 16, 8, 10_000
#: Nanoseconds after which a call comes back to Python: on the main thread, for signals; elsewhere, for whatever else.
_SLICE, _LONG_SLICE = 4_000_000, 100_000_000
_CALLS_FREE = 64
_MAIN = threading.main_thread().ident
_get_ident, _empty = threading.get_ident, np.empty


class _Setup(ctypes.Structure):
    """As rows.c has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("push", "pop", "launch", "copy_in", "copy_out", "fill", "query")),
        *((name, ctypes.c_int) for name in ("inputs", "outputs", "lanes", "sizes", "most", "most_slabs", "waiting")),
        ("raises", ctypes.c_int), ("delay", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("forms", "homes", "batches", "recipes")),
    )  # fmt: skip


class _Form(ctypes.Structure):
    """As rows.c has it."""

    _fields_ = (
        ("bytes", ctypes.c_int64), ("format", ctypes.c_char * 8), ("rank", ctypes.c_int),
        ("shape", ctypes.c_int64 * _MOST_RANK), ("floats", ctypes.c_int),
    )  # fmt: skip


class _Recipe(ctypes.Structure):
    """As rows.c has it."""

    _fields_ = (
        ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("graph", ctypes.c_void_p),
        ("watched", ctypes.c_int), ("inputs", ctypes.c_uint64 * _MOST_PORTS),
        ("outputs", ctypes.c_uint64 * _MOST_PORTS),
    )  # fmt: skip


class _Numbers(ctypes.Structure):
    """As rows.c has it."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("calls", "rows", "refused", "failed", "waiting", "running", "waits", "runs", "expected")
    )


class _Functions:
    """Those of rows.c, by their names without "litegpu_rows_"."""

    def __init__(self, library: NativeLibrary) -> None:
        address, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self.new = library.function("rows_new", address, address, ctypes.c_size_t)
        self.free = library.function("rows_free", None, address)
        self.add_slab = library.function("rows_add_slab", number, address, number, number, address)
        self.call_size = library.function("rows_call_size", ctypes.c_size_t)
        self.caller = library.function("rows_caller", ctypes.py_object, address)
        self.abandon = library.function("rows_abandon", number, address, address)
        self.take = library.function("rows_take", number, address, number, address)
        self.finish = library.function("rows_finish", None, address, number, number)
        self.watch = library.function("rows_watch", None, address, number)
        self.close = library.function("rows_close", None, address, number)
        self.turn_off = library.function("rows_turn_off", None, address)
        self.idle = library.function("rows_idle", number, address, long)
        self.borrow = library.function("rows_borrow", number, address, number, long)
        self.give_back = library.function("rows_give_back", None, address, number)
        self.rehearse = library.function("rows_rehearse", number, address, number, address, long)
        self.statistics = library.function("rows_statistics", None, address, address, address, address)


class _Call:
    """One call's memory. `told` and `serial`: what rows.c says of it. It comes back after `slice` nanoseconds."""

    __slots__ = ("_numbers", "address", "memory")

    def __init__(self, size: int, slice_: int) -> None:
        self.memory = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.memory)
        self._numbers = (ctypes.c_int64 * 4).from_buffer(self.memory)
        self._numbers[2] = slice_

    def ends(self, deadline: int) -> None:
        """When the call is late; 0 for never."""
        self._numbers[3] = deadline

    @property
    def told(self) -> int:
        return int(self._numbers[0])

    @property
    def serial(self) -> int:
        return int(self._numbers[1])


class NativeCalls:
    """Of one batcher: plain arrays in, results out, through native code. Its lanes are those of the replicas, one after
    the other; batches of Python's own borrow() them."""

    def __init__(
        self,
        functions: _Functions,
        replicas: Sequence[Replica],
        sizes: Sequence[int],
        rules: Rules,
        form: RowForm,
        outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        runs: Sequence[Mapping[int, NativeRun]],
        as_result: Callable[[Sequence[Any]], Any],
        *,
        raises: bool,
    ) -> None:
        """`outputs`: shape of a row, and type. `runs`: of each lane, by size. `raises`: rather than wait for room."""
        self._functions, self._replicas, self._sizes = functions, replicas, sizes
        self._names = tuple(form.inputs)
        self._outputs = outputs
        self._as_result = as_result
        self._rules = rules
        self._homes = [home for home, replica in enumerate(replicas) for _ in replica.lanes]
        self._runners = [lane for replica in replicas for lane in replica.lanes]
        self._free: deque[_Call] = deque(maxlen=_CALLS_FREE)
        self._free_on_main: deque[_Call] = deque(maxlen=_CALLS_FREE)
        self._shapes = [[(n, *shape) for n in range(rules.most + 1)] for shape, _ in outputs]  # by output and rows
        self._types = [dtype for _, dtype in outputs]
        self.is_simple = len(form.inputs) == len(outputs) == 1
        self._errors: dict[int, BaseException] = {}
        self._slabs: list[tuple[Slab, list[np.ndarray]]] = []  # by tag; memory of batches and results
        self._growing = threading.Lock()
        self.off = False
        self.late = 0  # calls whose time was over
        rows = (*form.inputs.values(), *outputs)
        forms = (_Form * len(rows))(*(_form(shape, dtype) for shape, dtype in rows))
        recipes = (_Recipe * (len(runs) * len(sizes)))(*(
            _recipe(lane[size], list(self._runners[i][size].inputs.values()), self._runners[i][size].outputs)
            for i, lane in enumerate(runs)
            for size in sizes
        ))  # fmt: skip
        one = runs[0][sizes[0]]
        homes, batches = (ctypes.c_int * len(runs))(*self._homes), (ctypes.c_int * len(sizes))(*sizes)
        setup = _Setup(
            one.push, one.pop, one.launch, one.copy_in, one.copy_out, one.fill, one.query,
            len(form.inputs), len(outputs), len(runs), len(sizes), rules.most,
            len(runs) + len(replicas) + -(-rules.waiting // rules.most), rules.waiting, raises, int(rules.delay * 1e9),
            *(ctypes.addressof(table) for table in (forms, homes, batches, recipes)),
        )  # fmt: skip
        self._call_size = functions.call_size()
        self._rows = functions.new(ctypes.addressof(setup), ctypes.sizeof(setup))
        if not self._rows:
            raise MemoryError("no memory for the batcher")
        self._native = functions.caller(self._rows)
        #: Rows that wait in Python, for native code to know, and rows that wait there.
        self.outside, self.inside = (ctypes.c_int.from_address(self._rows + 4 * i) for i in range(2))
        for home in (*self._homes, *range(len(replicas))):
            self._grow(home)

    def call(self, inputs: tuple[Any, ...], deadline: int = 0) -> Any:
        """What a call with these arrays, of NumPy, gives; None if they are not plain, or native code is not to be used
        any more. `deadline`: nanoseconds of the clock, 0 for none. Raises as Batcher's calls do."""
        try:
            rows = len(inputs[0])
            outputs = [_empty(shapes[rows], dtype) for shapes, dtype in zip(self._shapes, self._types, strict=True)]
        except (TypeError, IndexError):  # an array without rows, or of too many
            return None
        call: _Call | None = None
        try:
            call = self._taken()
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
        call: _Call | None = None
        try:
            free = self._free if _get_ident() != _MAIN else self._free_on_main
            try:
                call = free.pop()
            except IndexError:
                call = self._taken()
            found = self._native(call.address, array, output)
            if found == _DONE:
                free.append(call)
                return output
            return output if self._ended(call, found, (array,), (output,)) else None
        except BaseException:
            if call is not None:
                self._abandon(call, (array,), (output,))
            raise

    def _taken(self) -> _Call:
        """Memory for a call of this thread."""
        free, slice_ = (self._free, _LONG_SLICE) if _get_ident() != _MAIN else (self._free_on_main, _SLICE)
        try:
            return free.pop()
        except IndexError:
            return _Call(self._call_size, slice_)

    def _ended(self, call: _Call, found: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Whether the call that has come to `found` ends with results, sooner or later; else it has to be made in
        Python. Raises what it ends with."""
        while found != _DONE:
            if found == _NEEDS_SLAB:
                self._grow(call.told)
            elif found == _HANDED:
                leave(functools.partial(self._compute, call.told))
            elif found != _PENDING:
                break
            found = self._native(call.address, *inputs, *outputs)
        if found == _LATE:
            self.late += 1
            raise too_late("before the result was there" if call.told else "before there was room for its rows")
        call.ends(0)
        (self._free if _get_ident() != _MAIN else self._free_on_main).append(call)
        if found == _FAILED:
            raise own(self._errors.get(call.serial) or InvokeError("the batch failed"))
        if found == _CLOSED:
            raise InvokeError("The batcher is closed")
        if found == _FULL:
            raise QueueFullError(
                f"{self.inside.value + self.outside.value} rows wait already, and there is room for "
                f"{self._rules.waiting}: call later, or give max_waiting or when_full='wait'"
            )
        return found == _DONE

    def _abandon(self, call: _Call, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if not self._functions.abandon(self._rows, call.address):  # its batch runs, and nobody else looks after it
            call.ends(0)

            def see_to_it() -> None:
                self._ended(call, _PENDING, inputs, outputs)

            leave(see_to_it)

    def _grow(self, home: int) -> None:
        """Memory for one more batch, where that is allowed."""
        with self._growing:
            replica, most = self._replicas[home], self._rules.most
            slab = Slab(replica.empty_inputs(), home)
            results = [replica.empty((most, *shape), dtype) for shape, dtype in self._outputs]
            memory = [*(slab.arrays[name] for name in self._names), *results]
            self._slabs.append((slab, results))  # for good, also if an interruption comes next
            addresses = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for array in memory))
            if not self._functions.add_slab(self._rows, home, len(self._slabs) - 1, addresses):
                self._slabs.pop()

    def _compute(self, number: int) -> None:
        """Compute a batch that native code could not, in the ordinary way."""
        told = (ctypes.c_int64 * 5)()
        if not self._functions.take(self._rows, number, told):
            return
        lane, size, tag, serial, rows = told
        slab, results = self._slabs[tag]
        runner = self._runners[lane][size]
        try:
            for array in slab.arrays.values():
                array[rows:size] = 0
            found = runner.run({name: array[:size] for name, array in slab.arrays.items()})
            for result, array in zip(results, found, strict=True):
                result[:size] = array
        except BaseException as error:
            while len(self._errors) > _CALLS_FREE:
                self._errors.pop(next(iter(self._errors)))
            self._errors[serial] = self._named(error, lane)
        finally:
            self.check(lane)
            self._functions.watch(self._rows, runner.watched)
            self._functions.finish(self._rows, number, serial not in self._errors)

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
        self._functions.turn_off(self._rows)

    def borrow(self, lane: int) -> None:
        """Have a lane for a batch of Python's own until give_back()."""
        while not self._functions.borrow(self._rows, lane, _SLICE):
            pass

    def give_back(self, lane: int) -> None:
        self._functions.give_back(self._rows, lane)

    def close(self, *, drain: bool) -> None:
        """Take no more calls; without `drain` end those that wait with InvokeError."""
        self._functions.close(self._rows, drain)

    def settle(self) -> None:
        """Return when nothing runs or waits, once closed."""
        while not self._functions.idle(self._rows, _SLICE):
            pass

    def numbers(self) -> Told:
        """What was done so far."""
        told, sizes, times = _Numbers(), (ctypes.c_uint64 * len(self._sizes))(), (ctypes.c_double * (3 * _LATEST))()
        pointers = map(ctypes.addressof, (told, sizes, times))
        self._functions.statistics(self._rows, *pointers)
        waits, latencies, runs = np.ctypeslib.as_array(times).reshape(3, _LATEST).tolist()
        return Told(
            sizes=dict(zip(self._sizes, sizes, strict=True)), calls=told.calls, rows=told.rows, refused=told.refused,
            failed=told.failed, late=self.late,
            waiting=told.waiting, running=told.running, expected=told.expected, waits=waits[: told.waits],
            latencies=latencies[: told.waits], runs=runs[: told.runs],
        )  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_rows", None):
            self._functions.free(self._rows)


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
    types = {name: dtype for name, (_, dtype) in form.inputs.items()}
    runs = [{size: runner.native_run(types) for size, runner in lane.items()} for r in replicas for lane in r.lanes]
    plain = [{size: run for size, run in lane.items() if run is not None} for lane in runs]
    if not runs or plain != runs:
        return None
    outputs = replicas[0].output_rows()
    rows = (*form.inputs.values(), *outputs)
    if len(form.inputs) > _MOST_PORTS or len(outputs) > _MOST_PORTS:
        return None
    if any(len(shape) >= _MOST_RANK or not math.prod(shape) for shape, _ in rows):
        return None
    if any(math.prod(shape) * dtype.itemsize > COPIED_BYTES for shape, dtype in outputs):
        return None
    library = native.build()
    if library is None:
        log.debug("A batcher without native code: %s", native.problem())
        return None
    return NativeCalls(_functions(library), replicas, sizes, rules, form, outputs, plain, as_result, raises=raises)


@functools.cache
def _functions(library: NativeLibrary) -> _Functions:
    return _Functions(library)


def _form(shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Form:
    sizes = (ctypes.c_int64 * _MOST_RANK)(-1, *shape)
    letter = np.empty(0, dtype).data.format.encode()
    return _Form(math.prod(shape) * dtype.itemsize, letter, 1 + len(shape), sizes, dtype == np.float32)


def _recipe(run: NativeRun, inputs: Sequence[int], outputs: Sequence[int]) -> _Recipe:
    found = _Recipe(run.context, run.stream, run.graph, 1)
    for i, place in enumerate(inputs):
        found.inputs[i] = run.inputs[place]
    for i, place in enumerate(outputs):
        found.outputs[i] = run.outputs[place]
    return found
