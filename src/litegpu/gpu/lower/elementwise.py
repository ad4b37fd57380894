"""Operators that work element by element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from litegpu.gpu.graph import Arg, DType, Expr, Literal, Reshape, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import hard_swish, integers, tables
from litegpu.gpu.lower.activation import clamp
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers, lowers_as
from litegpu.model.types import TensorType

X, Y = Arg(0), Arg(1)


# ------------------------------------------------------------------------------------------ one operand


def _unary(
    name: str,
    expr: Expr,
    rule: integers.Unary | None = None,
    bounds: tuple[float | None, float | None] = (None, None),
    on_grid: Expr | None = None,
) -> None:
    """`rule`: for whole numbers. `on_grid`: where the output is quantized, if that is another expression."""

    @lowers(name)
    def lower(ctx: OpContext) -> None:
        ctx.check_shape(ctx.shape(0))
        if not tables.unary(ctx, rule, bounds):
            found = expr if on_grid is None or grid_of(ctx.output) is None else on_grid
            ctx.elementwise(found, [ctx.value(0)], ctx.output_value())


_unary("ABS", fn("abs", X), integers.magnitude)
_unary("NEG", fn("neg", X), integers.negated)
_unary("EXP", fn("exp", X))
# Integers have no NaN or infinity: the CPU stores the lowest number for them.
_unary("LOG", fn("log", X), on_grid=fn("select", fn("gt", X, 0), fn("log", X), -1e30))
_unary("SQRT", fn("sqrt", X))
_unary("RSQRT", fn("rsqrt", X))
_unary("SIN", fn("sin", X))
_unary("COS", fn("cos", X))
_unary("FLOOR", fn("floor", X))
_unary("CEIL", fn("ceil", X))
_unary("ROUND", fn("round", X))
_unary("TANH", fn("tanh", X))
_unary("SQUARE", fn("mul", X, X))
_unary("LOGISTIC", fn("sigmoid", X))
_unary("ELU", fn("select", fn("lt", X, 0), fn("expm1", X), X))
_unary("HARD_SWISH", fn("mul", X, fn("div", clamp(fn("add", X, 3), 0, 6), 6)), hard_swish.hard_swish)
_unary("RELU", clamp(X, 0, None), integers.rescaled, (0, None))
_unary("RELU6", clamp(X, 0, 6), integers.rescaled, (0, 6))
_unary("RELU_N1_TO_1", clamp(X, -1, 1), integers.rescaled, (-1, 1))
_unary("RELU_0_TO_1", clamp(X, 0, 1), integers.rescaled, (0, 1))


@lowers("SIGN")
def sign(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    expr: Expr = fn("sign", X)
    if ctx.dtype(0) is DType.INT32:
        minus, none, plus = (Literal(n, DType.INT32) for n in (-1, 0, 1))
        expr = fn("select", fn("lt", X, none), minus, fn("select", fn("gt", X, none), plus, none))
    ctx.elementwise(expr, [ctx.value(0)], ctx.output_value())


@lowers("LEAKY_RELU")
def leaky_relu(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    if tables.unary(ctx, integers.leaky):
        return
    expr = fn("select", fn("gt", X, 0), X, fn("mul", X, float(ctx.option("alpha", 0.0))))
    ctx.elementwise(expr, [ctx.value(0)], ctx.output_value())


@lowers("GELU")
def gelu(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    if tables.unary(ctx):
        return
    half = fn("mul", X, 0.5)
    if ctx.option("approximate", False):
        cube = fn("mul", fn("mul", X, X), X)
        inner = fn("mul", fn("add", X, fn("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        expr = fn("mul", half, fn("add", fn("tanh", inner), 1))
    else:
        expr = fn("mul", half, fn("add", fn("erf", fn("mul", X, math.sqrt(0.5))), 1))
    ctx.elementwise(expr, [ctx.value(0)], ctx.output_value())


@lowers("LOGICAL_NOT")
def logical_not(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    ctx.elementwise(fn("logical_not", X), [ctx.value(0)], ctx.output_value())


@lowers("ZEROS_LIKE")
def zeros_like(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    zero = ctx.builder.constant(np.zeros((), ctx.dtype(0).value))
    ctx.elementwise(X, [zero], ctx.output_value())


# ------------------------------------------------------------------------------------------ two operands


def _binary(ctx: OpContext, expr: Expr, in_whole_numbers: Callable[[], bool]) -> None:
    """`expr` of the two inputs, broadcast as NumPy does, then the fused activation, unless it could be done in whole
    numbers."""
    if ctx.dtype(0) is not ctx.dtype(1):
        raise Unsupported(
            f"inputs of types {ctx.tensor(0).type.name} and {ctx.tensor(1).type.name} are not taken together"
        )
    check_broadcast(ctx, 2)
    unsigned = ctx.output.type is TensorType.UINT32 and int(ctx.option("fused_activation_function") or 0) != 0
    ctx.require(not unsigned, "a fused activation of UINT32")
    if in_whole_numbers():
        return
    ctx.elementwise(ctx.activation(expr, ctx.dtype(0)), [ctx.value(0), ctx.value(1)], ctx.output_value())


def check_broadcast(ctx: OpContext, count: int) -> None:
    """The first inputs broadcast as NumPy's do, to the output's shape."""
    shapes = [ctx.shape(i) for i in range(count)]
    try:
        result = np.broadcast_shapes(*shapes)
    except ValueError:
        raise Unsupported(f"shapes {[list(s) for s in shapes]} do not broadcast") from None
    ctx.check_shape(result)


def _arithmetic(name: str, expr: Expr, rule: integers.Binary | None = None) -> None:
    @lowers(name)
    def lower(ctx: OpContext) -> None:
        _binary(ctx, expr, lambda: integers.binary(ctx, rule))


_arithmetic("ADD", fn("add", X, Y), integers.added)
_arithmetic("SUB", fn("sub", X, Y), integers.subtracted)
_arithmetic("MUL", fn("mul", X, Y), integers.multiplied)
_arithmetic("DIV", fn("div", X, Y), integers.divided)
_arithmetic("MAXIMUM", fn("max", X, Y))
_arithmetic("MINIMUM", fn("min", X, Y))
_arithmetic("FLOOR_DIV", fn("floor_div", X, Y))
_arithmetic("FLOOR_MOD", fn("floor_mod", X, Y))
_arithmetic("ATAN2", fn("atan2", X, Y))
_arithmetic("SQUARED_DIFFERENCE", fn("mul", fn("sub", X, Y), fn("sub", X, Y)), integers.squared_difference)
_arithmetic("LOGICAL_AND", fn("logical_and", X, Y))
_arithmetic("LOGICAL_OR", fn("logical_or", X, Y))


@lowers_as(EQUAL="eq", NOT_EQUAL="ne", GREATER="gt", GREATER_EQUAL="ge", LESS="lt", LESS_EQUAL="le")
def comparison(ctx: OpContext, function: str) -> None:
    plain = ctx.tensor(0).type is TensorType.INT16 and ctx.tensor(0).quantization is None
    ctx.require(not plain or function != "ne", "INT16 without quantization, which the CPU compares as real numbers")
    _binary(ctx, fn(function, X, Y), lambda: integers.compared(ctx, function))


@lowers("POW")
def power(ctx: OpContext) -> None:
    expr = _whole_power(X, Y) if ctx.dtype(0) is DType.INT32 else fn("pow", X, Y)
    _binary(ctx, expr, lambda: integers.binary(ctx, None))


def _whole_power(base: Expr, exponent: Expr) -> Expr:
    """By squares, for exponents that are not negative, which are an error on the CPU."""
    one: Expr = whole(1)
    result = one
    for bit in range(31):
        used = fn("ne", fn("bit_and", fn("shift_right", exponent, whole(bit)), one), whole(0))
        result = fn("select", used, fn("mul", result, base), result)
        base = fn("mul", base, base)
    return result


@lowers("PRELU")
def prelu(ctx: OpContext) -> None:
    check_broadcast(ctx, 2)
    ctx.check_shape(ctx.shape(0))
    if integers.binary(ctx, integers.rectified):
        return
    expr = fn("select", fn("ge", X, 0), X, fn("mul", X, Y))
    ctx.elementwise(expr, [ctx.value(0), ctx.value(1)], ctx.output_value())


# ------------------------------------------------------------------------------------------ more operands


@lowers("ADD_N")
def add_n(ctx: OpContext) -> None:
    operands = [ctx.value(i) for i in range(len(ctx.operator.inputs))]
    for i in range(len(operands)):
        ctx.check_shape(ctx.shape(i))
        ctx.require(ctx.dtype(i) is ctx.dtype(0), "inputs of different types are not taken together")
    dtype = ctx.dtype(0)
    # A kernel binds a limited number of buffers, so sums of many are taken in groups.
    total, rest = operands[0], operands[1:]
    while rest:
        group, rest = rest[:GROUP], rest[GROUP:]
        expr: Expr = X
        for i in range(len(group)):
            expr = fn("add", expr, Arg(i + 1))
        output = ctx.intermediate(ctx.output.shape, dtype) if rest else ctx.output_value()
        total = ctx.elementwise(expr, [total, *group], output)
    if len(operands) == 1:
        ctx.copy(total, [], ctx.output_value())


#: How many tensors ADD_N adds to the sum so far in one kernel.
GROUP = 3


@lowers("SELECT_V2")
def select_v2(ctx: OpContext) -> None:
    if not _is_single(ctx):
        check_broadcast(ctx, 3)
    _select(ctx, ctx.value(0))


@lowers("SELECT")
def select(ctx: OpContext) -> None:
    condition, shape = ctx.shape(0), ctx.shape(1)
    ctx.require(ctx.shape(2) == shape, f"operands of shapes {list(shape)} and {list(ctx.shape(2))} differ")
    if not _is_single(ctx):
        ctx.check_shape(shape)
    value = ctx.value(0)
    if condition != shape and math.prod(condition) != 1:
        ctx.require(
            len(condition) == 1 and len(shape) > 0 and condition[0] == shape[0],
            f"a condition of shape {list(condition)} does not choose between operands of shape {list(shape)}",
        )
        rows = bhwc((condition[0], *(1 for _ in shape[1:])))
        value = ctx.copy(value, [Reshape(bhwc(condition), rows)], ctx.intermediate(rows, DType.BOOL))
    _select(ctx, value)


def _is_single(ctx: OpContext) -> bool:
    """Whether all are one element, of which the result has any shape."""
    return all(math.prod(shape) == 1 for shape in (ctx.output.shape, *(ctx.shape(i) for i in range(3))))


def _select(ctx: OpContext, condition: int) -> None:
    ctx.require(ctx.dtype(1) is ctx.dtype(2), "operands of different types are not taken together")
    expr = fn("select", X, Y, Arg(2))
    ctx.elementwise(expr, [condition, ctx.value(1), ctx.value(2)], ctx.output_value())
