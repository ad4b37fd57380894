"""Convolutions of which the largest of each two by two results is stored, on devices that have warpgroup products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from litegpu.gpu.backends.cuda.kernels import halo, overlapped, persistent, runs, specialized
from litegpu.gpu.backends.cuda.kernels.convolution import product_of
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.offer import cheapest
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.backends.cuda.kernels.tile import cost as tile_cost
from litegpu.gpu.backends.cuda.kernels.tile import ranked as ranked_tiles
from litegpu.gpu.graph import Conv2D, PooledConv2D, Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View

#: Rows and columns of a square.
SIDE = 2
#: What pooling by itself takes, in microseconds: at least, and for each byte.
START, EACH = 1.3, 1 / 3.9e6

_Option = tuple[Callable[..., float], Callable[..., Launch], Sequence[object]]


def build(ctx: KernelContext) -> list[Launch]:
    """One launch, by the tile that is estimated, or measured, to be the fastest."""
    op, (x, w) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, PooledConv2D)
    weights = ctx.value(w).data
    assert weights is not None  # as the pass sees to
    layer = layer_of(op.conv, ctx.views[x], weights, ctx.output.shape, runs.run_of(ctx))
    units = ctx.features.compute_units
    found = options(layer, units, overlapping=will_overlap(ctx.graph))
    ways = [(estimate(layer, one, units), make, one) for estimate, make, tiles in found for one in tiles[: ctx.most]]
    return [cheapest(ctx, layer, ways)]


def layer_of(conv: Conv2D, source: View, weights: np.ndarray, result: Shape, run: int, side: int = SIDE) -> Layer:
    """The convolution of which `result` is the shape of what is stored."""
    batch, height, width, channels = result
    return Layer(conv, source, weights, (batch, SIDE * height, SIDE * width, channels), True, run=run, side=side)


def options(layer: Layer, units: int, *, overlapping: bool) -> list[_Option]:
    """The kernels that can do it: estimate, launch and tiles, the cheapest first. None: not a layer for these."""
    capability = WARPGROUP_CAPABILITY
    halos = overlapped.measured(halo.cost) if overlapping else halo.cost
    tiles = specialized.ranked(layer, capability, units)
    divided = overlapped.divisions(layer, capability, units) if overlapping else []
    found: list[_Option] = [(halos, halo.launch, halo.ranked(layer, capability, units))]
    if divided:
        found.append((overlapped.specialized_cost, specialized.launch, divided))
    else:
        found.append((specialized.cost, specialized.launch, tiles))
    return [way for way in found if way[2]]


def gain(pooled: Layer, alone: Layer, units: int) -> float:
    """Estimated microseconds that are saved, where kernels have the device to themselves; `alone`: the convolution
    whose results are pooled by another kernel."""
    ways = options(pooled, units, overlapping=False)
    if not ways:
        return -math.inf
    product = product_of(alone, WARPGROUP_CAPABILITY)
    apart = [(e, tiles) for e, _, tiles in options(alone, units, overlapping=False)]
    apart.append((persistent.cost, persistent.ranked(alone, WARPGROUP_CAPABILITY, units)))
    best = min([e(alone, tiles[0], units) for e, tiles in apart if tiles], default=math.inf)
    best = min(best, tile_cost(product, ranked_tiles(product, units)[0], units))
    moved = math.prod(alone.shape) * alone.size * (1 + 1 / SIDE**2)
    return best + START + moved * EACH - min(e(pooled, tiles[0], units) for e, _, tiles in ways)
