"""Kernels in CUDA C++ for what the kernel language cannot say: tensor cores and asynchronous copies.

Each does what the kernel of the same op in the language does, which is its test; `build` gives None where only that one
will do.
"""

from __future__ import annotations

from collections.abc import Callable

from litegpu.gpu import graph
from litegpu.gpu.kernels.context import Context, Launch
from litegpu.gpu.kernels.cuda import attention, convolution, depthwise, lstm, matmul, separable, transpose
from litegpu.gpu.kernels.cuda.tile import LEAST_CAPABILITY

_BUILD: dict[type[graph.Op], Callable[[Context], list[Launch] | None]] = {
    graph.Attention: attention.build,
    graph.Conv2D: convolution.build,
    graph.Custom: lstm.build,
    graph.DepthwiseConv2D: depthwise.build,
    graph.MatMul: matmul.build,
    graph.SeparableConv2D: separable.build,
    graph.TransposeConv2D: transpose.build,
}


def build(ctx: Context) -> list[Launch] | None:
    """The launches that compute ctx.node on a device with these instructions, or None."""
    if ctx.features.cuda_capability < LEAST_CAPABILITY or type(ctx.node.op) not in _BUILD:
        return None
    return _BUILD[type(ctx.node.op)](ctx)
