"""Kernel: what is called with one records its statements as a tree."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import numbers
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from litegpu.gpu.lang import tree
from litegpu.gpu.lang.functions import Functions, Operand
from litegpu.gpu.lang.listing import listing
from litegpu.gpu.lang.types import KernelError, Type, boolean, u32
from litegpu.gpu.lang.value import TracedValue

MAX_GROUPS = 65535  # per dimension of a dispatch, on every target
MANY_STATEMENTS = 2000  # more than a compiler digests quickly

Dim3 = tuple[int, int, int]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_log = logging.getLogger("litegpu")


class Kernel(Functions):
    """A kernel being traced, or traced.

    `workgroup`: threads of a workgroup along x, y, z. `grid`: logical workgroups along x, y, z; more than 65535 along
    x are folded into two dimensions (then y and z must be 1), see `dispatch`.
    """

    def __init__(self, name: str, workgroup: Dim3 = (64, 1, 1), grid: Dim3 = (1, 1, 1)) -> None:
        super().__init__()
        if not _NAME.match(name) or "__" in name:
            raise KernelError(f"{name!r} cannot name a kernel: letters, digits and single underscores")
        for what, dims in (("workgroup", workgroup), ("grid", grid)):
            if len(dims) != 3 or not all(isinstance(d, numbers.Integral) and d > 0 for d in dims):
                raise KernelError(f"{what} {dims!r} must be three positive integers")
        if max(grid[1:]) > MAX_GROUPS or (grid[0] > MAX_GROUPS and (grid[1:] != (1, 1) or grid[0] > MAX_GROUPS**2)):
            raise KernelError(
                f"grid {grid} cannot be dispatched: at most {MAX_GROUPS} along y and z, x alone may exceed"
            )
        self.name = name
        self.workgroup: Dim3 = (int(workgroup[0]), int(workgroup[1]), int(workgroup[2]))
        self.grid: Dim3 = (int(grid[0]), int(grid[1]), int(grid[2]))
        self.buffers: list[tree.Memory] = []
        self.shared_memories: list[tree.Memory] = []
        self.loaded: set[tree.Memory] = set()  # buffers
        self.stored: set[tree.Memory] = set()
        self.needs_subgroups = False
        self.verified = False  # set by trace, whose kernels do not change any more
        self.statement_count = 0
        self._variable_count = 0
        self._part: tuple[int, int] | None = None  # the first workgroup of the part that is being traced, and how many

    @property
    def dispatch(self) -> Dim3:
        """The physical workgroups to launch; surplus ones, if any, do nothing."""
        if self.grid[0] <= MAX_GROUPS:
            return self.grid
        rows = -(-self.grid[0] // MAX_GROUPS)
        return (-(-self.grid[0] // rows), rows, 1)

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return math.prod(self.workgroup)

    @property
    def shared_bytes(self) -> int:
        return sum(m.nbytes for m in self.shared_memories)

    def __str__(self) -> str:
        title = f"kernel {self.name} workgroup {self.workgroup} grid {self.grid}"
        return listing(title, (*self.buffers, *self.shared_memories), self.body)

    def digest(self) -> str:
        """A hash of the tree, the same in every process."""
        return hashlib.sha256(str(self).encode()).hexdigest()

    # Declarations

    def buffer(
        self, name: str, storage: Type, size: int, *, compute: Type | None = None, access: str = "read_write"
    ) -> tree.Memory:
        """A storage buffer of `size` elements of `storage`, computed with as `compute` (default: the storage type, or
        i32 / u32 of as many lanes for 8-bit, single ones of which are only read). `access` "read" is for memory that
        nothing writes during the whole program."""
        if access not in ("read", "read_write"):
            raise KernelError(f"access is 'read' or 'read_write', not {access!r}")
        if not name.isidentifier() or any(b.name == name for b in self.buffers):
            raise KernelError(f"buffer name {name!r} is taken or not an identifier")
        compute = compute or _default_compute(storage)
        if storage.kind == "bool" or compute.is_packed or not _stores(storage, compute):
            raise KernelError(f"buffer {name}: {storage} in memory cannot be computed with as {compute}")
        if storage.is_packed and storage.lanes == 1 and access != "read":
            raise KernelError(f"buffer {name}: single bytes cannot be written: use {storage}x4, or access 'read'")
        number = len(self.buffers)
        memory = tree.Memory(self, number, name, storage, compute, "global", _size(name, size), access)
        self.buffers.append(memory)
        return memory

    def shared(self, type: Type, size: int) -> tree.Memory:
        """Memory of the workgroup, `size` elements, undefined until written."""
        if type.is_packed:
            raise KernelError(f"shared memory cannot hold {type}")
        number = len(self.shared_memories)
        memory = tree.Memory(self, number, f"shared{number}", type, type, "shared", _size("shared", size), "read_write")
        self.shared_memories.append(memory)
        return memory

    def var(self, init: Operand) -> tree.Variable:
        """A mutable local; a bare Python number makes an f32 (float), u32 (int) or bool."""
        init = self._use(self._value(init))
        variable = tree.Variable(self, self._variable_count, init.type, self.block)
        self._variable_count += 1
        self._statement(tree.Declare(tree.author_line(), variable, init))
        return variable

    def array(self, size: int, init: Operand) -> tree.Array:
        """A local array of `size` elements, each `init`; indexed by Python integers."""
        init = self._use(self._value(init))
        array = tree.Array(self, self._variable_count, init.type, self.block, _size("array", size))
        self._variable_count += 1
        self._statement(tree.Declare(tree.author_line(), array, init))
        return array

    # Ids

    def local_id(self, axis: int = 0) -> TracedValue:
        """This thread's place in its workgroup, u32."""
        return self._id("local_id", axis, self.workgroup)

    def group_id(self, axis: int = 0) -> TracedValue:
        """The workgroup's place in the logical grid, u32; in a part of the kernel, its place among that's."""
        if self._part is None or axis != 0:
            return self._id("group_id", axis, self.grid)
        first, count = self._part
        return self.const(0, u32) if count == 1 else self._id("group_id", 0, self.grid) - first

    @contextlib.contextmanager
    def part(self, first: int, count: int) -> Iterator[None]:
        """What is traced here is run by `count` workgroups along x, from `first` on, as if there were no others."""
        group = self.group_id()
        with self.If((group >= first) & (group < first + count)):
            self._part = first, count
            try:
                yield
            finally:
                self._part = None

    def subgroup_size(self) -> TracedValue:
        self.needs_subgroups = True
        return self._shared("builtin", u32, (), ("subgroup_size", 0), self.body)

    def subgroup_lane(self) -> TracedValue:
        """This thread's place in its subgroup, u32."""
        self.needs_subgroups = True
        return self._shared("builtin", u32, (), ("subgroup_lane", 0), self.body)

    # Memory and variables; Memory, Variable and Array call these

    def load(self, memory: tree.Memory, index: Operand) -> TracedValue:
        if memory.space == "global":
            self.loaded.add(memory)
        return self._ordered("load", memory.type, (self._index(memory, index),), memory)

    def store(self, memory: tree.Memory, index: Operand, value: Operand) -> None:
        if memory.access == "read":
            raise KernelError(f"buffer {memory.name} is read-only: declare it with access='read_write' to store to it")
        if memory.space == "global":
            self.stored.add(memory)
        where = self._index(memory, index)
        self._statement(tree.Store(tree.author_line(), memory, where, self._typed(value, memory.type)))

    def read(self, variable: tree.Variable, element: int) -> TracedValue:
        return self._ordered("read", variable.type, (), (variable, self._element(variable, element)))

    def assign(self, variable: tree.Variable, element: int, value: Operand) -> None:
        element = self._element(variable, element)
        self._statement(tree.Assign(tree.author_line(), variable, element, self._typed(value, variable.type)))

    # Subgroups

    def subgroup_add(self, value: TracedValue) -> TracedValue:
        return self._subgroup("add", value)

    def subgroup_max(self, value: TracedValue) -> TracedValue:
        """The largest over the subgroup; with NaN in it, unspecified."""
        return self._subgroup("max", value)

    def subgroup_min(self, value: TracedValue) -> TracedValue:
        """The smallest over the subgroup; with NaN in it, unspecified."""
        return self._subgroup("min", value)

    def subgroup_shuffle_down(self, value: TracedValue, delta: Operand) -> TracedValue:
        """The value of the thread `delta` further in the subgroup; unspecified past its end."""
        return self._subgroup("shuffle_down", value, self._typed(delta, u32))

    def subgroup_shuffle_xor(self, value: TracedValue, mask: Operand) -> TracedValue:
        """The value of the thread whose place differs by the bits of `mask`."""
        return self._subgroup("shuffle_xor", value, self._typed(mask, u32))

    # Control flow

    def barrier(self) -> None:
        """Wait for the whole workgroup. Must be reached by all of its threads or none (checked)."""
        self._statement(tree.Barrier(tree.author_line()))

    @contextlib.contextmanager
    def loop(self, stop: Operand, start: Operand = 0, step: Operand = 1) -> Iterator[TracedValue]:
        """A counted loop over u32; gives the index. `stop + step` must not exceed 2**32."""
        first, last, by = (self._use(self._typed(v, u32)) for v in (start, stop, step))
        if by.is_constant(0):
            raise KernelError("a loop needs a step above 0")
        where = tree.author_line()
        once = all(isinstance(v.constant, int) for v in (first, last, by)) and _trips(first, last, by) == 1
        with self._scope() as body:
            index = first if once else self._new("index", u32, (), None, body)
            yield index
        if once:
            self._statement(tree.If(where, self.const(True, boolean), body))
        else:
            self._statement(tree.For(where, index, first, last, by, body))

    @contextlib.contextmanager
    def If(self, condition: TracedValue | bool) -> Iterator[None]:
        """The block runs where `condition` (a bool scalar) holds; k.Else() may follow at once."""
        condition = self._use(self._typed(condition, boolean))
        where = tree.author_line()
        with self._scope() as block:
            yield
        self._statement(tree.If(where, condition, block))

    @contextlib.contextmanager
    def Else(self) -> Iterator[None]:
        """The other branch of the If that ended on the statement before."""
        last = self.block.statements[-1] if self.block.statements else None
        if not isinstance(last, tree.If) or last.orelse is not None:
            raise KernelError("k.Else() must directly follow the block of a k.If(...)")
        with self._scope() as block:
            yield
        self.block.statements[-1] = replace(last, orelse=block)

    @contextlib.contextmanager
    def While(self, condition: Callable[[], TracedValue]) -> Iterator[None]:
        """Loop as long as `condition()`, which is traced once and evaluated before every round."""
        where = tree.author_line()
        with self._scope() as head:
            test = self._use(self._typed(condition(), boolean))
            with self._scope() as body:
                yield
        self._statement(tree.While(where, head, test, body))

    # Helpers

    @contextlib.contextmanager
    def _scope(self) -> Iterator[tree.Block]:
        outer = self.block
        self.block = tree.Block(outer)
        try:
            yield self.block
        finally:
            self.block = outer

    def _statement(self, statement: tree.Statement) -> None:
        self._emit(statement)
        self._count()

    def _count(self) -> None:
        self.statement_count += 1
        if self.statement_count == MANY_STATEMENTS:
            _log.warning("kernel %s has over %d statements: unroll less", self.name, MANY_STATEMENTS)

    def _ordered(self, op: str, type: Type, args: tuple[TracedValue, ...], attr: Any) -> TracedValue:
        for a in args:
            self._use(a)
        self._count()
        return self._new(op, type, args, attr, self.block)

    def _subgroup(self, op: str, value: TracedValue, *more: TracedValue) -> TracedValue:
        self._need_value(value)
        if value.type.kind == "bool":
            raise KernelError(f"subgroup_{op} is not defined on {value.type}")
        self.needs_subgroups = True
        return self._ordered("subgroup", value.type, (value, *more), op)

    def _typed(self, value: Operand, type: Type) -> TracedValue:
        """`value` as exactly `type`; a scalar of the same kind spreads over the lanes, numbers take the type."""
        if not isinstance(value, TracedValue):
            return self.const(value, type)
        if value.type != type:
            if value.type != type.scalar:
                raise KernelError(f"need {type}, got {value.type}: convert explicitly")
            value = self.splat(value, type.lanes)
        return self._use(value)

    def _index(self, memory: tree.Memory, index: Operand) -> TracedValue:
        if not isinstance(index, TracedValue) and (isinstance(index, bool) or not isinstance(index, numbers.Integral)):
            raise KernelError(f"{memory.name}[{index!r}]: the index must be u32 or a Python integer")
        if not isinstance(index, TracedValue) and index < 0:
            raise KernelError(f"{memory.name}[{index}]: negative indices do not count from the end")
        value = self._typed(index, u32)
        if value.op == "const" and value.attr >= memory.size:
            raise KernelError(f"{memory.name}[{value.attr}] is outside its {memory.size} elements")
        return value

    def _element(self, variable: tree.Variable, element: int) -> int:
        if not variable.block.encloses(self.block):
            raise KernelError("a local made inside a block is used outside of it")
        if isinstance(element, (TracedValue, bool)) or not isinstance(element, numbers.Integral):
            raise KernelError("local arrays take Python integers as indices (a run-time index would spill to memory)")
        if not 0 <= element < variable.size:
            raise KernelError(f"element {element} is outside the local array's {variable.size}")
        return int(element)

    def _id(self, name: str, axis: int, extent: Dim3) -> TracedValue:
        if axis not in (0, 1, 2):
            raise KernelError(f"{name}({axis!r}): the axis is 0, 1 or 2")
        if extent[axis] == 1:
            return self.const(0, u32)
        return self._shared("builtin", u32, (), (name, axis), self.body)


class DeviceFunction(Kernel):
    """A function with parameters that kernels written in the target's own language call: it may load and store buffers
    (which the caller hands on), but has no threads, shared memory or barriers of its own."""

    def __init__(self, name: str, types: Sequence[Type]) -> None:
        super().__init__(name, (1, 1, 1), (1, 1, 1))
        self.result: TracedValue | None = None
        self.parameters = tuple(self._new("index", t, (), None, self.body) for t in types)


def _trips(start: TracedValue, stop: TracedValue, step: TracedValue) -> int:
    first, last, by = int(start.attr), int(stop.attr), int(step.attr)
    return max(0, -(-(last - first) // by))


def _size(what: str, size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, numbers.Integral) or not 0 < size < 2**32:
        raise KernelError(f"{what}: a size of {size!r} elements; need an integer from 1 to 2**32 - 1")
    return int(size)


def _default_compute(storage: Type) -> Type:
    if storage.is_packed:
        return Type("i32" if storage.kind == "i8" else "u32", storage.lanes)
    return storage


def _stores(storage: Type, compute: Type) -> bool:
    """Whether a buffer of `storage` can be computed with as `compute`."""
    if storage.lanes != compute.lanes:
        return False
    if storage.is_packed:
        return compute.kind in (_default_compute(storage).kind, "f32")
    return storage == compute or (storage.kind == "f16" and compute.kind == "f32")
