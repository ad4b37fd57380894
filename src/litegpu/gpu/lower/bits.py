"""Operators on the bits of numbers: BITCAST, BITWISE_XOR, RIGHT_SHIFT and their kin of StableHLO."""

from __future__ import annotations

from litegpu.gpu.graph import Arg, DType, Literal
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.elementwise import check_broadcast
from litegpu.gpu.lower.registry import lowers
from litegpu.model.types import TensorType

_X, _Y = Arg(0), Arg(1)


@lowers("BITCAST")
def bitcast(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    source, target = ctx.dtype(0), ctx.output_type(ctx.output)
    sizes = {ctx.tensor(0).type.nbytes, ctx.output.type.nbytes}
    ctx.require(len(sizes) == 1, "numbers of different sizes")
    ctx.require(sizes == {4} or ctx.tensor(0).type is ctx.output.type, "numbers that are no words")
    if source is target:
        ctx.copy(ctx.value(0), [], ctx.output_value())
        return
    function = "bits_to_float32" if target is DType.FLOAT32 else "bits_to_int32"
    ctx.elementwise(fn(function, _X), [ctx.value(0)], ctx.output_value())


@lowers("BITWISE_XOR")
def bitwise_xor(ctx: OpContext) -> None:
    _alike(ctx)
    ctx.elementwise(fn("bit_xor", _X, _Y), [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers("RIGHT_SHIFT")
def right_shift(ctx: OpContext) -> None:
    """By at least nothing and at most all bits but one."""
    _alike(ctx)
    most = Literal(8 * ctx.tensor(0).type.nbytes - 1, DType.INT32)
    count = fn("min", fn("max", _Y, Literal(0, DType.INT32)), most)
    expr = fn("shift_right", _X, count)
    if ctx.tensor(0).type is TensorType.UINT32:
        none, one = Literal(0, DType.INT32), Literal(1, DType.INT32)
        kept = fn("sub", fn("shift_left", one, fn("sub", Literal(32, DType.INT32), fn("max", count, one))), one)
        expr = fn("select", fn("eq", count, none), _X, fn("bit_and", expr, kept))
    ctx.elementwise(expr, [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers("STABLEHLO_SHIFT_LEFT")
def stablehlo_shift_left(ctx: OpContext) -> None:
    _alike(ctx)
    ctx.elementwise(fn("shift_left", _X, _Y), [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers("STABLEHLO_AND")
def stablehlo_and(ctx: OpContext) -> None:
    _alike(ctx)
    function = "logical_and" if ctx.dtype(0) is DType.BOOL else "bit_and"
    ctx.elementwise(fn(function, _X, _Y), [ctx.value(0), ctx.value(1)], ctx.output_value())


def _alike(ctx: OpContext) -> None:
    check_broadcast(ctx, 2)
    ctx.require(ctx.dtype(0) is ctx.dtype(1), "inputs of different types are not taken together")
