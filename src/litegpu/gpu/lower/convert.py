"""CAST, QUANTIZE, DEQUANTIZE and DENSIFY."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Arg, DType, Expr, Literal, Reduce, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers, tables
from litegpu.gpu.lower.context import NOT_KNOWN, OpContext
from litegpu.gpu.lower.fixed_point import half, lowest_bits, unsigned
from litegpu.gpu.lower.quantization import STORED, grid_of
from litegpu.gpu.lower.registry import lowers
from litegpu.gpu.lower.values import dtype_of
from litegpu.model.reader import DTYPES
from litegpu.model.types import TensorType

_BYTES = (TensorType.INT8, TensorType.UINT8)
#: Boundaries of BUCKETIZE, each of which is looked at.
MOST_BUCKETS = 4096
_CONVERSIONS = {DType.FLOAT32: "to_float32", DType.INT32: "to_int32", DType.BOOL: "to_bool"}


@lowers("CAST")
def cast(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    target, given, kind = dtype_of(ctx.output), ctx.dtype(0), ctx.output.type
    wide = kind is TensorType.INT64
    ctx.require(not wide or given is not DType.FLOAT32, "a float may become an integer beyond 32 bits")
    number: Expr = Arg(0)
    if ctx.tensor(0).type is TensorType.UINT32 and target is DType.FLOAT32:
        number = unsigned(Arg(0))
    elif given is not DType.FLOAT32 and target is DType.FLOAT32:
        number = fn("to_float32", Arg(0))
    if grid_of(ctx.output) is None and (kind in STORED or kind is TensorType.UINT16):
        ctx.elementwise(_narrowed(ctx), [ctx.value(0)], ctx.output_value())
    elif kind is TensorType.UINT32 and given is DType.FLOAT32:
        ctx.elementwise(_without_sign(Arg(0)), [ctx.value(0)], ctx.output_value())
    elif kind is TensorType.FLOAT16:
        ctx.elementwise(half(number), [ctx.value(0)], ctx.output_value())
    elif given is target:
        ctx.copy(ctx.value(0), [], ctx.output_value())
    elif target is DType.FLOAT32:
        ctx.elementwise(number, [ctx.value(0)], ctx.output_value())
    else:
        ctx.elementwise(fn(_CONVERSIONS[target], Arg(0)), [ctx.value(0)], ctx.output_value())


def _without_sign(x: Expr) -> Expr:
    """The word of a float's whole number from 0 to 2^32 - 1; NaN is the largest."""
    below = fn("to_int32", fn("max", x, 0.0))
    above = fn("bit_xor", fn("to_int32", fn("sub", x, 2.0**31)), whole(-(2**31)))
    return fn("select", fn("lt", x, 2.0**31), below, above)


def _narrowed(ctx: OpContext) -> Expr:
    """Floats as the nearest number that the type has, of integers the lowest bits."""
    if ctx.dtype(0) is not DType.FLOAT32:
        return lowest_bits(fn("to_int32", Arg(0)), ctx.output.type)
    limits = np.iinfo(DTYPES[ctx.output.type])
    return fn("min", fn("max", fn("to_int32", Arg(0)), whole(int(limits.min))), whole(int(limits.max)))


@lowers("QUANTIZE")
def quantize(ctx: OpContext) -> None:
    """Nothing but the rounding that the output's quantization asks for."""
    ctx.check_shape(ctx.shape(0))
    given, made = grid_of(ctx.tensor(0)), grid_of(ctx.output)
    if given is not None and made is not None and given.scale != made.scale and ctx.tensor(0).type in _BYTES:
        same = ctx.tensor(0).type is ctx.output.type or ctx.output.type not in _BYTES
        ctx.require(same or not ctx.lowering.integer, NOT_KNOWN)  # by where in a row of SIMD lanes an element is
    if not tables.unary(ctx, integers.requantized):
        ctx.copy(ctx.value(0), [], ctx.output_value())


@lowers("DEQUANTIZE")
def dequantize(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    if ctx.is_constant(0):
        ctx.lowering.value(ctx.output.index)
    else:
        ctx.copy(ctx.value(0), [], ctx.output_value())
        ctx.lowering.quantized.numbers_of[ctx.output.index] = ctx.operator.inputs[0]


@lowers("FAKE_QUANT")
def fake_quant(ctx: OpContext) -> None:
    """FakeQuantizeArray, with the scale and the limits that NudgeQuantizationRange makes of the options."""
    ctx.check_shape(ctx.shape(0))
    low, high = (np.float32(ctx.option(name, 0.0)) for name in ("min", "max"))
    bits, first = int(ctx.option("num_bits")), 0
    last = (1 << bits) - 1
    ctx.require(not ctx.option("narrow_range", False), "narrow_range, which the CPU's kernel does not take either")
    ctx.require(bool(low < high) and last > first, f"a range from {low:g} to {high:g} in {bits} bits")
    scale = (high - low) / np.float32(last - first)
    zero = np.float32(first) - low / scale
    nudged = np.clip(np.floor(zero + np.float32(0.5)), first, last)  # of a number that is not negative where it counts
    bottom, top = (np.float32(n - nudged) * scale for n in (first, last))
    clamped = fn("min", fn("max", Arg(0), float(bottom)), float(top))
    steps = fn("mul", fn("sub", clamped, float(bottom)), float(np.float32(1) / scale))
    nearest = fn("floor", fn("add", steps, 0.5))
    ctx.elementwise(fn("add", fn("mul", nearest, float(scale)), float(bottom)), [ctx.value(0)], ctx.output_value())


@lowers("BUCKETIZE")
def bucketize(ctx: OpContext) -> None:
    """How many of the boundaries are not above."""
    x, given = ctx.shape(0), ctx.option("boundaries", ())
    ctx.check_shape(x)
    bounds = np.asarray([] if given is None else given, np.float32)
    ctx.require(0 < bounds.size <= MOST_BUCKETS, f"{bounds.size} boundaries: 1 to {MOST_BUCKETS} are taken")
    count = math.prod(x)
    column = ctx.reshaped(ctx.value(0), (1, 1, count, 1))
    row = ctx.builder.constant(bounds.reshape(1, 1, 1, -1))
    number = Arg(0) if ctx.dtype(0) is DType.FLOAT32 else fn("to_float32", Arg(0))
    passed = fn("select", fn("ge", number, Arg(1)), Literal(1, DType.INT32), Literal(0, DType.INT32))
    found = ctx.add(Reduce("sum", (3,), passed), [column, row], ctx.intermediate((1, 1, count, 1), DType.INT32))
    ctx.copy(ctx.reshaped(found, x), [], ctx.output_value())


@lowers("DENSIFY")
def densify(ctx: OpContext) -> None:
    ctx.require(ctx.is_constant(0), "the input is computed by the model: only constants are sparse")
    ctx.check_shape(ctx.shape(0))
    ctx.lowering.value(ctx.output.index)
