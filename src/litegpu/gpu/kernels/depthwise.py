"""Depthwise convolution: a thread computes four channels of some neighbouring pixels of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import DepthwiseConv2D, DType, IntegerDepthwiseConv2D
from litegpu.gpu.kernels.access import Index, Operands, Position, Sink, Source, open_sink, open_source
from litegpu.gpu.kernels.blocking import (
    ThreadTile,
    TilePlace,
    both,
    choose_tile,
    grid,
    multiply_add,
    or_zero,
    row_blocks,
    row_pixels,
    store_tile,
    when,
    window_axes,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.kernels.terms import sum_type
from litegpu.gpu.lang import Kernel, TracedValue, trace
from litegpu.gpu.view import padded

#: Taps times pixels that are unrolled; a larger window loops over its rows, and over its columns if need be.
UNROLLED = 100


def build(ctx: KernelContext) -> list[Launch]:
    """Output channel c * multiplier + j is input channel c convolved with weights channel c * multiplier + j."""
    op = ctx.node.op
    assert isinstance(op, _OPS)
    if op.multiplier > 1:
        return [_multiplied(ctx, op)]
    shape = ctx.output.shape
    pixels, quads = shape[0] * shape[1] * shape[2], -(-shape[3] // 4)
    tile = choose_tile(pixels, quads, 1, ctx.features, most_pixels=min(4, shape[2]), most_quads=1)
    blocks = row_blocks(shape, tile.pixels)
    operands: Operands = {}
    kernel = trace(
        _depthwise, "depthwise", tile.workgroup, grid(tile, blocks, quads),
        ctx=ctx, tile=tile, blocks=blocks, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, "depthwise_conv_2d")]


def _depthwise(k: Kernel, ctx: KernelContext, tile: ThreadTile, blocks: int, operands: Operands) -> None:
    op = ctx.node.op
    assert isinstance(op, _OPS)
    _, kh, kw, channels = ctx.value(ctx.node.inputs[1]).shape
    source, weights = _factors(ctx, k, operands)
    zero = op.zero_point if isinstance(op, IntegerDepthwiseConv2D) else 0
    n = tile.pixels
    place = TilePlace(k, tile, blocks, -(-channels // 4))
    pixels = row_pixels(place.block, ctx.output.shape, n)
    b, y, x = pixels.coordinates[0]
    vertical, horizontal = window_axes(ctx, (kh, kw), op.stride, op.dilation, op.padding, n)
    sums = k.array(n, constant(k, 0, sum_type(op)))

    def row(ky: Index, taps: Sequence[Index]) -> None:
        """Add up some taps of row `ky` of the window; each input is loaded once for all the pixels it belongs to."""
        iy, ok_y = vertical.at(k, y, ky * op.dilation[0])
        loaded: dict[int, TracedValue] = {}
        for kx in taps:
            tap = weights.quad(0, ky, kx, place.q[0])
            for p in range(n):
                offset = kx * op.dilation[1] + p * op.stride[1]
                key = offset if isinstance(offset, int) else p  # a tap known only at run time is the only one
                if key not in loaded:
                    ix, ok_x = horizontal.at(k, x, offset)
                    ok, quad = both(ok_y, ok_x), source.quad(b, iy, ix, place.q[0])
                    loaded[key] = or_zero(k, ok, quad - zero if zero else quad)
                sums[p] = multiply_add(k, loaded[key], tap, sums[p])

    if kh * kw * n <= UNROLLED:
        for i in range(kh):
            row(i, range(kw))
    elif kw * n <= UNROLLED:
        with k.loop(kh) as ky:
            row(ky, range(kw))
    else:
        with k.loop(kh) as ky, k.loop(kw) as kx:
            row(ky, [kx])
    store_tile(k, open_sink(ctx, k, operands), place, pixels, [sums[p] for p in range(n)])


def _multiplied(ctx: KernelContext, op: DepthwiseConv2D | IntegerDepthwiseConv2D) -> Launch:
    """Several outputs for an input channel: a quad of outputs gathers the input channels that it needs."""
    _, kh, kw, outputs = ctx.value(ctx.node.inputs[1]).shape
    zero = op.zero_point if isinstance(op, IntegerDepthwiseConv2D) else 0

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        source, weights = _factors(ctx, k, operands)
        vertical, horizontal = window_axes(ctx, (kh, kw), op.stride, op.dilation, op.padding)
        total = k.var(constant(k, 0, sum_type(op)))
        b, y, x, q = at.b, at.y, at.x, at.q
        channels = _channels(k, q, op.multiplier, outputs)
        with k.loop(kh) as ky, k.loop(kw) as kx:
            iy, ok_y = vertical.at(k, y, ky * op.dilation[0])
            ix, ok_x = horizontal.at(k, x, kx * op.dilation[1])
            with k.If(when(both(ok_y, ok_x))):
                found = [source.at(b, iy, ix, c) for c in channels]
                row = k.splat(found[0], 4) if len(found) == 1 else k.vec(*found)
                row = row - zero if zero else row
                total.set(multiply_add(k, row, weights.quad(0, ky, kx, q), total.value))
        sink.write(at, total.value)

    return per_quad(ctx, "depthwise_multiplied", body)


_OPS = (DepthwiseConv2D, IntegerDepthwiseConv2D)


def _factors(ctx: KernelContext, k: Kernel, operands: Operands) -> tuple[Source, Source]:
    """The data and the weights; these as bytes where they are small whole numbers."""
    source, weights = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)
    data = weights.data
    if isinstance(ctx.node.op, IntegerDepthwiseConv2D) and data is not None and np.all(np.abs(data) <= 127):
        view = padded(-1, data.shape, DType.INT8)
        weights = dataclasses.replace(weights, view=view, data=data.astype(np.int8))
    return source, weights


def _channels(k: Kernel, q: Index, multiplier: int, outputs: int) -> list[Index]:
    """The input channels of outputs 4q to 4q+3 (past the last output, the last one's); one if all are the same."""
    if multiplier == outputs:
        return [0]
    found: list[Index] = []
    for j in range(1 if multiplier % 4 == 0 else 4):
        o = q * 4 + j
        if outputs % 4:
            o = min(o, outputs - 1) if isinstance(o, int) else k.min(o, outputs - 1)
        found.append(o // multiplier)
    return found
