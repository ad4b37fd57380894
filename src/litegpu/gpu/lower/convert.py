"""CAST, QUANTIZE, DEQUANTIZE and DENSIFY."""

from __future__ import annotations

from litegpu.gpu.graph import Arg, DType
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers
from litegpu.gpu.lower.values import dtype_of
from litegpu.model.types import TensorType

_CONVERSIONS = {DType.FLOAT32: "to_float32", DType.INT32: "to_int32", DType.BOOL: "to_bool"}


@lowers("CAST")
def cast(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    target = dtype_of(ctx.output)
    wide = ctx.output.type is TensorType.INT64
    ctx.require(not wide or ctx.dtype(0) is not DType.FLOAT32, "a float may become an integer beyond 32 bits")
    if ctx.dtype(0) is target:
        ctx.copy(ctx.value(0), [], ctx.output_value())
    else:
        ctx.elementwise(fn(_CONVERSIONS[target], Arg(0)), [ctx.value(0)], ctx.output_value())


@lowers("QUANTIZE")
def quantize(ctx: OpContext) -> None:
    """Nothing but the rounding that the output's quantization asks for."""
    ctx.check_shape(ctx.shape(0))
    if not integers.unary(ctx, integers.requantized):
        ctx.copy(ctx.value(0), [], ctx.output_value())


@lowers("DEQUANTIZE")
def dequantize(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    if ctx.is_constant(0):
        ctx.lowering.value(ctx.output.index)
    else:
        ctx.copy(ctx.value(0), [], ctx.output_value())


@lowers("DENSIFY")
def densify(ctx: OpContext) -> None:
    ctx.require(ctx.is_constant(0), "the input is computed by the model: only constants are sparse")
    ctx.check_shape(ctx.shape(0))
    ctx.lowering.value(ctx.output.index)
