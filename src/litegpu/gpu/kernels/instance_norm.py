"""Normalisation of each channel of an image over its pixels: parts of the image are summed up by a workgroup each, and
every workgroup that normalises pixels puts the parts together itself, so that there are two kernels in all."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from litegpu.gpu.graph import InstanceNorm, Moments, Shape
from litegpu.gpu.kernels.access import Index, Operands, Position, address, divide, open_sink, open_source, remainder
from litegpu.gpu.kernels.blocking import both, or_zero, when
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.reduce import meet
from litegpu.gpu.lang import Kernel, TracedValue, f32x4, trace
from litegpu.gpu.lang.features import Features

_THREADS = 256  # of a workgroup, at most
_MOST_COLUMNS = 32  # quads side by side in a workgroup
_KEPT = 8  # quads of a thread that are loaded together
_MOST_PARTS = 128  # of an image: whoever normalises reads them all
_NORMALISED = 4  # quads of a thread

_OfQuad = Callable[[TracedValue], TracedValue]
_OfPart = Callable[[TracedValue, TracedValue, TracedValue], TracedValue]


def choose_parts(shape: Shape, features: Features) -> int:
    """Into how many parts the pixels of an image of x, [B,H,W,C], are best divided for Moments."""
    pixels = shape[1] * shape[2]
    size = max(_grid(shape, features).rows * _KEPT, -(-pixels // _MOST_PARTS))
    return -(-pixels // size)


def build_moments(ctx: KernelContext) -> list[Launch]:
    """The mean of a part first, and then the squares of what is left, so that large means do not spoil these."""
    op = ctx.node.op
    assert isinstance(op, Moments)
    shape = ctx.value(ctx.node.inputs[0]).shape
    grid, pixels = _grid(shape, ctx.features), shape[1] * shape[2]
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        place = _Place(k, grid, op.parts, shape[0])
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        parts = _Parts(pixels, op.parts)
        first = address(0, [(place.run, parts.size)])
        whole, rest = divmod(parts.size, grid.rows * _KEPT)

        def loaded(base: Index, count: int) -> list[tuple[TracedValue, TracedValue | None]]:
            """`count` quads, and whether they are of the part (None: always)."""
            found = []
            for j in range(count):
                i = address(j * grid.rows, [(base, 1), (place.row, 1)])
                pixel = address(0, [(first, 1), (i, 1)])
                ok: TracedValue | None = None
                if isinstance(i, TracedValue) and parts.size % grid.rows and (j + 1) * grid.rows > rest:
                    ok = i < parts.size
                if isinstance(pixel, TracedValue) and parts.last != parts.size:
                    ok = both(ok, pixel < pixels)
                if isinstance(pixel, TracedValue) and ok is not None:
                    pixel = k.min(pixel, pixels - 1)
                found.append((source.read(place.at(pixel, shape)), ok))
            return found

        several = whole > (0 if rest else 1)
        kept = [] if several else loaded(0, -(-(rest or grid.rows * _KEPT) // grid.rows))

        def total(of: _OfQuad) -> TracedValue:
            """The sum over the part, of what every thread of the workgroup has some terms of."""
            summed = k.var(k.const(0.0, f32x4))

            def add(found: list[tuple[TracedValue, TracedValue | None]]) -> None:
                for value, ok in found:
                    summed.set(summed.value + or_zero(k, ok, of(value)))

            if several:
                with k.loop(whole) as i:
                    add(loaded(address(0, [(i, grid.rows * _KEPT)]), _KEPT))
                if rest:
                    add(loaded(whole * grid.rows * _KEPT, -(-rest // grid.rows)))
            else:
                add(kept)
            return meet(k, place.thread, grid.columns, grid.rows, summed.value, operator.add)[place.column]

        count = parts.count(k, place.run)
        mean = total(lambda value: value) / count
        squares = total(lambda value: (value - mean) * (value - mean))
        sink = open_sink(ctx, k, operands)
        with k.If(when(both(place.row == 0, place.inside))):
            for j, moment in enumerate((mean, squares)):
                sink.store(place.image, place.run, j, place.q, moment)

    groups = shape[0] * op.parts * grid.blocks
    return [Launch(trace(kernel, "moments", (grid.threads, 1, 1), (groups, 1, 1)), operands, "moments")]


def build(ctx: KernelContext) -> list[Launch]:
    """What is normalised is under way while the parts are put together."""
    op = ctx.node.op
    assert isinstance(op, InstanceNorm)
    shape = ctx.output.shape
    grid, pixels = _grid(shape, ctx.features), shape[1] * shape[2]
    run = grid.rows * _NORMALISED
    runs = -(-pixels // run)
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        place = _Place(k, grid, runs, shape[0])
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        wanted = [address(j * grid.rows, [(place.run, run), (place.row, 1)]) for j in range(_NORMALISED)]
        inside, places = [], []
        for pixel in wanted:
            ok = place.inside
            if pixels % run and isinstance(pixel, TracedValue):
                ok, pixel = both(ok, pixel < pixels), k.min(pixel, pixels - 1)
            inside.append(when(ok))
            places.append(place.at(pixel, shape))
        values = [source.read(at) for at in places]
        mean, variance = _whole(ctx, k, place, pixels, operands)
        factor = k.rsqrt(variance + op.epsilon)
        results = [(value - mean) * factor for value in values]
        open_sink(ctx, k, operands).write_all(places, results, inside)

    groups = shape[0] * runs * grid.blocks
    return [Launch(trace(kernel, "instance_norm", (grid.threads, 1, 1), (groups, 1, 1)), operands, "instance_norm")]


def _whole(
    ctx: KernelContext, k: Kernel, place: _Place, pixels: int, operands: Operands
) -> tuple[TracedValue, TracedValue]:
    """The mean and the variance of an image, of its parts: their own mean counts by their pixels."""
    grid = place.grid
    moments = ctx.value(ctx.node.inputs[1])
    parts = _Parts(pixels, moments.shape[1])
    source = open_source(ctx, k, moments.id, operands)
    read = []
    for j in range(-(-moments.shape[1] // grid.rows)):
        part, ok = place.row + j * grid.rows, None
        if (j + 1) * grid.rows > parts.parts:
            ok, part = part < parts.parts, k.min(part, parts.parts - 1)
        mean, squares = (source.quad(place.image, part, which, place.q) for which in range(2))
        read.append((mean, squares, parts.count(k, part), ok))

    def total(of: _OfPart) -> TracedValue:
        terms = [or_zero(k, ok, of(mean, squares, count)) for mean, squares, count, ok in read]
        summed = terms[0]
        for term in terms[1:]:
            summed = summed + term
        return meet(k, place.thread, grid.columns, grid.rows, summed, operator.add)[place.column] / float(pixels)

    whole = total(lambda mean, squares, count: mean * count)
    return whole, total(lambda mean, squares, count: squares + (mean - whole) * (mean - whole) * count)


@dataclass(frozen=True)
class _Grid:
    """A workgroup has `columns` neighbouring quads of channels side by side, and `rows` threads, a power of two, for
    each of them; `blocks` such have all channels."""

    columns: int
    rows: int
    blocks: int
    quads: int

    @property
    def threads(self) -> int:
        return self.columns * self.rows


def _grid(shape: Shape, features: Features) -> _Grid:
    threads, quads = min(_THREADS, features.max_threads), -(-shape[3] // 4)
    blocks = -(-quads // _MOST_COLUMNS)
    columns = -(-quads // blocks)
    return _Grid(columns, 1 << ((threads // columns).bit_length() - 1), blocks, quads)


@dataclass(frozen=True)
class _Parts:
    """How many pixels the parts of an image have."""

    pixels: int
    parts: int

    @property
    def size(self) -> int:
        return -(-self.pixels // self.parts)

    @property
    def last(self) -> int:
        return self.pixels - self.size * (self.parts - 1)

    def count(self, k: Kernel, part: Index) -> TracedValue:
        """The pixels of part number `part`."""
        size, last = (k.const(float(n), f32x4) for n in (self.size, self.last))
        if self.size == self.last or not isinstance(part, TracedValue):
            return size
        return k.select(part == self.parts - 1, last, size)


class _Place:
    """Of a thread: its image, of so many, the number of the workgroup's run of pixels there, of `runs`, its row, and
    its quad."""

    def __init__(self, k: Kernel, grid: _Grid, runs: int, images: int) -> None:
        self.k, self.grid, self.thread = k, grid, k.local_id()
        self.column = remainder(self.thread, grid.columns, grid.threads)
        self.row = self.thread if grid.columns == 1 else self.thread // grid.columns
        group = k.group_id()
        self.run = remainder(divide(group, grid.blocks), runs, images * runs)
        self.image: Index = 0 if images == 1 else group // (grid.blocks * runs)
        self.q = address(
            0, [(remainder(group, grid.blocks, images * runs * grid.blocks), grid.columns), (self.column, 1)]
        )
        self.inside: TracedValue | None = None  # whether there is such a quad
        if grid.quads % grid.columns and isinstance(self.q, TracedValue):
            self.inside, self.q = self.q < grid.quads, k.min(self.q, grid.quads - 1)

    def at(self, pixel: Index, shape: Shape) -> Position:
        """Pixel number `pixel` of the image."""
        return Position(shape, pixel=address(0, [(self.image, shape[1] * shape[2]), (pixel, 1)]), q=self.q)
