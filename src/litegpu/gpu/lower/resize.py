"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

from litegpu.gpu.graph import Resize2D
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import move
from litegpu.gpu.lower.registry import FLOAT, STATIC, lowers


@lowers(
    "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", max_version=4, inputs=(FLOAT, STATIC), counts=2, ranks=(4, 4),
    notes="constant size; align_corners or half_pixel_centers",
)  # fmt: skip
def resize(ctx: OpContext) -> None:
    x = ctx.shape(0)
    size = ctx.integers(1, "the new sizes")
    ctx.require(len(size) == 2 and min(size) > 0, f"new sizes {list(size)} are not two positive numbers")
    ctx.check_shape((x[0], *size, x[3]))
    aligned, centred = bool(ctx.option("align_corners", False)), bool(ctx.option("half_pixel_centers", False))
    kind = "bilinear" if ctx.operator.name == "RESIZE_BILINEAR" else "nearest"
    ctx.require(not (aligned and centred and kind == "bilinear"), "align_corners with half_pixel_centers is undefined")
    if kind == "nearest" and tuple(size) == tuple(x[1:3]):
        move(ctx, [])
        return
    ctx.add(Resize2D(kind, aligned, centred), [ctx.value(0)], ctx.output_value())
