"""Operators that choose by index: GATHER, GATHER_ND, SCATTER_ND, ONE_HOT."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Arg, DType, Gather, MatMul, Pad, Reshape, Shape, Slice, Step, Take, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.fixed_point import lowest_bits
from litegpu.gpu.lower.movement import move
from litegpu.gpu.lower.registry import lowers
from litegpu.gpu.lower.segments import gathered

#: Elements of the matrix by which SCATTER_ND with computed indices multiplies.
LARGEST_SCATTER = 1 << 22


@lowers("GATHER")
def gather(ctx: OpContext) -> None:
    x, indices = ctx.shape(0), ctx.shape(1)
    axis = ctx.axis(int(ctx.option("axis")), len(x))
    batch_dims = int(ctx.option("batch_dims"))
    batch_dims += len(indices) if batch_dims < 0 else 0
    ctx.require(
        0 <= batch_dims <= min(axis, len(indices)) and x[:batch_dims] == indices[:batch_dims],
        f"batch_dims {batch_dims} does not fit shapes {list(x)} and {list(indices)}",
    )
    result = (*x[:axis], *indices[batch_dims:], *x[axis + 1 :])
    ctx.check_shape(result)
    if ctx.is_constant(1):
        flat = ctx.array(1).reshape(-1)
        inside = all(0 <= int(i) < x[axis] for i in flat)
        ctx.require(inside, f"an index is outside axis {axis} of shape {list(x)}")
        if batch_dims == 0:
            taken = (*x[:axis], flat.size, *x[axis + 1 :])
            steps: list[Step] = [Take(axis, tuple(int(i) for i in flat))]
            move(ctx, steps if taken == result else [*steps, Reshape(taken, result)])
            return
    op = Gather(
        batch=math.prod(x[:batch_dims]),
        outer=math.prod(x[batch_dims:axis]),
        size=x[axis],
        inner=math.prod(x[axis + 1 :]),
        count=math.prod(indices[batch_dims:]),
    )
    ctx.add(op, [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers("GATHER_ND")
def gather_nd(ctx: OpContext) -> None:
    x, indices = ctx.shape(0), ctx.shape(1)
    depth = _depth(ctx, indices, x)
    result, inner = (*indices[:-1], *x[depth:]), math.prod(x[depth:])
    ctx.check_shape(result)
    places, count = math.prod(x[:depth]), math.prod(indices[:-1])
    if ctx.is_constant(1):
        taken = _places(ctx, 1, x[:depth])
        move(ctx, [Reshape(x, (places, inner)), Take(0, taken), Reshape((count, inner), result)])
        return
    ctx.add(Gather(1, 1, places, inner, count), [ctx.value(0), _computed_places(ctx, 1, x[:depth])], ctx.output_value())


@lowers("SCATTER_ND")
def scatter_nd(ctx: OpContext) -> None:
    indices, shape = ctx.shape(0), ctx.integers(2, "the sizes")
    depth = _depth(ctx, indices, shape)
    inner, count, places = math.prod(shape[depth:]), math.prod(indices[:-1]), math.prod(shape[:depth])
    updates = (*indices[:-1], *shape[depth:])
    ctx.require(ctx.shape(1) == updates, f"updates of shape {list(ctx.shape(1))} where {list(updates)} is wanted")
    ctx.check_shape(shape)
    if ctx.is_constant(0):
        given = _places(ctx, 0, shape[:depth])
        if len(set(given)) == len(given):
            rows = [count] * places  # a row of zeros behind the updates
            for row, place in enumerate(given):
                rows[place] = row
            steps: list[Step] = [Reshape(updates, (count, inner)), Pad((0, 0), (1, 0), ctx.zero), Take(0, tuple(rows))]
            move(ctx, [*steps, Reshape((places, inner), shape)], source=1)
            return
    ctx.require(places * count <= LARGEST_SCATTER, f"{count} computed indices into {places} places are too many")
    named = _computed_places(ctx, 0, shape[:depth])
    if ctx.dtype(1) is not DType.FLOAT32:
        _scattered_integers(ctx, named, (places, count, inner))
        return
    where = ctx.copy(
        named, [Reshape((1, 1, count, 1), (1, 1, 1, count))],
        ctx.intermediate((1, 1, 1, count), DType.INT32),
    )  # fmt: skip
    numbers = ctx.builder.constant(np.arange(places, dtype=np.int32).reshape(1, 1, places, 1))
    chosen = ctx.intermediate((1, 1, places, count), DType.FLOAT32)
    ctx.elementwise(fn("to_float32", fn("eq", Arg(0), Arg(1))), [where, numbers], chosen)
    rows_of = [Reshape(bhwc(updates), (1, 1, count, inner))]
    source = ctx.copy(ctx.value(1), rows_of, ctx.intermediate((1, 1, count, inner), DType.FLOAT32))
    ctx.finish(MatMul(), [chosen, source], (1, 1, places, inner))


def _scattered_integers(ctx: OpContext, named: int, sizes: tuple[int, int, int]) -> None:
    """Sums of integers, exact, or whether any of bools is true."""
    places, count, inner = sizes
    value = ctx.elementwise(fn("to_int32", Arg(0)), [ctx.value(1)], ctx.intermediate(ctx.shape(1), DType.INT32))
    segments = ctx.reshaped(named, (1, count, 1, 1))
    total = ctx.reshaped(gathered(ctx, "sum", value, segments, (places, count, inner)), ctx.output.shape)
    kept = fn("to_bool", Arg(0)) if ctx.dtype(1) is DType.BOOL else lowest_bits(Arg(0), ctx.output.type)
    ctx.elementwise(kept, [total], ctx.output_value())


@lowers("ONE_HOT")
def one_hot(ctx: OpContext) -> None:
    indices, (depth,) = ctx.shape(0), ctx.integers(1, "the depth")
    axis = ctx.axis(int(ctx.option("axis", -1)), len(indices) + 1)
    result = (*indices[:axis], depth, *indices[axis:])
    ctx.check_shape(result)
    ctx.require(ctx.dtype(2) is ctx.dtype(3), "on and off values of different types are not taken together")
    wide = len(result) > 4
    front, behind = indices[:axis], indices[axis:]
    if wide:  # the depth, and what lies before and behind it
        front, behind = (math.prod(front),), (math.prod(behind),)
    single, numbers = bhwc((*front, 1, *behind)), (*(1 for _ in front), depth, *(1 for _ in behind))
    source = ctx.copy(ctx.value(0), [Reshape(bhwc(indices), single)], ctx.intermediate(single, DType.INT32))
    known = ctx.builder.constant(np.arange(depth, dtype=np.int32).reshape(numbers))
    operands = [source, known, ctx.value(2), ctx.value(3)]
    output = ctx.intermediate((*front, depth, *behind), ctx.dtype(2)) if wide else ctx.output_value()
    ctx.elementwise(fn("select", fn("eq", Arg(0), Arg(1)), Arg(2), Arg(3)), operands, output)
    if wide:
        ctx.copy(ctx.reshaped(output, result), [], ctx.output_value())


def _depth(ctx: OpContext, indices: Shape, x: Shape) -> int:
    """How many axes of `x` an index names."""
    ctx.require(len(indices) >= 1 and 0 < indices[-1] <= len(x), f"indices of shape {list(indices)} into {list(x)}")
    return indices[-1]


def _places(ctx: OpContext, i: int, sizes: Shape) -> tuple[int, ...]:
    """The row-major places that the constant indices, input i, name along axes of these sizes."""
    given = ctx.array(i).reshape(-1, len(sizes))
    inside = bool(np.all((given >= 0) & (given < np.asarray(sizes))))
    ctx.require(inside, f"an index is outside shape {list(sizes)}")
    return tuple(int(p) for p in given @ _strides(sizes))


def _computed_places(ctx: OpContext, i: int, sizes: Shape) -> int:
    """The same of runtime indices: a value [1,1,N,1]."""
    shape, depth = ctx.shape(i), len(sizes)
    count = math.prod(shape[:-1])
    parts = []
    for axis in range(depth):
        steps: list[Step] = [Reshape(bhwc(shape), (1, 1, count, depth))]
        steps.append(Slice((0, 0, 0, axis), (1, 1, 1, 1), (1, 1, count, 1)))
        parts.append(ctx.copy(ctx.value(i), steps, ctx.intermediate((1, 1, count, 1), DType.INT32)))
    strides = [ctx.builder.constant(np.array(s, np.int32)) for s in _strides(sizes)]
    place = fn("mul", Arg(0), Arg(depth))
    for axis in range(1, depth):
        place = fn("add", place, fn("mul", Arg(axis), Arg(depth + axis)))
    return ctx.elementwise(place, [*parts, *strides], ctx.intermediate((1, 1, count, 1), DType.INT32))


def _strides(sizes: Shape) -> np.ndarray:
    return np.array([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], np.int64)
