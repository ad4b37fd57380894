"""Operators that work element by element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Arg, DType, Expr, Reshape, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext, clamp
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import ANY, BOOL, FLOAT, MANY, NUMBER, lowers

X, Y = Arg(0), Arg(1)


# ------------------------------------------------------------------------------------------ one operand


def _unary(name: str, version: int, expr: Expr, notes: str = "") -> None:
    @lowers(name, max_version=version, notes=notes)
    def lower(ctx: OpContext) -> None:
        ctx.check_shape(ctx.shape(0))
        if not integers.unary(ctx):
            stays = name != "LOG" or grid_of(ctx.output) is None
            # Integers have no NaN or infinity: the CPU stores the lowest number for them.
            safe = expr if stays else fn("select", fn("gt", X, 0), expr, -1e30)
            ctx.elementwise(safe, [ctx.value(0)], ctx.output_value())

    lower.__module__ = __name__


for _name, _version in (
    ("ABS", 5), ("EXP", 2), ("LOG", 2), ("SQRT", 2), ("RSQRT", 3), ("SIN", 2), ("COS", 2), ("FLOOR", 2), ("CEIL", 1),
    ("ROUND", 1), ("SIGN", 2), ("TANH", 3), ("NEG", 2),
):  # fmt: skip
    _unary(_name, _version, fn(_name.lower(), X))

_unary("SQUARE", 2, fn("mul", X, X))
_unary("LOGISTIC", 3, fn("sigmoid", X))
_unary("ELU", 2, fn("select", fn("lt", X, 0), fn("expm1", X), X))
_unary("HARD_SWISH", 1, fn("mul", X, fn("div", clamp(fn("add", X, 3), 0, 6), 6)))
_unary("RELU", 3, clamp(X, 0, None))
_unary("RELU6", 3, clamp(X, 0, 6))
_unary("RELU_N1_TO_1", 2, clamp(X, -1, 1))
_unary("RELU_0_TO_1", 2, clamp(X, 0, 1))


@lowers("LEAKY_RELU", max_version=2)
def leaky_relu(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    if integers.unary(ctx):
        return
    expr = fn("select", fn("gt", X, 0), X, fn("mul", X, float(ctx.option("alpha", 0.0))))
    ctx.elementwise(expr, [ctx.value(0)], ctx.output_value())


@lowers("GELU", max_version=3, notes="exact and approximate (tanh) form")
def gelu(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    half = fn("mul", X, 0.5)
    if ctx.option("approximate", False):
        cube = fn("mul", fn("mul", X, X), X)
        inner = fn("mul", fn("add", X, fn("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        expr = fn("mul", half, fn("add", fn("tanh", inner), 1))
    else:
        expr = fn("mul", half, fn("add", fn("erf", fn("mul", X, math.sqrt(0.5))), 1))
    ctx.elementwise(expr, [ctx.value(0)], ctx.output_value())


@lowers("LOGICAL_NOT", max_version=1, inputs=(BOOL,))
def logical_not(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    ctx.elementwise(fn("logical_not", X), [ctx.value(0)], ctx.output_value())


# ------------------------------------------------------------------------------------------ two operands


def _binary(ctx: OpContext, expr: Expr) -> None:
    """`expr` of the two inputs, broadcast as NumPy does, then the fused activation."""
    if ctx.dtype(0) is not ctx.dtype(1):
        raise Unsupported(
            f"inputs of types {ctx.tensor(0).type.name} and {ctx.tensor(1).type.name} are not taken together"
        )
    _check_broadcast(ctx, 2)
    if integers.binary(ctx):
        return
    ctx.elementwise(ctx.activation(expr, ctx.dtype(0)), [ctx.value(0), ctx.value(1)], ctx.output_value())


def _check_broadcast(ctx: OpContext, count: int) -> None:
    shapes = [ctx.shape(i) for i in range(count)]
    try:
        result = np.broadcast_shapes(*shapes)
    except ValueError:
        raise Unsupported(f"shapes {[list(s) for s in shapes]} do not broadcast") from None
    ctx.check_shape(result)


def _arithmetic(
    name: str, version: int, expr: Expr, integers: bool = True, quantized: bool = True, notes: str = "broadcasting"
) -> None:
    types = NUMBER if integers else FLOAT

    @lowers(name, max_version=version, inputs=(types, types), counts=2, notes=notes, quantized=quantized)
    def lower(ctx: OpContext) -> None:
        _binary(ctx, expr)

    lower.__module__ = __name__


_arithmetic("ADD", 6, fn("add", X, Y))
_arithmetic("SUB", 5, fn("sub", X, Y))
_arithmetic("MUL", 8, fn("mul", X, Y))
_arithmetic("DIV", 2, fn("div", X, Y), integers=False)
_arithmetic("MAXIMUM", 4, fn("max", X, Y))
_arithmetic("MINIMUM", 4, fn("min", X, Y))
_arithmetic("POW", 2, fn("pow", X, Y), integers=False)
# Not quantized: the CPU divides the stored numbers.
_arithmetic("FLOOR_DIV", 3, fn("floor_div", X, Y), quantized=False,
            notes="broadcasting; a division by 0 is an error on the CPU, and infinite or NaN here")  # fmt: skip
_arithmetic("FLOOR_MOD", 2, fn("floor_mod", X, Y), quantized=False,
            notes="broadcasting; exact for quotients of floats below 2^24")  # fmt: skip
_arithmetic("ATAN2", 1, fn("atan2", X, Y), integers=False)
_arithmetic("SQUARED_DIFFERENCE", 2, fn("mul", fn("sub", X, Y), fn("sub", X, Y)))


def _comparison(name: str, version: int, function: str) -> None:
    types = ANY if function in ("eq", "ne") else NUMBER

    @lowers(name, max_version=version, inputs=(types, types), outputs=BOOL, counts=2, notes="broadcasting")
    def lower(ctx: OpContext) -> None:
        _binary(ctx, fn(function, X, Y))

    lower.__module__ = __name__


_comparison("EQUAL", 5, "eq")
_comparison("NOT_EQUAL", 4, "ne")
_comparison("GREATER", 3, "gt")
_comparison("GREATER_EQUAL", 3, "ge")
_comparison("LESS", 3, "lt")
_comparison("LESS_EQUAL", 3, "le")


@lowers("LOGICAL_AND", "LOGICAL_OR", max_version=1, inputs=(BOOL, BOOL), counts=2, notes="broadcasting")
def logical(ctx: OpContext) -> None:
    _binary(ctx, fn(ctx.operator.name.lower(), X, Y))


@lowers("PRELU", max_version=1, inputs=(FLOAT, FLOAT), counts=2, notes="alpha of any shape that broadcasts")
def prelu(ctx: OpContext) -> None:
    _check_broadcast(ctx, 2)
    ctx.check_shape(ctx.shape(0))
    if integers.binary(ctx):
        return
    expr = fn("select", fn("ge", X, 0), X, fn("mul", X, Y))
    ctx.elementwise(expr, [ctx.value(0), ctx.value(1)], ctx.output_value())


# ------------------------------------------------------------------------------------------ more operands


@lowers("ADD_N", max_version=2, inputs=(NUMBER,), counts=(1, MANY), notes="inputs of one shape")
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


@lowers("SELECT_V2", max_version=2, inputs=(BOOL, ANY, ANY), outputs=ANY, counts=3, notes="broadcasting of all three")
def select_v2(ctx: OpContext) -> None:
    _check_broadcast(ctx, 3)
    _select(ctx, ctx.value(0))


@lowers(
    "SELECT", max_version=4, inputs=(BOOL, ANY, ANY), outputs=ANY, counts=3,
    notes="condition of the operands' shape, a scalar, or of rank 1 for axis 0",
)  # fmt: skip
def select(ctx: OpContext) -> None:
    condition, shape = ctx.shape(0), ctx.shape(1)
    ctx.require(ctx.shape(2) == shape, f"operands of shapes {list(shape)} and {list(ctx.shape(2))} differ")
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


def _select(ctx: OpContext, condition: int) -> None:
    ctx.require(ctx.dtype(1) is ctx.dtype(2), "operands of different types are not taken together")
    expr = fn("select", X, Y, Arg(2))
    ctx.elementwise(expr, [condition, ctx.value(1), ctx.value(2)], ctx.output_value())
