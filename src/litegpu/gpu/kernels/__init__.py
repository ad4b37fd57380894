"""The kernels of every op of the GPU graph, each written once in the kernel language."""

from __future__ import annotations

import importlib

from litegpu.gpu import graph
from litegpu.gpu.kernels.context import Context, Launch

_MODULES: dict[type[graph.Op], str] = {
    graph.Elementwise: "elementwise",
    graph.Conv2D: "convolution",
    graph.DepthwiseConv2D: "depthwise",
    graph.TransposeConv2D: "transpose_convolution",
    graph.MatMul: "matmul",
    graph.Pool2D: "pool",
    graph.Resize2D: "resize",
    graph.Reduce: "reduce",
    graph.ArgReduce: "arg_reduce",
    graph.Softmax: "softmax",
    graph.Copy: "copy",
    graph.Gather: "gather",
}


def build(ctx: Context) -> list[Launch]:
    """The launches, in order, that compute ctx.node. Concat has no kernel: views or copies stand for it."""
    module = importlib.import_module(f"litegpu.gpu.kernels.{_MODULES[type(ctx.node.op)]}")
    launches: list[Launch] = module.build(ctx)
    return launches
