"""Convolution: each thread keeps a block of output pixels and channels in registers and walks over the inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import Conv2D, IntegerConv2D, Reshape
from litegpu.gpu.kernels.access import Index, Operands, Position, Sink, Source, address, open_source
from litegpu.gpu.kernels.blocking import (
    ThreadTile,
    TilePlace,
    Weights,
    both,
    choose_tile,
    column_pixels,
    grid,
    linear_pixels,
    multiply_add,
    row_blocks,
    row_pixels,
    when,
    window_axes,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.kernels.shared_sums import store_terms
from litegpu.gpu.kernels.terms import open_terms
from litegpu.gpu.lang import Kernel, TracedValue, f32, i32, i32x4, trace, vec
from litegpu.gpu.view import follow

#: Multiplications of quads that the taps of one row may unroll to.
UNROLLED = 320
#: Outputs up to which a window's neighbouring pixels are those of a column.
_FEW_OUTPUTS = 16


def build(ctx: KernelContext) -> list[Launch]:
    """Sums, float32 or of IntegerConv2D int32, are in the order taps then inputs unless several threads share one."""
    op = ctx.node.op
    assert isinstance(op, (Conv2D, IntegerConv2D))
    outputs, kh, kw, inputs = ctx.value(ctx.node.inputs[1]).shape
    if op.groups > 1 and (inputs % 4 or outputs // op.groups % 4):
        return [_grouped(ctx, op)]
    shape = ctx.output.shape
    pointwise = (kh, kw) == (1, 1) and op.stride == (1, 1) and op.padding == (0, 0) and _same_size(ctx)
    pixels, quads = shape[0] * shape[1] * shape[2], -(-outputs // 4)
    tile = choose_tile(
        pixels,
        quads,
        -(-inputs // 4),
        ctx.features,
        most_pixels=min(8, pixels) if pointwise else row_block(shape[1 if _goes_down(ctx) else 2]),
        most_quads=1 if op.groups > 1 else 2,
        most=16 if pointwise else 8,  # a window also keeps neighbouring inputs in registers
        taps=1 if ctx.features.native else kh * kw,
    )
    blocks = -(-pixels // tile.pixels) if pointwise else row_blocks(shape, tile.pixels, _goes_down(ctx))
    operands: Operands = {}
    kernel = trace(
        _pointwise if pointwise else _spatial, "convolution_1x1" if pointwise else "convolution",
        tile.workgroup, grid(tile, blocks, quads), ctx=ctx, tile=tile, blocks=blocks, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, "conv_2d")]


# ------------------------------------------------------------------------------------------------------ kernels


def _pointwise(k: Kernel, ctx: KernelContext, tile: ThreadTile, blocks: int, operands: Operands) -> None:
    """1x1, stride 1: a matrix product over all pixels."""
    shape = ctx.output.shape
    outputs, _, _, inputs = ctx.value(ctx.node.inputs[1]).shape
    terms = open_terms(ctx, k, tile, operands)
    place = TilePlace(k, tile, blocks, -(-outputs // 4))
    pixels = linear_pixels(k, place.block, shape, tile.pixels)
    flat = flattened(terms.source)
    where = pixels.coordinates if flat is None else [(0, 0, p) for p in pixels.linear]
    first = _first_input(ctx, place)
    terms.begin()
    depth = -(-inputs // 4) // terms.step
    steps = together(ctx, depth, tile, tile.pixels + 4 * tile.quads)
    with k.loop(depth, start=place.part, step=tile.parts * steps) as i:
        for j in range(steps):
            step = address(j * tile.parts, [(i, 1)])
            rows = [terms.load(flat or terms.source, (b, y, x, step + first), None) for b, y, x in where]
            terms.add(rows, (0, 0), step, place.q)
    store_terms(ctx, k, place, pixels, lambda block, p: linear_pixels(k, block, shape, tile.pixels, p), terms, operands)


def _spatial(k: Kernel, ctx: KernelContext, tile: ThreadTile, blocks: int, operands: Operands) -> None:
    """Any window: loops over the rows of the window and the inputs, and over its columns unless they are unrolled."""
    op = ctx.node.op
    assert isinstance(op, (Conv2D, IntegerConv2D))
    outputs, kh, kw, inputs = ctx.value(ctx.node.inputs[1]).shape
    shape, lanes, n = ctx.output.shape, min(inputs, 4), tile.pixels
    terms = open_terms(ctx, k, tile, operands)
    place = TilePlace(k, tile, blocks, -(-outputs // 4))
    down = _goes_down(ctx)
    along, neighbours = (0, column_pixels) if down else (1, row_pixels)  # the axis on which pixels are neighbours
    pixels = neighbours(place.block, shape, n)
    b, *corner = pixels.coordinates[0]
    upsample, border = (op.upsample, op.border) if isinstance(op, Conv2D) else ((1, 1), "zero")
    axes = window_axes(ctx, (kh, kw), op.stride, op.dilation, op.padding, n, upsample, border, down)
    first = _first_input(ctx, place)
    terms.begin()

    def line(number: TracedValue, taps: Sequence[Index]) -> None:
        """Add up some taps of a line of the window, a row unless it goes down. Neighbouring pixels share what they
        load."""
        fixed, ok_fixed = axes[1 - along].at(k, corner[1 - along], number * op.dilation[1 - along])
        offsets = {
            _offset(op, tap, p, along): tap * op.dilation[along] + p * op.stride[along]
            for tap in taps
            for p in range(n)
        }  # of input columns, or rows; a tap known only at run time is the only one
        at = {key: axes[along].at(k, corner[along], offset) for key, offset in offsets.items()}
        ok = {key: both(ok_at, ok_fixed) for key, (_, ok_at) in at.items()}
        depth = -(-inputs // 4) // terms.step
        steps = together(ctx, depth, tile, len(offsets) + 4 * tile.quads * len(taps))
        with k.loop(depth, start=place.part, step=tile.parts * steps) as i:
            for j in range(steps):
                step = address(j * tile.parts, [(i, 1)])
                loaded: dict[int, TracedValue] = {}
                for tap in taps:
                    for p in range(n):
                        key = _offset(op, tap, p, along)
                        if key not in loaded:
                            iy, ix = (at[key][0], fixed) if down else (fixed, at[key][0])
                            loaded[key] = terms.load(terms.source, (b, iy, ix, step + first), ok[key])
                    rows = [loaded[_offset(op, tap, p, along)] for p in range(n)]
                    terms.add(rows, (tap, number) if down else (number, tap), step, place.q)

    lines, taps = (kw, kh) if down else (kh, kw)
    with k.loop(lines) as number:
        if taps * n * tile.quads * lanes <= UNROLLED:
            line(number, range(taps))
        else:
            with k.loop(taps) as tap:
                line(number, [tap])
    store_terms(ctx, k, place, pixels, lambda block, p: neighbours(block, shape, n, p), terms, operands)


def _grouped(ctx: KernelContext, op: Conv2D | IntegerConv2D) -> Launch:
    """Groups whose sizes are not multiples of four: a quad of outputs reads up to four different groups."""
    weights_value = ctx.value(ctx.node.inputs[1])
    outputs, kh, kw, inputs = weights_value.shape
    assert weights_value.data is not None
    array = weights_value.data.transpose(1, 2, 3, 0)
    integer = isinstance(op, IntegerConv2D)
    zero = op.zero_point if isinstance(op, IntegerConv2D) else 0
    if isinstance(op, IntegerConv2D):
        array = array.astype(np.int32) - op.weights_zero_point

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        weights = Weights(ctx, k, array, operands, compute=i32x4) if integer else Weights(ctx, k, array, operands)
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        vertical, horizontal = window_axes(ctx, (kh, kw), op.stride, op.dilation, op.padding)
        b, y, x, q = at.b, at.y, at.x, at.q
        channels = _first_channels(k, q, op, outputs, inputs)
        total = k.var(constant(k, 0, vec(i32 if integer else f32, 4)))
        with k.loop(kh) as ky, k.loop(kw) as kx:
            iy, ok_y = vertical.at(k, y, ky * op.dilation[0])
            ix, ok_x = horizontal.at(k, x, kx * op.dilation[1])
            with k.If(when(both(ok_y, ok_x))), k.loop(inputs) as i:
                found = [source.at(b, iy, ix, c + i) for c in channels]
                row = k.splat(found[0], 4) if len(found) == 1 else k.vec(*found)
                row = row - zero if zero else row
                factor = weights([(ky, kw * inputs), (kx, inputs), (i, 1)], q)
                total.set(multiply_add(k, row, factor, total.value))
        sink.write(at, total.value)

    return per_quad(ctx, "convolution_grouped", body)


def flattened(source: Source) -> Source | None:
    """The same elements as [1, 1, B*H*W, C], if they lie so that one stride leads from pixel to pixel."""
    b, h, w, c = source.view.shape
    view = follow(source.view, (Reshape((b, h, w, c), (1, 1, b * h * w, c)),))
    return None if view is None or source.data is not None else dataclasses.replace(source, view=view)


def row_block(width: int) -> int:
    """The most neighbours of a row that one thread should compute: few of them may lie past the row's end."""
    return 8 if width % 8 == 0 or width >= 64 else min(4, width)


def _offset(op: Conv2D | IntegerConv2D, tap: Index, p: int, along: int) -> int:
    return tap * op.dilation[along] + p * op.stride[along] if isinstance(tap, int) else p


def _goes_down(ctx: KernelContext) -> bool:
    """Whether a thread has neighbours of a column: where few threads side by side have other channels, others have
    other pixels, and neighbours of a row then lie side by side in memory when they are read."""
    _, h, _, outputs = ctx.output.shape
    return not ctx.features.native and outputs <= _FEW_OUTPUTS and h >= 4


def _first_input(ctx: KernelContext, place: TilePlace) -> Index:
    """The quad of inputs where this thread's group begins."""
    op = ctx.node.op
    assert isinstance(op, (Conv2D, IntegerConv2D))
    outputs, _, _, inputs = ctx.value(ctx.node.inputs[1]).shape
    return 0 if op.groups == 1 else place.q[0] // (outputs // op.groups // 4) * (inputs // 4)


def _first_channels(k: Kernel, q: Index, op: Conv2D | IntegerConv2D, outputs: int, inputs: int) -> list[Index]:
    """The first channel of the groups that outputs 4q to 4q+3 read; one if all four read the same."""
    size = outputs // op.groups
    found: list[Index] = []
    for j in range(1 if size % 4 == 0 else 4):
        o = q * 4 + j
        if outputs % 4:
            o = min(o, outputs - 1) if isinstance(o, int) else k.min(o, outputs - 1)
        found.append(o // size * inputs)
    return found


def together(ctx: KernelContext, depth: int, tile: ThreadTile, loads: int) -> int:
    """How many steps of a sum over `depth`, of so many loads each, are written side by side."""
    rounds, most = depth // tile.parts if depth % tile.parts == 0 else 1, ctx.features.loads_together // loads
    return next(d for d in range(max(1, min(rounds, most)), 0, -1) if rounds % d == 0)


def _same_size(ctx: KernelContext) -> bool:
    return ctx.output.shape[:3] == ctx.value(ctx.node.inputs[0]).shape[:3]
