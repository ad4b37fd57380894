"""A 1x1 convolution that widens, the depthwise one behind it and perhaps the 1x1 behind that, in one kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.biased import without_bias
from litegpu.gpu.backends.cuda.kernels.inverted_cost import (
    InvertedBlock,
    InvertedShape,
    effort,
    ranked,
)
from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Conv2D,
    Expr,
    InvertedConv2D,
    Literal,
    SeparableConv2D,
    arguments,
)
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32x4

#: Of what is only computed depthwise and projected. (An H200, batch 64: 112x112x16 to 16 channels 40.8 us, separable.cu
#: 32.7, though the estimates had said less than 0.6 of that; 56x56x72 to 24 33.0 and 43.9.)
LEAST_CHANNELS = 64


@dataclass(frozen=True, eq=False)
class InvertedLayer:
    """What the kernel must know of a node. `constants`: weights, bias, and taps; then, if it projects, bias and weights
    again."""

    op: InvertedConv2D
    window: Layer  # of the depthwise convolution, as if of the node's own input
    constants: list[np.ndarray]
    shape: InvertedShape

    @classmethod
    def of(cls, ctx: KernelContext) -> InvertedLayer:
        op, node = ctx.node.op, ctx.node
        assert isinstance(op, (InvertedConv2D, SeparableConv2D))
        constants = []
        for v in node.inputs[1:]:
            data = ctx.value(v).data
            assert data is not None  # as the pass sees to
            constants.append(data)
        if isinstance(op, SeparableConv2D):
            return cls._separable(ctx, op, constants)
        depthwise, taps = op.depthwise, constants.pop(2)
        plain = Conv2D(depthwise.stride, depthwise.dilation, depthwise.padding)
        window = Layer(plain, ctx.views[node.inputs[0]], taps, ctx.output.shape, True)
        shapes = [ctx.value(node.inputs[0]).shape, constants[0].shape, constants[1].shape, taps.shape]
        efforts = effort(op.expanded), effort(op.middle)
        last = [constants[-1].shape] * 2 if len(constants) > 3 else []
        shape = InvertedShape.of(depthwise.stride, efforts, [*shapes, *last], ctx.output.shape)
        return cls(op, window, constants, shape)

    @classmethod
    def _separable(cls, ctx: KernelContext, op: SeparableConv2D, constants: list[np.ndarray]) -> InvertedLayer:
        taps, weights, *bias = constants
        channels = taps.shape[3]
        plain = Conv2D(op.depthwise.stride, op.depthwise.dilation, op.depthwise.padding)
        window = Layer(plain, ctx.views[ctx.node.inputs[0]], taps, ctx.output.shape, True)
        middle = without_bias(op.inner) if bias else op.inner
        x = (*window.source.shape[:3], 0)
        shapes = [x, weights.shape, taps.shape, taps.shape, taps.shape, weights.shape]
        shape = InvertedShape.of(op.depthwise.stride, (0.0, effort(middle)), shapes, ctx.output.shape)
        whole = np.broadcast_to(bias[0] if bias else np.float32(0), (1, 1, 1, channels))
        return cls(InvertedConv2D(op.depthwise, RESULT, middle), window, [whole, weights], shape)

    def settings(self) -> dict[str, int | str]:
        """Constants of the kernel that say what is done to sums, and what the input's elements are."""
        kind, load = LOAD[self.window.source.dtype]
        bounds = {"EXPANDED_BOUND": bound_of(self.op.expanded), "MIDDLE_BOUND": bound_of(self.op.middle)}
        return {"SOURCE": kind, "LOAD(value)": load, **bounds}


def build(ctx: KernelContext) -> list[Launch]:
    layer = InvertedLayer.of(ctx)
    blocks = ranked(layer.shape, ctx.features.capability, ctx.features.compute_units)
    return [offered([launch(ctx, layer, block) for block in blocks[: ctx.most]])]


def fits_separable(ctx: KernelContext) -> bool:
    """Whether the kernel, which then expands nothing, computes a SeparableConv2D."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, SeparableConv2D)
    expr = without_bias(op.inner) if len(node.inputs) == 4 else op.inner
    enough = ctx.value(node.inputs[0]).shape[3] >= LEAST_CHANNELS
    return enough and op.depthwise.dilation == (1, 1) and len(node.inputs) <= 4 and arguments(expr) <= {0}


def launch(ctx: KernelContext, layer: InvertedLayer, block: InvertedBlock) -> Launch:
    """All of the node by blocks; see inverted.cu for the constants."""
    op, window, shape, view = layer.op, layer.window, layer.shape, layer.window.source
    batch, out_h, out_w, outputs = window.shape
    across, down = -(-out_w // block.x), -(-out_h // block.y)
    slices, resident = -(-shape.channels // (block.slice * block.parts)), block.resident(shape, ctx.features.capability)
    wide = slices * block.parts * block.slice
    constants: dict[str, int | str] = {
        **window.constants(), **layer.settings(), "VECTOR": min(window.vector, 8),
        "CHANNELS": view.quads * 4 if window.vector else shape.inputs or shape.channels, "KERNEL_H": shape.window[0],
        "BY": block.y, "BX": block.x, "TY": block.rows, "WARPS": block.warps, "SLICE": block.slice, "SLICES": slices,
        "PARTS": block.parts, "BUFFERS": block.buffers, "RESIDENT": resident, "DEPTH": shape.depth,
        "TILES_Y": down, "TILES_X": across, "QUADS": -(-outputs // 4), "PROJECTS": int(shape.outputs > 0),
        "OUT_TILES": shape.out_tiles, "SHARED_BYTES": block.shared_bytes(shape), "EXPANDS": int(shape.inputs > 0),
    }  # fmt: skip

    # what was not expanded lies in its own order
    ordered = in_order if shape.inputs else lambda a, axis: a

    def channelwise(data: np.ndarray) -> np.ndarray:
        return ordered(padded(data.reshape(-1, 1), wide, 1), 0).reshape(-1)

    more, functions = list(layer.constants), []
    operands: Operands = {"x": view, "taps": _tap_words(window.weights, wide, ordered)}
    if shape.inputs:
        weights = padded(more.pop(0).reshape(shape.channels, -1), wide, shape.depth)
        operands |= {"expansion": _fragments(weights, block.slice), "bias": channelwise(more.pop(0))}
        functions.append(_function(ctx, "expanded", op.expanded))
    if shape.outputs:
        operands["middle_bias"] = channelwise(more.pop(0))
        functions.append(_function(ctx, "middle", op.middle))
        matrix = padded(more.pop(0).reshape(outputs, -1), 8 * shape.out_tiles, wide)
        operands["projection"] = _fragments(ordered(matrix, 1), 8 * shape.out_tiles)
    return native_launch(
        ctx, "inverted_convolution", ("device.cu", "diagonal.cu", "inverted.cu"), constants, operands,
        label="inverted_conv_2d", workgroup=(32 * block.warps, 1, 1),
        dispatch=(batch * down * across * block.parts, 1, 1), shared_bytes=block.shared_bytes(shape),
        variant=str(block), inner=functions,
    )  # fmt: skip


def bound_of(expr: Expr) -> int:
    """The bits of two halves at which positive numbers end, if that is all that `expr` does; 0 if it does more."""
    match expr:
        case Apply("max", (a, Literal(0.0))) if a == RESULT:
            most = math.inf
        case Apply("min", (Apply("max", (a, Literal(0.0))), Literal(limit))) if a == RESULT and limit > 0:
            most = float(limit)
        case _:
            return 0
    with np.errstate(over="ignore"):
        bits = int(np.float16(most).view(np.uint16))
    # what rounds to a half and then ends there is the same as the other way round only if the bound is a half itself
    return bits << 16 | bits if float(np.float16(most)) == most else 0


def _function(ctx: KernelContext, name: str, expr: Expr) -> Traced:
    def traced(k: Kernel, _: Operands, value: TracedValue) -> TracedValue:
        result = evaluate(k, expr, [value], rough=ctx.half)
        return result if result.type.lanes == 4 else k.splat(result, 4)

    return Traced(ctx, name, (f32x4,), traced)


@functools.cache
def _order() -> np.ndarray:
    """The channel, of 16, that lies at each place: see inverted.cu."""
    h, q, i = np.ogrid[:2, :4, :2]
    return np.asarray(4 * q + 2 * h + i).reshape(16)


def in_order(a: np.ndarray, axis: int) -> np.ndarray:
    """`a` with channels in the order of the kernel."""
    return reordered(a, axis, _order())


def reordered(a: np.ndarray, axis: int, order: np.ndarray) -> np.ndarray:
    """`a` with each 16 channels in an order."""
    n = a.shape[axis] // 16
    places = (np.arange(n)[:, None] * 16 + order).reshape(-1)
    return np.ascontiguousarray(np.take(a, places, axis))


def padded(a: np.ndarray, rows: int, columns: int) -> np.ndarray:
    whole = np.zeros((rows, columns), np.float32)
    whole[: a.shape[0], : a.shape[1]] = a
    return whole


def _fragments(matrix: np.ndarray, columns: int) -> np.ndarray:
    """[outputs, depth] as lanes hold it, the right factor of products of 16 x 8 x 16: [slice of `columns` outputs, step
    of 16 of the depth, 16 outputs, lane, 8]."""
    turned = in_order(matrix, 0).astype(np.float16)
    slices, steps = turned.shape[0] // columns, turned.shape[1] // 16
    parts = turned.reshape(slices, columns // 16, 2, 8, steps, 2, 4, 2)  # .., pair, eight, g, step, k half, q, i
    return np.ascontiguousarray(parts.transpose(0, 4, 1, 3, 6, 2, 5, 7)).reshape(-1)


def _tap_words(taps: np.ndarray, wide: int, ordered: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """[1,KH,KW,C] as [eight channels, pair of taps, channel, tap of the pair], taps column by column."""
    _, kh, kw, channels = taps.shape
    flat = np.zeros((wide, kw * kh + kw * kh % 2), np.float32)
    flat[:channels, : kh * kw] = taps[0].transpose(2, 1, 0).reshape(channels, kw * kh)
    words = ordered(flat, 0).astype(np.float16).reshape(wide // 8, 8, -1, 2)
    return np.ascontiguousarray(words.transpose(0, 2, 1, 3)).reshape(-1)
