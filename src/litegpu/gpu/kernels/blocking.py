"""How convolutions and matrix products divide their output: what a thread, a workgroup and a shared sum cover."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from litegpu.gpu.graph import DType, Shape, fits_half
from litegpu.gpu.kernels.access import Index, Operands, Sink, address, divide, remainder
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.movement import mirrored
from litegpu.gpu.kernels.powers import power_above, power_below
from litegpu.gpu.lang import Array, Kernel, Memory, TracedValue, Type, f16x4, f32x4, i8x4, i32x4, u32
from litegpu.gpu.lang.features import Features

#: Threads that keep one compute unit busy, and the number of units to assume where it is not known.
THREADS_PER_UNIT = 256
USUAL_UNITS = 32
#: Pixels and quads of a thread, from the most economical to the least.
BLOCKS = ((8, 2), (4, 2), (8, 1), (4, 1), (2, 1), (1, 1))
#: With fewer quads than this, a thread has one: its neighbours should load neighbouring weights.
QUADS_TO_SHARE = 16
#: A thread that shares its sum with others has at least this many quads of inputs to add up.
LEAST_DEPTH = 8
#: Bytes of the sums that a workgroup shares, where kernels wait for one another: with more, multiprocessors have too
#: few workgroups to even out.
_SHARED_WAITING = 16384
MOST_PARTS = 32


@dataclass(frozen=True)
class ThreadTile:
    """A thread computes `pixels` x `quads` of the output; a workgroup has `wide` threads along quads, `tall` along
    blocks of pixels and `parts` that each add up a part of the same sums."""

    pixels: int
    quads: int
    wide: int
    tall: int
    parts: int

    @property
    def workgroup(self) -> tuple[int, int, int]:
        return (self.wide, self.tall, self.parts)


def choose_tile(
    pixels: int, quads: int, depth: int, features: Features, *,
    most_pixels: int, least_pixels: int = 1, most_quads: int = 2, most: int = 16, taps: int = 1,
) -> ThreadTile:  # fmt: skip
    """The tile for an output of `pixels` x `quads`, each the sum over `depth` quads of inputs for each tap.

    A thread of p pixels and q quads loads p + 4q vectors for 16pq multiplications, so larger is better as long as
    there are threads for the whole device: the largest block is taken with which that is so, if need be by splitting
    the sums among threads. `most`: pixels times quads.
    """
    wanted = THREADS_PER_UNIT * (features.compute_units or USUAL_UNITS)
    room = features.max_shared_bytes if features.native else min(features.max_shared_bytes, _SHARED_WAITING)
    deep = min(power_below(depth), power_below(max(1, depth * taps // LEAST_DEPTH)))
    most_quads = most_quads if quads >= QUADS_TO_SHARE else 1
    blocks = [(p, q) for p, q in BLOCKS if least_pixels <= p <= most_pixels and q <= most_quads and p * q <= most]
    for p, q in blocks:
        threads = -(-pixels // p) * -(-quads // q)
        shared = min(256, features.max_threads, power_below(room // (16 * p * q)))
        parts = 1
        if threads < wanted:
            parts = min(deep, MOST_PARTS, max(1, shared // 8), power_above(-(-wanted // threads)))
        if threads * parts >= wanted or (p, q) == blocks[-1]:
            break
    size = shared if parts > 1 else min(64, features.max_threads)
    wide = min(_width(-(-quads // q)), size // parts)
    tall = min(size // parts // wide, power_above(-(-pixels // p)))
    return ThreadTile(p, q, wide, tall, parts)


class TilePlace:
    """Where a thread's tile lies: `block`, the number of its block of pixels, and `q`, its quads of channels."""

    def __init__(self, k: Kernel, tile: ThreadTile, blocks: int, quads: int) -> None:
        self.k, self.tile, self.blocks, self.quads = k, tile, blocks, quads
        self._across, _ = _groups(tile, blocks, quads)
        across = self._across
        group = k.group_id()
        first = group % across * (tile.wide * tile.quads) + k.local_id(0)
        self.block = group // across * tile.tall + k.local_id(1)
        self.part = k.local_id(2)
        self._past = blocks % tile.tall != 0
        self._q = [first + c * tile.wide for c in range(tile.quads)]
        self._q_past = quads % (tile.wide * tile.quads) != 0
        if self._past:
            self._unclamped = self.block
            self.block = k.min(self.block, blocks - 1)
        self.q = [k.min(q, quads - 1) for q in self._q] if self._q_past else self._q

    def of(self, down: Index, across: Index, c: Index) -> tuple[TracedValue, Index, TracedValue | None]:
        """The block and quad number `c` of the thread of the workgroup that is so far down and across, and what must
        hold for them to exist (None: nothing)."""
        k, tile = self.k, self.tile
        group = k.group_id()
        block = self.first_block + down
        q = address(0, [(group % self._across, tile.wide * tile.quads), (c, tile.wide), (across, 1)])
        inside: TracedValue | None = None
        if self._past:
            inside, block = block < self.blocks, k.min(block, self.blocks - 1)
        if self._q_past and isinstance(q, TracedValue):
            inside, q = both(inside, q < self.quads), k.min(q, self.quads - 1)
        return block, q, inside

    @property
    def first_block(self) -> TracedValue:
        """The number of the workgroup's first block of pixels."""
        return self.k.group_id() // self._across * self.tile.tall

    def inside(self, c: int) -> list[TracedValue]:
        """What must hold for this thread to store its quad number `c`."""
        conditions = []
        if self._past:
            conditions.append(self._unclamped < self.blocks)
        if self._q_past:
            conditions.append(self._q[c] < self.quads)
        if self.tile.parts > 1:
            conditions.append(self.part == 0)
        return conditions


def grid(tile: ThreadTile, blocks: int, quads: int) -> tuple[int, int, int]:
    """Workgroups for `blocks` blocks of pixels and `quads` quads."""
    return (math.prod(_groups(tile, blocks, quads)), 1, 1)


@dataclass(frozen=True)
class Pixels:
    """The output pixels of one thread, and whether each is a real one (None: always)."""

    coordinates: list[tuple[Index, Index, Index]]
    real: list[TracedValue | None]
    linear: list[TracedValue] = field(default_factory=list)  # their numbers in row-major order, if made from these


def row_blocks(shape: Shape, n: int, down: bool = False) -> int:
    """Blocks of `n` pixels along rows (`down`: along columns) of an output of `shape`."""
    b, h, w, _ = shape
    return b * w * -(-h // n) if down else b * h * -(-w // n)


def row_pixels(block: TracedValue, shape: Shape, n: int, only: Index | None = None) -> Pixels:
    """Block number `block` of `n` neighbours in a row; the last ones of a row may lie past its end. All of them, or
    `only` the one with this number."""
    _, h, w, _ = shape
    across = -(-w // n)
    x = block % across * n
    y = block // across % h
    b = block // (across * h)
    xs = [x + j for j in (range(n) if only is None else [only])]
    return Pixels([(b, y, x) for x in xs], [x < w if w % n else None for x in xs])


def column_pixels(block: TracedValue, shape: Shape, n: int, only: Index | None = None) -> Pixels:
    """The same of a column. Blocks that follow one another are neighbours in a row."""
    _, h, w, _ = shape
    high = -(-h // n)
    y = block // w % high * n
    ys = [y + j for j in (range(n) if only is None else [only])]
    return Pixels([(block // (w * high), y, block % w) for y in ys], [y < h if h % n else None for y in ys])


def linear_pixels(k: Kernel, block: TracedValue, shape: Shape, n: int, only: Index | None = None) -> Pixels:
    """Block number `block` of `n` pixels in row-major order, those past the end replaced by the last one. All of them,
    or `only` the one with this number."""
    b, h, w, _ = shape
    total = b * h * w
    found, real, linear = [], [], []
    for j in range(n) if only is None else [only]:
        p = block * n + j
        real.append(p < total if total % n else None)
        if total % n:
            p = k.min(p, total - 1)
        linear.append(p)
        found.append((divide(p, h * w), remainder(divide(p, w), h, b * h), remainder(p, w, total)))
    return Pixels(found, real, linear)


@dataclass(frozen=True)
class Axis:
    """How output positions and taps of a window map to input positions along one axis.

    `size` counts each input element `upsample` times; `border` is as in Conv2D. `last` is the largest output position
    that is asked for, whether or not it is a real one.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    padding: int
    last: int = 0
    upsample: int = 1
    border: str = "zero"

    @property
    def padded(self) -> bool:
        """Whether some tap of a real output position lies outside, where zeros are."""
        return self.border == "zero" and self._outside

    @property
    def _outside(self) -> bool:
        return self.padding > 0 or self._end(self.out - 1) >= self.size

    def at(self, k: Kernel, o: Index, offset: Index) -> tuple[TracedValue, TracedValue | None]:
        """The input position `o * stride + offset - padding`, clamped to the input, and whether it lay inside (None:
        always, or it does not matter). Offset is tap * dilation."""
        o = k.const(o, u32) if isinstance(o, int) else o
        if self.border != "zero" and self._outside:
            turned = mirrored(k, o * self.stride + offset, self.size, self.padding, 1, self.border == "symmetric")
            assert isinstance(turned, TracedValue)
            return k.min(turned, self.size - 1) // self.upsample, None
        if isinstance(offset, int):
            i = o * self.stride + (offset - self.padding) % (1 << 32)
        else:
            i = o * self.stride + offset - self.padding
        if self.padded:
            return k.min(i, self.size - 1) // self.upsample, i < self.size
        if self._end(max(self.last, self.out - 1)) >= self.size:
            i = k.min(i, self.size - 1)
        return i // self.upsample, None

    def cells(self, k: Kernel, o: Index) -> TracedValue:
        """How many taps of output position `o`, with dilation 1, lie inside."""
        if not self.padded:
            return k.const(self.kernel, u32)
        first = k.const(o, u32) * self.stride if isinstance(o, int) else o * self.stride
        return k.min(first + self.kernel, self.size + self.padding) - k.max(first, self.padding)

    def _end(self, o: int) -> int:
        return o * self.stride + (self.kernel - 1) * self.dilation


def window_axes(
    ctx: KernelContext, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int],
    padding: tuple[int, int], neighbours: int = 1, upsample: tuple[int, int] = (1, 1), border: str = "zero",
    down: bool = False,
) -> tuple[Axis, Axis]:  # fmt: skip
    """The vertical and horizontal axis of a window over the node's first input; threads compute `neighbours` pixels of
    a row (`down`: of a column), perhaps past its end."""
    (_, h, w, _), (_, oh, ow, _) = ctx.value(ctx.node.inputs[0]).shape, ctx.output.shape
    above, beside = (neighbours, 1) if down else (1, neighbours)
    lasts = -(-oh // above) * above - 1, -(-ow // beside) * beside - 1
    return (
        Axis(h * upsample[0], oh, kernel[0], stride[0], dilation[0], padding[0], lasts[0], upsample[0], border),
        Axis(w * upsample[1], ow, kernel[1], stride[1], dilation[1], padding[1], lasts[1], upsample[1], border),
    )


def both(*conditions: TracedValue | None) -> TracedValue | None:
    """All of those that are not None."""
    result: TracedValue | None = None
    for c in conditions:
        if c is not None:
            result = c if result is None else result & c
    return result


def when(condition: TracedValue | None) -> TracedValue | bool:
    """The condition of an If."""
    return True if condition is None else condition


def or_zero(k: Kernel, ok: TracedValue | None, v: TracedValue) -> TracedValue:
    """`v` where `ok`: selected, so that what lies elsewhere, be it NaN, does not matter."""
    return v if ok is None else k.select(ok, v, constant(k, 0, v.type))


def accumulate(
    k: Kernel, sums: Array, rows: Sequence[TracedValue], columns: Sequence[Sequence[TracedValue]], lanes: int = 4
) -> None:
    """sums[p, c] += sum over `lanes` of rows[p][lane] * columns[c][lane]."""
    for p, row in enumerate(rows):
        for c, column in enumerate(columns):
            total = sums[p * len(columns) + c]
            for lane in range(lanes):
                total = multiply_add(k, k.splat(row[lane], 4), column[lane], total)
            sums[p * len(columns) + c] = total


def multiply_add(k: Kernel, a: TracedValue, b: TracedValue, c: TracedValue) -> TracedValue:
    """a * b + c, of floats or whole numbers."""
    return k.fma(a, b, c) if c.type.is_float else a * b + c


def transposed(k: Kernel, rows: Sequence[TracedValue]) -> list[TracedValue]:
    """Lane i of the result's j is lane j of rows[i]."""
    return [k.vec(*(row[lane] for row in rows)) for lane in range(4)]


def total_of_parts(
    k: Kernel,
    tile: ThreadTile,
    part: TracedValue,
    sums: Array,
    combine: Callable[[TracedValue, TracedValue], TracedValue] = operator.add,
) -> list[TracedValue]:
    """The sums (or what `combine` makes) over all parts; right in the threads of part 0. Reached by the whole
    workgroup."""
    if tile.parts == 1:
        return [sums[i] for i in range(len(sums))]
    slots = tile.wide * tile.tall
    shared = k.shared(sums.type, slots * tile.parts * len(sums))
    lane = k.local_id(1) * tile.wide + k.local_id(0)
    mine = [part * slots + lane + i * tile.parts * slots for i in range(len(sums))]
    for i, at in enumerate(mine):
        shared[at] = sums[i]
    k.barrier()
    half = tile.parts // 2
    while half:
        with k.If(part < half):
            for at in mine:
                shared[at] = combine(shared[at], shared[at + half * slots])
        k.barrier()
        half //= 2
    return [shared[at] for at in mine]


def store_tile(k: Kernel, sink: Sink, place: TilePlace, pixels: Pixels, sums: Sequence[TracedValue]) -> None:
    """Store the tile: sums[p * quads + c] at pixel p, quad c, where these exist."""
    n = len(place.q)
    for c, q in enumerate(place.q):
        for p, ((b, y, x), real) in enumerate(zip(pixels.coordinates, pixels.real, strict=True)):
            condition = both(*place.inside(c), real)
            if condition is not None and condition.constant is False:
                continue  # a block with more pixels than the whole output
            with k.If(when(condition)):
                sink.store(b, y, x, q, sums[p * n + c])


class Weights:
    """Constant weights [taps.., inputs, outputs] in quads of outputs: as float16 where activations are, unless they are
    few, as bytes where they are small whole numbers and to load them is most of the work."""

    def __init__(
        self, ctx: KernelContext, k: Kernel, array: np.ndarray, operands: Operands, compute: Type = f32x4
    ) -> None:
        """`array`: weights with the outputs last; they are padded with zeros to a multiple of four. `compute`: f32x4 or
        i32x4, in which they are given."""
        outputs = array.shape[-1]
        self.quads = -(-outputs // 4)
        dtype: type
        if compute.is_float and not fit_bytes(math.prod(ctx.output.shape[:3]), array):
            small = not ctx.features.native and 4 * array.size <= _SMALL_BYTES
            dtype, storage = _FLOATS[not small and _half(ctx, array)]
        elif compute.is_float or np.all(np.abs(array) <= 127):
            dtype, storage = np.int8, i8x4
        else:
            dtype, storage = np.int32, i32x4
        packed = np.zeros((*array.shape[:-1], self.quads * 4), dtype)
        packed[..., :outputs] = array
        operands["weights"] = packed
        self.memory: Memory = k.buffer("weights", storage, packed.size // 4, compute=compute, access="read")

    def __call__(self, rows: Sequence[tuple[Index, int]], q: Index, offset: int = 0) -> TracedValue:
        """Four outputs for one input of one tap: that numbered `offset` + the sum of index * stride over `rows`."""
        return self.memory[address(offset * self.quads, [*((i, n * self.quads) for i, n in rows), (q, 1)])]


#: How weights are stored otherwise: in float16 or not.
_FLOATS: dict[bool, tuple[type, Type]] = {False: (np.float32, f32x4), True: (np.float16, f16x4)}
#: Weights that stay in float32 where the language's kernels run alone: to convert them takes longer than to load them.
_SMALL_BYTES = 16384
#: Output pixels up to which each weight is used so seldom that loading it takes longest, and weights from which on it
#: matters.
_FEW_PIXELS, _MANY_WEIGHTS = 8, 1 << 14


def fit_bytes(pixels: int, array: np.ndarray) -> bool:
    """Whether weights for so many output pixels are worth storing as bytes, and whole numbers that bytes hold: those of
    int8 models are."""
    if pixels > _FEW_PIXELS or array.size < _MANY_WEIGHTS:
        return False
    return bool(np.all(np.abs(array) <= 127) and np.array_equal(array, np.rint(array)))


def _half(ctx: KernelContext, array: np.ndarray) -> bool:
    views = [ctx.views[v] for v in (ctx.node.inputs[0], ctx.node.output) if v in ctx.views]
    fits = fits_half(array)
    return fits and any(v.dtype is DType.FLOAT16 for v in views)


def _groups(tile: ThreadTile, blocks: int, quads: int) -> tuple[int, int]:
    return -(-quads // (tile.wide * tile.quads)), -(-blocks // tile.tall)


def _width(across: int) -> int:
    """Threads side by side that load neighbouring weights: many, unless that leaves over an eighth without work."""
    for wide in (32, 16, 8):
        if -(-across // wide) * wide - across <= across // 8:
            return wide
    return min(8, power_above(across))
