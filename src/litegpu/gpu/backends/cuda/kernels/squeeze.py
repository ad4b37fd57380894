"""The beginning of squeeze-and-excite: products of means, in parts, by what computes the values or alone."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.backends.cuda.kernels.biased import activation
from litegpu.gpu.backends.cuda.kernels.depthwise import PIXELS, constants_of, cost, is_small
from litegpu.gpu.backends.cuda.kernels.depthwise import build as build_convolution
from litegpu.gpu.backends.cuda.kernels.depthwise_block import DepthwiseBlock, packed
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.runs import RunEpilogue, nothing_stored
from litegpu.gpu.backends.cuda.kernels.source import Traced, float_text, native_launch
from litegpu.gpu.graph import RESULT, Conv2D, DepthwiseConv2D, DType, Expr, Node, Squeeze
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32x4
from litegpu.gpu.view import View

#: Channels of a workgroup: in registers, a thread has as many weights of the products.
CHANNELS = (8, 16, 32, 64)
THREADS = range(64, 512 + 1, 32)
#: Registers for weights and inputs that are loaded ahead. (A workgroup with many finds no place beside those of the
#: kernel in front, and waits until these end.)
TAP_WORDS, INPUT_WORDS = 48, 64
#: Registers of a workgroup and its results of a thread, at most.
REGISTERS, OWN = 28 << 10, 2
#: Threads along rows and columns.
ACROSS = (1, 2, 4, 7, 8, 14, 16, 28)
#: Microseconds that another part costs for each result: those who need the sums all read all of them. (An estimate: 130
#: workgroups that read 16 KB each wait for about 0.4 us.)
PART = 1e-4


def build(ctx: KernelContext) -> list[Launch]:
    """Of a Squeeze: nothing, where the convolution in front of it does its work."""
    node, op = ctx.node, ctx.node.op
    assert isinstance(op, Squeeze)
    before = next((n for n in ctx.graph.nodes if n.output == node.inputs[0]), None)
    if before is not None and within(dataclasses.replace(ctx, node=before)) is not None:
        return []
    layer = alone(ctx.views[node.inputs[0]])
    results = ctx.value(node.inputs[1]).shape[0]
    block = next(b for b in ranked(layer, results, ctx.features.compute_units) if _parts(layer, b) <= op.parts)
    return [_launch(ctx, layer, block, node, None)]


def build_depthwise(ctx: KernelContext) -> list[Launch] | None:
    """Of a depthwise convolution: with the work of a Squeeze behind it, if there is one."""
    found = within(ctx)
    if found is None:
        return build_convolution(ctx)
    layer, block, squeeze = found
    return [_launch(ctx, layer, block, squeeze, ctx.node)]


def within(ctx: KernelContext) -> tuple[Layer, DepthwiseBlock, Node] | None:
    """The convolution, how it is divided, and the Squeeze whose work the node's kernel can do."""
    node = ctx.node
    squeeze = next((n for n in ctx.graph.nodes if isinstance(n.op, Squeeze) and n.inputs[0] == node.output), None)
    if squeeze is None or not isinstance(node.op, DepthwiseConv2D) or node.op.multiplier > 1 or not ctx.half:
        return None
    weights, source = ctx.value(node.inputs[1]).data, ctx.views.get(node.inputs[0])
    if weights is None or source is None or source.dtype is not DType.FLOAT16 or not activated(ctx):
        return None
    layer = window(node.op, source, weights, ctx.output.shape)
    assert isinstance(squeeze.op, Squeeze)
    results = ctx.value(squeeze.inputs[1]).shape[0]
    blocks = ranked(layer, results, ctx.features.compute_units)
    block = next((b for b in blocks if _parts(layer, b) <= squeeze.op.parts), None)
    return None if block is None else (layer, block, squeeze)


def activated(ctx: KernelContext) -> bool:
    """Whether the node's epilogue is an activation, and perhaps a bias."""
    return activation(ctx.node, ctx.graph) is not None


def window(op: DepthwiseConv2D, source: View, weights: np.ndarray, shape: tuple[int, ...]) -> Layer:
    return Layer(Conv2D(op.stride, op.dilation, op.padding), source, weights, shape, source.dtype is DType.FLOAT16)


def alone(source: View) -> Layer:
    """A convolution that leaves everything as it is."""
    ones = np.ones((1, 1, 1, source.shape[3]), np.float32)
    return Layer(Conv2D(), source, ones, source.shape, source.dtype is DType.FLOAT16)


def ranked(layer: Layer, results: int, units: int) -> list[DepthwiseBlock]:
    """The ways to divide it, the cheapest first; none if the kernel cannot do it."""
    source = dataclasses.replace(layer.source, root=0)
    return list(_ranked(layer.op, source, layer.weights.shape, layer.shape, results, units))


@functools.lru_cache(maxsize=256)
def _ranked(
    op: Conv2D, source: View, window: tuple[int, ...], shape: tuple[int, ...], results: int, units: int
) -> tuple[DepthwiseBlock, ...]:
    layer = Layer(op, source, np.broadcast_to(np.float32(0), window), shape, source.dtype is DType.FLOAT16)
    found: list[tuple[float, int, DepthwiseBlock]] = []
    whole = -(-results // 4) * 4
    _, out_h, out_w, channels = shape
    for (y, x), lanes in itertools.product(PIXELS, (4, 8) if layer.vector == 8 else (4,)):
        if not is_small(layer, lanes, y, x):
            continue
        divisions = [
            (down, across)
            for down, across in itertools.product(ACROSS, ACROSS)
            if (down - 1) * y < out_h and (across - 1) * x < out_w
        ]
        for wide, (down, across) in itertools.product(CHANNELS, divisions):
            block = DepthwiseBlock(lanes, y, x, wide // lanes, down, across)
            enough = whole <= OWN * block.threads and block.threads * _registers(layer, block, whole) <= REGISTERS
            if block.threads in THREADS and enough and wide < 2 * channels:
                found.append((cost(layer, block, units) + PART * whole * _parts(layer, block), block.threads, block))
    return tuple(block for _, _, block in sorted(found, key=lambda way: way[:2]))


def _registers(layer: Layer, block: DepthwiseBlock, results: int) -> int:
    """Of a thread, about."""
    _, kh, kw, _ = layer.weights.shape
    taps = max(int(kw) * block.lanes, min(TAP_WORDS, int(kh * kw) * block.lanes))
    weights = -(-results // block.threads) * (block.chunks * block.lanes // 2)
    return 40 + taps + INPUT_WORDS // 2 + block.lanes * block.y * block.x + weights


def parts_of(layer: Layer, results: int, units: int) -> int | None:
    """Of an image, by the division that is estimated to be the best; None if there is none."""
    blocks = ranked(layer, results, units)
    return _parts(layer, blocks[0]) if blocks else None


def _parts(layer: Layer, block: DepthwiseBlock) -> int:
    return math.prod(block.groups(layer)[:3])


def _launch(ctx: KernelContext, layer: Layer, block: DepthwiseBlock, squeeze: Node, before: Node | None) -> Launch:
    """See squeeze.cu for the constants. `before`: the convolution, which is done as well."""
    groups, view = block.groups(layer), ctx.views[squeeze.output]
    weights = ctx.value(squeeze.inputs[1]).data
    assert weights is not None and isinstance(squeeze.op, Squeeze)
    constants = {
        **constants_of(layer, block), "STORES": int(before is not None), "RESULTS": view.quads * 4,
        "PARTS": squeeze.op.parts, "TAP_WORDS": TAP_WORDS, "INPUT_WORDS": INPUT_WORDS,
        "SCALE": float_text(1 / math.prod(layer.shape[1:3])),
    }  # fmt: skip
    wide = block.chunks * block.lanes
    operands: Operands = {
        "x": layer.source, "w": packed(layer), "bias": np.zeros(4, np.float32),
        "weights": _packed(weights, view.quads * 4, groups[0], wide), "parts": view,
    }  # fmt: skip
    inner: Sequence[Traced] = ()
    runs: RunEpilogue | None = nothing_stored()
    if before is not None:
        found = activation(before, ctx.graph)
        assert found is not None
        bias = np.zeros(groups[0] * wide, np.float32)
        if found.bias is not None:
            data = ctx.value(found.bias).data
            assert data is not None
            bias[: layer.shape[3]] = data.reshape(-1)
        operands["bias"], inner, runs = bias, [function(ctx, "activated", found.expr)], None
        ctx = dataclasses.replace(ctx, node=dataclasses.replace(before, epilogue=RESULT, operands=()))
    files = ("chunk.cu", "depthwise_sums.cu", "squeeze.cu")
    return native_launch(
        ctx, "squeeze", files, constants, operands, label="squeeze" if before is None else "depthwise_conv_2d",
        workgroup=(block.threads, 1, 1), dispatch=(math.prod(groups), 1, 1), variant=str(block), inner=inner, runs=runs,
    )  # fmt: skip


def function(ctx: KernelContext, name: str, expr: Expr, arguments: int = 1) -> Traced:
    """A function of four numbers, or of as many of each argument, that a kernel calls."""

    def traced(k: Kernel, _: Operands, *values: TracedValue) -> TracedValue:
        result = evaluate(k, expr, values, rough=ctx.half)
        return result if result.type.lanes == 4 else k.splat(result, 4)

    return Traced(ctx, name, (f32x4,) * arguments, traced)


def _packed(weights: np.ndarray, results: int, groups: int, wide: int) -> np.ndarray:
    """[S,1,1,C] as [group of channels, four channels of it, result, channel of these], zeros where there is none."""
    whole = np.zeros((results, groups * wide), np.float16)
    whole[: weights.shape[0], : weights.shape[3]] = weights.reshape(weights.shape[0], -1)
    return np.ascontiguousarray(whole.reshape(results, groups, wide // 4, 4).transpose(1, 2, 0, 3)).reshape(-1)
