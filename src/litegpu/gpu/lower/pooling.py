"""AVERAGE_POOL_2D and MAX_POOL_2D."""

from __future__ import annotations

from litegpu.gpu.graph import RESULT, Pool2D
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.convolution import placed
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers


@lowers(
    "AVERAGE_POOL_2D",
    "MAX_POOL_2D",
    max_version=3,
    ranks=(4, 4),
    notes="SAME padding is left out of averages",
)
def pool_2d(ctx: OpContext) -> None:
    x = ctx.shape(0)
    window = (int(ctx.option("filter_height", 1)), int(ctx.option("filter_width", 1)))
    stride = (int(ctx.option("stride_h", 1)), int(ctx.option("stride_w", 1)))
    ctx.require(min(*window, *stride) > 0, f"window {list(window)} or strides {list(stride)} are not positive")
    padding = placed(ctx, x, window, stride, (1, 1), x[3])
    kind = "average" if ctx.operator.name == "AVERAGE_POOL_2D" else "max"
    source = ctx.value(0)
    grid = grid_of(ctx.output)
    whole = integers.operand(ctx, 0) if kind == "average" and grid is not None and ctx.unit is None else None
    if whole is not None and grid is not None:  # halves are rounded by what is stored
        source, ctx.unit = integers.as_float(ctx, 0, whole), grid.scale
    ctx.add(Pool2D(kind, window, stride, padding), [source], ctx.output_value(), ctx.activation(RESULT))
