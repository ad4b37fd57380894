"""Operators that cut or extend tensors: slices, splits, unpacking, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import Arg, Mirror, Pad, Reshape, Slice, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.computed_slicing import slice_from, strided_slice_from
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import between, move
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops.strides import strided

REFLECT, SYMMETRIC = 0, 1
#: Elements of a result for which a constant says where padding is.
MOST_PADDED = 1 << 22


# -------------------------------------------------------------------------------------------------- slices


@lowers("SLICE")
def slice_(ctx: OpContext) -> None:
    x = ctx.shape(0)
    if not ctx.is_constant(1) and ctx.is_constant(2):
        slice_from(ctx)
        return
    begin, size = ctx.integers(1, "the begins"), ctx.integers(2, "the sizes")
    ctx.require(len(begin) == len(size) == len(x), f"begin {list(begin)} and size {list(size)} for shape {list(x)}")
    target = tuple(n - b if s == -1 else s for n, b, s in zip(x, begin, size, strict=True))
    fits = all(b >= 0 and s >= 0 and b + s <= n for n, b, s in zip(x, begin, target, strict=True))
    ctx.require(fits, f"begin {list(begin)} with size {list(size)} is outside shape {list(x)}")
    move(ctx, [Slice(begin, (1,) * len(x), target)])


@lowers("STRIDED_SLICE")
def strided_slice(ctx: OpContext) -> None:
    x = ctx.shape(0)
    if not ctx.is_constant(1) and ctx.is_constant(3):
        strided_slice_from(ctx)
        return
    given = [ctx.integers(i, what) for i, what in ((1, "the begins"), (2, "the ends"), (3, "the strides"))]
    ctx.require(len({len(g) for g in given}) == 1, "begin, end and strides differ in length")
    begins, strides, sizes, result = strided(ctx, x, given)
    steps: list[Slice | Reshape] = [Slice(begins, strides, sizes)]
    if result != sizes:
        steps.append(Reshape(sizes, result))
    move(ctx, steps)


# -------------------------------------------------------------------------------------------------- splits


@lowers("SPLIT")
def split(ctx: OpContext) -> None:
    x, count = ctx.shape(1), len(ctx.outputs)
    axis = _one_axis(ctx, 0, len(x))
    ctx.require(count > 0 and x[axis] % count == 0, f"axis {axis} of shape {list(x)} does not divide by {count}")
    _split(ctx, 1, axis, [x[axis] // count] * count)


@lowers("SPLIT_V")
def split_v(ctx: OpContext) -> None:
    x, sizes = ctx.shape(0), list(ctx.integers(1, "the sizes"))
    axis = _one_axis(ctx, 2, len(x))
    ctx.require(sizes.count(-1) <= 1 and len(sizes) == len(ctx.outputs), f"sizes {sizes} are impossible")
    if -1 in sizes:
        sizes[sizes.index(-1)] = x[axis] - (sum(sizes) + 1)
    ctx.require(
        sum(sizes) == x[axis] and min(sizes) >= 0, f"sizes {sizes} do not add up to axis {axis} of shape {list(x)}"
    )
    _split(ctx, 0, axis, sizes)


@lowers("UNPACK")
def unpack(ctx: OpContext) -> None:
    x = ctx.shape(0)
    axis = ctx.axis(int(ctx.option("axis")), len(x))
    ctx.require(x[axis] == len(ctx.outputs), f"{len(ctx.outputs)} outputs for axis {axis} of shape {list(x)}")
    layer, result = tuple(1 if i == axis else n for i, n in enumerate(x)), (*x[:axis], *x[axis + 1 :])
    for k, output in enumerate(ctx.outputs):
        begin = tuple(k if i == axis else 0 for i in range(len(x)))
        move(ctx, [Slice(begin, (1,) * len(x), layer), Reshape(layer, result)], output=output)


def _split(ctx: OpContext, source: int, axis: int, sizes: Sequence[int]) -> None:
    x = ctx.shape(source)
    begin = 0
    for size, output in zip(sizes, ctx.outputs, strict=True):
        first = tuple(begin if i == axis else 0 for i in range(len(x)))
        part = tuple(size if i == axis else n for i, n in enumerate(x))
        move(ctx, [Slice(first, (1,) * len(x), part)], source, output)
        begin += size


def _one_axis(ctx: OpContext, i: int, rank: int) -> int:
    values = ctx.integers(i, "the axis")
    ctx.require(len(values) == 1, f"{len(values)} axes where the operator takes one")
    return ctx.axis(values[0], rank)


# ------------------------------------------------------------------------------------------------- padding


@lowers("PAD")
def pad(ctx: OpContext) -> None:
    move(ctx, [Pad(*_paddings(ctx), ctx.zero)])


@lowers("PADV2")
def pad_v2(ctx: OpContext) -> None:
    ctx.require(ctx.dtype(2) is ctx.dtype(0), "the padding value has another type than the input")
    ctx.require(math.prod(ctx.shape(2)) == 1, f"the padding value has shape {list(ctx.shape(2))}")
    if not ctx.is_constant(2):
        _pad_with(ctx)
        return
    fill = float(ctx.array(2).reshape(()))
    move(ctx, [Pad(*_paddings(ctx), fill)])


def _pad_with(ctx: OpContext) -> None:
    """A padding value that is computed: chosen where there is padding."""
    before, after = _paddings(ctx)
    shape = tuple(b + n + a for b, n, a in zip(before, ctx.shape(0), after, strict=True))
    ctx.check_shape(shape)
    ctx.require(math.prod(shape) <= MOST_PADDED, f"a computed padding value of {list(shape)}, which are many")
    margins = list(zip(before, after, strict=True))
    inside = ctx.builder.constant(np.pad(np.ones(ctx.shape(0), bool), margins).reshape(bhwc(shape)))
    kind = ctx.builder.values[ctx.value(0)].dtype
    padded = ctx.builder.value(bhwc(shape), kind)
    ctx.copy(ctx.value(0), between(ctx.shape(0), [Pad(before, after, ctx.zero)], shape), padded)
    value = ctx.reshaped(ctx.value(2), ())
    ctx.elementwise(fn("select", Arg(0), Arg(1), Arg(2)), [inside, padded, value], ctx.output_value())


@lowers("MIRROR_PAD")
def mirror_pad(ctx: OpContext) -> None:
    before, after = _paddings(ctx)
    mode = int(ctx.option("mode", REFLECT))
    if mode not in (REFLECT, SYMMETRIC):
        raise Unsupported(f"mode {mode} is neither REFLECT (0) nor SYMMETRIC (1)")
    room = [n if mode == SYMMETRIC else n - 1 for n in ctx.shape(0)]
    fits = all(max(b, a) <= n or (b == a == 0) for b, a, n in zip(before, after, room, strict=True))
    ctx.require(fits, f"paddings {list(zip(before, after, strict=True))} are larger than shape {list(ctx.shape(0))}")
    move(ctx, [Mirror(before, after, mode == SYMMETRIC)])


def _paddings(ctx: OpContext) -> tuple[tuple[int, ...], tuple[int, ...]]:
    x, flat = ctx.shape(0), ctx.integers(1, "the paddings")
    ctx.require(
        len(flat) == 2 * len(x) and min(flat, default=0) >= 0,
        f"paddings {list(flat)} for shape {list(x)} are impossible",
    )
    return flat[::2], flat[1::2]
