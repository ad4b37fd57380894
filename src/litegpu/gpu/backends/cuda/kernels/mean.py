"""A 1x1 convolution of few pixels and the mean of its results over these, in parts: one of each tile."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels import convolution, overlapped
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.runs import nothing_stored
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.squeeze import function
from litegpu.gpu.backends.cuda.kernels.tile import WorkgroupTile, device_shared_bytes
from litegpu.gpu.graph import RESULT, Conv2D, MeanConv2D, Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import View

#: Microseconds that another part costs those who add them up. (An estimate: a load beside others.)
PART = 0.05
#: Columns of tiles, whose quads lanes of a warp share.
MOST_COLUMNS = 128


def build(ctx: KernelContext) -> list[Launch]:
    op, (x, w, *_) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, MeanConv2D)
    weights = ctx.value(w).data
    assert weights is not None  # as the pass sees to
    layer = layer_of(ctx.views[x], weights, ctx.value(x).shape)
    tiles = tiles_of(op, layer, ctx.features)
    return [offered([_launch(ctx, layer, tile) for tile in tiles[: ctx.most]])]


def layer_of(source: View, weights: np.ndarray, shape: Shape) -> Layer:
    return Layer(Conv2D(), source, weights, (*shape[:3], len(weights)), True)


def tiles_of(op: MeanConv2D, layer: Layer, features: Features) -> list[WorkgroupTile]:
    """Those that make as many parts as the node, the cheapest first; none if the kernel cannot read the input."""
    fitting = ranked(layer, features.capability, features.compute_units)
    return [t for t in fitting if parts_of(layer, t) == op.parts]


def ranked(layer: Layer, capability: int, units: int) -> list[WorkgroupTile]:
    """The cheapest tiles first; none if the kernel cannot do it."""
    product, most = convolution.product_of(layer, capability), device_shared_bytes(capability)
    found = [t for t in overlapped.tiles(layer, product, units) if t.columns <= MOST_COLUMNS and 128 % t.columns == 0]
    found = [t for t in found if t.shared_bytes(True) <= most]
    return sorted(found, key=lambda t: overlapped.tile_cost(layer, t, units) + PART * parts_of(layer, t))


def parts_of(layer: Layer, tile: WorkgroupTile) -> int:
    """Tiles along the pixels."""
    return -(-(layer.shape[1] * layer.shape[2]) // tile.rows)


def _launch(ctx: KernelContext, layer: Layer, tile: WorkgroupTile) -> Launch:
    op, view, others = ctx.node.op, ctx.views[ctx.node.output], ctx.node.inputs[2:]
    assert isinstance(op, MeanConv2D)
    made = convolution.settings(ctx, layer, tile)
    channelwise = np.zeros((max(1, len(others)), view.quads * 4), np.float32)
    for own, v in zip(channelwise, others, strict=False):
        data = ctx.value(v).data
        assert data is not None
        own[: layer.shape[3]] = data.reshape(-1)
    arguments = ", ".join(["value", *(f"own[{i}]" for i in range(len(others)))])
    constants = made.constants | {
        "MEANS": 1, "AHEAD": 0, "SCALE": float_text(1 if op.summed else 1 / (layer.shape[1] * layer.shape[2])),
        "OPERANDS": len(others), "ACTIVATE(value)": f"ACTIVATED({arguments})",
    }  # fmt: skip
    functions = [function(ctx, "activated", op.inner, 1 + len(others))]
    if ctx.node.epilogue != RESULT:
        functions.append(function(ctx, "finished", ctx.node.epilogue))
    return native_launch(
        ctx, "mean_convolution", made.files, constants, {**made.operands, "channelwise": channelwise, "parts": view},
        label="conv_2d", workgroup=(tile.threads, 1, 1), dispatch=(made.groups, 1, 1), shared_bytes=made.shared_bytes,
        variant=str(tile), inner=functions, runs=nothing_stored(), rounds=layer.rounds,
    )  # fmt: skip
