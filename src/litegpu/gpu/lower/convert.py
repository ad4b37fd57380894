"""CAST, and DEQUANTIZE of constants."""

from __future__ import annotations

from litegpu.gpu.graph import Arg, DType
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import QUANTIZED, Unsupported, as_array
from litegpu.gpu.lower.context import DTYPES, OpContext
from litegpu.gpu.lower.registry import ANY, FLOAT, lowers
from litegpu.model.types import TensorType

_CONVERSIONS = {DType.FLOAT32: "to_float32", DType.INT32: "to_int32", DType.BOOL: "to_bool"}
#: What a DEQUANTIZE may read, as a constant.
STORED = FLOAT | frozenset(QUANTIZED) | frozenset({TensorType.FLOAT16})


@lowers(
    "CAST", max_version=9, inputs=(ANY,), outputs=ANY,
    notes="to integers toward zero, saturating, NaN to the largest; constants of 16-bit floats",
)  # fmt: skip
def cast(ctx: OpContext) -> None:
    ctx.check_shape(ctx.shape(0))
    target = DTYPES[ctx.output.type]
    if ctx.dtype(0) is target:
        ctx.copy(ctx.value(0), [], ctx.output_value())
    else:
        ctx.elementwise(fn(_CONVERSIONS[target], Arg(0)), [ctx.value(0)], ctx.output_value())


@lowers("DEQUANTIZE", max_version=6, inputs=(STORED,), outputs=FLOAT, notes="of constants only: they are folded")
def dequantize(ctx: OpContext) -> None:
    t = ctx.tensor(0)
    if t.data is None:
        raise Unsupported(f"input 0 is {t.type.name} computed by the model: only constants are dequantized")
    ctx.check_shape(t.shape)
    as_array(t, decode=False)
    ctx.lowering.value(ctx.output.index)
