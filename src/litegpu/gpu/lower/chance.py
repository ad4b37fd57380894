"""RANDOM_UNIFORM and RANDOM_STANDARD_NORMAL, of which a seed makes the numbers repeatable."""

from __future__ import annotations

import math

from litegpu.gpu.custom.philox import Philox
from litegpu.gpu.graph import Arg, Custom, DType, Literal
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers_as


@lowers_as(RANDOM_UNIFORM=False, RANDOM_STANDARD_NORMAL=True)
def random_numbers(ctx: OpContext, normal: bool) -> None:
    """Four at a time; how many groups were drawn is kept from inference to inference, as a variable is."""
    shape, seeds = ctx.integers(0, "the sizes"), [_word(int(ctx.option(name))) for name in ("seed", "seed2")]
    ctx.check_shape(shape)
    ctx.require(any(seeds), "without a seed: every time others are wanted")
    count = math.prod(shape)
    lowering, key = ctx.lowering, -1 - ctx.operator.index  # no tensor stands for it
    drawn = ctx.intermediate((), DType.INT32)
    lowering.variables[key] = drawn
    op = Custom(Philox(seeds[0], seeds[1], normal))
    numbers = ctx.add(op, [drawn], ctx.intermediate((count,), DType.FLOAT32))
    ctx.copy(ctx.reshaped(numbers, shape), [], ctx.output_value())
    more = fn("add", Arg(0), Literal(-(-count // 4), DType.INT32))
    lowering.updates[key] = ctx.elementwise(more, [drawn], ctx.intermediate((), DType.INT32))


def _word(number: int) -> int:
    """The lowest 32 bits with their sign, which is what the runtime keeps of a seed."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
