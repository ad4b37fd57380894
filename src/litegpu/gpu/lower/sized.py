"""WHERE, whose result has as many rows as the data decide: here as many as there can be, and how many count
(delegates/bounded.py)."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Arg, Custom, DType, Literal, Pad, Reduce, Reshape, Slice, Step
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.kernels.nth_place import NthPlace
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.fixed_point import whole
from litegpu.gpu.lower.registry import lowers

#: Elements of a row that are counted at once, and rows.
_ROW, _MOST_ROWS = 256, 8192


@lowers("WHERE")
def where(ctx: OpContext) -> None:
    """The coordinates of what is not 0, in order, and how many there are."""
    ctx.require(len(ctx.outputs) == 2, "the data decide the size of its result")
    x = ctx.shape(0)
    places, number = ctx.outputs
    count = math.prod(x)
    ctx.require(len(x) > 0, "a scalar has no coordinates")
    ctx.check_shape((count, len(x)), places)
    ctx.check_shape((1,), number)
    dtype = ctx.dtype(0)
    zero = Literal(0.0) if dtype is DType.FLOAT32 else whole(0)
    truth = Arg(0) if dtype is DType.BOOL else fn("ne", Arg(0), zero)
    flags = ctx.elementwise(fn("select", truth, whole(1), whole(0)), [ctx.reshaped(ctx.value(0), (1, 1, 1, count))],
                            ctx.intermediate((1, 1, 1, count), DType.INT32))  # fmt: skip
    totals = counted(ctx, flags, count)
    found = ctx.add(Custom(NthPlace()), [totals], ctx.intermediate((1, 1, 1, count), DType.INT32))
    column = ctx.reshaped(found, (1, 1, count, 1))
    strides = np.array([math.prod(x[i + 1 :]) for i in range(len(x))], np.int32)
    operands = [column, ctx.builder.constant(strides), ctx.builder.constant(np.array(x, np.int32))]
    coordinate = fn("floor_mod", fn("floor_div", Arg(0), Arg(1)), Arg(2))
    ctx.elementwise(coordinate, operands, ctx.output_value(places))
    ctx.copy(totals, [Slice((0, 0, 0, count - 1), (1, 1, 1, 1), (1, 1, 1, 1))], ctx.output_value(number))


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
