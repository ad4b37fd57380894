"""GATHER."""

from __future__ import annotations

import math

from litegpu.gpu.graph import Gather, Reshape, Step, Take
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import move
from litegpu.gpu.lower.registry import ANY, INT32, lowers


@lowers(
    "GATHER", max_version=8, inputs=(ANY, INT32), counts=2,
    notes="constant or runtime indices of any rank, batch_dims; a runtime index out of range gives 0",
)  # fmt: skip
def gather(ctx: OpContext) -> None:
    x, indices = ctx.shape(0), ctx.shape(1)
    axis = ctx.axis(int(ctx.option("axis")), len(x))
    batch_dims = int(ctx.option("batch_dims"))
    batch_dims += len(indices) if batch_dims < 0 else 0
    ctx.require(
        0 <= batch_dims <= min(axis, len(indices)) and x[:batch_dims] == indices[:batch_dims],
        f"batch_dims {batch_dims} does not fit shapes {list(x)} and {list(indices)}",
    )
    result = (*x[:axis], *indices[batch_dims:], *x[axis + 1 :])
    ctx.check_shape(result)
    if ctx.is_constant(1):
        flat = ctx.array(1).reshape(-1)
        inside = all(0 <= int(i) < x[axis] for i in flat)
        ctx.require(inside, f"an index is outside axis {axis} of shape {list(x)}")
        if batch_dims == 0:
            taken = (*x[:axis], flat.size, *x[axis + 1 :])
            steps: list[Step] = [Take(axis, tuple(int(i) for i in flat))]
            move(ctx, steps if taken == result else [*steps, Reshape(taken, result)])
            return
    op = Gather(
        batch=math.prod(x[:batch_dims]),
        outer=math.prod(x[batch_dims:axis]),
        size=x[axis],
        inner=math.prod(x[axis + 1 :]),
        count=math.prod(indices[batch_dims:]),
    )
    ctx.add(op, [ctx.value(0), ctx.value(1)], ctx.output_value())
