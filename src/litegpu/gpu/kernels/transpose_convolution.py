"""Transposed convolution, gathering: a thread owns pixels of one phase of the stride, which meet the same taps."""

from __future__ import annotations

from litegpu.gpu.graph import IntegerTransposeConv2D, TransposeConv2D
from litegpu.gpu.kernels.access import Operands, open_sink
from litegpu.gpu.kernels.blocking import (
    Pixels,
    ThreadTile,
    TilePlace,
    both,
    choose_tile,
    grid,
    store_tile,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.terms import open_terms
from litegpu.gpu.lang import Kernel, TracedValue, trace


def build(ctx: KernelContext) -> list[Launch]:
    """x[iy, ix] adds to out[iy * stride - padding + ky, ...]."""
    op = ctx.node.op
    assert isinstance(op, (TransposeConv2D, IntegerTransposeConv2D))
    b, oh, ow, outputs = ctx.output.shape
    inputs = ctx.value(ctx.node.inputs[1]).shape[3]
    quads = -(-outputs // 4)
    rows, width = (_steps(n, s, p) for n, s, p in zip((oh, ow), op.stride, op.padding, strict=True))
    phases = op.stride[0] * op.stride[1]
    tile = choose_tile(b * rows * width * phases, quads, -(-inputs // 4), ctx.features, most_pixels=min(4, width))
    blocks = b * rows * phases * -(-width // tile.pixels)
    operands: Operands = {}
    kernel = trace(
        _transpose_convolution, "transpose_convolution", tile.workgroup, grid(tile, blocks, quads),
        ctx=ctx, op=op, tile=tile, blocks=blocks, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, "transpose_conv")]


def _transpose_convolution(
    k: Kernel,
    ctx: KernelContext,
    op: TransposeConv2D | IntegerTransposeConv2D,
    tile: ThreadTile,
    blocks: int,
    operands: Operands,
) -> None:
    """With o + padding = stride * step + phase, the taps are phase + stride * t and meet input step - t."""
    (sy, sx), (pad_y, pad_x), n = op.stride, op.padding, tile.pixels
    _, oh, ow, outputs = ctx.output.shape
    _, h, w, inputs = ctx.value(ctx.node.inputs[0]).shape
    _, kh, kw, _ = ctx.value(ctx.node.inputs[1]).shape
    terms = open_terms(ctx, k, tile, operands)
    place = TilePlace(k, tile, blocks, -(-outputs // 4))
    rows, across = _steps(oh, sy, pad_y), -(-_steps(ow, sx, pad_x) // n)
    step_x, rest = place.block % across * n, place.block // across
    step_y, rest = rest % rows, rest // rows
    phase_x, rest = rest % sx, rest // sx
    phase_y, b = rest % sy, rest // sy
    y = step_y * sy + phase_y - pad_y  # before the first row it wraps to a huge number, which is not real either
    xs = [(step_x + j) * sx + phase_x - pad_x for j in range(n)]
    terms.begin()

    with k.loop(_taps(k, kh, sy, phase_y)) as ty, k.loop(_taps(k, kw, sx, phase_x)) as tx:
        iy, ok_y = _inside(k, step_y - ty, h)
        found = [_inside(k, step_x + j - tx, w) for j in range(n)]
        ky, kx = phase_y + ty * sy, phase_x + tx * sx
        with k.loop(-(-inputs // 4), start=place.part, step=tile.parts) as iq:
            row = [terms.load(terms.source, (b, iy, ix, iq), both(ok_y, ok_x)) for ix, ok_x in found]
            terms.add(row, (ky, kx), iq, place.q)

    real: list[TracedValue | None] = [(y < oh) & (x < ow) for x in xs]
    pixels = Pixels([(b, y, x) for x in xs], real)
    store_tile(k, open_sink(ctx, k, operands), place, pixels, terms.totals(place))


def _steps(out: int, stride: int, padding: int) -> int:
    """How many different steps the output positions 0 to out-1 have."""
    return -(-(out + padding) // stride)


def _taps(k: Kernel, kernel: int, stride: int, phase: TracedValue) -> TracedValue | int:
    """How many taps a phase has."""
    return kernel if stride == 1 else (k.const(kernel + stride - 1, phase.type) - phase) // stride


def _inside(k: Kernel, i: TracedValue, size: int) -> tuple[TracedValue, TracedValue]:
    """`i` clamped to the input, and whether it lay inside; one below zero wrapped to a huge number."""
    return k.min(i, size - 1), i < size
