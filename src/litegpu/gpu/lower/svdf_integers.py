"""SVDF of 8 bits in whole numbers: EvalIntegerSVDF of TFLite, whose state has 16 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Expr, Reduce, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.constants import Array, Unsupported, quanta
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.integers import QuantizedOperand
from litegpu.gpu.lower.quantization import Grid, grid_of

#: Sums of so many products of two bytes are exact in float32.
_MOST_FEATURES = 512


@dataclass(frozen=True)
class SvdfLayer:
    """The layer's operands. What it keeps are quanta, as floats, which hold 16 bits."""

    ctx: OpContext
    x: QuantizedOperand
    weights: Array  # [filters, features], quanta as float32
    times: Array  # [units, rank, memory], int32
    first: tuple[int, int]  # multiplier and exponent of what the filters give
    second: tuple[int, int]  # and of the results
    made: Grid

    def features(self) -> int:
        """What the filters give for the input, [batch, filters]."""
        ctx, count = self.ctx, self.weights.shape[0]
        filters = ctx.builder.constant(self.weights.reshape(count, 1, 1, -1))
        scaled = _scaled(fn("to_int32", fn("round", RESULT)), self.first)
        kept = fn("to_float32", fn("min", fn("max", scaled, whole(-(2**15))), whole(2**15 - 1)))
        result = ctx.intermediate((ctx.shape(0)[0], count), DType.FLOAT32)
        return ctx.add(Conv2D(), [integers.as_float(ctx, 0, self.x), filters], result, kept)

    def finish(self, seen: int) -> None:
        """The results, of what the filters gave so far: [batch, units, rank, memory]."""
        ctx, (units, rank, memory) = self.ctx, self.times.shape
        batch, shape = ctx.shape(0)[0], (ctx.shape(0)[0], units, 1, 1)
        weights = ctx.builder.constant(self.times.reshape(1, units, rank, memory))
        product = fn("mul", fn("to_int32", Arg(0)), Arg(1))
        total = ctx.intermediate(shape, DType.INT32)
        ctx.add(Reduce("sum", (2, 3), product), [seen, weights], total)
        operands, number = [ctx.reshaped(total, (batch, units))], Arg(0)
        summed: Expr = number
        if ctx.has(3):
            bias = ctx.tensor(3)
            ctx.require(bias.data is not None and math.prod(bias.shape) == units, "a bias that is no constant")
            values = np.zeros(units, np.int32) if bias.data is None else bias.data.reshape(-1).astype(np.int32)
            operands.append(ctx.builder.constant(values.reshape(1, 1, 1, units)))
            summed = fn("add", number, Arg(1))
        result = integers.quanta_of(ctx, self.made, _scaled(summed, self.second))
        ctx.elementwise(result, operands, ctx.output_value())
        integers.settle(ctx, self.made)


def _scaled(number: Expr, factor: tuple[int, int]) -> Expr:
    return fn("fixed_mul", number, whole(factor[0]), whole(factor[1]))


def layer(ctx: OpContext) -> SvdfLayer:
    """The layer of an operator whose input is quantized. Raises Unsupported."""
    x, made, state = integers.operand(ctx, 0), grid_of(ctx.output), grid_of(ctx.tensor(4))
    decode = not ctx.lowering.checking
    weights, times = (quanta(ctx.tensor(i), 0, decode=decode) for i in (1, 2))
    if x is None or made is None or state is None or state.bits != 16 or weights is None or times is None:
        raise Unsupported("quantization of only some of the input, the weights, the state and the result")
    ctx.require(weights[1].size == times[1].size == 1, "weights of several scales")
    (count, depth), rank = ctx.shape(1), int(ctx.option("rank"))
    ctx.require(depth <= _MOST_FEATURES, f"{depth} features: up to {_MOST_FEATURES} are taken")
    first = float(x.scale) * float(weights[1][0]) / float(np.float32(state.scale))
    second = float(np.float32(state.scale)) * float(times[1][0]) / float(np.float32(made.scale))
    table = np.broadcast_to(times[0], ctx.shape(2)).astype(np.int32).reshape(count // rank, rank, -1)
    values = np.broadcast_to(weights[0], ctx.shape(1)).astype(np.float32)
    return SvdfLayer(ctx, x, values, table, multiplier_of(first), multiplier_of(second), made)
