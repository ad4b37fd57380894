"""Run a kernel in NumPy: the definition of the language, which also checks bounds, races and barriers.

All threads of many workgroups advance together, a statement at a time, under a mask of those that are active. A race
is two threads of which one stores to an element that the other loads, or stores different values to it, with nothing
that orders them: a barrier orders threads of one workgroup, nothing orders threads of different workgroups.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from litegpu.gpu.lang import ops, tree
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.ops import Array
from litegpu.gpu.lang.types import KernelError
from litegpu.gpu.lang.value import TracedValue
from litegpu.gpu.lang.verify import verify

ROWS_AT_ONCE = 1 << 16
_NOBODY, _MANY = -1, -2


def run(kernel: Kernel, arrays: Mapping[str, Array], subgroup_size: int = 32) -> None:
    """Run the whole grid. `arrays` holds, by buffer name, C-contiguous arrays of the storage's kind with size * lanes
    elements in any shape (size * 4 for three lanes); they are changed in place.

    Raises KernelError naming the author's line for an index out of bounds, a race, a load of shared memory that was
    never stored, or a barrier that only some threads of a workgroup reach.
    """
    if not kernel.verified:
        verify(kernel)
    buffers = {b: _Memory(b, _rows_of(kernel, b, arrays)) for b in kernel.buffers}
    groups = int(np.prod(kernel.grid))
    step = max(1, ROWS_AT_ONCE // kernel.threads)
    for first in range(0, groups, step):
        _Run(kernel, buffers, np.arange(first, min(first + step, groups)), subgroup_size).run()


def _rows_of(kernel: Kernel, b: tree.Memory, arrays: Mapping[str, Array]) -> Array:
    if b.name not in arrays:
        raise KernelError(f"kernel {kernel.name}: no array for buffer {b.name}")
    array, lanes = arrays[b.name], _stride(b)
    if array.dtype != ops.NUMPY[b.storage.kind] or array.size != b.size * lanes or not array.flags.c_contiguous:
        raise KernelError(
            f"kernel {kernel.name}: buffer {b.name} needs a C-contiguous array of {b.size * lanes} {b.storage.kind}, "
            f"got {array.size} {array.dtype}"
        )
    return array.reshape(b.size, lanes)


def _stride(b: tree.Memory) -> int:
    return 4 if b.storage.lanes == 3 else b.storage.lanes


class _Memory:
    """The elements of a buffer, or of one shared array in each workgroup, and, unless it is only read, who touched them
    last."""

    def __init__(self, memory: tree.Memory, data: Array) -> None:
        self.memory, self.data = memory, data
        n = len(data) if memory.access == "read_write" else 0
        self.writer, self.reader = (np.full(n, _NOBODY, np.int64) for _ in range(2))  # thread
        self.reader_group = np.full(n, _NOBODY, np.int64)
        self.write_phase, self.read_phase = (np.zeros(n, np.int64) for _ in range(2))  # barriers passed

    def load(self, where: Array, thread: Array, group: Array, phase: Array, threads: int) -> Array:
        """`where` etc.: one entry per active thread. Raises _Race."""
        if self.memory.access == "read_write":
            writer = self.writer[where]
            foreign = (writer >= 0) & (writer != thread)
            if np.any(foreign & ((writer // threads != group) | (self.write_phase[where] == phase))):
                raise _Race("loads what another thread stored, with no barrier between them")
            self._note_reading(where, thread, group, phase)
        lanes = self.memory.type.lanes
        values = ops.cast(self.data[where, :lanes], self.memory.type.kind)
        return values if lanes > 1 else values[:, 0]

    def _note_reading(self, where: Array, thread: Array, group: Array, phase: Array) -> None:
        known, known_group = self.reader[where], self.reader_group[where]
        stale = (known == _NOBODY) | ((known_group == group) & (self.read_phase[where] < phase))
        alone = stale | (known == thread)
        same_group = stale | (known_group == group)
        self.reader[where] = np.where(alone, thread, _MANY)
        self.reader_group[where] = np.where(same_group, group, _MANY)
        self.reader[where[self.reader[where] != np.where(alone, thread, _MANY)]] = _MANY
        self.reader_group[where[self.reader_group[where] != np.where(same_group, group, _MANY)]] = _MANY
        self.read_phase[where] = phase

    def store(self, where: Array, values: Array, thread: Array, group: Array, phase: Array, threads: int) -> None:
        values = _to_storage(values, self.memory.storage.kind).reshape(len(where), -1)
        reader, reader_group = self.reader[where], self.reader_group[where]
        read = (reader != _NOBODY) & (reader != thread)
        if np.any(read & ((reader_group != group) | (self.read_phase[where] == phase))):
            raise _Race("stores to what another thread loads, with no barrier between them")
        lanes = values.shape[1]
        writer = self.writer[where]
        foreign = (writer >= 0) & (writer != thread)
        foreign &= (writer // threads != group) | (self.write_phase[where] == phase)
        if np.any(foreign & ~_same(self.data[where, :lanes], values)):
            raise _Race("stores another value than a thread that nothing orders before it")
        self.data[where, :lanes] = values
        self.writer[where] = thread
        self.write_phase[where] = phase
        if not np.all(_same(self.data[where, :lanes], values)):
            raise _Race("stores different values to one element from several threads at once")


class _Race(Exception):
    pass


class _Run:
    """Some workgroups of a launch; one row per thread."""

    def __init__(self, kernel: Kernel, buffers: Mapping[tree.Memory, _Memory], groups: Array, subgroup: int) -> None:
        self.kernel, self.subgroup = kernel, subgroup
        threads = kernel.threads
        self.threads = threads
        self.rows = len(groups) * threads
        self.group = np.repeat(groups, threads)
        local = np.tile(np.arange(threads), len(groups))
        self.thread = self.group * threads + local
        self.phase = np.zeros(self.rows, np.int64)
        self.slot = np.repeat(np.arange(len(groups)), threads)  # the workgroup's place in this run
        self.ids = {
            **{("local_id", axis): v for axis, v in enumerate(_unravel(local, kernel.workgroup))},
            **{("group_id", axis): v for axis, v in enumerate(_unravel(self.group, kernel.grid))},
            ("subgroup_size", 0): np.full(self.rows, subgroup, np.uint32),
            ("subgroup_lane", 0): (local % subgroup).astype(np.uint32),
        }
        self.memories: dict[tree.Memory, _Memory] = dict(buffers)
        for m in kernel.shared_memories:
            data = np.zeros((len(groups) * m.size, _stride(m)), ops.NUMPY[m.storage.kind])
            self.memories[m] = _Memory(m, data)
        self.values: dict[int, Array] = {}
        self.locals: dict[tuple[int, int], Array] = {}

    def run(self) -> None:
        self._block(self.kernel.body, np.ones(self.rows, np.bool_))

    def _block(self, block: tree.Block, active: Array) -> None:
        for s in block.statements:
            try:
                self._statement(s, active)
            except _Race as race:
                raise self._error(s, f"race: {race}") from None

    def _statement(self, s: tree.Statement, active: Array) -> None:
        match s:
            case tree.Bind():
                self.values[s.value.number] = self._evaluate(s, s.value, active)
            case tree.Declare():
                for element in range(s.variable.size):
                    self._assign(s.variable, element, self._get(s.init), active)
            case tree.Assign():
                self._assign(s.variable, s.element, self._get(s.value), active)
            case tree.Store():
                where = self._indices(s, s.memory, s.index, active)
                value = np.broadcast_to(self._get(s.value), self._shape(s.value))[active]
                self.memories[s.memory].store(where, value, *self._who(active))
            case tree.Barrier():
                self._barrier(s, active)
            case tree.If():
                condition = np.broadcast_to(self._get(s.condition), (self.rows,))
                self._branch(s.then, active & condition)
                if s.orelse is not None:
                    self._branch(s.orelse, active & ~condition)
            case tree.For():
                self._for(s, active)
            case tree.While():
                while True:
                    self._block(s.head, active)
                    active = active & self._get(s.condition)
                    if not active.any():
                        break
                    self._block(s.body, active)

    def _branch(self, block: tree.Block, active: Array) -> None:
        if active.any():
            self._block(block, active)

    def _for(self, s: tree.For, active: Array) -> None:
        start, stop, step = (np.broadcast_to(self._get(v), (self.rows,)).astype(np.int64) for v in _bounds(s))
        if np.any(active & ((step == 0) | (stop + step > 2**32))):
            raise self._error(s, "the loop's stop + step passes 2**32, or its step is 0")
        index = start.copy()
        while True:
            active = active & (index < stop)
            if not active.any():
                return
            self.values[s.index.number] = index.astype(np.uint32)
            self._block(s.body, active)
            index = index + step

    def _barrier(self, s: tree.Statement, active: Array) -> None:
        arrived = active.reshape(-1, self.threads)
        if np.any(arrived.any(axis=1) & ~arrived.all(axis=1)):
            raise self._error(s, "only some threads of a workgroup reach the barrier")
        self.phase[active] += 1

    def _assign(self, variable: tree.Variable, element: int, value: Array, active: Array) -> None:
        key = (variable.number, element)
        shape = (self.rows, variable.type.lanes) if variable.type.lanes > 1 else (self.rows,)
        value = np.broadcast_to(value, shape)
        if not active.all():
            mask = active if value.ndim == 1 else active[:, None]
            value = np.where(mask, value, self.locals.get(key, value))
        self.locals[key] = value

    def _evaluate(self, s: tree.Statement, v: TracedValue, active: Array) -> Array:
        match v.op:
            case "load":
                where = self._indices(s, v.attr, v.args[0], active)
                result = np.zeros(self._shape(v), ops.NUMPY[v.type.kind])
                memory = self.memories[v.attr]
                if v.attr.space == "shared" and np.any(memory.writer[where] == _NOBODY):
                    raise self._error(s, "loads shared memory that was never stored")
                result[active] = memory.load(where, *self._who(active))
                return result
            case "read":
                return self.locals[v.attr[0].number, v.attr[1]]
            case "subgroup":
                return self._subgroup(v)
        args = [self._get(a) for a in v.args]
        match v.op:
            case "cast":
                return ops.cast(args[0], v.type.kind)
            case "bitcast":
                return ops.bitcast(args[0], v.type.kind)
            case "splat":
                return np.repeat(args[0][:, None], v.type.lanes, axis=1)
            case "vec":
                return np.stack(np.broadcast_arrays(*args), axis=-1)
            case "lane":
                return args[0][:, v.attr]
        return ops.evaluate(v.op, args)

    def _get(self, value: TracedValue) -> Array:
        if value.op == "const":
            shape = (1, value.type.lanes) if value.type.lanes > 1 else (1,)
            return np.full(shape, value.constant, ops.NUMPY[value.type.kind])
        if value.op == "builtin":
            return self.ids[value.attr]
        return self.values[value.number]

    def _shape(self, value: TracedValue) -> tuple[int, ...]:
        return (self.rows, value.type.lanes) if value.type.lanes > 1 else (self.rows,)

    def _who(self, active: Array) -> tuple[Array, Array, Array, int]:
        return self.thread[active], self.group[active], self.phase[active], self.threads

    def _indices(self, s: tree.Statement, memory: tree.Memory, index: TracedValue, active: Array) -> Array:
        where = np.broadcast_to(self._get(index), (self.rows,))[active].astype(np.int64)
        if np.any(where >= memory.size):
            raise self._error(s, f"{memory.name}[{where.max()}] is outside its {memory.size} elements")
        return where + self.slot[active] * memory.size if memory.space == "shared" else where

    def _subgroup(self, v: TracedValue) -> Array:
        """Each run of `subgroup` threads of a workgroup is one; the last may be short."""
        value = np.broadcast_to(self._get(v.args[0]), self._shape(v.args[0]))
        place = np.arange(self.rows) % self.threads
        lane = place % self.subgroup
        first = np.arange(self.rows) - lane
        size = np.minimum(self.subgroup, self.threads - (place - lane))
        if v.attr in ("shuffle_down", "shuffle_xor"):
            by = np.broadcast_to(self._get(v.args[1]), (self.rows,)).astype(np.int64)
            other = lane + by if v.attr == "shuffle_down" else lane ^ by
            return value[np.where(other < size, first + other, np.arange(self.rows))]
        combine: Any = {"add": np.add, "max": np.maximum, "min": np.minimum}[v.attr]
        starts = np.flatnonzero(lane == 0)
        with np.errstate(all="ignore"):
            totals = combine.reduceat(value, starts, axis=0)
        return np.repeat(totals, size[starts], axis=0).astype(value.dtype)

    def _error(self, s: tree.Statement, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}: {s.where}: {message}")


def _bounds(s: tree.For) -> tuple[TracedValue, TracedValue, TracedValue]:
    return s.start, s.stop, s.step


def _unravel(linear: Array, extent: tuple[int, int, int]) -> list[Array]:
    """Coordinates along x, y, z, with x fastest."""
    strides = itertools.accumulate((1, *extent[:2]), lambda a, b: a * b)
    return [(linear // stride % n).astype(np.uint32) for stride, n in zip(strides, extent, strict=True)]


def _to_storage(values: Array, kind: str) -> Array:
    """As `ops.cast`, but packed 8-bit elements saturate."""
    if kind in ("i8", "u8"):
        info = np.iinfo(ops.NUMPY[kind])
        return np.clip(np.trunc(values), info.min, info.max).astype(ops.NUMPY[kind])
    return ops.cast(values, kind)


def _same(a: Array, b: Array) -> Array:
    """Rows equal, NaN counting as equal to itself."""
    equal = a == b
    if a.dtype.kind == "f":
        equal |= np.isnan(a) & np.isnan(b)
    return np.asarray(equal.all(axis=1))
