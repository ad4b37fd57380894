"""Operators that look up rows, or put a part into a whole: EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, SPARSE_TO_DENSE,
DYNAMIC_UPDATE_SLICE, REVERSE_SEQUENCE."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.gpu.graph import Arg, DType, Gather, Literal, Reduce, Reshape, Shape, Step, Take, Transpose, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers

#: Elements times places that SPARSE_TO_DENSE with computed indices looks at.
MOST_LOOKS = 1 << 22


@lowers("EMBEDDING_LOOKUP")
def embedding_lookup(ctx: OpContext) -> None:
    ids, table = ctx.shape(0), ctx.shape(1)
    ctx.require(len(ids) == 1 and len(table) >= 2, f"numbers of shape {list(ids)} for a table of shape {list(table)}")
    ctx.check_shape((*ids, *table[1:]))
    op = Gather(1, 1, table[0], math.prod(table[1:]), ids[0])
    ctx.add(op, [ctx.value(1), ctx.value(0)], ctx.output_value())


@lowers("HASHTABLE_LOOKUP")
def hashtable_lookup(ctx: OpContext) -> None:
    """The place of each key, -1 where there is none, of which a Gather makes zeros."""
    wanted, keys, values = (ctx.shape(i) for i in range(3))
    ctx.require(len(wanted) == len(keys) == 1 and values[:1] == keys, f"{list(keys)} keys for values {list(values)}")
    found, hits = ctx.outputs
    ctx.check_shape((*wanted, *values[1:]), found)
    ctx.check_shape(wanted, hits)
    count, size = wanted[0], keys[0]
    across = ctx.reshaped(ctx.value(1), (1, 1, 1, size))
    down = ctx.reshaped(ctx.value(0), (1, 1, count, 1))
    numbers = ctx.builder.constant(np.arange(size, dtype=np.int32).reshape(1, 1, 1, size))
    nowhere = Literal(-1, DType.INT32)
    place = fn("select", fn("eq", Arg(0), Arg(1)), Arg(2), nowhere)
    places = ctx.add(
        Reduce("max", (3,), place), [across, down, numbers], ctx.intermediate((1, 1, count, 1), DType.INT32)
    )
    ctx.add(Gather(1, 1, size, math.prod(values[1:]), count), [ctx.value(2), places], ctx.output_value(found))
    hit = fn("select", fn("gt", Arg(0), nowhere), Literal(1, DType.INT32), Literal(0, DType.INT32))
    ctx.elementwise(hit, [ctx.reshaped(places, wanted)], ctx.output_value(hits))


@lowers("SPARSE_TO_DENSE")
def sparse_to_dense(ctx: OpContext) -> None:
    """Each place looks for the last value that is put there."""
    shape, given = ctx.integers(1, "the sizes"), ctx.shape(0)
    ctx.check_shape(shape)
    ctx.require(ctx.dtype(2) is ctx.dtype(3), "values and default of different types are not taken together")
    count = given[0] if given else 1
    depth = given[1] if len(given) == 2 else 1
    ctx.require(len(given) <= 2 and depth == len(shape), f"indices of shape {list(given)} into {list(shape)}")
    several = math.prod(ctx.shape(2)) > 1
    ctx.require(math.prod(ctx.shape(2)) in (1, count), f"{list(ctx.shape(2))} values for {count} indices")
    places = math.prod(shape)
    if ctx.is_constant(0):
        indices = ctx.array(0).reshape(count, depth)
        ctx.require(
            bool(np.all((indices >= 0) & (indices < np.array(shape)))), f"an index is outside shape {list(shape)}"
        )
        table = np.full(places, -1, np.int32)
        table[np.ravel_multi_index(tuple(indices.T), shape)] = np.arange(count)
        place = ctx.builder.constant(table.reshape(1, 1, places, 1))
    else:
        ctx.require(count * places <= MOST_LOOKS, f"{count} computed indices into {places} places are too many")
        strides = np.array([math.prod(shape[i + 1 :]) for i in range(depth)], np.int32)
        parts = ctx.reshaped(ctx.value(0), (1, 1, count, depth))
        linear = ctx.intermediate((1, 1, count, 1), DType.INT32)
        ctx.add(Reduce("sum", (3,), fn("mul", Arg(0), Arg(1))), [parts, ctx.builder.constant(strides)], linear)
        rows = ctx.reshaped(linear, (1, 1, 1, count))
        numbers = [
            ctx.builder.constant(np.arange(n, dtype=np.int32).reshape(s))
            for n, s in ((places, (1, 1, places, 1)), (count, (1, 1, 1, count)))
        ]
        last = fn("select", fn("eq", Arg(0), Arg(1)), Arg(2), Literal(-1, DType.INT32))
        place = ctx.intermediate((1, 1, places, 1), DType.INT32)
        ctx.add(Reduce("max", (3,), last), [rows, *numbers], place)
    source = ctx.value(2)
    if several:
        found = ctx.intermediate((1, 1, places, 1), ctx.dtype(2))
        source = ctx.add(Gather(1, 1, count, 1, places), [source, place], found)
    chosen = fn("select", fn("lt", Arg(0), Literal(0, DType.INT32)), Arg(2), Arg(1))
    result = ctx.elementwise(chosen, [place, source, ctx.value(3)], ctx.intermediate((1, 1, places, 1), ctx.dtype(2)))
    ctx.copy(ctx.reshaped(result, shape), [], ctx.output_value())


@lowers("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(ctx: OpContext) -> None:
    """The part, moved to its place along one axis after another, where that is; the whole elsewhere."""
    x, part, starts = ctx.shape(0), ctx.shape(1), ctx.shape(2)
    ctx.check_shape(x)
    fits = len(part) == len(x) and all(p <= n for p, n in zip(part, x, strict=True)) and starts == (len(x),)
    ctx.require(fits, f"a part of shape {list(part)} at {list(starts)} places in {list(x)}")
    ctx.require(ctx.dtype(0) is ctx.dtype(1), "inputs of different types are not taken together")
    smaller = [axis for axis, (n, size) in enumerate(zip(x, part, strict=True)) if size < n]
    places = {axis: _places_along(ctx, axis, x[axis], part[axis]) for axis in smaller}
    moved = _spread(ctx, ctx.value(1), part, x, places)
    if not smaller:
        ctx.copy(moved, [], ctx.output_value())
        return
    frame = _frame(x, smaller)
    if len(frame) > 4:  # what is a part is told by ones that were moved as it was
        ones = ctx.builder.constant(np.ones(bhwc(part), np.int32))
        mask = _spread(ctx, ones, part, x, places)
        within = fn("gt", Arg(2), Literal(0, DType.INT32))
        ctx.elementwise(fn("select", within, Arg(0), Arg(1)), [moved, ctx.value(0), mask], ctx.output_value())
        return
    operands = [ctx.reshaped(v, [n for _, n in frame]) for v in (moved, ctx.value(0))]
    conditions = []
    for axis, n in frame:
        if axis in places:
            operands.append(ctx.reshaped(places[axis], [n if a == axis else 1 for a, _ in frame]))
            here = Arg(len(operands) - 1)
            first, behind = Literal(0, DType.INT32), Literal(part[axis], DType.INT32)
            conditions.append(fn("logical_and", fn("ge", here, first), fn("lt", here, behind)))
    within = functools.reduce(lambda a, b: fn("logical_and", a, b), conditions)
    output = ctx.intermediate([n for _, n in frame], ctx.dtype(0))
    ctx.elementwise(fn("select", within, Arg(0), Arg(1)), operands, output)
    ctx.copy(ctx.reshaped(output, x), [], ctx.output_value())


def _places_along(ctx: OpContext, axis: int, n: int, size: int) -> int:
    """For each of the n places along an axis, which of the part's `size` stands there, if any."""
    starts = ctx.shape(2)
    steps: list[Step] = [Reshape(bhwc(starts), starts), Take(0, (axis,)), Reshape((1,), (1, 1, 1, 1))]
    start = ctx.copy(ctx.value(2), steps, ctx.intermediate((), DType.INT32))
    numbers = ctx.builder.constant(np.arange(n, dtype=np.int32))
    clamped = fn("min", fn("max", Arg(1), Literal(0, DType.INT32)), Literal(n - size, DType.INT32))
    return ctx.elementwise(fn("sub", Arg(0), clamped), [numbers, start], ctx.intermediate((n,), DType.INT32))


def _spread(ctx: OpContext, value: int, part: Shape, x: Shape, places: Mapping[int, int]) -> int:
    """`value` of shape `part` at its places in a tensor of shape `x`, zeros elsewhere."""
    shape = list(part)
    for axis, place in places.items():
        op = Gather(1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), x[axis])
        shape[axis] = x[axis]
        value = ctx.add(op, [value, place], ctx.intermediate(shape, ctx.builder.values[value].dtype))
    return value


def _frame(x: Shape, axes: Sequence[int]) -> list[tuple[int, int]]:
    """The axes of `x` with their sizes, those in a row joined (and called by the first) if they are not in `axes` and
    there are more than four."""
    if len(x) <= 4:
        return list(enumerate(x))
    runs: list[tuple[int, int]] = []
    for axis, n in enumerate(x):
        if runs and axis not in axes and runs[-1][0] not in axes:
            runs[-1] = (runs[-1][0], runs[-1][1] * n)
        else:
            runs.append((axis, n))
    return runs


@lowers("REVERSE_SEQUENCE")
def reverse_sequence(ctx: OpContext) -> None:
    """Along the sequence of each of the batch, the elements up to its length in the other order."""
    x, lengths = ctx.shape(0), ctx.shape(1)
    ctx.check_shape(x)
    batch, along = int(ctx.option("batch_dim")), int(ctx.option("seq_dim"))
    ctx.require(
        0 <= batch < len(x) and 0 <= along < len(x) and batch != along, f"axes {batch} and {along} of {list(x)}"
    )
    ctx.require(lengths == (x[batch],), f"lengths of shape {list(lengths)} for a batch of {x[batch]}")
    order = (batch, along, *(i for i in range(len(x)) if i not in (batch, along)))
    moved = tuple(x[i] for i in order)
    inner = math.prod(moved[2:])
    flat = (moved[0], 1, moved[1], inner)
    steps: list[Step] = [Reshape(bhwc(x), x), Transpose(order), Reshape(moved, flat)]
    source = ctx.copy(ctx.value(0), steps, ctx.intermediate(flat, ctx.dtype(0)))
    numbers = ctx.builder.constant(np.arange(moved[1], dtype=np.int32).reshape(1, 1, moved[1], 1))
    size = ctx.reshaped(ctx.value(1), (moved[0], 1, 1, 1))
    last = fn("sub", fn("sub", Arg(1), Literal(1, DType.INT32)), Arg(0))
    place = fn("select", fn("lt", Arg(0), Arg(1)), last, Arg(0))
    places = ctx.elementwise(place, [numbers, size], ctx.intermediate((moved[0], 1, moved[1], 1), DType.INT32))
    turned = ctx.add(
        Gather(moved[0], 1, moved[1], inner, moved[1]), [source, places], ctx.intermediate(flat, ctx.dtype(0))
    )
    back = tuple(order.index(i) for i in range(len(x)))
    ctx.copy(turned, [Reshape(flat, moved), Transpose(back), Reshape(x, bhwc(x))], ctx.output_value())
