"""Elementwise operators on quantized tensors in whole numbers, step by step as the CPU's integer kernels compute them.

On 8-bit tensors the official runtime uses XNNPACK's kernels, unless it was told not to or the scales are too far apart;
else its own ones, whose multipliers have 31 bits and round twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import Apply, Arg, DType, Expr, Gather, Literal, arguments, substitute, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import fixed_point as fixed
from litegpu.gpu.lower.activation import BOUNDS
from litegpu.gpu.lower.constants import quanta
from litegpu.gpu.lower.context import NOT_KNOWN, OpContext
from litegpu.gpu.lower.division import quotients
from litegpu.gpu.lower.quantization import STORED, Grid, grid_of

#: Ratios of scales between which XNNPACK's kernels are used.
_SUMS, _PRODUCTS, _STEPS = (2.0**-10, 2.0**8), (2.0**-16, 2.0**8), (2.0**-8, 2.0**7)


@dataclass(frozen=True)
class QuantizedOperand:
    """A quantized tensor: `expr(Arg(i))` of `value` are its quanta as int32."""

    value: int
    expr: Callable[[Expr], Expr]
    grid: Grid

    @property
    def scale(self) -> np.float32:
        return np.float32(self.grid.scale)

    @property
    def reach(self) -> int:
        """No difference of a quantum to the zero point is larger."""
        return max(abs(end - self.grid.zero) for end in (self.grid.low, self.grid.high))


def operand(ctx: OpContext, i: int) -> QuantizedOperand | None:
    """Input i as whole numbers; None if it is not quantized with one scale."""
    t = ctx.tensor(i)
    if t.is_constant:
        found = quanta(t, -1, decode=not ctx.lowering.checking) if t.type in STORED else None
        if found is None or found[1].size != 1 or t.quantization is None:
            return None
        limits = np.iinfo(STORED[t.type].value)
        zeros = t.quantization.zero_points
        grid = Grid(float(found[1].reshape(())), int(zeros[0]) if zeros.size else 0, int(limits.min), int(limits.max))
        return QuantizedOperand(ctx.builder.constant(found[0].astype(np.int32), name=t.name), lambda x: x, grid)
    known = grid_of(t)
    if known is None:
        return None
    ctx.lowering.ensure(t.index)
    value, expr = ctx.lowering.quantized.whole(t.index)
    return QuantizedOperand(value, lambda x: substitute(expr, {0: x}), known)


def is_stored(ctx: OpContext, i: int | None) -> bool:
    """Whether input i, or the output, is kept as its bytes and computed by the model."""
    t = ctx.output if i is None else ctx.tensor(i)
    return not t.is_constant and ctx.lowering.quantized.keeps_stored(grid_of(t))


def stored(ctx: OpContext, i: int) -> int:
    """The bytes of input i, a quantized tensor."""
    t = ctx.tensor(i)
    if t.is_constant and t.data is not None:
        return ctx.builder.constant(t.data.reshape(t.shape), name=t.name, narrow=True)
    ctx.lowering.ensure(t.index)
    return ctx.lowering.quantized.stored[t.index]


def as_float(ctx: OpContext, i: int, x: QuantizedOperand) -> int:
    """The quanta of input i as float32."""
    known = ctx.quanta(i)
    if known is not None:
        return known
    quanta = ctx.intermediate(ctx.shape(i), DType.FLOAT32)
    return ctx.elementwise(fn("to_float32", x.expr(Arg(0))), [x.value], quanta)


def finish(
    ctx: OpContext, result: Expr, operands: list[int], *, activation: bool = True, by_xnnpack: bool = False
) -> None:
    """The operator's result are the quanta `result`, int32, within the fused activation's limits."""
    grid = grid_of(ctx.output)
    assert grid is not None
    code = int(ctx.option("fused_activation_function")) if activation else 0
    kept = quanta_of(ctx, grid, result, *BOUNDS[code], by_xnnpack=by_xnnpack)
    ctx.elementwise(kept, operands, ctx.output_value())
    settle(ctx, grid)


def quanta_of(
    ctx: OpContext,
    grid: Grid,
    result: Expr,
    low: float | None = None,
    high: float | None = None,
    *,
    by_xnnpack: bool = False,
) -> Expr:
    """The quanta `result`, int32, as the value of the output has them, within what its grid holds and real numbers from
    `low` to `high`, limits of XNNPACK's kernels or of the others. To be asked before the output's value is made."""
    return as_kept(ctx, grid, result, *grid.limits(low, high, by_xnnpack=by_xnnpack))


def as_kept(ctx: OpContext, grid: Grid, result: Expr, bottom: int, top: int) -> Expr:
    """The same within these quanta."""
    ctx.gives_stored = ctx.lowering.quantized.keeps_stored(grid)
    bounded = result if _within(result, bottom, top) else fn("min", fn("max", result, whole(bottom)), whole(top))
    return fn("add", bounded, whole(grid.zero)) if ctx.gives_stored else fn("to_float32", bounded)


def _within(result: Expr, bottom: int, top: int) -> bool:
    """Whether quanta are those of a number that is limited already."""
    match result:
        case Apply("nearest", (Apply("min", (Apply("max", (_, Literal(low))), Literal(high))),)):
            return low >= bottom and high <= top
    return False


def rounded_once(
    ctx: OpContext,
    grid: Grid,
    sums: Expr,
    factor: Expr | float,
    low: float | None = None,
    high: float | None = None,
    *,
    reach: float = math.inf,
) -> Expr:
    """What is stored for sums, int32, times a float32 factor, within real numbers from `low` to `high`: as XNNPACK's
    kernels do it, which limit first and round then, to even numbers. `reach`: no product is larger than this."""
    bottom, top = grid.limits(low, high, by_xnnpack=True)
    ctx.gives_stored = True
    scaled = fn("mul", fn("to_float32", sums), factor)
    scaled = fn("small", scaled) if reach < 2.0**20 else scaled
    return fn("add", fn("nearest", fn("min", fn("max", scaled, bottom), top)), whole(grid.zero))


def settle(ctx: OpContext, grid: Grid) -> None:
    """The value of the output holds quanta that need no rounding, or what is stored."""
    if ctx.gives_stored:
        return
    ctx.unit = grid.scale
    ctx.lowering.quantized.mark(ctx.lowering.values[ctx.output.index], grid)


# ------------------------------------------------------------------------------------------ one operand

#: The quanta of the result, by those of the operand and both grids; None if they are beyond the CPU's kernel.
Unary = Callable[[OpContext, Expr, Grid, Grid], Expr | None]


def negated(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    """Of what is stored, whatever it stands for; the lowest number wraps."""
    stored = fn("neg", fn("add", x, whole(given.zero)))
    wrapped = fn("select", fn("gt", stored, whole(made.high)), whole(made.low), stored)
    return fn("sub", wrapped, whole(made.zero))


def rescaled(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    return fixed.times(x, float(np.float32(given.scale) / np.float32(made.scale)))


def magnitude(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    positive = fn("abs", x)
    return positive if given.scale == made.scale else rescaled(ctx, positive, given, made)


def leaky(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    alpha = np.float32(ctx.option("alpha", 0.0))
    up = np.float32(given.scale) / np.float32(made.scale)
    down = up * alpha
    if taken_by_xnnpack(ctx, _STEPS, up) and abs(down) >= 2.0**-8 and -128 < down <= 128:
        factors = [whole(round(float(f) * 256)) for f in (up, down)]
        factor = fn("select", fn("ge", x, whole(0)), *factors)
        return fixed.shifted_right(fn("mul", x, factor), 8)
    slope = float(np.float32(given.scale) * alpha / np.float32(made.scale))
    return fn("select", fn("ge", x, whole(0)), fixed.times(x, float(up)), fixed.times(x, slope))


def requantized(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    ratio = np.float32(given.scale) / np.float32(made.scale)
    same = (given.low, given.high) == (made.low, made.high)
    if given.scale == made.scale:
        return x
    if same and taken_by_xnnpack(ctx, _STEPS, ratio):
        return fixed.shifted_right(fn("mul", x, whole(round(float(ratio) * 256))), 8)
    return fixed.times(x, float(given.scale) / float(made.scale))


def unary(ctx: OpContext, rule: Unary | None, bounds: tuple[float | None, float | None] = (None, None)) -> bool:
    """Lower an operator of one operand in whole numbers, within these real numbers; False if the CPU's kernel does not
    compute so."""
    found = unary_expression(ctx, rule, bounds)
    if found is None:
        return False
    expr, value = found
    ctx.elementwise(expr, [value], ctx.output_value())
    made = grid_of(ctx.output)
    assert made is not None
    settle(ctx, made)
    return True


def unary_expression(
    ctx: OpContext, rule: Unary | None, bounds: tuple[float | None, float | None] = (None, None)
) -> tuple[Expr, int] | None:
    """What unary() makes of a value of the operand, and that value; the output's value is to be made afterwards."""
    made = grid_of(ctx.output)
    x = operand(ctx, 0) if rule is not None and made is not None else None
    result = None if rule is None or x is None or made is None else rule(ctx, x.expr(Arg(0)), x.grid, made)
    if result is None or x is None or made is None:
        return None
    return quanta_of(ctx, made, result, *bounds), x.value


# ------------------------------------------------------------------------------------------ two operands

#: Gives the output its value, if the CPU's kernel computes so.
Binary = Callable[[OpContext, QuantizedOperand, QuantizedOperand, Grid], bool]


def binary(ctx: OpContext, rule: Binary | None) -> bool:
    """Lower an operator of two operands, which broadcast, in whole numbers; False if the CPU's kernel does not compute
    so."""
    made = grid_of(ctx.output)
    found = None if rule is None or made is None else _operands(ctx)
    return rule is not None and found is not None and made is not None and rule(ctx, *found, made)


def compared(ctx: OpContext, function: str) -> bool:
    """The same for a comparison. Real numbers in units of 2**-8, compared as rounded; the CPU orders int16 by what is
    stored."""
    found = _operands(ctx)
    if found is None:
        return False
    if max(o.scale for o in found) >= 1:
        ctx.require(not ctx.lowering.integer, NOT_KNOWN)  # the CPU's multipliers are for less
    places = (Arg(0), Arg(1))
    numbers: list[Expr]
    if function not in ("eq", "ne") and all(o.grid.bits > 8 for o in found):
        numbers = [fn("add", o.expr(x), whole(o.grid.zero)) for o, x in zip(found, places, strict=True)]
    else:
        shifted = [fixed.shifted_left(o.expr(x), 8) for o, x in zip(found, places, strict=True)]
        numbers = [fixed.times(q, float(o.scale)) for q, o in zip(shifted, found, strict=True)]
    ctx.elementwise(fn(function, *numbers), [o.value for o in found], ctx.output_value())
    return True


def _operands(ctx: OpContext) -> tuple[QuantizedOperand, QuantizedOperand] | None:
    if int(ctx.option("fused_activation_function")) not in BOUNDS:
        return None
    x, y = operand(ctx, 0), operand(ctx, 1)
    return None if x is None or y is None else (x, y)


def added(ctx: OpContext, x: QuantizedOperand, y: QuantizedOperand, made: Grid) -> bool:
    return _summed(ctx, "add", x, y, made)


def subtracted(ctx: OpContext, x: QuantizedOperand, y: QuantizedOperand, made: Grid) -> bool:
    return _summed(ctx, "sub", x, y, made)


def _summed(ctx: OpContext, operation: str, x: QuantizedOperand, y: QuantizedOperand, made: Grid) -> bool:
    by_xnnpack = taken_by_xnnpack(ctx, _SUMS, *(o.scale / np.float32(made.scale) for o in (x, y)))
    total = _sum(ctx, operation, x.expr(Arg(0)), y.expr(Arg(1)), x.scale, y.scale, made, by_xnnpack)
    if total is None:
        return False
    operands = [x.value, y.value]
    if 2 in arguments(total):
        rest = np.arange(math.prod(ctx.output.shape)) >= math.prod(ctx.output.shape) - _rest(ctx)
        operands.append(ctx.builder.constant(rest.astype(np.int32).reshape(ctx.output.shape)))
    finish(ctx, total, operands, by_xnnpack=by_xnnpack)
    return True


def _rest(ctx: OpContext) -> int:
    """Elements of the output behind the last sixteen."""
    return math.prod(ctx.output.shape) % 16


def multiplied(ctx: OpContext, x: QuantizedOperand, y: QuantizedOperand, made: Grid) -> bool:
    factor = x.scale * y.scale / np.float32(made.scale)
    product = fn("mul", x.expr(Arg(0)), y.expr(Arg(1)))
    by_xnnpack = taken_by_xnnpack(ctx, _PRODUCTS, factor)
    ctx.require(by_xnnpack or not ctx.lowering.integer or float(factor) < 1, NOT_KNOWN)  # the CPU's overflow 16 bits
    nearest: Expr
    reach = x.reach * y.reach
    if by_xnnpack and max(reach, reach * float(factor)) < 2.0**20:
        nearest = fn("nearest", fn("small", fn("mul", fn("to_float32", fn("small", product)), float(factor))))
    elif by_xnnpack:
        nearest = fn("to_int32", fn("round", fn("mul", fn("to_float32", product), float(factor))))
    else:
        nearest = fixed.times(product, float(factor))
    finish(ctx, nearest, [x.value, y.value], by_xnnpack=by_xnnpack)
    return True


def rectified(ctx: OpContext, x: QuantizedOperand, slope: QuantizedOperand, made: Grid) -> bool:
    """PRELU."""
    a, b = x.expr(Arg(0)), slope.expr(Arg(1))
    up = x.scale / np.float32(made.scale)
    down = x.scale * slope.scale / np.float32(made.scale)
    negative = fixed.times(fn("mul", a, b), float(down))
    result = fn("select", fn("ge", a, whole(0)), fixed.times(a, float(up)), negative)
    finish(ctx, result, [x.value, slope.value], activation=False)
    return True


def _sum(
    ctx: OpContext, operation: str, a: Expr, b: Expr, x: np.float32, y: np.float32, made: Grid, by_xnnpack: bool
) -> Expr | None:
    """The sum or difference: XNNPACK scales both terms with 21 bits, the other kernels first to a common scale."""
    scales = [float(x), float(y), made.scale]
    factors = [x / np.float32(made.scale), y / np.float32(made.scale)]
    if by_xnnpack:
        shift = 21 - math.frexp(float(max(factors)))[1]
        terms = [fn("mul", q, whole(round(math.ldexp(float(f), shift)))) for q, f in zip((a, b), factors, strict=True)]
        return fixed.shifted_right(fn(operation, *terms), shift)
    # Beyond, the CPU's sums of bytes overflow 16 bits.
    ctx.require(not ctx.lowering.integer or made.bits > 8 or float(max(factors)) < 64, NOT_KNOWN)
    if made.bits > 8 and ctx.option("pot_scale_int16", True) and all(math.frexp(s)[0] == 0.5 for s in scales):
        return None
    left = 20 if made.bits <= 8 else 15
    common = 2.0 * max(scales[:2])
    apart: list[Expr] = [
        fixed.times(fixed.shifted_left(q, left), s / common) for q, s in zip((a, b), scales[:2], strict=True)
    ]
    if ctx.lowering.integer and made.bits > 8 and operation == "add" and ctx.shape(0) == ctx.shape(1):
        # The CPU's kernel of AVX2 rounds the terms once, sixteen elements at a time, and what is left over twice.
        ctx.require(min(scales[:2]) / common > 2.0**-14, NOT_KNOWN)
        once = [fixed.times_once(q, left, s / common) for q, s in zip((a, b), scales[:2], strict=True)]
        last = fn("ne", Arg(2), whole(0))
        apart = [fn("select", last, t, o) for t, o in zip(apart, once, strict=True)] if _rest(ctx) else [*once]
    return fixed.times(fn(operation, *apart), common / ((1 << left) * made.scale))


def divided(ctx: OpContext, dividend: QuantizedOperand, divisor: QuantizedOperand, made: Grid) -> bool:
    """Looked up in a table of all quotients."""
    first, second = dividend.grid, divisor.grid
    if max(first.bits, second.bits) > 8:
        return False
    a, b = dividend.expr(Arg(0)), divisor.expr(Arg(1))
    row = fn("mul", fn("add", a, whole(first.zero - first.low)), whole(256))
    place = fn("add", row, fn("add", b, whole(second.zero - second.low)))
    places = ctx.intermediate(ctx.output.shape, DType.INT32)
    ctx.elementwise(place, [dividend.value, divisor.value], places)
    table = ctx.builder.constant(quotients(first, second, made).reshape(1, 1, 1, -1))
    count = math.prod(ctx.output.shape)
    found = ctx.add(Gather(1, 1, 1 << 16, 1, count), [table, places], ctx.intermediate(ctx.output.shape, DType.INT32))
    finish(ctx, Arg(0), [found])
    return True


def squared_difference(ctx: OpContext, x: QuantizedOperand, y: QuantizedOperand, made: Grid) -> bool:
    left, common = 7, 2.0 * float(max(x.scale, y.scale))
    quanta = ((x.expr(Arg(0)), x.scale), (y.expr(Arg(1)), y.scale))
    terms = [fixed.times(fixed.shifted_left(q, left), float(s) / common) for q, s in quanta]
    difference = fn("sub", *terms)
    result = fixed.times(fn("mul", difference, difference), common * common / ((1 << 2 * left) * made.scale))
    finish(ctx, result, [x.value, y.value], activation=False)
    return True


def taken_by_xnnpack(ctx: OpContext, allowed: tuple[float, float] = (0, math.inf), *ratios: np.float32) -> bool:
    """Whether XNNPACK's kernel computes the operator: on 8 bits, if the ratios of scales are what it can do."""
    narrow = all(t.type is ctx.output.type and t.type in STORED for t in (ctx.tensor(0), ctx.output))
    grid = grid_of(ctx.output)
    small = grid is not None and grid.bits <= 8
    return ctx.lowering.xnnpack and narrow and small and all(allowed[0] <= r < allowed[1] for r in ratios)
