"""Operators of StableHLO for which the official runtime has a kernel, but for those on bits (bits.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import Arg, DType, Expr, Gather, Pad, Reshape, Shape, Step, Take, Transpose, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.elementwise import check_broadcast
from litegpu.gpu.lower.fixed_point import turned
from litegpu.gpu.lower.movement import move, spread
from litegpu.gpu.lower.registry import lowers, lowers_as
from litegpu.model.types import TensorType


@lowers_as(STABLEHLO_ADD="add", STABLEHLO_MULTIPLY="mul", STABLEHLO_MAXIMUM="max", STABLEHLO_MINIMUM="min")
def binary(ctx: OpContext, function: str) -> None:
    check_broadcast(ctx, 2)
    ctx.require(ctx.dtype(0) is ctx.dtype(1), "inputs of different types are not taken together")
    expr: Expr = fn(function, Arg(0), Arg(1))
    if ctx.dtype(0) is DType.BOOL:
        expr = fn("logical_or" if function in ("add", "max") else "logical_and", Arg(0), Arg(1))
    elif ctx.tensor(0).type is TensorType.UINT32 and function in (
        "max",
        "min",
    ):  # as numbers with a sign, in that order
        expr = turned(fn(function, turned(Arg(0)), turned(Arg(1))))
    ctx.elementwise(expr, [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers("STABLEHLO_PAD")
def pad(ctx: OpContext) -> None:
    """Padding between the elements, then at the edges, where it may also cut off."""
    x = ctx.shape(0)
    low, high, inner = (_numbers(ctx, f"{name}_padding{edge}") for name, edge in _EDGES)
    ctx.require(len(low) == len(high) == len(inner) == len(x) and min(inner, default=0) >= 0, "paddings do not fit")
    ctx.require(ctx.is_constant(1), "the padding value is computed by the model: the GPU needs a constant")
    ctx.require(ctx.dtype(1) is ctx.dtype(0), "the padding value has another type than the input")
    fill = float(ctx.array(1).reshape(()))
    steps, _ = spread(x, [n + 1 for n in inner], fill)
    move(ctx, [*steps, Pad(low, high, fill)])


_EDGES = (("edge", "_low"), ("edge", "_high"), ("interior", ""))


@lowers("STABLEHLO_GATHER")
def gather(ctx: OpContext) -> None:
    """Each result's place in the operand: where its slice begins, no further than it fits, and its offset there."""
    x, indices, result = ctx.shape(0), ctx.shape(1), tuple(ctx.output.shape)
    sizes, order = _numbers(ctx, "slice_sizes"), _numbers(ctx, "start_index_map")
    offsets, collapsed = _numbers(ctx, "offset_dims"), _numbers(ctx, "collapsed_slice_dims")
    vector = int(ctx.option("index_vector_dim"))
    width = indices[vector] if vector < len(indices) else 1
    batch = tuple(n for i, n in enumerate(indices) if i != vector)
    kept = tuple(n for i, n in enumerate(sizes) if i not in collapsed)
    fits = len(sizes) == len(x) and len(order) == width and len(offsets) == len(kept)
    fits = fits and all(0 < n <= m for n, m in zip(sizes, x, strict=True))
    ctx.require(
        fits and len(result) == len(batch) + len(offsets), f"slices of {list(sizes)} do not make {list(result)}"
    )
    strides = [math.prod(x[i + 1 :]) for i in range(len(x))]
    count, inner = math.prod(batch), math.prod(kept)
    last = (*(i for i in range(len(indices)) if i != vector), *((vector,) if vector < len(indices) else ()))
    parts = []
    for k in range(width):
        steps: list[Step] = [Reshape(bhwc(indices), indices), Transpose(last)]
        steps += [Reshape(tuple(indices[i] for i in last), (count, width)), Take(1, (k,))]
        steps.append(Reshape((count, 1), (1, 1, count, 1)))
        parts.append(ctx.copy(ctx.value(1), steps, ctx.intermediate((count, 1), DType.INT32)))
    within = np.zeros(sizes, np.int64)
    for axis, n in enumerate(sizes):
        within = within + np.arange(n).reshape([n if i == axis else 1 for i in range(len(sizes))]) * strides[axis]
    place: Expr = Arg(width)
    for k, axis in enumerate(order):
        begin = fn("min", fn("max", Arg(k), whole(0)), whole(x[axis] - sizes[axis]))
        place = fn("add", place, fn("mul", begin, whole(strides[axis])))
    operands = [*parts, ctx.builder.constant(within.reshape(1, 1, 1, inner).astype(np.int32))]
    places = ctx.elementwise(place, operands, ctx.intermediate((count, inner), DType.INT32))
    op = Gather(1, 1, math.prod(x), 1, count * inner)
    found = ctx.add(op, [ctx.value(0), places], ctx.intermediate((count, inner), ctx.dtype(0)))
    _laid_out(ctx, found, (*batch, *kept), offsets)


def _laid_out(ctx: OpContext, value: int, shape: Shape, offsets: Sequence[int]) -> None:
    """The operator's output of a value of `shape`, the axes of the batch and then those of a slice, which belong to
    the result's `offsets`."""
    result = tuple(ctx.output.shape)
    batch = [i for i in range(len(result)) if i not in offsets]
    source = [*batch, *offsets]  # axis of the result that each axis of `shape` becomes
    ctx.require(tuple(result[i] for i in source) == shape, f"{list(shape)} does not make {list(result)}")
    order = tuple(source.index(i) for i in range(len(result)))
    here = ctx.builder.values[value].shape
    ctx.copy(value, [Reshape(here, shape), Transpose(order), Reshape(result, bhwc(result))], ctx.output_value())


def _numbers(ctx: OpContext, name: str) -> tuple[int, ...]:
    given = ctx.option(name, ())
    return tuple(int(n) for n in ([] if given is None else given))
