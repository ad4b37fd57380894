"""Convolution and fully connected layers in whole numbers, on tensor cores."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels import specialized
from litegpu.gpu.backends.cuda.kernels.layer import Layer, residuals_of
from litegpu.gpu.graph import Conv2D, IntegerConv2D
from litegpu.gpu.kernels.context import KernelContext, Launch


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for groups, weights with a zero point, inputs of which no four channels lie side by side, and
    devices without warpgroup products: there the language's kernel does it."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, IntegerConv2D)
    weights = ctx.value(node.inputs[1]).data
    if op.groups > 1 or op.weights_zero_point or weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    plain = Conv2D(op.stride, op.dilation, op.padding, zero_point=op.zero_point)
    layer = Layer(plain, ctx.views[node.inputs[0]], weights, ctx.output.shape, False, residuals_of(ctx), True)
    tiles = specialized.ranked(layer, ctx.features.capability, ctx.features.compute_units)
    if not tiles or not np.issubdtype(weights.dtype, np.integer):
        return None
    if ctx.tuner is None:
        return [specialized.launch(ctx, layer, tiles[0])]
    launches = [specialized.launch(ctx, layer, tile) for tile in tiles[: ctx.tuner.most]]
    times = ctx.tuner.times(launches)
    return [launches[times.index(min(times))]]
