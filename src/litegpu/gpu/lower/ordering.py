"""Operators along one axis whose results depend on the order there: REVERSE_V2, CUMSUM, TOPK_V2."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, DType, Gather, Literal, Reduce, Reshape, Shape, Slice, Step, Transpose, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import move
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops.ordering import LONGEST
from litegpu.model.types import TensorType


@lowers("REVERSE_V2")
def reverse(ctx: OpContext) -> None:
    x = ctx.shape(0)
    axes = {ctx.axis(a, len(x)) for a in ctx.integers(1, "the axes")}
    begin = tuple(n - 1 if i in axes else 0 for i, n in enumerate(x))
    stride = tuple(-1 if i in axes else 1 for i in range(len(x)))
    move(ctx, [Slice(begin, stride, x)])


@lowers("CUMSUM")
def cumsum(ctx: OpContext) -> None:
    """Each result is the sum of those elements of its row that come before it."""
    x = ctx.shape(0)
    ctx.check_shape(x)
    (number,) = ctx.integers(1, "the axis")
    axis = ctx.axis(number, len(x))
    n = x[axis]
    ctx.require(n <= LONGEST, f"axis {axis} has {n} elements: up to {LONGEST} are taken")
    exclusive, backward = bool(ctx.option("exclusive", False)), bool(ctx.option("reverse", False))
    last = (*(i for i in range(len(x)) if i != axis), axis)
    rows = math.prod(x) // n
    steps: list[Step] = [Reshape(bhwc(x), x), Transpose(last), Reshape(tuple(x[i] for i in last), (rows, 1, 1, n))]
    kind = DType.INT32 if ctx.dtype(0) is DType.INT32 else DType.FLOAT32
    source = ctx.copy(ctx.value(0), steps, ctx.intermediate((rows, 1, 1, n), kind))
    function = ("gt" if exclusive else "ge") if backward else ("lt" if exclusive else "le")
    taken = fn("select", fn(function, Arg(1), Arg(2)), Arg(0), Literal(0, kind))
    places = [_numbers(ctx, (1, 1, 1, n)), _numbers(ctx, (1, 1, n, 1))]
    total = ctx.intermediate((rows, 1, n, 1), kind)
    ctx.add(Reduce("sum", (3,), taken), [source, *places], total)
    moved = tuple(x[i] for i in last)
    back = tuple(last.index(i) for i in range(len(x)))
    ctx.copy(total, [Reshape((rows, 1, n, 1), moved), Transpose(back), Reshape(x, bhwc(x))], ctx.output_value())


@lowers("TOPK_V2")
def top_k(ctx: OpContext) -> None:
    x = ctx.shape(0)
    (count,) = ctx.integers(1, "k")
    n, rows = x[-1], math.prod(x[:-1])
    ctx.require(0 < count <= n <= LONGEST, f"k is {count} of rows of {n} elements: rows of up to {LONGEST} are taken")
    values, indices = ctx.outputs
    for tensor in ctx.outputs:
        ctx.check_shape((*x[:-1], count), tensor)
    taken = (TensorType.INT32, TensorType.INT16)
    ctx.require(indices.type in taken, f"the indices are {indices.type.name}: INT32 or INT16 is taken")
    chosen = highest(ctx, ctx.value(0), rows, n, count)
    ctx.copy(chosen, [Reshape((rows, 1, count, 1), bhwc(indices.shape))], ctx.output_value(indices))
    ctx.add(Gather(rows, 1, n, 1, count), [ctx.value(0), chosen], ctx.output_value(values))


def highest(ctx: OpContext, source: int, rows: int, n: int, count: int) -> int:
    """The places of the `count` highest of each row of n elements of `source`, of equals the first, as
    [rows,1,count,1]: an element's rank is the number of those before it in order, and the element of rank i is result
    number i."""
    given = ctx.builder.values[source]
    row, column = (rows, 1, 1, n), (rows, 1, n, 1)
    across = ctx.copy(source, [Reshape(given.shape, row)], ctx.intermediate(row, given.dtype))
    down = ctx.copy(source, [Reshape(given.shape, column)], ctx.intermediate(column, given.dtype))
    places = [_numbers(ctx, (1, 1, 1, n)), _numbers(ctx, (1, 1, n, 1))]
    other, own, other_place, own_place = Arg(0), Arg(1), Arg(2), Arg(3)
    earlier = fn("logical_and", fn("eq", other, own), fn("lt", other_place, own_place))
    before = fn("select", fn("logical_or", fn("gt", other, own), earlier), 1.0, 0.0)
    rank = ctx.intermediate(column, DType.INT32)
    ctx.add(Reduce("sum", (3,), before), [across, down, *places], rank, fn("to_int32", RESULT))
    ranks = ctx.copy(rank, [Reshape(column, row)], ctx.intermediate(row, DType.INT32))
    chosen = ctx.intermediate((rows, 1, count, 1), DType.INT32)
    hit = fn("select", fn("eq", Arg(0), Arg(1)), fn("to_float32", Arg(2)), 0.0)
    wanted = [ranks, _numbers(ctx, (1, 1, count, 1)), places[0]]
    return ctx.add(Reduce("sum", (3,), hit), wanted, chosen, fn("to_int32", RESULT))


def _numbers(ctx: OpContext, shape: Shape) -> int:
    """The constant 0, 1, 2 ... as integers, which float16 does not round."""
    return ctx.builder.constant(np.arange(math.prod(shape), dtype=np.int32).reshape(shape))
