"""CONV_3D and CONV_3D_TRANSPOSE, as convolutions of planes whose channels are those of all taps along the depth."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.gpu.graph import (
    Arg,
    Concat,
    Conv2D,
    DType,
    Expr,
    Pad,
    Reshape,
    Slice,
    Step,
    Transpose,
    TransposeConv2D,
    bhwc,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.product import product
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops.windows import SAME, VALID, before, output_size

_AXES = ("d", "h", "w")


@dataclass(frozen=True)
class _Window:
    """Sizes, strides, dilations and what lies before, along depth, height and width."""

    sizes: tuple[int, int, int]
    strides: tuple[int, int, int]
    dilations: tuple[int, int, int]
    padding: tuple[int, int, int]


@lowers("CONV_3D")
def conv_3d(ctx: OpContext) -> None:
    x, weights = ctx.shape(0), ctx.shape(1)
    ctx.require(len(weights) == 5 and weights[3] == x[4], f"weights of shape {list(weights)} for {x[4]} channels")
    taps, rows, columns, inputs, outputs = weights
    window, places = _window(ctx, x[1:4], (taps, rows, columns))
    ctx.check_shape((x[0], *places, outputs))
    depth = places[0]
    before_depth = window.padding[0]
    span = (taps - 1) * window.dilations[0] + (depth - 1) * window.strides[0] + 1
    planes = (x[0] * depth, *x[2:])
    padded = Pad((0, before_depth, 0, 0, 0), (0, span - before_depth - x[1], 0, 0, 0))
    parts = []
    p = product(ctx, outputs, axis=4)
    for tap in range(taps):
        begin = (0, tap * window.dilations[0], 0, 0, 0)
        taken = Slice(begin, (1, window.strides[0], 1, 1, 1), (x[0], depth, *x[2:]))
        steps: list[Step] = [Reshape(bhwc(x), x), padded, taken, Reshape((x[0], depth, *x[2:]), planes)]
        parts.append(ctx.copy(p.data, steps, ctx.intermediate(planes, DType.FLOAT32)))
    source = parts[0]
    if taps > 1:
        source = ctx.add(Concat(3), parts, ctx.intermediate((*planes[:3], taps * inputs), DType.FLOAT32))
    filters = _filters(ctx, p.weights(), weights, (4, 1, 2, 0, 3), (outputs, rows, columns, taps * inputs))
    op = Conv2D(window.strides[1:], window.dilations[1:], window.padding[1:])
    ctx.finish(op, [source, filters], (x[0] * depth, *places[1:], outputs), p.epilogue, p.operands)


@lowers("CONV_3D_TRANSPOSE")
def conv_3d_transpose(ctx: OpContext) -> None:
    weights, x, shape = ctx.shape(1), ctx.shape(2), ctx.integers(0, "the output's sizes")
    ctx.require(len(weights) == 5 and weights[4] == x[4], f"weights of shape {list(weights)} for {x[4]} channels")
    taps, rows, columns, outputs, inputs = weights
    ctx.require(
        len(shape) == 5 and shape[0] == x[0] and shape[4] == outputs, f"output shape {list(shape)} is impossible"
    )
    ctx.check_shape(shape)
    # The windows are those of a convolution from the output to the input.
    window, covered = _window(ctx, shape[1:4], (taps, rows, columns))
    ctx.require(covered == x[1:4], f"output sizes {list(shape[1:4])} do not belong to input sizes {list(x[1:4])}")
    ctx.require(window.dilations[1:] == (1, 1), f"dilations {list(window.dilations)} of height and width")
    p = product(ctx, outputs, axis=3, data=2, bias=3)
    filters = _filters(ctx, p.weights(), weights, (0, 3, 1, 2, 4), (taps * outputs, rows, columns, inputs))
    planes = (x[0] * x[1], *shape[2:4], taps * outputs)
    source = ctx.reshaped(p.data, (x[0] * x[1], *x[2:]))
    op = TransposeConv2D(window.strides[1:], window.padding[1:])
    everything = ctx.add(op, [source, filters], ctx.intermediate(planes, DType.FLOAT32))
    total = _stacked(ctx, everything, planes, shape, window)
    epilogue: Expr = p.epilogue
    ctx.elementwise(epilogue, [total, *p.operands], ctx.output_value())


def _stacked(ctx: OpContext, planes: int, size: tuple[int, ...], shape: tuple[int, ...], window: _Window) -> int:
    """The sum over the taps along the depth, whose planes of `size` lie beside each other in the channels, each at its
    place in a result of `shape`."""
    (taps, _, _), (stride, _, _), outputs = window.sizes, window.strides, shape[4]
    batch, depth = shape[0], size[0] // shape[0]
    parts = []
    for tap in range(taps):
        own = (*size[:3], outputs)
        begin = (0, 0, 0, tap * outputs)
        apart = (batch, depth, 1, *shape[2:])
        spread = (batch, depth, stride, *shape[2:])
        first = tap * window.dilations[0] - window.padding[0]
        steps: list[Step] = [
            Slice(begin, (1, 1, 1, 1), own), Reshape(own, apart), Pad((0,) * 6, (0, 0, stride - 1, 0, 0, 0)),
            Reshape(spread, (batch, depth * stride, *shape[2:])),
            Pad((0, first, 0, 0, 0), (0, shape[1] - depth * stride - first, 0, 0, 0)), Reshape(shape, bhwc(shape)),
        ]  # fmt: skip
        parts.append(ctx.copy(planes, steps, ctx.intermediate(shape, DType.FLOAT32)))
    total = parts[0]
    for part in parts[1:]:
        total = ctx.elementwise(fn("add", Arg(0), Arg(1)), [total, part], ctx.intermediate(shape, DType.FLOAT32))
    return total


def _filters(
    ctx: OpContext, weights: int, shape: tuple[int, ...], order: tuple[int, ...], target: tuple[int, ...]
) -> int:
    steps: list[Step] = [Reshape(bhwc(shape), shape), Transpose(order)]
    steps.append(Reshape(tuple(shape[i] for i in order), target))
    return ctx.copy(weights, steps, ctx.intermediate(target, DType.FLOAT32))


def _window(ctx: OpContext, sizes: tuple[int, ...], kernel: tuple[int, int, int]) -> tuple[_Window, tuple[int, ...]]:
    """The window over `sizes`, and how many there are along each axis."""
    kind = int(ctx.option("padding", SAME))
    ctx.require(kind in (SAME, VALID), f"padding {kind} is neither SAME (0) nor VALID (1)")
    strides = [int(ctx.option(f"stride_{a}", 1)) for a in _AXES]
    dilations = [int(ctx.option(f"dilation_{a}_factor", 1)) for a in _AXES]
    ctx.require(min(*strides, *dilations, *kernel) > 0, f"strides {strides} or dilations {dilations} are not positive")
    places, padding = [], []
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        places.append(output_size(n, k, s, d, kind))
        padding.append(before(n, k, s, d, places[-1]) if kind == SAME else 0)
    ctx.require(min(places) > 0, f"no window of {list(kernel)} fits {list(sizes)}")
    return _Window(kernel, _three(strides), _three(dilations), _three(padding)), tuple(places)


def _three(numbers: list[int]) -> tuple[int, int, int]:
    first, second, third = numbers
    return first, second, third
