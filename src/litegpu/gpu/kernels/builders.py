"""Which kernels compute a node of the GPU graph."""

from __future__ import annotations

from collections.abc import Callable

from litegpu.gpu import graph
from litegpu.gpu.kernels import (
    arg_reduce,
    attention,
    convolution,
    copy,
    depthwise,
    elementwise,
    gather,
    instance_norm,
    integer_softmax,
    layer_norm,
    lookup,
    matmul,
    native,
    pool,
    reduce,
    resize,
    row_chain,
    separable,
    softmax,
    transpose_convolution,
)
from litegpu.gpu.kernels.context import Builds, KernelContext, Launch


def _custom(ctx: KernelContext) -> list[Launch]:
    assert isinstance(ctx.node.op, graph.Custom) and isinstance(ctx.node.op.definition, Builds)
    return ctx.node.op.definition.build(ctx)


_BUILD: dict[type[graph.Op], Callable[[KernelContext], list[Launch]]] = {
    graph.Elementwise: elementwise.build,
    graph.Conv2D: convolution.build,
    graph.DepthwiseConv2D: depthwise.build,
    graph.SeparableConv2D: separable.build,
    graph.IntegerConv2D: convolution.build,
    graph.IntegerDepthwiseConv2D: depthwise.build,
    graph.IntegerTransposeConv2D: transpose_convolution.build,
    graph.IntegerMatMul: matmul.build,
    graph.Lookup: lookup.build,
    graph.IntegerSoftmax: integer_softmax.build,
    graph.TransposeConv2D: transpose_convolution.build,
    graph.MatMul: matmul.build,
    graph.Pool2D: pool.build,
    graph.Resize2D: resize.build,
    graph.Reduce: reduce.build,
    graph.RowChain: row_chain.build,
    graph.ArgReduce: arg_reduce.build,
    graph.Softmax: softmax.build,
    graph.LayerNorm: layer_norm.build,
    graph.Moments: instance_norm.build_moments,
    graph.InstanceNorm: instance_norm.build,
    graph.Attention: attention.build,
    graph.Copy: copy.build,
    graph.Gather: gather.build,
    graph.Custom: _custom,
}


def build(ctx: KernelContext) -> list[Launch]:
    """The launches, in order, that compute ctx.node. Concat has no kernel: views or copies stand for it."""
    own = native.of(ctx.features)
    launches = None if own is None else own.launches(ctx)
    if launches is not None:
        return launches
    return _BUILD[type(ctx.node.op)](ctx)
