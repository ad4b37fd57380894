"""SOFTMAX of 16 bits in whole numbers, by the tables of TFLite's kernel: exponentials, and one over their sum."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from litegpu.gpu.evaluate.expressions import fixed_product
from litegpu.gpu.graph import RESULT, Arg, DType, Expr, Gather, Reduce, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.constants import Array
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.quantization import grid_of

_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
#: Steps of a table, between which the kernel interpolates.
_STEPS = 512
#: The largest element's exponential, so that no sum is less; and channels up to which sums fit in 31 bits.
_LEAST_BITS, _MOST_CHANNELS = 14, 1 << 15


def softmax_of_words(ctx: OpContext) -> bool:
    """False for other types."""
    x, made = integers.operand(ctx, 0), grid_of(ctx.output)
    if not ctx.lowering.integer or x is None or made is None or min(x.grid.bits, made.bits) < 16:
        return False
    size = ctx.shape(0)
    ctx.require(size[-1] <= _MOST_CHANNELS, f"a softmax of {size[-1]} numbers of 16 bits")
    row = (*bhwc(size)[:3], 1)
    largest = ctx.add(Reduce("max", (3,), x.expr(RESULT)), [x.value], ctx.intermediate(row, DType.INT32))
    far = fn("add", fn("sub", x.expr(Arg(0)), Arg(1)), whole((1 << 16) - 1))
    places = ctx.elementwise(far, [x.value, largest], ctx.intermediate(size, DType.INT32))
    powers = _looked_up(ctx, _exponentials(x.grid.scale * float(ctx.option("beta", 1.0))), places)
    total = ctx.add(Reduce("sum", (3,)), [powers], ctx.intermediate(row, DType.INT32))
    bits: Expr = whole(_LEAST_BITS)
    for bit in range(_LEAST_BITS + 1, 31):
        bits = fn("add", bits, fn("select", fn("ge", Arg(0), whole(1 << bit)), whole(1), whole(0)))
    high = ctx.elementwise(bits, [total], ctx.intermediate(row, DType.INT32))
    shifted = fn("shift_right", fn("shift_left", Arg(0), fn("sub", whole(30), Arg(1))), whole(13))
    nearest = fn("shift_right", fn("add", shifted, whole(1)), whole(1))
    place = fn("min", fn("max", fn("sub", nearest, whole(1 << 16)), whole(0)), whole((1 << 16) - 1))
    inverse = _looked_up(ctx, _inverses(), ctx.elementwise(place, [total, high], ctx.intermediate(row, DType.INT32)))
    half = fn("shift_left", whole(1), fn("sub", Arg(2), whole(1)))
    result = fn("shift_right", fn("add", fn("mul", Arg(0), Arg(1)), half), Arg(2))
    kept = integers.as_kept(ctx, made, result, 0, _MOST)
    ctx.elementwise(kept, [powers, inverse, high], ctx.output_value())
    integers.settle(ctx, made)
    return True


def _looked_up(ctx: OpContext, table: Array, places: int) -> int:
    shape = ctx.builder.values[places].shape
    values = [ctx.builder.constant(table.astype(np.int32).reshape(1, 1, 1, -1)), places]
    return ctx.add(Gather(1, 1, table.size, 1, int(np.prod(shape))), values, ctx.intermediate(shape, DType.INT32))


def _exponentials(scale: float) -> Array:
    """Of differences to the largest from -65535 to 0, with 15 bits behind the point."""
    multiplier, shift = multiplier_of(scale / (10.0 / 65535.0))
    scaled = fixed_product(np.arange(-(1 << 16) + 1, 1, dtype=np.int32), multiplier, shift).astype(np.int64)
    return _interpolated(_table(10.0, _MOST, np.exp), np.clip(scaled + _MOST, _LEAST, _MOST))


@functools.cache
def _inverses() -> Array:
    """Of 1 + x for x from 0 to 1, by the numbers of 16 bits in order."""
    return _interpolated(_table(1.0, _LEAST, lambda x: 1 / (1 + x)), np.arange(_LEAST, _MOST + 1))


def _interpolated(table: Array, numbers: Array) -> Array:
    """LUTLookup: each step has 128 numbers."""
    base, step = table[256 + (numbers >> 7)], table[257 + (numbers >> 7)]
    return np.asarray(base + (((step - base) * (numbers & 0x7F) + 64) >> 7))


def _table(reach: float, zero: int, function: Callable[[Array], Array]) -> Array:
    """LUTPopulate: of numbers of 16 bits that stand for a range as long as `reach`, results from -1 to 1; each is so
    that the interpolation errs as little in the middle of a step as at its ends."""
    scale, results = reach / 65535, 2 / 65535
    low, high = scale * (_LEAST - zero), scale * (_MOST - zero)
    step = (high - low) / _STEPS
    most = (1 << 16) / (results * _MOST - results * _LEAST)
    at = low + np.arange(_STEPS) * step
    after = low + np.arange(1, _STEPS + 1) * step
    value, middle, following = (function(v) for v in (at, at + step / 2, after))
    sample = _rounded(value * most)
    between = _rounded((following * most + sample) / 2)
    bias = _rounded((between - _rounded(middle * most)) / 2)
    last = _rounded(function(np.array([high])) * most)
    return np.asarray(np.clip(np.concatenate([sample - bias, last]), _LEAST, _MOST)).astype(np.int64)


def _rounded(x: Array) -> Array:
    """Halves away from zero."""
    return np.asarray(np.copysign(np.floor(np.abs(x) + 0.5), x))
