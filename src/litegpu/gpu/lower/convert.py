"""CAST, QUANTIZE, DEQUANTIZE and DENSIFY."""

from __future__ import annotations

from litegpu.gpu.graph import Arg, DType
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import OpContext, dtype_of
from litegpu.gpu.lower.registry import ANY, lowers

_CONVERSIONS = {DType.FLOAT32: "to_float32", DType.INT32: "to_int32", DType.BOOL: "to_bool"}


@lowers(
    "CAST", max_version=9, inputs=(ANY,), outputs=ANY,
    quantized=False,
    notes="to integers toward zero, saturating, NaN to the largest; constants of 16-bit floats",
)  # fmt: skip
def cast(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    target = dtype_of(ctx.output)
    if ctx.dtype(0) is target:
        ctx.copy(ctx.value(0), [], ctx.output_value())
    else:
        ctx.elementwise(fn(_CONVERSIONS[target], Arg(0)), [ctx.value(0)], ctx.output_value())


@lowers("QUANTIZE", max_version=3, notes="of floats, or from one quantization to another")
def quantize(ctx: OpContext) -> None:
    """Nothing but the rounding that the output's quantization asks for."""
    ctx.check_shape(ctx.shape(0))
    if not integers.unary(ctx):
        ctx.copy(ctx.value(0), [], ctx.output_value())


@lowers("DEQUANTIZE", max_version=6, notes="constants, of 16-bit floats too, are folded")
def dequantize(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    if ctx.is_constant(0):
        ctx.lowering.value(ctx.output.index)
    else:
        ctx.copy(ctx.value(0), [], ctx.output_value())


@lowers("DENSIFY", max_version=1, notes="of sparse constants, which are folded")
def densify(ctx: OpContext) -> None:
    ctx.require(ctx.is_constant(0), "the input is computed by the model: only constants are sparse")
    ctx.check_shape(ctx.shape(0))
    ctx.lowering.value(ctx.output.index)
