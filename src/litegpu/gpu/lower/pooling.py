"""What a window moves over: AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D and, along the channels,
LOCAL_RESPONSE_NORMALIZATION."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, DType, Pool2D, Reshape, Step, Transpose
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.graph import whole as whole_number
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.activation import BOUNDS
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.convolution import placed
from litegpu.gpu.lower.quantization import Grid, grid_of
from litegpu.gpu.lower.registry import lowers, lowers_as


@lowers_as(AVERAGE_POOL_2D="average", L2_POOL_2D="squares", MAX_POOL_2D="max")
def pool_2d(ctx: OpContext, kind: str) -> None:
    x = ctx.shape(0)
    window = (int(ctx.option("filter_height", 1)), int(ctx.option("filter_width", 1)))
    stride = (int(ctx.option("stride_h", 1)), int(ctx.option("stride_w", 1)))
    ctx.require(min(*window, *stride) > 0, f"window {list(window)} or strides {list(stride)} are not positive")
    padding = placed(ctx, x, window, stride, (1, 1), x[3])
    source = ctx.value(0)
    grid = grid_of(ctx.output)
    pool = Pool2D(kind, window, stride, padding)
    within = all(s <= w for s, w in zip(stride, window, strict=True))
    by_xnnpack = kind == "max" and within and integers.taken_by_xnnpack(ctx)
    if ctx.moves_bytes and grid is not None:
        code = int(ctx.option("fused_activation_function"))
        ctx.require(code in BOUNDS, f"the fused activation {code} of quantized pools is not known")
        chosen = fn("sub", RESULT, whole_number(grid.zero))
        quanta = integers.quanta_of(ctx, grid, chosen, *BOUNDS[code], by_xnnpack=by_xnnpack)
        ctx.add(pool, [source], ctx.output_value(), quanta)
        return
    whole = integers.operand(ctx, 0) if kind == "average" and grid is not None and ctx.unit is None else None
    if whole is not None and grid is not None:  # halves are rounded by what is stored
        source, ctx.unit = integers.as_float(ctx, 0, whole), grid.scale
    result = ctx.activation(fn("sqrt", RESULT) if kind == "squares" else RESULT, by_xnnpack=by_xnnpack)
    same = grid if kind == "average" and result == RESULT and grid == grid_of(ctx.tensor(0)) else None
    if same is not None and ctx.unit == same.scale and _has_no_halves(same, window, stride, x, ctx.output.shape):
        ctx.add(pool, [source], ctx.output_value(), fn("round", fn("small", RESULT)))
        integers.settle(ctx, same)
    else:
        ctx.add(pool, [source], ctx.output_value(), result)


def _has_no_halves(
    grid: Grid, window: tuple[int, int], stride: tuple[int, int], given: Sequence[int], made: Sequence[int]
) -> bool:
    """Whether no mean of quanta is halfway between two: windows have an odd number, all of the image, and so few that
    float32 tells the mean next to a half from it. (Nor is a mean beyond the quanta that there are.)"""
    count = math.prod(window)
    inside = all((made[i + 1] - 1) * stride[i] + window[i] <= given[i + 1] for i in (0, 1))
    return inside and count % 2 == 1 and count << grid.bits <= _MOST_SUM


#: Largest sum of quanta: then the mean that is next to a half is more than a unit of float32's last place away from it.
_MOST_SUM = 1 << 22


@lowers("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(ctx: OpContext) -> None:
    """x * (bias + alpha * s) ** -beta, where s is the sum of the squares of the channels at most `radius` away. They
    are pooled in an image of one row, which has a column for each channel and a channel for each pixel."""
    x = ctx.shape(0)
    ctx.check_shape(x)
    pixels, channels = math.prod(x[:3]), x[3]
    row = (1, 1, channels, pixels)
    there: list[Step] = [Reshape(x, (pixels, channels)), Transpose((1, 0)), Reshape((channels, pixels), row)]
    back: list[Step] = [Reshape(row, (channels, pixels)), Transpose((1, 0)), Reshape((pixels, channels), x)]
    source = ctx.copy(ctx.value(0), there, ctx.intermediate(row, DType.FLOAT32))
    reach = min(int(ctx.option("radius")), channels - 1)
    place = np.arange(channels)
    cells = np.minimum(place + reach, channels - 1) - np.maximum(place - reach, 0) + 1
    count = ctx.builder.constant(cells.astype(np.float32).reshape(1, 1, channels, 1))
    squares = fn("mul", fn("mul", RESULT, Arg(2)), float(ctx.option("alpha")))
    scale = fn("pow", fn("add", squares, float(ctx.option("bias"))), -float(ctx.option("beta")))
    pool = Pool2D("squares", (1, 2 * reach + 1), (1, 1), (0, reach))
    result = ctx.intermediate(row, DType.FLOAT32)
    ctx.copy(ctx.add(pool, [source], result, fn("mul", Arg(1), scale), [source, count]), back, ctx.output_value())
