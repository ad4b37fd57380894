"""1x1 convolutions that do something with their input, or normalise it, first, by the kernels of other convolutions."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels import convolution
from litegpu.gpu.backends.cuda.kernels.channelwise import read_channelwise
from litegpu.gpu.backends.cuda.kernels.layer import Layer, residuals_of
from litegpu.gpu.backends.cuda.kernels.row_norm import folded
from litegpu.gpu.graph import Conv2D, DType, PointwiseConv2D
from litegpu.gpu.kernels.context import KernelContext, Launch


def build(ctx: KernelContext) -> list[Launch]:
    op, (x, w, *others) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, PointwiseConv2D)
    weights, source, shape = ctx.value(w).data, ctx.views[x], ctx.output.shape
    assert weights is not None  # as the passes see to
    if op.norm is not None:
        norm, weights = folded(op.norm, weights)
        layer = Layer(Conv2D(), source, weights, shape, True, residuals_of(ctx), norm=norm)
        return [convolution.fastest(ctx, layer)]
    prologue = read_channelwise(op.prologue, [ctx.value(v) for v in (x, *others)])
    assert prologue is not None
    gate = None if prologue.gate is None else ctx.views[others[prologue.gate - 1]]
    half = ctx.half or source.dtype is DType.FLOAT16
    layer = Layer(Conv2D(op.stride), source, weights, shape, half, residuals_of(ctx), prologue=prologue, gate=gate)
    return [convolution.fastest(ctx, layer)]
