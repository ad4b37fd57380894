"""How kernels read operands and write the output: by quads of channels, whatever the layout of the view."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.cached import cached_property
from litegpu.gpu import graph
from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.expression import Argument, boolean_to, constant, evaluate, unlimited
from litegpu.gpu.lang import (
    Kernel,
    Memory,
    TracedValue,
    Type,
    boolean,
    f16,
    f32,
    i8,
    i8x4,
    i32,
    i32x4,
    u8,
    u8x4,
    u32,
    u32x2,
    u32x4,
    vec,
)
from litegpu.gpu.view import View, padded

Index = TracedValue | int  # a u32 value, or a number known when tracing
Operands = dict[str, View | np.ndarray]

_BYTE_BOUNDS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}
STORAGE: dict[DType, Type] = {DType.FLOAT32: f32, DType.FLOAT16: f16, DType.INT32: i32, DType.BOOL: i32}
LOADED: dict[DType, Type] = {DType.FLOAT32: f32, DType.FLOAT16: f32, DType.INT32: i32, DType.BOOL: i32}
COMPUTE: dict[DType, Type] = {
    **{DType.FLOAT32: f32, DType.FLOAT16: f32, DType.INT32: i32, DType.BOOL: boolean},
    **dict.fromkeys((DType.INT8, DType.UINT8, DType.INT16), i32),
}
#: Four elements of a narrow type in memory; one element is a part of a word.
_NARROW: dict[DType, Type] = {DType.INT8: i8x4, DType.UINT8: u8x4, DType.INT16: u32x2}


class Position:
    """Four channels of a pixel of a value of `shape`, given by the quad's linear index `flat`, by the linear index
    `pixel` with `q`, by all of these, or by `coordinates` (b, y, x, q).

    What was not given is computed when first asked for, so that dense views need no division. Ask for it in the block
    in which the position was made.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        flat: Index | None = None,
        pixel: Index | None = None,
        q: Index | None = None,
        coordinates: tuple[Index, Index, Index, Index] | None = None,
    ) -> None:
        self.shape = shape
        self.flat = flat
        self._pixel, self._q, self._coordinates = pixel, q, coordinates

    @cached_property
    def pixel(self) -> Index | None:
        """The index of (b, y, x) in row-major order, unless the position was made from coordinates."""
        return self._pixel if self.flat is None or self._pixel is not None else divide(self.flat, self._quads)

    @cached_property
    def q(self) -> Index:
        if self._coordinates is not None:
            return self._coordinates[3]
        if self._q is not None:
            return self._q
        return 0 if self.flat is None else remainder(self.flat, self._quads, self._total)

    @cached_property
    def b(self) -> Index:
        if self.pixel is None:
            return self._given[0]
        b, h, w, _ = self.shape
        return 0 if b == 1 else divide(self.pixel, h * w)

    @cached_property
    def y(self) -> Index:
        if self.pixel is None:
            return self._given[1]
        b, h, w, _ = self.shape
        return 0 if h == 1 else remainder(divide(self.pixel, w), h, b * h)

    @cached_property
    def x(self) -> Index:
        if self.pixel is None:
            return self._given[2]
        b, h, w, _ = self.shape
        return remainder(self.pixel, w, b * h * w)

    @property
    def is_linear(self) -> bool:
        return self._coordinates is None

    @property
    def _given(self) -> tuple[Index, Index, Index, Index]:
        assert self._coordinates is not None
        return self._coordinates

    @property
    def _quads(self) -> int:
        return -(-self.shape[3] // 4)

    @property
    def _total(self) -> int:
        return math.prod(self.shape[:3]) * self._quads


@dataclass(frozen=True, eq=False)
class Source:
    """A value being read in a kernel: a view of the arena, or a constant.

    Results have the compute type: float32 for FLOAT32 and FLOAT16, int32, or bool. Coordinates are u32 values or
    Python ints, and in range. Memories are declared when first used, one with vector and one with scalar elements.
    """

    k: Kernel
    view: View
    operands: Operands
    name: str
    data: np.ndarray | None = None  # a constant, as the caller's graph has it, B,H,W,C

    def quad(self, b: Index, y: Index, x: Index, q: Index) -> TracedValue:
        """Channels 4q to 4q+3; lanes past the last channel are zero (False)."""
        if self._single is not None:
            return self._filled([self._single])
        return self._quad(_pixel_terms(self.view, b, y, x), q)

    def at(self, b: Index, y: Index, x: Index, c: Index) -> TracedValue:
        """One element."""
        if self._single is not None:
            return self._single
        terms = _pixel_terms(self.view, b, y, x)
        if isinstance(c, int) and self.view.vector:
            return self._vector(terms, c // 4)[c % 4]
        strides = self.view.strides
        return self._scalar(address(self.view.offset, [*terms, (c, strides[3])]))

    def word(self, b: Index, y: Index, x: Index, q: Index) -> TracedValue:
        """Channels 4q to 4q+3 of a value of bytes as the signed bytes of an i32, those of UINT8 less 128; what is in
        lanes past the last channel is unspecified."""
        k, view = self.k, self.view
        if view.quads == 1:
            q = 0
        words = self._memory(1)
        if view.vector:
            quarter = [(i, stride // 4) for i, stride in _pixel_terms(view, b, y, x)]
            word = words[address(view.offset // 4, [*quarter, (q, 1)])]
        elif view.strides[3] == 1:  # four neighbours that two words share
            first = _value(k, address(view.offset, [*_pixel_terms(view, b, y, x), (q, 4)]))
            low, bits = first // 4, first % 4 * 8
            next_word = words[k.min(low + 1, words.size - 1)]
            word = (words[low] >> bits) | k.select(bits == 0, k.const(0, u32), next_word << (32 - bits))
        else:
            quad = self.quad(b, y, x, q)
            bytes_ = [k.bitcast(quad[j], u32) & 255 for j in range(4)]
            word = bytes_[0] | bytes_[1] << 8 | bytes_[2] << 16 | bytes_[3] << 24
        return k.bitcast(word ^ 0x80808080 if view.dtype is DType.UINT8 else word, i32)

    @property
    def has_words(self) -> bool:
        """Whether 16 channels at a time, of a value of bytes, lie in one aligned piece of memory, and nothing else."""
        view = self.view
        strides = [s for s, n in zip(view.strides[:3], view.shape[:3], strict=True) if n > 1]
        whole = not any(n % 16 for n in (*strides, view.offset, view.size, view.shape[3]))
        return self.data is None and view.dtype.nbytes == 1 and view.strides[3] == 1 and whole

    def words(self, b: Index, y: Index, x: Index, i: Index) -> TracedValue:
        """Channels 16i to 16i+15 as four of word(), where has_words."""
        k, view = self.k, self.view
        piece = [(at, stride // 16) for at, stride in _pixel_terms(view, b, y, x)]
        words = declare(k, self.name, view, 16, self.operands, None)[address(view.offset // 16, [*piece, (i, 1)])]
        return k.bitcast(words ^ 0x80808080 if view.dtype is DType.UINT8 else words, i32x4)

    def broadcast(self, b: Index, y: Index, x: Index, q: Index) -> TracedValue:
        """As `quad`, for an operand that is broadcast to the output at these coordinates: axes of size 1 are read at
        0, and a single channel is in all lanes."""
        return self.read(Position(self.view.shape, coordinates=(b, y, x, q)), spread=True)

    def read(self, at: Position, *, spread: bool | None = None) -> TracedValue:
        """`broadcast` at a position of the output's shape; `spread` says whether one channel fills all lanes
        (otherwise it does when the position's shape has more channels than one)."""
        if self._single is not None:
            return self.k.splat(self._single, 4)
        n = self.view.shape
        if spread is None:
            spread = at.shape[3] > 1
        if at.flat is not None and n == at.shape and self.view.dense:
            return self._four(address(self.view.offset // 4, [(at.flat, 1)]))
        if at.is_linear and n[:3] == at.shape[:3] and _linear_pixels(self.view):
            pixel = at.pixel
            terms = [] if pixel is None or math.prod(n[:3]) == 1 else [(pixel, _pixel_stride(self.view))]
        else:
            terms = _pixel_terms(
                self.view,
                0 if n[0] == 1 else at.b,
                0 if n[1] == 1 else at.y,
                0 if n[2] == 1 else at.x,
            )
        if n[3] == 1 and spread:
            vector = self.view.vector
            one = self._vector(terms, 0)[0] if vector else self._scalar(address(self.view.offset, terms))
            return self.k.splat(one, 4)
        return self._quad(terms, at.q)

    # ------------------------------------------------------------------------------------------------- loads

    @cached_property
    def _single(self) -> TracedValue | None:
        """A constant of one element is part of the kernel's text."""
        if self.data is None or self.data.size != 1:
            return None
        return constant(self.k, self.data.reshape(-1)[0].item(), COMPUTE[self.view.dtype])

    def _quad(self, terms: list[tuple[Index, int]], q: Index) -> TracedValue:
        view, k = self.view, self.k
        c = view.shape[3]
        if view.quads == 1:
            q = 0
        if view.vector:
            v = self._vector(terms, q)
            return v if view.whole_quads else mask(k, v, c, q)
        first = address(view.offset, [*terms, (q, 4 * view.strides[3])])
        last = is_last(q, view.quads)
        lanes: list[TracedValue] = []
        for j in range(4):
            i = _plus(first, j * view.strides[3])
            if c % 4 == 0 or j < c % 4 or last is False:
                lanes.append(self._scalar(i))
            elif last is True:
                break
            else:  # read some element that exists, and forget it
                value = self._scalar(k.select(last, _value(k, first), _value(k, i)))
                lanes.append(k.select(last, constant(k, 0, COMPUTE[view.dtype]), value))
        return self._filled(lanes)

    def _vector(self, terms: list[tuple[Index, int]], q: Index) -> TracedValue:
        quarter = [(i, stride // 4) for i, stride in terms]
        return self._four(address(self.view.offset // 4, [*quarter, (q, 1)]))

    def _four(self, i: Index) -> TracedValue:
        """Elements 4i to 4i+3 of the memory."""
        v = self._memory(4)[i]
        if self.view.dtype is DType.UINT8:
            return i32x4(v)
        if self.view.dtype is DType.INT16:
            low, high = (self.k.bitcast(v[j], i32) for j in (0, 1))
            return self.k.vec(low << 16 >> 16, low >> 16, high << 16 >> 16, high >> 16)
        return self._computed(v)

    def _scalar(self, i: Index) -> TracedValue:
        """Element i of the memory."""
        if not self.view.dtype.is_narrow:
            return self._computed(self._memory(1)[i])
        bits = 8 * self.view.dtype.nbytes
        i = _value(self.k, i)
        word = self._memory(1)[i // (32 // bits)]
        above = 32 - bits - i % (32 // bits) * bits  # bits of the word over those of the element
        if self.view.dtype is DType.UINT8:
            return i32(word << above >> (32 - bits))
        return self.k.bitcast(word << above, i32) >> (32 - bits)

    def _filled(self, lanes: list[TracedValue]) -> TracedValue:
        """Four lanes, those that are missing zero."""
        zero = constant(self.k, 0, COMPUTE[self.view.dtype])
        return self.k.vec(*lanes, *[zero] * (4 - len(lanes)))

    def _computed(self, v: TracedValue) -> TracedValue:
        return boolean_to(self.k, v, boolean) if self.view.dtype is DType.BOOL else v

    def _memory(self, lanes: int) -> Memory:
        return declare(self.k, self.name, self.view, lanes, self.operands, self._packed)

    @cached_property
    def _packed(self) -> np.ndarray | None:
        return None if self.data is None else pack(self.data)


@dataclass(frozen=True, eq=False)
class Sink:
    """The node's output: applies the epilogue and stores, whatever the layout of the view."""

    ctx: KernelContext
    k: Kernel
    view: View
    operands: Operands
    sources: tuple[Source | Memory | None, ...]  # of the epilogue's operands; None where it does not use one

    def store(self, b: Index, y: Index, x: Index, q: Index, result: TracedValue | None = None) -> None:
        """Store the epilogue of `result` (four lanes of the op's result; None for Elementwise) in channels 4q to 4q+3.
        Lanes past the last channel are stored as zeros, or not at all where they belong to other values."""
        self.write(Position(self.view.shape, coordinates=(b, y, x, q)), result)

    def write(self, at: Position, result: TracedValue | None = None) -> None:
        """`store` at a position of the output's shape."""
        self._put(at, self._finished(at, result))

    def write_all(
        self,
        places: Sequence[Position],
        results: Sequence[TracedValue | None],
        inside: Sequence[TracedValue | bool] | None = None,
    ) -> None:
        """`write` at several positions, of those that are not `inside` nothing: all that the epilogue reads is read
        before anything is stored, so that the loads are under way together. (What is stored may lie where the epilogue
        reads, at the same position.)"""
        values = [self._finished(at, result) for at, result in zip(places, results, strict=True)]
        for i, (at, value) in enumerate(zip(places, values, strict=True)):
            if inside is None:
                self._put(at, value)
            else:
                with self.k.If(inside[i]):
                    self._put(at, value)

    def _finished(self, at: Position, result: TracedValue | None) -> TracedValue:
        """Four lanes of what is to be stored."""
        args: list[Argument] = [] if isinstance(self.ctx.node.op, graph.Elementwise) else [result]
        found = iter(read_all([None if isinstance(s, Memory) else s for s in self.sources], at))
        args += [s if isinstance(s, Memory) else value for s, value in zip(self.sources, found, strict=True)]
        expr = self.ctx.node.epilogue
        bounds = byte_bounds(self.view.dtype)
        if bounds is not None:  # what is stored is limited as bytes are
            expr = unlimited(expr, *bounds)
        value = evaluate(self.k, expr, args, rough=self.ctx.half)
        return value if value.type.lanes == 4 else self.k.splat(value, 4)

    @property
    def one_run(self) -> bool:
        """Whether elements lie one behind the other, though pixels do not begin at multiples of four."""
        n, view = self.view.shape, self.view
        wanted = (n[1] * n[2] * n[3], n[2] * n[3], n[3], 1)
        rows = all(s == want or size == 1 for s, want, size in zip(view.strides, wanted, n, strict=True))
        return rows and n[3] % 4 != 0 and not view.zero_padded and not view.dtype.is_narrow

    def elements(self, at: Position, result: TracedValue | None = None) -> TracedValue:
        """What `write` would store, four lanes, for `put_element`."""
        return self._kept(self._finished(at, result))

    def put_element(self, i: Index, value: TracedValue) -> None:
        """Store one lane of `elements` as element i, where elements are one run."""
        self._memory(1)[address(self.view.offset, [(i, 1)])] = value

    def _kept(self, value: TracedValue) -> TracedValue:
        """Four lanes as memory has them."""
        want = vec(COMPUTE[self.view.dtype], 4)
        if value.type != want:
            raise TypeError(f"{self.ctx.node.op} gives {value.type} but its output holds {want}")
        return boolean_to(self.k, value, i32) if self.view.dtype is DType.BOOL else value

    def _put(self, at: Position, value: TracedValue) -> None:
        """Store four lanes to which the epilogue was already applied."""
        k, view = self.k, self.view
        value = self._kept(value)
        c = view.shape[3]
        if at.flat is not None and view.dense:
            value = mask(k, value, c, at.q) if c % 4 else value
            self._store_four(address(view.offset // 4, [(at.flat, 1)]), value)
            return
        q = 0 if view.quads == 1 else at.q
        pixel = at.pixel if at.is_linear and _linear_pixels(view) else None
        if pixel is not None:
            terms = [] if math.prod(view.shape[:3]) == 1 else [(pixel, _pixel_stride(view))]
        else:
            terms = _pixel_terms(view, at.b, at.y, at.x)
        if view.vector and view.whole_quads:
            quarter = [(i, stride // 4) for i, stride in terms]
            value = mask(k, value, c, q)
            self._store_four(address(view.offset // 4, [*quarter, (q, 1)]), value)
            return
        if view.dtype.is_narrow:
            raise ValueError(f"{view} shares words with other values: the output must be whole groups of four")
        memory = self._memory(1)
        first = address(view.offset, [*terms, (q, 4 * view.strides[3])])
        last = is_last(q, view.quads)
        if view.zero_padded:
            value = mask(k, value, c, q)
        guarded = []
        for j in range(4):
            i = _plus(first, j * view.strides[3])
            if c % 4 == 0 or j < c % 4 or last is False or view.zero_padded:
                memory[i] = value[j]
            elif last is not True:
                guarded.append((i, value[j]))
        if guarded:
            with k.If(q != view.quads - 1):
                for i, lane in guarded:
                    memory[i] = lane

    def _store_four(self, i: Index, value: TracedValue) -> None:
        """Elements 4i to 4i+3 of the memory."""
        k = self.k
        if self.view.dtype is DType.UINT8:
            value = vec(u32, 4)(k.max(value, 0))
        elif self.view.dtype is DType.INT16:
            kept = [k.bitcast(k.clamp(value[j], -(1 << 15), (1 << 15) - 1), u32) for j in range(4)]
            value = k.vec(*(kept[j] & 0xFFFF | kept[j + 1] << 16 for j in (0, 2)))
        self._memory(4)[i] = value

    def _memory(self, lanes: int) -> Memory:
        return declare(self.k, "y", self.view, lanes, self.operands, None)


def read_all(sources: Sequence[Source | None], at: Position) -> list[TracedValue | None]:
    """What each source has at `at`. One that comes again is read once, and so known to be the same."""
    found: dict[int, TracedValue] = {}
    for source in sources:
        if source is not None and id(source) not in found:
            found[id(source)] = source.read(at)
    return [None if source is None else found[id(source)] for source in sources]


def open_sources(
    ctx: KernelContext, k: Kernel, values: Sequence[int], operands: Operands, used: Container[int] | None = None
) -> tuple[Source | None, ...]:
    """Read several values in `k`, those whose places are in `used` (by default all); equal ones by one source."""
    opened = {
        v: open_source(ctx, k, v, operands)
        for v in dict.fromkeys(v for i, v in enumerate(values) if used is None or i in used)
    }
    return tuple(opened[v] if used is None or i in used else None for i, v in enumerate(values))


def open_source(ctx: KernelContext, k: Kernel, value_id: int, operands: Operands) -> Source:
    """Read value `value_id` of the graph in `k`; `operands` collects what the kernel's buffers are bound to."""
    value = ctx.value(value_id)
    name = _name(ctx, value_id)
    if value.data is None:
        return Source(k, ctx.views[value_id], operands, name)
    dtype = DType.BOOL if value.data.dtype == np.bool_ else value.dtype
    return Source(k, padded(-1, value.shape, dtype), operands, name, value.data)


def open_sink(ctx: KernelContext, k: Kernel, operands: Operands) -> Sink:
    """Write the node's output in `k`; `operands` collects what the kernel's buffers are bound to."""
    node = ctx.node
    used = graph.arguments(node.epilogue)
    first = 0 if isinstance(node.op, graph.Elementwise) else 1
    tables = {i - first for i in graph.tables(node.epilogue)}
    sources = open_sources(ctx, k, node.operands, operands, {i - first for i in used} - tables)
    opened = (
        open_table(ctx, k, v, operands) if i in tables else source
        for i, (v, source) in enumerate(zip(node.operands, sources, strict=True))
    )
    return Sink(ctx, k, ctx.views[node.output], operands, tuple(opened))


def open_table(ctx: KernelContext, k: Kernel, value_id: int, operands: Operands) -> Memory:
    """The table that an expression of the node looks up."""
    data = ctx.value(value_id).data
    assert data is not None
    return declare_table(k, _name(ctx, value_id), *bytes_of_table(data), operands)


def bytes_of_table(table: np.ndarray) -> tuple[np.ndarray, Type]:
    """The numbers of a table, all of which a byte holds, in bytes; and what these are."""
    kind: Any = np.uint8 if table.max(initial=0) > 127 else np.int8
    return table.reshape(-1).astype(kind), u8 if kind is np.uint8 else i8


def declare(k: Kernel, name: str, view: View, lanes: int, operands: Operands, packed: np.ndarray | None) -> Memory:
    """The buffer of `view` with `lanes` per element; the same one again for another view of the same root and type.
    With one lane, the elements of a narrow type are its words, with 16 lanes four of them."""
    if view.dtype.is_narrow:
        storage = {1: u32, 4: _NARROW[view.dtype], 16: u32x4}[lanes]
        loaded, size = None, view.size * view.dtype.nbytes // storage.nbytes
    else:
        storage, loaded, size = vec(STORAGE[view.dtype], lanes), vec(LOADED[view.dtype], lanes), view.size // lanes
    for memory in k.buffers:
        bound = operands.get(memory.name)
        same = bound is packed if packed is not None else isinstance(bound, View) and bound.root == view.root
        if same and memory.storage == storage and memory.size == size:
            return memory
    name = _untaken(k, name, name + "s" if lanes == 1 else name + "v")
    operands[name] = view if packed is None else packed
    access = "read" if packed is not None else "read_write"
    return k.buffer(name, storage, size, compute=loaded, access=access)


def declare_table(k: Kernel, name: str, table: np.ndarray, storage: Type, operands: Operands) -> Memory:
    """The buffer of numbers that the kernel looks up; the same one again for equal numbers. A kernel may be several
    nodes', each with tables of its own."""
    for memory in k.buffers:
        bound = operands.get(memory.name)
        if not isinstance(bound, np.ndarray) or bound.dtype != table.dtype or memory.storage != storage:
            continue
        if np.array_equal(bound.reshape(-1), table.reshape(-1)):
            return memory
    name = _untaken(k, name)
    operands[name] = table
    return k.buffer(name, storage, table.nbytes // storage.nbytes, access="read")


def _untaken(k: Kernel, *names: str) -> str:
    """The first of the names that no buffer has, or one like the first."""
    taken = {m.name for m in k.buffers}
    return next(n for n in (*names, *(f"{names[0]}_{i}" for i in range(2, 99))) if n not in taken)


def pack(constant: np.ndarray) -> np.ndarray:
    """A constant with its channels padded by zeros to a multiple of four; float32, bytes, or int32 also for bool."""
    c = constant.shape[3]
    dtype: Any = np.float32 if constant.dtype.kind == "f" else np.int32
    if constant.dtype.itemsize < 4 and constant.dtype.kind in "iu":
        dtype = constant.dtype
    result = np.zeros((*constant.shape[:3], -(-c // 4) * 4), dtype)
    result[..., :c] = constant
    return result


# -------------------------------------------------------------------------------------------- index arithmetic


def address(base: int, terms: list[tuple[Index, int]]) -> Index:
    """base + sum of index * stride, with what is known when tracing added up first. Strides may be negative: u32
    arithmetic wraps."""
    total: TracedValue | None = None
    for index, stride in terms:
        if isinstance(index, int):
            base += index * stride
        elif stride:
            term = index if stride == 1 else index * (stride % (1 << 32))
            total = term if total is None else total + term
    if total is None:
        return base
    return _plus(total, base)


def divide(i: Index, n: int) -> Index:
    """i // n."""
    return i if n == 1 else i // n


def remainder(i: Index, n: int, extent: int) -> Index:
    """i % n where i < extent."""
    if n == 1:
        return 0
    return i if extent <= n else i % n


def is_last(q: Index, quads: int) -> TracedValue | bool:
    """Whether q is the last of `quads`."""
    if isinstance(q, int):
        return q == quads - 1
    return True if quads == 1 else q == quads - 1


def mask(k: Kernel, v: TracedValue, channels: int, q: Index, fill: float = 0) -> TracedValue:
    """`v`, which holds channels 4q to 4q+3, with `fill` (by default zero or False) in lanes past the last channel."""
    rest = channels % 4
    last = is_last(q, -(-channels // 4)) if rest else False
    if last is False:
        return v
    filled = constant(k, fill, v.type.scalar)
    past = [filled if last is True else k.select(last, filled, v[j]) for j in range(rest, 4)]
    return k.vec(*(v[j] for j in range(rest)), *past)


def _pixel_terms(view: View, b: Index, y: Index, x: Index) -> list[tuple[Index, int]]:
    n, strides = view.shape, view.strides
    return [(i, strides[a]) for a, i in enumerate((b, y, x)) if n[a] > 1 and strides[a] != 0]


def _linear_pixels(view: View) -> bool:
    """Whether pixel (b, y, x), counted in row-major order, lies at a multiple of one stride."""
    sizes = [(n, s) for n, s in zip(view.shape[:3], view.strides[:3], strict=True) if n > 1]
    return all(a[1] == b[0] * b[1] for a, b in itertools.pairwise(sizes))


def _pixel_stride(view: View) -> int:
    return next(s for n, s in zip(view.shape[2::-1], view.strides[2::-1], strict=True) if n > 1)


def pixel_pitch(view: View) -> int | None:
    """The distance from pixel to pixel, counted in row-major order, if there is one."""
    if not _linear_pixels(view):
        return None
    return _pixel_stride(view) if math.prod(view.shape[:3]) > 1 else 0


def byte_bounds(dtype: DType) -> tuple[int, int] | None:
    """The smallest and the largest number of a type of bytes."""
    return _BYTE_BOUNDS.get(dtype)


def _plus(i: Index, offset: int) -> Index:
    if isinstance(i, int):
        return i + offset
    return i + offset % (1 << 32) if offset else i


def _value(k: Kernel, i: Index) -> TracedValue:
    return k.const(i, u32) if isinstance(i, int) else i


def _name(ctx: KernelContext, value_id: int) -> str:
    node = ctx.node
    if value_id in node.inputs:
        i = node.inputs.index(value_id)
        return ("x", "w")[i] if i < 2 else f"x{i}"
    return f"e{node.operands.index(value_id)}"
