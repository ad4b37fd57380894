"""Convolution and fully connected layers in whole numbers, on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Callable

from litegpu.gpu.backends.cuda.kernels import specialized, stem
from litegpu.gpu.backends.cuda.kernels.layer import Layer, residuals_of
from litegpu.gpu.graph import Conv2D, IntegerConv2D
from litegpu.gpu.kernels.context import KernelContext, Launch, quickest

#: Rows up to which the language's kernel, whose threads share sums, fills the device better than tiles of 64 rows.
FEW_ROWS = 8


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for groups, few rows, weights with a zero point, inputs of which no four channels lie side by
    side, and devices without warpgroup products: there the language's kernel does it."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, IntegerConv2D)
    weights = ctx.value(node.inputs[1]).data
    if math.prod(ctx.output.shape[:3]) <= FEW_ROWS:
        return None
    if op.groups > 1 or op.weights_zero_point or weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    plain = Conv2D(op.stride, op.dilation, op.padding, zero_point=op.zero_point)
    layer = Layer(plain, ctx.views[node.inputs[0]], weights, ctx.output.shape, False, residuals_of(ctx), True)
    units = ctx.features.compute_units
    tiles = specialized.ranked(layer, ctx.features.capability, units)
    options: list[tuple[float, Callable[..., Launch], object]]
    options = [(stem.cost(layer, block, units), stem.launch, block) for block in stem.ranked(layer, units)]
    options += [(specialized.cost(layer, tile, units), specialized.launch, tile) for tile in tiles]
    if not options:
        return None
    options.sort(key=lambda option: option[0])
    if ctx.tuner is None:
        _, make, one = options[0]
        return [make(ctx, layer, one)]
    launches = [make(ctx, layer, one) for _, make, one in options[: ctx.tuner.most]]
    return [quickest(ctx.tuner, launches)]
