"""Two 1x1 convolutions of one pixel, the second of the first's result, in one kernel: squeeze-and-excite."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.graph import DType, SqueezedConv2D
from litegpu.gpu.kernels.access import Operands, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32x4, u32

#: Of a workgroup, and workgroups, which are a cluster.
THREADS, PARTS = 256, 8
#: Numbers that the first layer reads and gives, and the second gives: what the threads' registers hold of the weights.
MOST_INPUTS, MOST_HIDDEN, MOST_OUTPUTS = 2048, 128, 2048
#: The compute capability that has clusters, times ten.
LEAST_CAPABILITY = 90


def build(ctx: KernelContext) -> list[Launch]:
    """One launch; see squeezed.cu for the constants."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, SqueezedConv2D)
    squeeze, excite = (ctx.value(v).data for v in node.inputs[1:3])
    assert squeeze is not None and excite is not None  # as the pass sees to
    view = ctx.views[node.inputs[0]]
    (hidden, inputs), outputs = (squeeze.shape[0], squeeze.shape[3]), excite.shape[0]
    depth, quads = -(-hidden // 32) * 32, -(-outputs // 4)

    def inner(k: Kernel, operands: Operands, quad: TracedValue, value: TracedValue) -> TracedValue:
        arguments = [open_source(ctx, k, v, operands).broadcast(0, 0, 0, quad) for v in node.inputs[3:]]
        result = evaluate(k, op.inner, [value, *arguments], rough=ctx.half)
        return result if result.type.lanes == 4 else k.splat(result, 4)

    source, load = LOAD[view.dtype]
    constants: dict[str, int | str] = {
        "SOURCE": source, "LOAD(value)": load, "INPUTS": inputs, "PITCH_C": view.strides[3], "OFFSET": view.offset,
        "HIDDEN": hidden, "DEPTH": depth, "QUADS": quads, "THREADS": THREADS, "CLUSTER": PARTS,
    }  # fmt: skip
    operands: Operands = {
        "x": view,
        "w": _padded(squeeze, hidden, -(-inputs // 8) * 8),
        "v": _padded(excite, quads * 4, depth),
    }
    bytes_needed = (-(-inputs // 8) * 8 + 2 * depth) * 4
    return [native_launch(
        ctx, "squeezed_convolution", ("chunk.cu", "cluster.cu", "squeezed.cu"), constants, operands,
        label="squeezed_conv_2d", workgroup=(THREADS, 1, 1), dispatch=(PARTS, 1, 1), shared_bytes=bytes_needed,
        inner=Traced(ctx, "inner", (u32, f32x4), inner),
    )]  # fmt: skip


def takes(dtype: DType, squeeze: np.ndarray, excite: np.ndarray) -> bool:
    """Whether the kernel can compute layers with these weights [O, 1, 1, I] of an input of that type."""
    (hidden, _, _, inputs), outputs = squeeze.shape, excite.shape[0]
    halves = all(bool(np.all(np.abs(w) <= np.finfo(np.float16).max)) for w in (squeeze, excite))
    fits = inputs <= MOST_INPUTS and hidden <= MOST_HIDDEN and outputs <= MOST_OUTPUTS
    return dtype is DType.FLOAT32 and halves and fits and squeeze.shape[1:3] == excite.shape[1:3] == (1, 1)


def _padded(weights: np.ndarray, rows: int, columns: int) -> np.ndarray:
    result = np.zeros((rows, columns), np.float16)
    result[: weights.shape[0], : weights.shape[3]] = weights.reshape(weights.shape[0], -1)
    return result
