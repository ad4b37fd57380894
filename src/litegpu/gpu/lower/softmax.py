"""SOFTMAX."""

from __future__ import annotations

from litegpu.gpu.graph import Softmax
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers


@lowers("SOFTMAX", max_version=4, notes="along the last axis, any beta")
def softmax(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    ctx.add(Softmax(float(ctx.option("beta", 1.0))), [ctx.value(0)], ctx.output_value())
