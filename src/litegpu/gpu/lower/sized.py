"""WHERE and UNIQUE, whose results have as many rows as the data decide: here as many as there can be, and how many
count (delegates/bounded.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import Arg, Custom, DType, Gather, Literal, Pad, Reduce, Reshape, Slice, Step, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.kernels.nth_place import NthPlace
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops.ordering import LONGEST
from litegpu.model.types import Tensor

#: Elements of a row that are counted at once, and rows.
_ROW, _MOST_ROWS = 256, 8192


@lowers("WHERE")
def where(ctx: OpContext) -> None:
    """The coordinates of what is not 0, in order, and how many there are."""
    x, (places, *number) = ctx.shape(0), ctx.outputs
    count = math.prod(x)
    ctx.require(len(x) > 0, "a scalar has no coordinates")
    rows = _rows(ctx, count)
    ctx.check_shape((rows, len(x)), places)
    dtype = ctx.dtype(0)
    zero = Literal(0.0) if dtype is DType.FLOAT32 else whole(0)
    truth = Arg(0) if dtype is DType.BOOL else fn("ne", Arg(0), zero)
    flags = ctx.elementwise(fn("select", truth, whole(1), whole(0)), [ctx.reshaped(ctx.value(0), (1, 1, 1, count))],
                            ctx.intermediate((1, 1, 1, count), DType.INT32))  # fmt: skip
    totals = counted(ctx, flags, count)
    found = ctx.add(Custom(NthPlace()), [totals], ctx.intermediate((1, 1, 1, rows), DType.INT32))
    column = ctx.reshaped(found, (1, 1, rows, 1))
    strides = np.array([math.prod(x[i + 1 :]) for i in range(len(x))], np.int32)
    operands = [column, ctx.builder.constant(strides), ctx.builder.constant(np.array(x, np.int32))]
    coordinate = fn("floor_mod", fn("floor_div", Arg(0), Arg(1)), Arg(2))
    ctx.elementwise(coordinate, operands, ctx.output_value(places))
    _number(ctx, totals, count, number)


def _rows(ctx: OpContext, count: int) -> int:
    """How many rows the first result has: as many as there can be, or fewer if somebody knows how many there are."""
    return min(count, *ctx.outputs[0].shape[:1])


def _number(ctx: OpContext, totals: int, count: int, number: Sequence[Tensor]) -> None:
    """The last of the totals is the result that says how many rows count, if there is one."""
    for tensor in number:
        ctx.check_shape((1,), tensor)
        ctx.copy(totals, [Slice((0, 0, 0, count - 1), (1, 1, 1, 1), (1, 1, 1, 1))], ctx.output_value(tensor))


@lowers("UNIQUE")
def unique(ctx: OpContext) -> None:
    """Each element where it comes first, which of these each is, and how many there are."""
    (count,), (values, which, *number) = ctx.shape(0), ctx.outputs
    rows = _rows(ctx, count)
    ctx.check_shape((rows,), values)
    ctx.check_shape((count,), which)
    ctx.require(count <= LONGEST, f"{count} elements: up to {LONGEST} are taken")
    row, column = (1, 1, 1, count), (1, 1, count, 1)
    numbers = [ctx.builder.constant(np.arange(count, dtype=np.int32).reshape(s)) for s in (row, column)]
    same = fn("logical_or", fn("eq", Arg(0), Arg(1)), fn("eq", Arg(2), Arg(3)))
    operands = [ctx.reshaped(ctx.value(0), row), ctx.reshaped(ctx.value(0), column), *numbers]
    prologue = fn("select", same, Arg(2), whole(count))
    first = ctx.add(Reduce("min", (3,), prologue), operands, ctx.intermediate(column, DType.INT32))
    flags = fn("select", fn("eq", Arg(0), Arg(1)), whole(1), whole(0))
    new = ctx.elementwise(flags, [first, numbers[1]], ctx.intermediate(column, DType.INT32))
    totals = counted(ctx, ctx.reshaped(new, row), count)
    places = ctx.add(Custom(NthPlace()), [totals], ctx.intermediate((1, 1, 1, rows), DType.INT32))
    ctx.add(Gather(1, 1, count, 1, rows), [ctx.reshaped(ctx.value(0), row), places], ctx.output_value(values))
    ranks = ctx.add(Gather(1, 1, count, 1, count), [totals, first], ctx.intermediate(row, DType.INT32))
    ctx.elementwise(fn("sub", Arg(0), whole(1)), [ranks], ctx.output_value(which))
    _number(ctx, totals, count, number)


def counted(ctx: OpContext, flags: int, count: int) -> int:
    """How many of the flags [1,1,1,P], 0 or 1, are set up to each place: within rows, and the rows before."""
    rows = -(-count // _ROW)
    ctx.require(rows <= _MOST_ROWS, f"{count} elements: up to {_ROW * _MOST_ROWS} are taken")
    width = min(count, _ROW)
    behind = (0, 0, 0, rows * width - count)
    steps: list[Step] = [Pad((0, 0, 0, 0), behind, 0.0), Reshape((1, 1, 1, rows * width), (rows, 1, 1, width))]
    source = ctx.copy(flags, steps, ctx.intermediate((rows, 1, 1, width), DType.INT32))
    within = _sums(ctx, source, rows, width, "le")
    if rows > 1:
        each = ctx.add(Reduce("sum", (3,)), [source], ctx.intermediate((rows, 1, 1, 1), DType.INT32))
        before = _sums(ctx, ctx.reshaped(each, (1, 1, 1, rows)), 1, rows, "lt")
        before = ctx.reshaped(before, (rows, 1, 1, 1))
        total = fn("add", Arg(0), Arg(1))
        within = ctx.elementwise(total, [within, before], ctx.intermediate((rows, 1, width, 1), DType.INT32))
    flat = ctx.reshaped(within, (1, 1, 1, rows * width))
    cut = Slice((0, 0, 0, 0), (1, 1, 1, 1), (1, 1, 1, count))
    return ctx.copy(flat, [cut], ctx.intermediate((1, 1, 1, count), DType.INT32))


def _sums(ctx: OpContext, source: int, rows: int, n: int, function: str) -> int:
    """Of each row [rows,1,1,n], of those elements that stand before or at each, or before it: [rows,1,n,1]."""
    taken = fn("select", fn(function, Arg(1), Arg(2)), Arg(0), whole(0))
    numbers = np.arange(n, dtype=np.int32)
    places = [ctx.builder.constant(numbers.reshape(s)) for s in ((1, 1, 1, n), (1, 1, n, 1))]
    total = ctx.intermediate((rows, 1, n, 1), DType.INT32)
    return ctx.add(Reduce("sum", (3,), taken), [source, *places], total)
