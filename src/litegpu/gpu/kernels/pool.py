"""Pooling: a thread per quad of the output, or several that share a large window."""

from __future__ import annotations

import operator

import numpy as np

from litegpu.gpu.graph import Pool2D
from litegpu.gpu.kernels.access import Index, Operands, open_sink, open_source
from litegpu.gpu.kernels.blocking import (
    ThreadTile,
    TilePlace,
    both,
    choose_tile,
    grid,
    linear_pixels,
    or_zero,
    store_tile,
    total_of_parts,
    window_axes,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant, evaluate
from litegpu.gpu.lang import Kernel, f32, f32x4, i32, i32x4, trace

LOWEST = float(np.finfo(np.float32).min)
#: Taps that are unrolled.
UNROLLED = 16


def build(ctx: KernelContext) -> list[Launch]:
    """Average over the cells inside the input, or their squares, or the largest of them. TFLite's MAX_POOL_2D passes
    over NaN."""
    op = ctx.node.op
    assert isinstance(op, Pool2D)
    b, h, w, c = ctx.output.shape
    pixels, quads = b * h * w, -(-c // 4)
    tile = choose_tile(pixels, quads, op.window[0] * op.window[1], ctx.features, most_pixels=1, most_quads=1)
    operands: Operands = {}
    kernel = trace(
        _pool, f"{op.kind}_pool", tile.workgroup, grid(tile, pixels, quads),
        ctx=ctx, op=op, tile=tile, blocks=pixels, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, f"{op.kind}_pool_2d")]


def _pool(k: Kernel, ctx: KernelContext, op: Pool2D, tile: ThreadTile, blocks: int, operands: Operands) -> None:
    kh, kw = op.window
    average = op.kind != "max"
    source, *others = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)
    whole = source.view.dtype.is_narrow
    lowest = -(1 << 31) if whole else LOWEST
    place = TilePlace(k, tile, blocks, source.view.quads)
    pixels = linear_pixels(k, place.block, ctx.output.shape, 1)
    b, y, x = pixels.coordinates[0]
    vertical, horizontal = window_axes(ctx, op.window, op.stride, (1, 1), op.padding)
    factors = [other.broadcast(b, 0, 0, place.q[0]) for other in others]
    result = k.array(1, constant(k, 0 if average else lowest, i32x4 if whole else f32x4))

    def tap(ky: Index, kx: Index) -> None:
        (iy, ok_y), (ix, ok_x) = vertical.at(k, y, ky), horizontal.at(k, x, kx)
        ok, found = both(ok_y, ok_x), source.quad(b, iy, ix, place.q[0])
        if average:
            found = evaluate(k, op.prologue, [found, *factors], rough=ctx.half)
            result[0] = result[0] + or_zero(k, ok, found * found if op.kind == "squares" else found)
        else:
            largest = k.max(result[0], found)
            result[0] = largest if ok is None else k.select(ok, largest, result[0])

    if kh * kw <= UNROLLED and tile.parts == 1:
        for ky in range(kh):
            for kx in range(kw):
                tap(ky, kx)
    else:
        with k.loop(kh * kw, start=place.part, step=tile.parts) as i:
            tap(i // kw, i % kw)
    (total,) = total_of_parts(k, tile, place.part, result, operator.add if average else k.max)
    if average:
        cells = vertical.cells(k, y) * horizontal.cells(k, x)
        if whole:
            count = k.splat(i32(cells), 4)
            half = count >> 1
            total = k.idiv_trunc(total + k.select(total < 0, -half, half), count)
        else:
            total = total / k.splat(f32(cells), 4)
    store_tile(k, open_sink(ctx, k, operands), place, pixels, [total])
