"""Segments of rows: SEGMENT_SUM and UNSORTED_SEGMENT_*."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Arg, DType, Literal, Reduce
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers, lowers_as

#: Rows times segments, which is how many rows are looked at.
MOST_LOOKS = 1 << 22
#: What a segment without rows holds, of floats and of integers.
_NEUTRAL: dict[str, tuple[float, int]] = {
    "sum": (0.0, 0),
    "prod": (1.0, 1),
    "max": (float(np.finfo(np.float32).min), -(2**31)),
    "min": (float(np.finfo(np.float32).max), 2**31 - 1),
}


@lowers("SEGMENT_SUM")
def segment_sum(ctx: OpContext) -> None:
    ids = ctx.integers(1, "the segments")
    ctx.require(len(ctx.shape(1)) == 1, f"segments of shape {list(ctx.shape(1))}: they must have rank 1")
    steps = {b - a for a, b in zip((-1, *ids), ids, strict=False)}
    ctx.require(steps <= {0, 1} and min(ids, default=0) == 0, "the segments do not follow each other")
    _reduced(ctx, "sum", max(ids, default=-1) + 1)


@lowers_as(
    UNSORTED_SEGMENT_MAX="max", UNSORTED_SEGMENT_MIN="min", UNSORTED_SEGMENT_PROD="prod", UNSORTED_SEGMENT_SUM="sum"
)
def unsorted_segments(ctx: OpContext, kind: str) -> None:
    (count,) = ctx.integers(2, "the number of segments")
    _reduced(ctx, kind, count)


def _reduced(ctx: OpContext, kind: str, count: int) -> None:
    """Each segment looks at all rows, of which those of others change nothing."""
    x, ids = ctx.shape(0), ctx.shape(1)
    ctx.require(len(ids) >= 1 and x[: len(ids)] == ids, f"segments of shape {list(ids)} for rows of {list(x)}")
    rows, inner = math.prod(ids), math.prod(x[len(ids) :])
    ctx.check_shape((count, *x[len(ids) :]))
    ctx.require(rows * count <= MOST_LOOKS, f"{rows} rows in {count} segments are too many")
    result = gathered(ctx, kind, ctx.value(0), ctx.reshaped(ctx.value(1), (1, rows, 1, 1)), (count, rows, inner))
    shaped = ctx.reshaped(result, ctx.output.shape)
    ctx.copy(shaped, [], ctx.output_value())


def gathered(ctx: OpContext, kind: str, value: int, segments: int, sizes: tuple[int, int, int]) -> int:
    """A value [segments, 1, 1, elements of a row] of one of so many rows, whose `segments` are [1, rows, 1, 1]; `sizes`
    are the number of segments, of rows and of elements of a row."""
    count, rows, inner = sizes
    dtype = ctx.builder.values[value].dtype
    neutral = Literal(_NEUTRAL[kind][dtype is DType.INT32], dtype)
    source = ctx.reshaped(value, (1, rows, 1, inner))
    numbers = ctx.builder.constant(np.arange(count, dtype=np.int32).reshape(count, 1, 1, 1))
    mine = fn("select", fn("eq", Arg(1), Arg(2)), Arg(0), neutral)
    result = ctx.intermediate((count, 1, 1, inner), dtype)
    return ctx.add(Reduce(kind, (1,), mine), [source, segments, numbers], result)
