"""SOFTMAX and LOG_SOFTMAX."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, DType, IntegerSoftmax, Reduce, Softmax, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers
from litegpu.gpu.lower.wide_softmax import softmax_of_words


@lowers("SOFTMAX")
def softmax(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    given, made = grid_of(ctx.tensor(0)), grid_of(ctx.output)
    if given is not None and made is not None and all(integers.is_stored(ctx, i) for i in (0, None)):
        step = np.float32(-given.scale) * np.float32(ctx.option("beta", 1.0))
        table = np.exp((step * np.arange(256, dtype=np.float32)).astype(np.float64)).astype(np.float32)
        operands = [integers.stored(ctx, 0), ctx.builder.constant(table.reshape(1, 1, 1, 256))]
        result = integers.quanta_of(ctx, made, RESULT)
        ctx.add(IntegerSoftmax(made.scale), operands, ctx.output_value(), result)
        return
    if softmax_of_words(ctx):
        return
    ctx.add(Softmax(float(ctx.option("beta", 1.0))), [ctx.value(0)], ctx.output_value())


@lowers("LOG_SOFTMAX")
def log_softmax(ctx: OpContext) -> None:
    """x - max - log(sum(exp(x - max)))."""
    ctx.check_shape(ctx.shape(0))
    ctx.require_reals()
    x = ctx.value(0)
    row = (*bhwc(ctx.shape(0))[:3], 1)
    largest, total = ctx.intermediate(row, DType.FLOAT32), ctx.intermediate(row, DType.FLOAT32)
    ctx.add(Reduce("max", (3,)), [x], largest)
    ctx.add(Reduce("sum", (3,), fn("exp", fn("sub", Arg(0), Arg(1)))), [x, largest], total, fn("log", RESULT))
    ctx.elementwise(fn("sub", fn("sub", Arg(0), Arg(1)), Arg(2)), [x, largest, total], ctx.output_value())
