"""Custom operators of MediaPipe's models whose options are plain C structs, and Resampler."""

from __future__ import annotations

import struct

from litegpu.gpu.custom.pooling import MaxUnpool, WindowArgmax
from litegpu.gpu.graph import RESULT, Custom, Pool2D, TransposeConv2D
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext, activate
from litegpu.gpu.lower.convolution import bias_and_activation
from litegpu.gpu.lower.registry import FLOAT, lowers
from litegpu.gpu.lower.window import SAME, VALID, before, output_size

Pair = tuple[int, int]

#: TfLitePadding, which TfLitePoolParams and TfLiteTransposeConvParams begin with, as the schema numbers it.
_PADDING = {1: SAME, 2: VALID}
#: A place in the window is stored with this added, so that truncation gives it back (max_pool_argmax.cc).
_INDEX_MARGIN = 0.1


@lowers(
    "MaxPoolingWithArgmax2D", max_version=1, ranks=(4, 4), custom=True,
    notes="values, and places in the window + 0.1; options are a TfLitePoolParams",
)  # fmt: skip
def max_pooling_with_argmax(ctx: OpContext) -> None:
    ctx.require(len(ctx.outputs) == 2, f"{len(ctx.outputs)} outputs where the operator has 2")
    padding, stride, window, activation = _pool_params(ctx)
    ctx.require(padding in _PADDING, f"padding {padding} is neither SAME (1) nor VALID (2)")
    b, h, w, c = ctx.shape(0)
    out = [output_size(n, k, s, 1, _PADDING[padding]) for n, k, s in zip((h, w), window, stride, strict=True)]
    for output in ctx.outputs:
        ctx.check_shape((b, *out, c), output)
    front = [
        before(n, k, s, 1, o) if _PADDING[padding] == SAME else 0
        for n, k, s, o in zip((h, w), window, stride, out, strict=True)
    ]
    x, padded = ctx.value(0), (front[0], front[1])
    values, places = ctx.outputs
    ctx.add(Pool2D("max", window, stride, padded), [x], ctx.output_value(values), activate(RESULT, activation))
    margin = fn("add", fn("to_float32", RESULT), _INDEX_MARGIN)
    ctx.add(Custom(WindowArgmax(window, stride, padded)), [x], ctx.output_value(places), margin)


@lowers(
    "MaxUnpooling2D", max_version=1, counts=2, ranks=(4, 4), custom=True,
    notes="of values and their places in the window; options are a TfLitePoolParams",
)  # fmt: skip
def max_unpooling(ctx: OpContext) -> None:
    _, stride, window, _ = _pool_params(ctx)
    values, places, out = ctx.shape(0), ctx.shape(1), tuple(ctx.output.shape)
    ctx.require(values == places, f"values of shape {list(values)} with places of shape {list(places)}")
    ctx.require(
        len(out) == 4 and (out[0], out[3]) == (values[0], values[3]),
        f"values of shape {list(values)} cannot give an output of shape {list(out)}",
    )
    front = [max(0, (n - 1) * s + k - o) // 2 for n, s, k, o in zip(values[1:3], stride, window, out[1:3], strict=True)]
    op = MaxUnpool(window, stride, (front[0], front[1]))
    ctx.add(Custom(op), [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers(
    "Convolution2DTransposeBias", max_version=1, inputs=(FLOAT, FLOAT, FLOAT), counts=(2, 3), ranks=(4, 4), custom=True,
    notes="data, weights OHWI, bias; options are a TfLiteTransposeConvParams",
)  # fmt: skip
def convolution_transpose_bias(ctx: OpContext) -> None:
    padding, stride_w, stride_h = _integers(ctx, 3)
    x, weights = ctx.shape(0), ctx.shape(1)
    ctx.require(len(weights) == 4 and weights[3] == x[3], f"weights of shape {list(weights)} for {x[3]} input channels")
    stride = (stride_h, stride_w)
    ctx.require(min(stride) > 0, f"strides {list(stride)} are not positive")
    ctx.require(padding in (0, 1, 2), f"padding {padding} is neither SAME (1) nor VALID (2)")
    cut = [  # of the whole result: MediaPipe reckons it from the input's size
        max(0, k - (n - 1) % s - 1) if padding == 1 else 0 for n, k, s in zip(x[1:3], weights[1:3], stride, strict=True)
    ]
    out = [(n - 1) * s + k - t for n, s, k, t in zip(x[1:3], stride, weights[1:3], cut, strict=True)]
    ctx.check_shape((x[0], *out, weights[0]))
    epilogue, operands = bias_and_activation(ctx, 2, weights[0])
    op = TransposeConv2D(stride, (cut[0] // 2, cut[1] // 2))
    ctx.add(op, [ctx.value(0), ctx.value(1)], ctx.output_value(), epilogue, operands)


def _pool_params(ctx: OpContext) -> tuple[int, Pair, Pair, int]:
    """Padding, stride, window and activation of a TfLitePoolParams."""
    padding, stride_w, stride_h, width, height, activation = _integers(ctx, 6)
    stride, window = (stride_h, stride_w), (height, width)
    ctx.require(min(*window, *stride) > 0, f"window {list(window)} or strides {list(stride)} are not positive")
    return padding, stride, window, activation


def _integers(ctx: OpContext, count: int) -> tuple[int, ...]:
    """The first int32 fields of the C struct that the options are the image of."""
    options = ctx.operator.custom_options
    if len(options) < 4 * count:
        raise Unsupported(f"custom options of {len(options)} bytes: the operator needs at least {4 * count}")
    return struct.unpack_from(f"<{count}i", options)
