"""Convolutions and dense layers of 16 bits with weights of 8 in whole numbers: each number in two bytes, of which the
sums are taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, DType, Expr, Op, Shape, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.activation import BOUNDS
from litegpu.gpu.lower.constants import Array, quanta
from litegpu.gpu.lower.context import NOT_KNOWN, OpContext
from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.quantization import grid_of
from litegpu.model.types import TensorType

#: Below 2**31 sums need no second word.
_MOST_SUM = 2**31
#: Between which the exponents of factors are that `fixed_mul_once` takes.
_LEAST_SHIFT, _MOST_SHIFT = -31, 15


@dataclass(frozen=True, eq=False)
class WideProduct:
    """The input's upper and lower bytes, the weights as the model has them, and what makes the result of the sums: the
    epilogue is that of the upper bytes' sums, and its first operand are the lower bytes' ones."""

    high: int
    low: int
    weights: Array
    epilogue: Expr
    operands: list[int]

    def put(self, ctx: OpContext, op: Op, shape: Shape, weights: int, given: Callable[[int], int]) -> None:
        """Add both, of what `given` makes of the bytes; the result has this shape."""
        ctx.add(op, [given(self.low), weights], self.operands[0])
        ctx.finish(op, [given(self.high), weights], shape, self.epilogue, self.operands)
        made = grid_of(ctx.output)
        assert made is not None
        integers.settle(ctx, made)


def wide_product(
    ctx: OpContext, channels: int, shape: Shape, *, axis: int = 0, data: int = 0, bias: int = 2, short: bool = True
) -> WideProduct | None:
    """What input 1 as weights, with the output's channels along `axis`, and a bias of 64 bits make of an input of 16;
    None for anything else. `short`: the factors have 15 bits, as where the CPU's kernel takes sums of 64 bits. Raises
    Unsupported where sums may not fit in 32."""
    x, made, weights = (
        grid_of(ctx.tensor(data)),
        grid_of(ctx.output),
        ctx.lowering.constant_tensor(ctx.operator.inputs[1]),
    )
    if not ctx.lowering.integer or x is None or made is None or weights is None or min(x.bits, made.bits) < 16:
        return None
    code, known = int(ctx.option("fused_activation_function")), weights.type is TensorType.INT8 and ctx.has(bias)
    ctx.require(known and code in BOUNDS and ctx.tensor(bias).type is TensorType.INT64, NOT_KNOWN)
    found, b = quanta(weights, axis), ctx.tensor(bias).data  # what is known of the sums depends on them
    if found is None or b is None or b.size != channels or x.zero or made.zero:
        ctx.require(False, NOT_KNOWN)
        return None
    array, scales = found
    others = tuple(i for i in range(array.ndim) if i != axis)
    largest = 2.0**15 * np.abs(array.astype(np.float64)).sum(axis=others) + np.abs(b.reshape(-1).astype(np.float64))
    ctx.require(float(np.max(largest, initial=0)) < _MOST_SUM, "sums of 16 bits times 8 that may be beyond 32 bits")
    factors = float(x.scale) * scales.astype(np.float64).reshape(-1) / float(made.scale)
    multipliers, shifts = np.array([multiplier_of(float(f)) for f in factors]).T
    ctx.require(bool(np.all((shifts >= _LEAST_SHIFT) & (shifts <= _MOST_SHIFT))), NOT_KNOWN)
    if short:
        multipliers = np.minimum((multipliers + (1 << 15)) >> 16, (1 << 15) - 1) << 16
    given = integers.operand(ctx, data)
    assert given is not None
    number, size = given.expr(Arg(0)), ctx.shape(data)
    high, low = (
        ctx.elementwise(expr, [given.value], ctx.intermediate(size, dtype))
        for expr, dtype in (
            (fn("shift_right", number, whole(8)), DType.INT8),
            (fn("bit_and", number, whole(0xFF)), DType.UINT8),
        )
    )
    operands = [ctx.intermediate(shape, DType.INT32)]

    def argument(numbers: Array) -> Expr:
        operands.append(ctx.builder.constant(numbers.astype(np.int32).reshape(-1)))
        return Arg(len(operands))

    sums = fn("add", fn("add", fn("mul", RESULT, whole(256)), Arg(1)), argument(b))
    result = fn("fixed_mul_once", sums, argument(multipliers), argument(shifts))
    return WideProduct(high, low, array, integers.quanta_of(ctx, made, result, *BOUNDS[code]), operands)
