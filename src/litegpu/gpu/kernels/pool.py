"""Pooling: a thread per quad of the output, or several that share a large window."""

from __future__ import annotations

import functools

import numpy as np

from litegpu.gpu.graph import Pool2D
from litegpu.gpu.kernels.access import Index, Operands, open_sink, open_source
from litegpu.gpu.kernels.blocking import (
    Axis,
    ThreadTile,
    TilePlace,
    both,
    choose_tile,
    grid,
    linear_pixels,
    or_zero,
    row_blocks,
    row_pixels,
    store_tile,
    total_of_parts,
    window_axes,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant, evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32, f32x4, i32, i32x4, trace, u32

LOWEST = float(np.finfo(np.float32).min)
#: Taps that are unrolled, those of windows whose neighbours share what they load, and how many neighbours do.
UNROLLED, SHARED, NEIGHBOURS = 16, 32, 4


def build(ctx: KernelContext) -> list[Launch]:
    """Average over the cells inside the input, or their squares, or the largest of them. TFLite's MAX_POOL_2D passes
    over NaN."""
    op = ctx.node.op
    assert isinstance(op, Pool2D)
    b, h, w, c = ctx.output.shape
    pixels, quads = b * h * w, -(-c // 4)
    overlapping = share_columns(op)
    depth = 1 if overlapping else op.window[0] * op.window[1]
    most = min(NEIGHBOURS, w) if overlapping else 1
    tile = choose_tile(pixels, quads, depth, ctx.features, most_pixels=most, most_quads=1)
    blocks = row_blocks(ctx.output.shape, tile.pixels)
    operands: Operands = {}
    kernel = trace(
        _neighbours if tile.pixels > 1 else _pool, f"{op.kind}_pool", tile.workgroup, grid(tile, blocks, quads),
        ctx=ctx, op=op, tile=tile, blocks=blocks, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, f"{op.kind}_pool_2d")]


def share_columns(op: Pool2D) -> bool:
    """Whether neighbours are computed together, each column of cells once."""
    return op.window[1] > op.stride[1] and op.window[0] * op.window[1] <= SHARED


def loads(op: Pool2D) -> float:
    """Of a result."""
    (high, wide), across = op.window, op.stride[1]
    return high * ((NEIGHBOURS - 1) * across + wide) / NEIGHBOURS if share_columns(op) else high * wide


def _pool(k: Kernel, ctx: KernelContext, op: Pool2D, tile: ThreadTile, blocks: int, operands: Operands) -> None:
    """A pixel for a thread, or for several."""
    kh, kw = op.window
    cells = _Cells(k, ctx, op, operands)
    place = TilePlace(k, tile, blocks, cells.source.view.quads)
    pixels = linear_pixels(k, place.block, ctx.output.shape, 1)
    b, y, x = pixels.coordinates[0]
    vertical, horizontal = window_axes(ctx, op.window, op.stride, (1, 1), op.padding)
    cells.begin(b, place.q[0])
    result = k.array(1, cells.first())

    def tap(ky: Index, kx: Index) -> None:
        (iy, ok_y), (ix, ok_x) = vertical.at(k, y, ky), horizontal.at(k, x, kx)
        ok, found = both(ok_y, ok_x), cells.at(b, iy, ix, place.q[0])
        result[0] = cells.joined(result[0], found, ok)

    if kh * kw <= UNROLLED and tile.parts == 1:
        for ky in range(kh):
            for kx in range(kw):
                tap(ky, kx)
    else:
        with k.loop(kh * kw, start=place.part, step=tile.parts) as i:
            tap(i // kw, i % kw)
    (total,) = total_of_parts(k, tile, place.part, result, cells.combine)
    total = cells.finished(total, vertical, horizontal, y, x)
    store_tile(k, open_sink(ctx, k, operands), place, pixels, [total])


def _neighbours(k: Kernel, ctx: KernelContext, op: Pool2D, tile: ThreadTile, blocks: int, operands: Operands) -> None:
    """Some pixels of a row for a thread: it joins the cells of each column once, and then the columns of each pixel."""
    kh, kw = op.window
    cells = _Cells(k, ctx, op, operands)
    place = TilePlace(k, tile, blocks, cells.source.view.quads)
    pixels = row_pixels(place.block, ctx.output.shape, tile.pixels)
    b, y, x = pixels.coordinates[0]
    vertical, horizontal = window_axes(ctx, op.window, op.stride, (1, 1), op.padding, tile.pixels)
    cells.begin(b, place.q[0])
    rows = [vertical.at(k, y, ky) for ky in range(kh)]
    columns = []
    for j in range((tile.pixels - 1) * op.stride[1] + kw):
        ix, ok_x = horizontal.at(k, x, j)
        column = cells.first()
        for iy, ok_y in rows:
            column = cells.joined(column, cells.at(b, iy, ix, place.q[0]), both(ok_y, ok_x))
        columns.append(column)
    totals = []
    for p, (_, _, px) in enumerate(pixels.coordinates):
        total = functools.reduce(cells.combine, columns[p * op.stride[1] :][:kw])
        totals.append(cells.finished(total, vertical, horizontal, y, px))
    store_tile(k, open_sink(ctx, k, operands), place, pixels, totals)


class _Cells:
    """What a pooling does with the cells of a window."""

    def __init__(self, k: Kernel, ctx: KernelContext, op: Pool2D, operands: Operands) -> None:
        self.k, self.op, self.average, self.rough = k, op, op.kind != "max", ctx.half
        self.source, *self.others = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)
        self.factors: list[TracedValue] = []
        self.whole = self.source.view.dtype.is_narrow
        self.kind = i32x4 if self.whole else f32x4

    def first(self) -> TracedValue:
        """What a window begins with."""
        lowest = -(1 << 31) if self.whole else LOWEST
        return constant(self.k, 0 if self.average else lowest, self.kind)

    def combine(self, one: TracedValue, other: TracedValue) -> TracedValue:
        return one + other if self.average else self.k.max(one, other)

    def begin(self, b: Index, q: Index) -> None:
        """Load what the prologue needs for a quad of channels."""
        self.factors = [other.broadcast(b, 0, 0, q) for other in self.others]

    def at(self, b: Index, y: Index, x: Index, q: Index) -> TracedValue:
        """A cell as it counts, if it is inside the input."""
        found = self.source.quad(b, y, x, q)
        if not self.average:
            return found
        found = evaluate(self.k, self.op.prologue, [found, *self.factors], rough=self.rough)
        return found * found if self.op.kind == "squares" else found

    def joined(self, total: TracedValue, found: TracedValue, ok: TracedValue | None) -> TracedValue:
        """`total` and a cell, if that is inside the input."""
        k = self.k
        if self.average:
            return total + or_zero(k, ok, found)
        largest = k.max(total, found)
        if ok is None:
            return largest
        outside = self.op.outside
        return k.select(ok, largest, total if outside is None else k.max(total, constant(k, outside, self.kind)))

    def finished(
        self, total: TracedValue, vertical: Axis, horizontal: Axis, y: TracedValue | int, x: TracedValue | int
    ) -> TracedValue:
        """The result at (y, x): of averages, the sum divided by the number of cells."""
        k = self.k
        if not self.average:
            return total
        if self.op.outside is None:
            cells = vertical.cells(k, y) * horizontal.cells(k, x)
        else:
            cells = k.const(self.op.window[0] * self.op.window[1], u32)
        if not self.whole:
            return total / k.splat(f32(cells), 4)
        count = k.splat(i32(cells), 4)
        half = count >> 1
        return k.idiv_trunc(total + k.select(total < 0, -half, half), count)
