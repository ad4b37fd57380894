"""CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.graph import (
    Conv2D,
    DepthwiseConv2D,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerTransposeConv2D,
    Op,
    TransposeConv2D,
)
from litegpu.gpu.lower.constants import Array
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.product import Product, product
from litegpu.gpu.lower.registry import lowers
from litegpu.gpu.lower.wide_product import wide_product
from litegpu.model.ops.windows import SAME, VALID, before, output_size

Pair = tuple[int, int]


@lowers("CONV_2D")
def conv_2d(ctx: OpContext) -> None:
    x, weights = _shapes(ctx, 0, 1)
    outputs, *window, depth = weights
    ctx.require(depth > 0 and x[3] % depth == 0, f"{x[3]} input channels do not divide into groups of {depth}")
    groups = x[3] // depth
    ctx.require(groups > 0 and outputs % groups == 0, f"{outputs} output channels do not divide into {groups} groups")
    stride, dilation, padding = _placement(ctx, x, (window[0], window[1]), outputs)
    wide = wide_product(ctx, outputs, ctx.output.shape) if groups == 1 else None
    if wide is not None:
        filters = ctx.builder.constant(wide.weights.astype(np.int8), name=ctx.tensor(1).name, narrow=True)
        wide.put(ctx, IntegerConv2D(stride, dilation, padding), ctx.output.shape, filters, lambda v: v)
        return
    p = product(ctx, outputs, by_gemm=True)
    if groups > 1 and depth == 1 and p.array is not None:
        # One input channel per group is a depthwise convolution; [C*m, KH, KW, 1] holds the same as [1, KH, KW, C*m].
        _depthwise(ctx, p, p.array.transpose(3, 1, 2, 0), stride, dilation, padding, outputs // groups)
        return
    ctx.require(groups == 1 or ctx.is_constant(1), "weights that the model computes are taken with one group only")
    op: Op = Conv2D(stride, dilation, padding, groups)
    if p.zeros is not None:
        op = IntegerConv2D(stride, dilation, padding, groups, p.zeros.data, p.zeros.weights)
    ctx.add(op, [p.data, p.weights()], ctx.output_value(), p.epilogue, p.operands)


@lowers("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(ctx: OpContext) -> None:
    x, weights = _shapes(ctx, 0, 1)
    first, *window, outputs = weights
    ctx.require(first == 1, f"weights of shape {list(weights)}: their first size must be 1")
    ctx.require(x[3] > 0 and outputs % x[3] == 0, f"{outputs} output channels are not a multiple of {x[3]}")
    stride, dilation, padding = _placement(ctx, x, (window[0], window[1]), outputs)
    wide = wide_product(ctx, outputs, ctx.output.shape, axis=3)
    if wide is not None:
        filters = ctx.builder.constant(wide.weights.astype(np.int32), name=ctx.tensor(1).name)
        op = IntegerDepthwiseConv2D(stride, dilation, padding, outputs // x[3])
        wide.put(ctx, op, ctx.output.shape, filters, lambda v: v)
        return
    p = product(ctx, outputs, axis=3)
    _depthwise(ctx, p, p.array, stride, dilation, padding, outputs // x[3])


def _depthwise(
    ctx: OpContext, p: Product, array: Array | None, stride: Pair, dilation: Pair, padding: Pair, multiplier: int
) -> None:
    """`array`: the weights as [1, KH, KW, C * multiplier], None where the model computes them."""
    op: Op = DepthwiseConv2D(stride, dilation, padding, multiplier)
    if p.zeros is not None and array is not None:
        array = array.astype(np.int32) - p.zeros.weights
        op = IntegerDepthwiseConv2D(stride, dilation, padding, multiplier, p.zeros.data)
    ctx.add(op, [p.data, p.weights(array)], ctx.output_value(), p.epilogue, p.operands)


@lowers("TRANSPOSE_CONV")
def transpose_conv(ctx: OpContext) -> None:
    x, weights = _shapes(ctx, 2, 1)
    outputs, *window, depth = weights
    ctx.require(depth == x[3], f"weights for {depth} input channels, the input has {x[3]}")
    shape = ctx.integers(0, "the output's sizes")
    ctx.require(
        len(shape) == 4 and shape[0] == x[0] and shape[3] == outputs, f"output shape {list(shape)} is impossible"
    )
    ctx.check_shape(shape)
    stride = (int(ctx.option("stride_h", 1)), int(ctx.option("stride_w", 1)))
    ctx.require(min(stride) > 0, f"strides {list(stride)} are not positive")
    kind = _padding(ctx)
    padding = [0, 0]
    for i in (0, 1):
        # The windows are those of a convolution from the output to the input.
        covered = output_size(shape[1 + i], window[i], stride[i], 1, kind)
        ctx.require(covered == x[1 + i], f"output size {shape[1 + i]} does not belong to input size {x[1 + i]}")
        padding[i] = before(shape[1 + i], window[i], stride[i], 1, covered) if kind != VALID else 0
    if kind != VALID and any(w < s for w, s in zip(window, stride, strict=True)):
        ctx.require_reals()  # XNNPACK declines it
    p = product(ctx, outputs, data=2, bias=3)
    op: Op = TransposeConv2D(stride, (padding[0], padding[1]))
    if p.zeros is not None:
        op = IntegerTransposeConv2D(stride, (padding[0], padding[1]), p.zeros.data, p.zeros.weights)
    ctx.add(op, [p.data, p.weights()], ctx.output_value(), p.epilogue, p.operands)


def _shapes(ctx: OpContext, data: int, weights: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    x, w = ctx.shape(data), ctx.shape(weights)
    ctx.require(len(x) == len(w) == 4, f"input of shape {list(x)}, weights of shape {list(w)}: both must have rank 4")
    return x, w


def _placement(ctx: OpContext, x: tuple[int, ...], window: Pair, outputs: int) -> tuple[Pair, Pair, Pair]:
    """Strides, dilation and what lies before the input; checks the output's shape."""
    stride = (int(ctx.option("stride_h", 1)), int(ctx.option("stride_w", 1)))
    dilation = (int(ctx.option("dilation_h_factor", 1)), int(ctx.option("dilation_w_factor", 1)))
    ctx.require(min(stride) > 0, f"strides {list(stride)} are not positive")
    ctx.require(min(dilation) > 0, f"dilations {list(dilation)} are not positive")
    return stride, dilation, placed(ctx, x, window, stride, dilation, outputs)


def _padding(ctx: OpContext) -> int:
    kind = int(ctx.option("padding", SAME))
    ctx.require(kind in (SAME, VALID), f"padding {kind} is neither SAME (0) nor VALID (1)")
    return kind


def placed(ctx: OpContext, x: tuple[int, ...], window: Pair, stride: Pair, dilation: Pair, channels: int) -> Pair:
    """What lies before an input of shape `x` under the operator's padding; checks the output's shape."""
    kind = _padding(ctx)
    h, w = (output_size(x[1 + i], window[i], stride[i], dilation[i], kind) for i in (0, 1))
    ctx.check_shape((x[0], h, w, channels))
    return (
        before(x[1], window[0], stride[0], dilation[0], h) if kind != VALID else 0,
        before(x[2], window[1], stride[1], dilation[1], w) if kind != VALID else 0,
    )
