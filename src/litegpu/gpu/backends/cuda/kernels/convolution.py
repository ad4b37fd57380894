"""Convolution on tensor cores (float16 weights and inputs, float32 sums), or in exact float32, as a matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from litegpu.gpu.backends.cuda.kernels import matvec, window
from litegpu.gpu.backends.cuda.kernels.layer import Layer, is_half
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import TileProduct, WorkgroupTile, cost, ranked
from litegpu.gpu.graph import Conv2D
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for groups, weights that are not constant or do not fit the type, and other kinds of input."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Conv2D)
    weights = ctx.value(node.inputs[1]).data
    if op.groups > 1 or weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    source = ctx.views[node.inputs[0]]
    half = is_half(ctx, source, weights)
    if half is None:
        return None
    return [fastest(ctx, Layer(op, source, weights, ctx.output.shape, half))]


def fastest(ctx: KernelContext, layer: Layer, where: Where | None = None) -> Launch:
    """The convolution by the tile, block of pixels or division of few rows that is estimated, or measured, to be the
    fastest. `where`: as for native_launch, if the layer's output is a part of the node's."""
    units, product = ctx.features.compute_units, product_of(layer, ctx.features.capability)
    blocks, tiles, divisions = window.ranked(layer, units), ranked(product, units), matvec.ranked(layer, units)
    if ctx.tuner is None:
        options: list[tuple[float, Callable[..., Launch], object]]
        options = [(cost(product, tiles[0], units), launch, tiles[0])]
        options += [(window.cost(layer, block, units), window.launch, block) for block in blocks[:1]]
        options += [(matvec.cost(layer, division, units), matvec.launch, division) for division in divisions[:1]]
        _, make, chosen = min(options, key=lambda option: option[0])
        return make(ctx, layer, chosen, where)
    share = ctx.tuner.most // (1 + bool(blocks) + bool(divisions))
    launches = [matvec.launch(ctx, layer, division, where) for division in divisions[:share]]
    launches += [window.launch(ctx, layer, block, where) for block in blocks[:share]]
    launches += [launch(ctx, layer, tile, where) for tile in tiles[: ctx.tuner.most - len(launches)]]
    times = ctx.tuner.times(launches)
    return launches[times.index(min(times))]


def product_of(layer: Layer, capability: int) -> TileProduct:
    """The convolution as a matrix product, on a device of that compute capability (times ten)."""
    gathered, windowed = layer.access == "GATHER", layer.access == "WINDOW"
    return TileProduct(
        math.prod(layer.shape[:3]), layer.shape[3], layer.depth, layer.half, gathered, windowed, capability
    )


def packed(layer: Layer, tile: WorkgroupTile) -> np.ndarray:
    """The weights as [outputs, depth], both in whole tiles."""
    outputs, kh, kw, inputs = layer.weights.shape
    channels = layer.depth // (kh * kw)
    columns, depth = -(-outputs // tile.columns) * tile.columns, -(-layer.depth // tile.depth) * tile.depth
    rows = np.zeros((outputs, kh * kw, channels), np.float16 if layer.half else np.float32)
    rows[..., :inputs] = layer.weights.reshape(outputs, kh * kw, inputs)
    result = np.zeros((columns, depth), rows.dtype)
    result[:outputs, : layer.depth] = rows.reshape(outputs, -1)
    return result


def launch(ctx: KernelContext, layer: Layer, tile: WorkgroupTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see convolution.cu for the constants."""
    product, view = product_of(layer, ctx.features.capability), layer.source
    weights = packed(layer, tile)
    rows, columns = -(-product.rows // tile.rows), weights.shape[0] // tile.columns
    source, load = layer.load
    constants: dict[str, int | str] = {
        **layer.constants(), "HALF": int(layer.half), "SOURCE": source, "LOAD(value)": load, "VECTOR": layer.vector,
        **tile.constants(), "TILES_N": columns, "PIXELS": product.rows, "QUADS": -(-layer.shape[3] // 4),
        "DEPTH": weights.shape[1], "ACCESS": layer.access,
    }  # fmt: skip
    if layer.access == "POINTS" and layer.pitch is not None:
        constants["PITCH_X"] = layer.pitch
    operands: Operands = {"x": view, "w": weights}
    name = "tensor_convolution" if layer.half else "tiled_convolution"
    return native_launch(
        ctx, name, (*tile.files, "border.cu", "convolution.cu"), constants, operands, label=label_of(ctx),
        workgroup=(tile.threads, 1, 1), dispatch=(rows * columns, 1, 1),
        shared_bytes=tile.shared_bytes(layer.half), variant=str(tile), where=where,
    )  # fmt: skip
