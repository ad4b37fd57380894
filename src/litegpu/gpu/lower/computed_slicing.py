"""Slices whose beginning the model computes, of a size that is known: one gather for each axis that is cut."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from litegpu.gpu.graph import Arg, DType, Gather, Reshape, Shape, Slice, Step, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.model.ops.strides import computed_slice
from litegpu.model.types import TensorType


def slice_from(ctx: OpContext) -> None:
    """SLICE with a computed begin."""
    x, size = ctx.shape(0), ctx.integers(2, "the sizes")
    ctx.require(len(size) == len(x) == math.prod(ctx.shape(1)), f"size {list(size)} for shape {list(x)}")
    fits = all(0 < s <= n for s, n in zip(size, x, strict=True))
    ctx.require(fits, f"the begins (input 1) are computed by the model, and the sizes are {list(size)} of {list(x)}")
    _cut(ctx, {axis: (axis, size[axis]) for axis in range(len(x)) if size[axis] < x[axis]}, negative=False)


def strided_slice_from(ctx: OpContext) -> None:
    """STRIDED_SLICE that takes single elements of some axes, at computed places, and the others whole."""
    x, strides = ctx.shape(0), ctx.integers(3, "the strides")
    taken = computed_slice(ctx, x, strides)
    _cut(ctx, {axis: (entry, 1) for axis, entry in taken.items()}, negative=True)


def _cut(ctx: OpContext, axes: Mapping[int, tuple[int, int]], *, negative: bool) -> None:
    """Cut input 0 along axes: which entry of the computed begins it is, and how many elements. `negative`: places are
    counted from the end if they are less than 0."""
    begins = ctx.tensor(1)
    known = begins.type in (TensorType.INT32, TensorType.INT64)
    ctx.require(known, f"computed begins of type {begins.type.name} are not taken")
    value, shape = ctx.value(0), ctx.shape(0)
    for axis, (entry, count) in axes.items():
        cut = (*shape[:axis], count, *shape[axis + 1 :])
        op = Gather(1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), count)
        result = ctx.intermediate(cut if len(cut) <= 4 else (1, 1, 1, math.prod(cut)), ctx.builder.values[value].dtype)
        value = ctx.add(op, [value, _places(ctx, entry, count, shape[axis] if negative else 0)], result)
        shape = cut
    source, target = ctx.builder.values[value].shape, ctx.output_value()
    ctx.copy(value, [Reshape(source, ctx.builder.values[target].shape)], target)


def _places(ctx: OpContext, entry: int, count: int, size: int) -> int:
    """The `count` indices from an entry of the begins on; of a `size`, those that are negative count from the end."""
    number = math.prod(ctx.shape(1))
    row: Shape = (1, 1, 1, number)
    steps: list[Step] = [Reshape(bhwc(ctx.shape(1)), row), Slice((0, 0, 0, entry), (1, 1, 1, 1), (1, 1, 1, 1))]
    first = ctx.copy(ctx.value(1), steps, ctx.intermediate((1, 1, 1, 1), DType.INT32))
    if count == 1 and not size:
        return first
    begin = Arg(0) if not size else fn("select", fn("lt", Arg(0), whole(0)), fn("add", Arg(0), whole(size)), Arg(0))
    more = ctx.builder.constant(np.arange(count, dtype=np.int32).reshape(1, 1, 1, count))
    return ctx.elementwise(fn("add", begin, Arg(1)), [first, more], ctx.intermediate((1, 1, 1, count), DType.INT32))
