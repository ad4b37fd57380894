"""Softmax of rows of bytes, to the last bit as the CPU adds them up, without adding one after the other."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.source import Traced, float_text, native_launch
from litegpu.gpu.graph import IntegerSoftmax
from litegpu.gpu.kernels.access import Operands, Position, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.powers import power_above
from litegpu.gpu.lang import TracedValue, u32
from litegpu.gpu.lang.kernel import Kernel

#: Numbers that a lane keeps in its registers.
MOST_EACH = 64
#: Warps of a workgroup, which have a row together where it has so many channels and there are fewer rows than these.
WARPS, LONG, MANY_ROWS = 4, 256, 2112
#: Channels up to which one sum of all takes as long as anything; threads of a workgroup where a few lanes have a row,
#: and where each has one, as there are many.
SHORT, THREADS = 64, (64, 256)


def build(ctx: KernelContext) -> list[Launch] | None:
    """None for rows of more than 2048 channels; see softmax.cu and short_softmax.cu for the constants."""
    op, shape = ctx.node.op, ctx.output.shape
    assert isinstance(op, IntegerSoftmax)
    rows, channels = math.prod(shape[:3]), shape[3]
    team = WARPS if channels >= LONG and rows < MANY_ROWS else 1
    each = 4 * -(-channels // (128 * team))
    if channels > 32 * MOST_EACH:
        return None
    table = ctx.value(ctx.node.inputs[1]).data
    assert table is not None

    def numbers(k: Kernel, bound: Operands, row: TracedValue, q: TracedValue) -> TracedValue:
        at = Position(shape, pixel=row)
        return open_source(ctx, k, ctx.node.inputs[0], bound).quad(at.b, at.y, at.x, q)

    constants: dict[str, int | str] = {
        "ROWS": rows, "CHANNELS": channels, "QUADS": -(-channels // 4), "SCALE": float_text(op.scale),
    }  # fmt: skip
    if channels <= SHORT:
        many = rows >= MANY_ROWS * WARPS
        file, threads, team = "short_softmax.cu", THREADS[many], 1 if many else power_above(-(-channels // 4))
        groups = -(-rows * team // threads)
        constants |= {"THREADS": threads, "TEAM": team}
    else:
        file, threads, groups = "softmax.cu", 32 * WARPS, -(-rows * team // WARPS)
        constants |= {"EACH": each, "WARPS": WARPS, "TEAM": team}
    return [
        native_launch(
            ctx, "softmax_of_bytes", (file,), constants, {"table": table.reshape(-1).astype(np.float32)},
            label="softmax", workgroup=(threads, 1, 1), dispatch=(groups, 1, 1),
            inner=Traced(ctx, "numbers", (u32, u32), numbers),
        )
    ]  # fmt: skip
