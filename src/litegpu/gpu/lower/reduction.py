"""Reductions along axes: MEAN, SUM, REDUCE_*, ARG_MAX, ARG_MIN, L2_NORMALIZATION."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, ArgReduce, DType, Expr, Reduce, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import NOT_KNOWN, OpContext
from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers, lowers_as


@lowers_as(
    MEAN="mean", SUM="sum", REDUCE_MAX="max", REDUCE_MIN="min", REDUCE_PROD="prod", REDUCE_ALL="all", REDUCE_ANY="any"
)
def reduce(ctx: OpContext, kind: str) -> None:
    x = ctx.shape(0)
    axes = sorted({ctx.axis(a, len(x)) for a in ctx.integers(1, "the axes")})
    kept = tuple(1 if i in axes else n for i, n in enumerate(x))
    ctx.check_shape(kept if ctx.option("keep_dims", False) else [n for i, n in enumerate(x) if i not in axes])
    if not axes:
        ctx.copy(ctx.value(0), [], ctx.output_value())
        return
    spatial = tuple(a + 4 - len(x) for a in axes)
    if kind == "prod":
        ctx.require_reals()
    if ctx.dtype(0) is DType.BOOL:
        extreme = Reduce("min" if kind in ("all", "min") else "max", spatial, fn("to_int32", RESULT))
        ctx.finish(extreme, [ctx.value(0)], kept, fn("to_bool", RESULT), dtype=DType.BOOL)
    elif kind == "mean" and ctx.dtype(0) is DType.INT32:
        _mean_of_words(ctx, spatial, kept, math.prod(x[a] for a in axes))
    elif kind in ("mean", "sum") and _sum_of_bytes(ctx, kind, spatial, kept, math.prod(x[a] for a in axes)):
        return
    elif kind != "mean" or not _mean_of_integers(ctx, spatial, kept, math.prod(x[a] for a in axes)):
        ctx.finish(Reduce(kind, spatial), [ctx.value(0)], kept)


def _sum_of_bytes(ctx: OpContext, kind: str, axes: tuple[int, ...], shape: tuple[int, ...], count: int) -> bool:
    """The sum of what is stored times a float32 factor, and a number that has both zero points in it added, each
    rounded: as XNNPACK's kernels do it. False where that is not asked for."""
    given, made = grid_of(ctx.tensor(0)), grid_of(ctx.output)
    if not (ctx.lowering.xnnpack and all(integers.is_stored(ctx, i) for i in (0, None))):
        return False
    assert given is not None and made is not None
    factor = np.float32(given.scale) / np.float32(made.scale)
    if kind == "mean":
        factor = factor * (np.float32(1) / np.float32(count))
    ctx.require(float(factor) < _MOST_FACTOR, NOT_KNOWN)  # beyond, the order in which the CPU rounds shows
    offset = np.float32(made.zero) - np.float32(given.zero * count) * factor
    scaled = fn("mul", fn("to_float32", RESULT), float(factor))
    apart = fn("max", scaled, -1e9)  # so that no device makes one operation, rounded once, of a product and a sum
    bounded = fn("min", fn("max", fn("add", apart, float(offset)), made.low), made.high)
    ctx.gives_stored = True
    ctx.finish(Reduce("sum", axes), [integers.stored(ctx, 0)], shape, fn("nearest", bounded))
    return True


#: A factor of sums up to which they are exact.
_MOST_FACTOR = 2.0**15


def _mean_of_words(ctx: OpContext, axes: tuple[int, ...], shape: tuple[int, ...], count: int) -> None:
    """Of integers that stand for nothing else, towards zero. Quotients and what is left are added up by themselves, as
    the sum of all may be more than a word holds."""
    ctx.require(count <= _MOST_MEANT, f"the mean of {count} integers: up to {_MOST_MEANT} are taken")
    sums = []
    for function in ("floor_div", "floor_mod"):
        total = ctx.intermediate(shape, DType.INT32)
        sums.append(ctx.add(Reduce("sum", axes, fn(function, RESULT, whole(count))), [ctx.value(0)], total))
    below = fn("add", Arg(0), fn("floor_div", Arg(1), whole(count)))
    rest = fn("ne", fn("floor_mod", Arg(1), whole(count)), whole(0))
    upwards = fn("logical_and", fn("lt", below, whole(0)), rest)
    mean = fn("add", below, fn("select", upwards, whole(1), whole(0)))
    result = ctx.elementwise(mean, sums, ctx.intermediate(shape, DType.INT32))
    ctx.copy(ctx.reshaped(result, ctx.output.shape), [], ctx.output_value())


#: Of so many integers what their divisions leave adds up to a word.
_MOST_MEANT = 46340


def _mean_of_integers(ctx: OpContext, axes: tuple[int, ...], shape: tuple[int, ...], count: int) -> bool:
    """The sum of quanta times one multiplier in fixed point that also divides by their number, as the runtime's own
    kernel has it; False where XNNPACK's is used, or the tensor is not quantized."""
    x, made = integers.operand(ctx, 0), grid_of(ctx.output)
    if x is None or made is None or (ctx.lowering.xnnpack and made.bits <= 8):
        return False
    multiplier, exponent = multiplier_of(x.grid.scale / made.scale)
    shift = min(count.bit_length() - 1, 32, 31 + exponent)
    multiplier, exponent = (multiplier << shift) // count, exponent - shift
    scaled = fn("fixed_mul", fn("to_int32", fn("round", RESULT)), whole(multiplier), whole(exponent))
    ctx.finish(Reduce("sum", axes), [integers.as_float(ctx, 0, x)], shape, integers.quanta_of(ctx, made, scaled))
    integers.settle(ctx, made)
    return True


@lowers_as(ARG_MAX="max", ARG_MIN="min")
def arg_reduce(ctx: OpContext, kind: str) -> None:
    x = ctx.shape(0)
    values = ctx.integers(1, "the axis")
    ctx.require(len(values) == 1, f"{len(values)} axes where the operator takes one")
    axis = ctx.axis(values[0], len(x))
    ctx.require(x[axis] > 0, f"axis {axis} of shape {list(x)} is empty")
    ctx.check_shape(n for i, n in enumerate(x) if i != axis)
    kept = tuple(1 if i == axis else n for i, n in enumerate(x))
    value = ctx.value(0)
    if ctx.dtype(0) is DType.BOOL:
        value = ctx.elementwise(fn("to_int32", Arg(0)), [value], ctx.intermediate(x, DType.INT32))
    ctx.finish(ArgReduce(kind, axis + 4 - len(x)), [value], kept, dtype=DType.INT32)


@lowers("L2_NORMALIZATION")
def l2_normalization(ctx: OpContext) -> None:
    """x / max(|x|, 1e-6)."""
    ctx.check_shape(ctx.shape(0))
    if _normalized_bytes(ctx):
        return
    x = ctx.value(0)
    squares = Reduce("sum", (3,), fn("mul", RESULT, RESULT))
    length = ctx.intermediate((*bhwc(ctx.shape(0))[:3], 1), DType.FLOAT32)
    ctx.add(squares, [x], length, fn("max", fn("sqrt", RESULT), 1e-6))
    ctx.elementwise(ctx.activation(fn("div", Arg(0), Arg(1))), [x, length], ctx.output_value())


def _normalized_bytes(ctx: OpContext) -> bool:
    """In whole numbers, in units of 1/128, by a multiplier that stands for one over the root of the squares' sum. False
    where that is not asked for."""
    x, made = integers.operand(ctx, 0), grid_of(ctx.output)
    if x is None or made is None or not all(integers.is_stored(ctx, i) for i in (0, None)):
        return False
    quanta = x.expr(RESULT)
    length = ctx.intermediate((*bhwc(ctx.shape(0))[:3], 1), DType.INT32)
    ctx.add(Reduce("sum", (3,), fn("mul", quanta, quanta)), [x.value], length)
    factors = [ctx.intermediate((*bhwc(ctx.shape(0))[:3], 1), DType.INT32) for _ in range(2)]
    for name, factor in zip(("root_multiplier", "root_shift"), factors, strict=True):
        ctx.elementwise(fn(name, Arg(0)), [length], factor)
    right: Expr = fn("neg", Arg(2))
    if made.low < 0:
        right = fn("add", right, whole(7))
    else:
        quanta = fn("mul", quanta, whole(128))
    fixed = fn("fixed_mul", quanta, Arg(1), right)
    result = fn("add", fixed, whole(-made.zero if made.low < 0 else 128 - made.zero))
    ctx.elementwise(integers.quanta_of(ctx, made, result), [x.value, *factors], ctx.output_value())
    return True
