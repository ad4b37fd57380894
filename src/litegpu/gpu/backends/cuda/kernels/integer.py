"""Convolution and fully connected layers in whole numbers, on tensor cores."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from litegpu.gpu.backends.cuda.kernels import (
    byte_matvec,
    convolution,
    halo,
    overlapped,
    persistent,
    pingpong,
    runs,
    specialized,
    stem,
    wide_stem,
)
from litegpu.gpu.backends.cuda.kernels.layer import Layer, residuals_of
from litegpu.gpu.backends.cuda.kernels.offer import Option, cheapest
from litegpu.gpu.backends.cuda.kernels.tile import COPYING_CAPABILITY, WARPGROUP_CAPABILITY, cost, ranked, that_fit
from litegpu.gpu.graph import Conv2D, IntegerConv2D
from litegpu.gpu.kernels.context import KernelContext, Launch

#: An estimate, what launches the kernel, and by which tile or block.

#: Channels of an input of which stem.py, which pads them to four, loads and multiplies twice as many or more.
FEW_CHANNELS = 2
#: What first layers by warpgroup products take of their estimate where kernels overlap.
WIDE = 0.8
#: Rows up to which threads that share sums fill the device better than tiles of 64 rows.
FEW_ROWS = 8


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for groups, few rows of windows, and weights with a zero point: there the language's kernel does
    it."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, IntegerConv2D)
    weights = ctx.value(node.inputs[1]).data
    if op.groups > 1 or op.weights_zero_point or weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    plain = Conv2D(op.stride, op.dilation, op.padding, zero_point=op.zero_point)
    layer = Layer(plain, ctx.views[node.inputs[0]], weights, ctx.output.shape, False, residuals_of(ctx), True)
    layer = dataclasses.replace(layer, run=runs.run_of(ctx))
    units, capability = ctx.features.compute_units, ctx.features.capability
    if math.prod(ctx.output.shape[:3]) <= FEW_ROWS:
        return [byte_matvec.launch(ctx, layer)] if byte_matvec.takes(layer, capability) else None
    tiles = specialized.ranked(layer, capability, units)
    blocks = that_fit(stem.ranked(layer, units), functools.partial(stem.shared_bytes, layer), capability)
    options: list[Option]
    options = [(stem.cost(layer, block, units), stem.launch, block) for block in blocks]
    together = capability == WARPGROUP_CAPABILITY and overlapped.will_overlap(ctx.graph)
    wide, share = wide_stem.ranked(layer, capability, units), WIDE if together else 1.0
    options += [(share * wide_stem.cost(layer, block, units), wide_stem.launch, block) for block in wide]
    options += [(specialized.cost(layer, tile, units), specialized.launch, tile) for tile in tiles]
    options += [(halo.cost(layer, tile, units), halo.launch, tile) for tile in halo.ranked(layer, capability, units)]
    staying = persistent.ranked(layer, capability, units)
    options += [(persistent.cost(layer, tile, units), persistent.launch, tile) for tile in staying]
    if not together:
        turns = pingpong.ranked(layer, capability, units)
        options += [(pingpong.cost(layer, tile, units), pingpong.launch, tile) for tile in turns]
    if capability != WARPGROUP_CAPABILITY or (not layer.vector and weights.shape[3] <= FEW_CHANNELS):
        options += by_warps(layer, capability, units)
    if not options:
        return None
    first = small(layer, min(options, key=lambda option: option[0]), units) if together else None
    return [cheapest(ctx, layer, options, first=first)]


def small(layer: Layer, chosen: Option, units: int) -> Option | None:
    """The best tile that warps multiply each by itself if that is clearly quicker than what was chosen in a
    program whose kernels overlap: such tiles have fewer rows, and warps that divide their depth."""
    known = layer.weights.dtype == np.int8 and overlapped.knows(layer)
    tiles = overlapped.tiles(layer, convolution.product_of(layer, COPYING_CAPABILITY), units) if known else []
    _, make, one = chosen
    estimates: dict[Callable[..., Launch], Callable[..., float]] = {
        specialized.launch: overlapped.specialized_cost, halo.launch: overlapped.measured(halo.cost),
        persistent.launch: overlapped.measured(persistent.cost),
    }  # fmt: skip
    if not tiles or make not in estimates:
        return None
    least = overlapped.tile_cost(layer, tiles[0], units)
    clearly = least < estimates[make](layer, one, units) - overlapped.CLEARLY
    return (least, convolution.launch, tiles[0]) if clearly else None


def by_warps(layer: Layer, capability: int, units: int) -> list[Option]:
    """The tiles that warps multiply each by itself, with what they are estimated to take; none for unsigned weights."""
    if layer.weights.dtype != np.int8:
        return []
    product = convolution.product_of(layer, capability)
    return [(cost(product, tile, units), convolution.launch, tile) for tile in ranked(product, units)]
