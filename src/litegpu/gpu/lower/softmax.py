"""SOFTMAX and LOG_SOFTMAX."""

from __future__ import annotations

from litegpu.gpu.graph import RESULT, Arg, DType, Reduce, Softmax, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers


@lowers("SOFTMAX")
def softmax(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    ctx.add(Softmax(float(ctx.option("beta", 1.0))), [ctx.value(0)], ctx.output_value())


@lowers("LOG_SOFTMAX")
def log_softmax(ctx: OpContext) -> None:
    """x - max - log(sum(exp(x - max)))."""
    ctx.check_shape(ctx.shape(0))
    x = ctx.value(0)
    row = (*bhwc(ctx.shape(0))[:3], 1)
    largest, total = ctx.intermediate(row, DType.FLOAT32), ctx.intermediate(row, DType.FLOAT32)
    ctx.add(Reduce("max", (3,)), [x], largest)
    ctx.add(Reduce("sum", (3,), fn("exp", fn("sub", Arg(0), Arg(1)))), [x, largest], total, fn("log", RESULT))
    ctx.elementwise(fn("sub", fn("sub", Arg(0), Arg(1)), Arg(2)), [x, largest, total], ctx.output_value())
