"""Elementwise operators on quantized tensors in whole numbers, step by step as the CPU's integer kernels compute them.

On 8-bit tensors the official runtime uses XNNPACK's kernels, unless it was told not to or the scales are too far apart;
else its own ones, whose multipliers have 31 bits and round twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import Arg, DType, Expr, Gather, substitute
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import fixed_point as fixed
from litegpu.gpu.lower.constants import quanta
from litegpu.gpu.lower.context import BOUNDS, OpContext
from litegpu.gpu.lower.division import quotients
from litegpu.gpu.lower.fixed_point import whole
from litegpu.gpu.lower.quantization import STORED, Grid, grid_of

#: Ratios of scales between which XNNPACK's kernels are used.
_SUMS, _PRODUCTS, _STEPS = (2.0**-10, 2.0**8), (2.0**-16, 2.0**8), (2.0**-8, 2.0**7)


@dataclass(frozen=True)
class Operand:
    """A quantized tensor: `expr(Arg(i))` of `value` are its quanta as int32."""

    value: int
    expr: Callable[[Expr], Expr]
    grid: Grid

    @property
    def scale(self) -> np.float32:
        return np.float32(self.grid.scale)


def operand(ctx: OpContext, i: int) -> Operand | None:
    """Input i as whole numbers; None if it is not quantized with one scale."""
    t = ctx.tensor(i)
    if t.is_constant:
        found = quanta(t, -1, decode=not ctx.lowering.checking) if t.type in STORED else None
        if found is None or found[1].size != 1 or t.quantization is None:
            return None
        limits = np.iinfo(STORED[t.type].value)
        zeros = t.quantization.zero_points
        grid = Grid(float(found[1].reshape(())), int(zeros[0]) if zeros.size else 0, int(limits.min), int(limits.max))
        return Operand(ctx.builder.constant(found[0].astype(np.int32), name=t.name), lambda x: x, grid)
    known = grid_of(t)
    if known is None:
        return None
    ctx.lowering.ensure(t.index)
    value, expr = ctx.lowering.quantized.whole(t.index)
    return Operand(value, lambda x: substitute(expr, {0: x}), known)


def as_float(ctx: OpContext, i: int, x: Operand) -> int:
    """The quanta of input i as float32."""
    known = ctx.quanta(i)
    if known is not None:
        return known
    quanta = ctx.intermediate(ctx.shape(i), DType.FLOAT32)
    return ctx.elementwise(fn("to_float32", x.expr(Arg(0))), [x.value], quanta)


def finish(ctx: OpContext, result: Expr, operands: list[int], *, activation: bool = True) -> None:
    """The operator's result are the quanta `result`, int32, within the fused activation's limits."""
    grid = grid_of(ctx.output)
    assert grid is not None
    code = int(ctx.option("fused_activation_function")) if activation else 0
    ctx.elementwise(quanta_of(grid, result, *BOUNDS[code]), operands, ctx.output_value())
    settle(ctx, grid)


def quanta_of(grid: Grid, result: Expr, low: float | None = None, high: float | None = None) -> Expr:
    """The int32 `result` as quanta of a value, within what the grid holds and real numbers from `low` to `high`."""
    bottom, top = limits(grid, low, high)
    return fn("to_float32", fn("min", fn("max", result, whole(bottom)), whole(top)))


def settle(ctx: OpContext, grid: Grid) -> None:
    """The value of the output holds quanta that need no rounding."""
    ctx.unit = grid.scale
    ctx.lowering.quantized.mark(ctx.lowering.values[ctx.output.index], grid)


def limits(grid: Grid, low: float | None, high: float | None) -> tuple[int, int]:
    """The quanta between which real numbers from `low` to `high` lie: CalculateActivationRangeQuantized."""

    def nearest(bound: float) -> int:
        steps = float(np.float32(bound) / np.float32(grid.scale))
        return int(math.copysign(math.floor(abs(steps) + 0.5), steps))

    bottom, top = grid.low - grid.zero, grid.high - grid.zero
    return (
        bottom if low is None else min(max(bottom, nearest(low)), top),
        top if high is None else max(min(top, nearest(high)), bottom),
    )


# ------------------------------------------------------------------------------------------ one operand

Unary = Callable[[OpContext, Expr, Grid, Grid], Expr]


def _negative(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    """Of what is stored, whatever it stands for; the lowest number wraps."""
    stored = fn("neg", fn("add", x, whole(given.zero)))
    wrapped = fn("select", fn("gt", stored, whole(made.high)), whole(made.low), stored)
    return fn("sub", wrapped, whole(made.zero))


def _rescaled(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    return fixed.times(x, float(np.float32(given.scale) / np.float32(made.scale)))


def _absolute(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    magnitude = fn("abs", x)
    return magnitude if given.scale == made.scale else _rescaled(ctx, magnitude, given, made)


def _leaky(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    alpha = np.float32(ctx.option("alpha", 0.0))
    up = np.float32(given.scale) / np.float32(made.scale)
    down = up * alpha
    if _by_xnnpack(ctx, _STEPS, up) and abs(down) >= 2.0**-8 and -128 < down <= 128:
        factors = [whole(round(float(f) * 256)) for f in (up, down)]
        factor = fn("select", fn("ge", x, whole(0)), *factors)
        return fixed.shifted_right(fn("mul", x, factor), 8)
    slope = float(np.float32(given.scale) * alpha / np.float32(made.scale))
    return fn("select", fn("ge", x, whole(0)), fixed.times(x, float(up)), fixed.times(x, slope))


def _requantized(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    ratio = np.float32(given.scale) / np.float32(made.scale)
    same = (given.low, given.high) == (made.low, made.high)
    if given.scale == made.scale:
        return x
    if same and _by_xnnpack(ctx, _STEPS, ratio):
        return fixed.shifted_right(fn("mul", x, whole(round(float(ratio) * 256))), 8)
    return fixed.times(x, float(given.scale) / float(made.scale))


def _hard_swish(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr:
    """x * relu6(x + 3) / 6 in 16 bits; the second factor, from 0 to 1, has 15 of them behind the point."""
    fine = np.float32(given.scale) / np.float32(128)
    output, output_shift = fixed.narrow_multiplier_of(float(fine / np.float32(made.scale)))
    reluish, shift = fixed.narrow_multiplier_of(float(fine / np.float32(3.0 / 32768.0)))
    hires = fixed.shifted_left(x, 7)
    bound: Expr = hires
    if shift > 0:
        bound = _saturated(fixed.shifted_left(bound, shift - 1)) if shift > 1 else bound
    bound = fixed.high_product(bound, reluish)
    if shift > 0:
        bound = _saturated(fixed.shifted_left(bound, 1))
    elif shift < 0:
        bound = fixed.rounded_away(bound, -shift)
    bound = fn("shift_right", fn("add", bound, whole(1 << 15)), whole(1))
    product = fn("mul", bound, fixed.high_product(hires, output))
    towards_zero = fn("select", fn("lt", product, whole(0)), fn("add", product, whole((1 << 15) - 1)), product)
    high = fn("shift_right", towards_zero, whole(15))
    return fixed.rounded_away(high, -output_shift) if output_shift < 0 else high


def _saturated(x: Expr) -> Expr:
    return fn("min", fn("max", x, whole(-32768)), whole(32767))


_UNARY: dict[str, Unary] = {
    "ABS": _absolute,
    "NEG": _negative,
    **dict.fromkeys(("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"), _rescaled),
    "LEAKY_RELU": _leaky,
    "QUANTIZE": _requantized,
    "HARD_SWISH": _hard_swish,
}
_CLAMPS = {"RELU": (0, None), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}


def unary(ctx: OpContext) -> bool:
    """Lower an operator of one operand in whole numbers; False if it is not one of those."""
    rule, made = _UNARY.get(ctx.operator.name), grid_of(ctx.output)
    x = operand(ctx, 0) if rule is not None and made is not None else None
    if rule is None or x is None or made is None:
        return False
    name = ctx.operator.name
    if name == "HARD_SWISH" and (x.grid.bits > 8 or fixed.multiplier_of(x.grid.scale / 128 / made.scale)[1] > 0):
        return False
    result = rule(ctx, x.expr(Arg(0)), x.grid, made)
    ctx.elementwise(quanta_of(made, result, *_CLAMPS.get(name, (None, None))), [x.value], ctx.output_value())
    settle(ctx, made)
    return True


# ------------------------------------------------------------------------------------------ two operands

_COMPARISONS = {"EQUAL": "eq", "NOT_EQUAL": "ne", "GREATER": "gt", "GREATER_EQUAL": "ge", "LESS": "lt"}
_COMPARISONS["LESS_EQUAL"] = "le"
_ARITHMETIC = ("ADD", "SUB", "MUL", "DIV", "SQUARED_DIFFERENCE", "PRELU")


def binary(ctx: OpContext) -> bool:
    """Lower an operator of two operands, which broadcast, in whole numbers; False if it is not one of those."""
    name, made = ctx.operator.name, grid_of(ctx.output)
    known = name in _COMPARISONS or (made is not None and name in _ARITHMETIC)
    if not known or int(ctx.option("fused_activation_function")) not in BOUNDS:
        return False
    x, y = operand(ctx, 0), operand(ctx, 1)
    if x is None or y is None or (name == "DIV" and max(x.grid.bits, y.grid.bits) > 8):
        return False
    a, b = x.expr(Arg(0)), y.expr(Arg(1))
    operands = [x.value, y.value]
    if name in _COMPARISONS:
        ctx.elementwise(_compared(_COMPARISONS[name], (a, x), (b, y)), operands, ctx.output_value())
        return True
    assert made is not None
    if name in ("ADD", "SUB"):
        total = _sum(ctx, a, b, x.scale, y.scale, made)
        if total is None:
            return False
        finish(ctx, total, operands)
    elif name == "MUL":
        factor = x.scale * y.scale / np.float32(made.scale)
        product = fn("mul", a, b)
        if _by_xnnpack(ctx, _PRODUCTS, factor):
            nearest = fn("to_int32", fn("round", fn("mul", fn("to_float32", product), float(factor))))
            finish(ctx, nearest, operands)
        else:
            finish(ctx, fixed.times(product, float(factor)), operands)
    elif name == "DIV":
        _divide(ctx, (a, x), (b, y), made)
    elif name == "SQUARED_DIFFERENCE":
        finish(ctx, _squared_difference(a, b, x.scale, y.scale, made), operands, activation=False)
    else:
        up = x.scale / np.float32(made.scale)
        down = x.scale * y.scale / np.float32(made.scale)
        negative = fixed.times(fn("mul", a, b), float(down))
        result = fn("select", fn("ge", a, whole(0)), fixed.times(a, float(up)), negative)
        finish(ctx, result, operands, activation=False)
    return True


def _sum(ctx: OpContext, a: Expr, b: Expr, x: np.float32, y: np.float32, made: Grid) -> Expr | None:
    """The sum or difference: XNNPACK scales both terms with 21 bits, the other kernels first to a common scale."""
    scales = [float(x), float(y), made.scale]
    operation = ctx.operator.name.lower()
    factors = [x / np.float32(made.scale), y / np.float32(made.scale)]
    if _by_xnnpack(ctx, _SUMS, *factors):
        shift = 21 - math.frexp(float(max(factors)))[1]
        terms = [fn("mul", q, whole(round(math.ldexp(float(f), shift)))) for q, f in zip((a, b), factors, strict=True)]
        return fixed.shifted_right(fn(operation, *terms), shift)
    if made.bits > 8 and ctx.option("pot_scale_int16", True) and all(math.frexp(s)[0] == 0.5 for s in scales):
        return None
    left = 20 if made.bits <= 8 else 15
    common = 2.0 * max(scales[:2])
    apart: list[Expr] = [
        fixed.times(fixed.shifted_left(q, left), s / common) for q, s in zip((a, b), scales[:2], strict=True)
    ]
    return fixed.times(fn(operation, *apart), common / ((1 << left) * made.scale))


def _divide(ctx: OpContext, x: tuple[Expr, Operand], y: tuple[Expr, Operand], made: Grid) -> None:
    """Looked up in a table of all quotients."""
    (a, dividend), (b, divisor) = x, y
    first, second = dividend.grid, divisor.grid
    row = fn("mul", fn("add", a, whole(first.zero - first.low)), whole(256))
    place = fn("add", row, fn("add", b, whole(second.zero - second.low)))
    places = ctx.intermediate(ctx.output.shape, DType.INT32)
    ctx.elementwise(place, [dividend.value, divisor.value], places)
    table = ctx.builder.constant(quotients(first, second, made).reshape(1, 1, 1, -1))
    count = math.prod(ctx.output.shape)
    found = ctx.add(Gather(1, 1, 1 << 16, 1, count), [table, places], ctx.intermediate(ctx.output.shape, DType.INT32))
    finish(ctx, Arg(0), [found])


def _squared_difference(a: Expr, b: Expr, x: np.float32, y: np.float32, made: Grid) -> Expr:
    left, common = 7, 2.0 * float(max(x, y))
    terms = [fixed.times(fixed.shifted_left(q, left), float(s) / common) for q, s in ((a, x), (b, y))]
    difference = fn("sub", *terms)
    return fixed.times(fn("mul", difference, difference), common * common / ((1 << 2 * left) * made.scale))


def _compared(function: str, *operands: tuple[Expr, Operand]) -> Expr:
    """Real numbers in units of 2**-8, compared as rounded; the CPU orders int16 by what is stored."""
    if function not in ("eq", "ne") and all(o.grid.bits > 8 for _, o in operands):
        return fn(function, *(fn("add", q, whole(o.grid.zero)) for q, o in operands))
    return fn(function, *(fixed.times(fixed.shifted_left(q, 8), float(o.scale)) for q, o in operands))


def _by_xnnpack(ctx: OpContext, allowed: tuple[float, float], *ratios: np.float32) -> bool:
    """Whether XNNPACK's kernel computes the operator: on 8 bits, if the ratios of scales are what it can do."""
    narrow = all(t.type is ctx.output.type and t.type in STORED for t in (ctx.tensor(0), ctx.output))
    grid = grid_of(ctx.output)
    small = grid is not None and grid.bits <= 8
    return ctx.lowering.xnnpack and narrow and small and all(allowed[0] <= r < allowed[1] for r in ratios)
