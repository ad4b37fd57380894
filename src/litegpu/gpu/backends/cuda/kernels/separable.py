"""A depthwise convolution and the 1x1 convolution after it in one kernel, on tensor cores."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import inverted, inverted_cost
from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_SHARED_BYTES, USUAL_UNITS, WorkgroupTile, that_fit
from litegpu.gpu.graph import Conv2D, SeparableConv2D
from litegpu.gpu.kernels.access import Operands, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32x4, u32

#: The kernel of widening blocks has to be so much quicker, by the estimates.
GAIN = 0.6


@dataclass(frozen=True)
class SeparableBlock:
    """A workgroup computes y x x pixels, the rows of `tile`; a thread `run` neighbours of the depthwise part."""

    y: int
    x: int
    run: int
    tile: WorkgroupTile

    def __str__(self) -> str:
        return f"separable {self.y}x{self.x} by {self.run}, {self.tile}"


@functools.cache
def candidates() -> tuple[SeparableBlock, ...]:
    found = []
    for y, x, divisions in (
        (4, 4, ((1, 1, 4), (1, 2, 2), (1, 4, 1))),
        (2, 16, ((2, 1, 2), (1, 1, 4), (2, 2, 1))),
        (4, 8, ((2, 1, 2), (1, 1, 4), (2, 2, 1))),
        (8, 8, ((4, 1, 1), (2, 2, 1), (4, 1, 2), (4, 2, 1))),
        (4, 16, ((4, 1, 1), (2, 2, 1), (4, 1, 2), (4, 2, 1))),
        (8, 16, ((4, 1, 1), (4, 2, 1), (8, 1, 1))),
    ):
        for columns in (16, 32, 48, 64, 80, 96, 128):
            for warps in divisions:
                for depth in (16, 32, 64):
                    tile = WorkgroupTile(y * x, columns, depth, warps, 3)
                    if tile.fits(True) and y * x * columns // (warps[0] * warps[1]) <= 2048:
                        runs = (1, 2) if tile.threads > 128 else (1, 2, 4, 8)  # longer ones need too many registers
                        found += [SeparableBlock(y, x, run, tile) for run in runs if run <= x]
    return tuple(found)


def build(ctx: KernelContext) -> list[Launch]:
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, SeparableConv2D)
    taps, weights = (ctx.value(v).data for v in node.inputs[1:3])
    assert taps is not None and weights is not None  # as the pass sees to
    units = ctx.features.compute_units or USUAL_UNITS
    view = ctx.views[node.inputs[0]]
    window = Layer(Conv2D(op.depthwise.stride, op.depthwise.dilation, op.depthwise.padding), view, taps,
                   ctx.output.shape, True)  # fmt: skip
    blocks = ranked(window, weights.shape[0], units)
    blocks = [*that_fit(blocks, lambda b: shared_bytes(b, taps.shape[3]), ctx.features.capability)]
    if inverted.fits_separable(ctx):
        layer = inverted.InvertedLayer.of(ctx)
        capability = ctx.features.capability
        found = inverted_cost.ranked(layer.shape, capability, units)
        least = GAIN * cost(window, weights.shape[0], blocks[0], units)
        if found and inverted_cost.cost(layer.shape, found[0], capability, units) < least:
            return [inverted.launch(ctx, layer, found[0])]
    return [offered([launch(ctx, window, weights, block) for block in blocks[: ctx.most]])]


def ranked(window: Layer, outputs: int, units: int) -> list[SeparableBlock]:
    """The candidates that fit, the cheapest first. `window`: the depthwise part, its weights [1,KH,KW,C]."""
    channels = window.weights.shape[3]
    whole = -(-outputs // 16) * 16
    fitting = [
        b for b in candidates()
        if shared_bytes(b, channels) <= MOST_SHARED_BYTES and b.tile.columns < whole + 16
        and (b.tile.depth < 2 * channels or b.tile.depth == 16 or (b.tile.warps[2] > 1 and b.tile.depth <= 64))
        and b.run * window.op.stride[1] <= 8
    ]  # fmt: skip
    return sorted(fitting, key=lambda b: cost(window, outputs, b, units))


def launch(ctx: KernelContext, window: Layer, weights: np.ndarray, block: SeparableBlock) -> Launch:
    """Both convolutions by blocks; see separable.cu for the constants."""
    op, node, tile = ctx.node.op, ctx.node, block.tile
    assert isinstance(op, SeparableConv2D)
    _, kh, kw, channels = window.weights.shape
    batch, out_h, out_w, outputs = window.shape
    depth, columns = _depth(channels, tile), -(-outputs // tile.columns)
    down, across = -(-out_h // block.y), -(-out_w // block.x)
    taps = np.zeros((kh * kw, depth), np.float16)
    taps[:, :channels] = window.weights.reshape(kh * kw, channels)
    matrix = np.zeros((columns * tile.columns, depth), np.float16)
    matrix[:outputs, :channels] = weights.reshape(outputs, channels)

    def inner(k: Kernel, operands: Operands, quad: TracedValue, value: TracedValue) -> TracedValue:
        arguments = [open_source(ctx, k, v, operands).broadcast(0, 0, 0, quad) for v in node.inputs[3:]]
        result = evaluate(k, op.inner, [value, *arguments], rough=ctx.half)
        return result if result.type.lanes == 4 else k.splat(result, 4)

    source, load = LOAD[window.source.dtype]
    constants: dict[str, int | str] = {
        **window.constants(), "HALF": 1, "SOURCE": source, "LOAD(value)": load, "VECTOR": window.vector,
        "KERNEL_H": kh, **tile.constants(),
        "BY": block.y, "BX": block.x, "RUN": block.run, "TILES_N": columns, "TILES_Y": down, "TILES_X": across,
        "QUADS": -(-outputs // 4), "DEPTH": depth,
    }  # fmt: skip
    operands: Operands = {"x": window.source, "taps": taps, "w": matrix}
    return native_launch(
        ctx, "separable_convolution", ("device.cu", "product.cu", "separable.cu"), constants, operands,
        label="separable_conv_2d", workgroup=(tile.threads, 1, 1), dispatch=(batch * down * across * columns, 1, 1),
        shared_bytes=shared_bytes(block, channels), variant=str(block),
        inner=Traced(ctx, "inner", (u32, f32x4), inner),
    )  # fmt: skip


def shared_bytes(block: SeparableBlock, channels: int) -> int:
    """The depthwise results and the copies of the weights, or afterwards the sums."""
    tile = block.tile
    left = tile.rows * (_depth(channels, tile) * 2 + 16)
    return max(left + tile.stages * tile.columns * tile.depth * 2, tile.warps[2] * tile.rows * (tile.columns + 8) * 4)


def cost(window: Layer, outputs: int, block: SeparableBlock, units: int) -> float:
    """Estimated microseconds: the depthwise part, which all columns of workgroups repeat, then the product. (Fitted to
    1700 measurements on an H200: the first choice takes 3.7% longer than the best one on average.)"""
    _, kh, kw, channels = window.weights.shape
    tile, (batch, out_h, out_w, _) = block.tile, window.shape
    units = units or USUAL_UNITS
    groups = batch * -(-out_h // block.y) * -(-out_w // block.x) * -(-outputs // tile.columns)
    depth = _depth(channels, tile)
    stride, dilation = window.op.stride[1], window.op.dilation[1]
    loads = kh * len({r * stride + k * dilation for r in range(block.run) for k in range(kw)})  # of eight channels
    items = depth // 8 * (tile.rows // block.run)
    rounds = -(-items // tile.threads)
    each = 15 * block.run * kh * kw + 10.4 * loads + 3.65 * kh * kw  # instructions of an item
    fragments = depth / 16 * (tile.rows / tile.warps[0] + tile.columns / tile.warps[1]) / tile.warps[2] * 0.0013
    multiplied = tile.rows * tile.columns * depth * 3.52e-7
    stored = tile.rows * tile.columns * tile.warps[2] * 2.05e-5
    alone = (
        2.2 + rounds * (each * 9.93 / 1700 + 0.324) + depth / tile.depth * 0.02 + max(fragments, multiplied) + stored
    )
    busy = (items * each / 128 / 1700 + multiplied + stored + 0.31) * -(-groups // units)
    fitting = (220 << 10) // (shared_bytes(block, channels) + 1024)
    resident = max(1, min(fitting, 753 // tile.threads, 4))
    moved = 2 * (math.prod(window.source.shape) + math.prod(window.shape[:3]) * outputs) * 1.9e-7
    return float(max(alone * max(1.0, groups / (units * resident)) ** 0.7, busy) + moved)


def _depth(channels: int, tile: WorkgroupTile) -> int:
    return -(-channels // tile.depth) * tile.depth
