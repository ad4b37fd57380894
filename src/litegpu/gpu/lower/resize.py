"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

from litegpu.gpu.graph import Arg, DType, Resize2D, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.interpolation import BUILTIN_BITS, XNNPACK_BITS
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import move
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers_as
from litegpu.model.types import TensorType


@lowers_as(RESIZE_BILINEAR="bilinear", RESIZE_NEAREST_NEIGHBOR="nearest")
def resize(ctx: OpContext, kind: str) -> None:
    x = ctx.shape(0)
    size = ctx.integers(1, "the new sizes")
    ctx.require(len(size) == 2 and min(size) > 0, f"new sizes {list(size)} are not two positive numbers")
    ctx.check_shape((x[0], *size, x[3]))
    aligned, centred = bool(ctx.option("align_corners", False)), bool(ctx.option("half_pixel_centers", False))
    ctx.require(not (aligned and centred and kind == "bilinear"), "align_corners with half_pixel_centers is undefined")
    if kind == "nearest" and tuple(size) == tuple(x[1:3]):
        move(ctx, [])
        return
    if kind == "nearest" or not _of_integers(ctx, aligned, centred):
        ctx.add(Resize2D(kind, aligned, centred), [ctx.value(0)], ctx.output_value())


def _of_integers(ctx: OpContext, aligned: bool, centred: bool) -> bool:
    """Resize what is stored, as the CPU's kernels do, if the tensor is quantized: those of XNNPACK 8 bits with whole
    weights, the runtime's own int8 and int16 so too, but uint8 in floating point."""
    x, made = integers.operand(ctx, 0), grid_of(ctx.output)
    if x is None or made is None:
        return False
    shape = ctx.shape(0)
    stored = fn("add", x.expr(Arg(0)), whole(x.grid.zero))
    plain = ctx.output.type is TensorType.UINT8 and not ctx.lowering.xnnpack
    given = ctx.intermediate(shape, DType.FLOAT32 if plain else DType.INT32)
    ctx.elementwise(fn("to_float32", stored) if plain else stored, [x.value], given)
    resized = ctx.intermediate(ctx.output.shape, DType.FLOAT32 if plain else DType.INT32)
    by_xnnpack = ctx.lowering.xnnpack and made.bits <= 8
    bits = 0 if plain else XNNPACK_BITS if by_xnnpack else BUILTIN_BITS
    ctx.add(Resize2D("bilinear", aligned, centred, bits), [given], resized)
    result = fn("to_int32", fn("floor", fn("add", Arg(0), 0.5))) if plain else Arg(0)
    integers.finish(ctx, fn("sub", result, whole(made.zero)), [resized])
    return True
