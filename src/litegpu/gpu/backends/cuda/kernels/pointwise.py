"""1x1 convolutions that do something with their input, or normalise it, first, or put their rows somewhere else, by the
kernels of other convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.backends.cuda.kernels import convolution, matvec, normed, pingpong, specialized
from litegpu.gpu.backends.cuda.kernels.channelwise import read_channelwise
from litegpu.gpu.backends.cuda.kernels.layer import Layer, NormBehind, ToldNorm, has_functions, residuals_of
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.row_norm import folded
from litegpu.gpu.backends.cuda.kernels.runs import run_of
from litegpu.gpu.backends.cuda.kernels.source import Where
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.graph import (
    Conv2D,
    DType,
    LayerNorm,
    MomentsConv2D,
    PointwiseConv2D,
    Reshape,
    RowMoments,
    Shape,
    Step,
    Take,
    Transpose,
)
from litegpu.gpu.kernels.access import Position
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.movement import Quad, no_table, origin, shapes_along
from litegpu.gpu.lang import Features, Kernel, KernelError, TracedValue
from litegpu.gpu.view import padded

#: Of a tile whose results are normalised.
ROWS = 128
#: Microseconds of workgroups that tell each other what rows sum up to; of a layer norm's kernel, and for each number.
EXCHANGE = 2.0
NORM, NORM_EACH = 1.3, 4 / 3.6e6


def where_moved(steps: Sequence[Step], shape: Shape, target: Shape) -> Where:
    """Where a pixel of `shape` is in `target` when the steps have moved it: rows that are shifted around, exchanged and
    counted in another way."""
    back = tuple(_inverse(step) for step in reversed(steps))
    shapes = shapes_along(back, target)

    def where(pixel: TracedValue, quad: TracedValue) -> Position:
        at, k = Position(shape, pixel=pixel, q=quad), pixel.kernel
        assert isinstance(k, Kernel)
        b, y, x, channels = origin(k, back, shapes, [at.b, at.y, at.x, Quad(at.q)], no_table).coordinates
        assert isinstance(channels, Quad) and not isinstance(b, Quad) and not isinstance(y, Quad)
        assert not isinstance(x, Quad)
        return Position(target, coordinates=(b, y, x, channels.q))

    return where


def _inverse(step: Step) -> Step:
    match step:
        case Reshape(source, target):
            return Reshape(target, source)
        case Transpose(perm):
            return Transpose(tuple(perm.index(i) for i in range(len(perm))))
        case Take(axis, indices):
            return Take(axis, tuple(indices.index(i) for i in range(len(indices))))
    raise ValueError(f"{step} leaves something out")


def build(ctx: KernelContext) -> list[Launch]:
    op, (x, w, *others) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, PointwiseConv2D)
    weights, source, shape = ctx.value(w).data, ctx.views[x], ctx.output.shape
    assert weights is not None  # as the passes see to
    if op.behind is not None:
        return [_normed(ctx, op.behind)]
    if op.norm is not None:
        norm, folded_rows = folded(op.norm, weights.reshape(len(weights), 1, 1, -1))
        weights, residuals = folded_rows.reshape(weights.shape), residuals_of(ctx)
        layer = Layer(Conv2D(op.stride), source, weights, shape, True, residuals, run=run_of(ctx), norm=norm)
        layer = dataclasses.replace(layer, fetched=op.fetched, floats=run_of(ctx, floats=True))
        return [convolution.fastest(ctx, layer)]
    if op.parts:
        layer = Layer(Conv2D(), source, weights, shape, ctx.half, residuals_of(ctx), parts=op.parts, summed=op.prologue)
        divisions = matvec.ranked(layer, ctx.features.compute_units)
        return [offered([matvec.launch(ctx, layer, one) for one in divisions[: ctx.most]])]
    if op.moved:
        rows = (*ctx.value(x).shape[:3], len(weights))
        layer = Layer(Conv2D(), source, weights, rows, True, residuals_of(ctx))
        return [convolution.fastest(ctx, layer, where_moved(op.moved, rows, shape))]
    prologue = read_channelwise(op.prologue, [ctx.value(v) for v in (x, *others)])
    assert prologue is not None
    gate = None if prologue.gate is None else ctx.views[others[prologue.gate - 1]]
    half = ctx.half or source.dtype is DType.FLOAT16
    layer = Layer(Conv2D(op.stride), source, weights, shape, half, residuals_of(ctx), prologue=prologue, gate=gate)
    return [convolution.fastest(ctx, layer)]


def _normed(ctx: KernelContext, norm: LayerNorm) -> Launch:
    """The convolution whose results are normalised, by workgroups that have whole rows."""
    x, w, b, *residual = ctx.node.inputs
    weights, bias, shape = ctx.value(w).data, ctx.value(b).data, ctx.output.shape
    assert weights is not None and bias is not None  # as the pass sees to
    added = ctx.views[residual[0]] if residual else None
    behind = NormBehind(norm, np.broadcast_to(bias, (1, 1, 1, shape[3])), added, shape[3])
    layer = Layer(Conv2D(), ctx.views[x], weights, shape, True, len(residual), run=run_of(ctx), behind=behind)
    if not (layer.run and specialized.takes(layer, ctx.features.capability)):
        raise KernelError("a convolution that normalises its results cannot read or store these where they lie")
    tiles = _that_have_rows(layer, ctx.features.compute_units)
    return offered([specialized.launch(ctx, layer, tile) for tile in tiles[: ctx.most]])


def build_with_moments(ctx: KernelContext) -> list[Launch]:
    """The convolution that tells of its results' rows, or is told of others."""
    op, (x, w, *moments) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, MomentsConv2D)
    weights, shape, told = ctx.value(w).data, ctx.output.shape, None
    assert weights is not None  # as the pass sees to
    if op.norm is not None:
        scale, depth = 1.0, shape[3] if op.operand else ctx.value(x).shape[3]
        if not op.operand:
            norm, weights = folded(op.norm, weights)
            scale = norm.scale
        parts = ctx.value(moments[0]).shape[3] // 2
        told = ToldNorm(op.norm, depth, parts, ctx.views[moments[0]], op.operand, scale)
    asking = next((n for n in ctx.graph.nodes if isinstance(n.op, RowMoments) and n.inputs[0] == ctx.node.output), None)
    layer = Layer(
        Conv2D(), ctx.views[x], weights, shape, True, residuals_of(ctx), run=run_of(ctx), told=told,
        tells=None if asking is None else ctx.views[asking.output], functions=has_functions(ctx.node.epilogue),
    )  # fmt: skip
    tiles = pingpong.ranked(layer, ctx.features.capability, ctx.features.compute_units)
    if asking is not None:
        assert isinstance(asking.op, RowMoments)
        tiles = [tile for tile in tiles if tile.columns == asking.op.columns]
    if not tiles:
        raise KernelError("a convolution that knows moments of rows cannot read or store these where they lie")
    return [offered([pingpong.launch(ctx, layer, tile) for tile in tiles[: ctx.most]])]


def nothing(ctx: KernelContext) -> list[Launch]:
    """RowMoments, which the kernel stores whose results they are of."""
    return []


def normed_pays(rows: int, inputs: int, outputs: int, residuals: int, features: Features) -> bool:
    """Whether a convolution of so many channels that normalises its results is estimated to take less than one that
    does not and a layer norm behind it: its tiles are large."""
    weights = np.broadcast_to(np.float32(0), (outputs, 1, 1, inputs))
    source = padded(0, (1, 1, rows, inputs), DType.FLOAT16)
    layer = Layer(Conv2D(), source, weights, (1, 1, rows, outputs), True, residuals, run=8)
    units = features.compute_units
    apart = specialized.ranked(layer, features.capability, units)
    if not apart or not normed.fits(outputs):
        return False
    own = specialized.cost(layer, _that_have_rows(layer, units)[0], units) + EXCHANGE
    return own < specialized.cost(layer, apart[0], units) + NORM + rows * outputs * NORM_EACH


def _that_have_rows(layer: Layer, units: int) -> list[SpecializedTile]:
    """Tiles of which a few have whole rows together, the cheapest first, of those that were measured: where several
    workgroups share a multiprocessor threads have too few registers."""
    found = [
        tile
        for tile in specialized.candidates()
        if tile.split == tile.resident == 1 and tile.rows == ROWS and normed.parts_of(layer.shape[3], tile.columns)
    ]
    return sorted(found, key=lambda tile: (specialized.cost(layer, tile, units), tile.threads))
