"""Transposed convolution as one convolution for each residue of the output's coordinates by the stride, all at once
where that is quicker, or, where each output has one tap, as one 1x1 convolution whose results are the channels of
several pixels."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.convolution import estimate, fastest
from litegpu.gpu.backends.cuda.kernels.layer import Layer, is_half
from litegpu.gpu.backends.cuda.kernels.side_by_side import can_join, side_by_side
from litegpu.gpu.backends.cuda.kernels.source import Where
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import Conv2D, TransposeConv2D
from litegpu.gpu.kernels.access import Position, divide, remainder
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import TracedValue
from litegpu.gpu.lang.features import Features

#: Of each phase, of which one must have as many threads as the others'.
_CANDIDATES = 6


@dataclass(frozen=True)
class Phase:
    """The output positions `first`, first + stride, ... along one axis: `size` of them.

    Each is a sum over `taps`, which may be none, in this order, as of an ordinary convolution with this padding, which
    may be negative.
    """

    first: int
    size: int
    taps: tuple[int, ...]
    padding: int


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch for all phases, or one for each; None where Conv2D would not be taken either."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, TransposeConv2D)
    weights = ctx.value(node.inputs[1]).data
    if weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    source = ctx.views[node.inputs[0]]
    half = is_half(ctx, source, weights)
    if half is None:
        return None
    batch, out_h, out_w, outputs = ctx.output.shape
    _, kh, kw, inputs = weights.shape
    if _has_one_tap(ctx, op, weights):
        _, height, width, _ = source.shape
        rows = weights.transpose(1, 2, 0, 3).reshape(-1, 1, 1, inputs)
        layer = Layer(Conv2D(), source, rows, (batch, height, width, len(rows)), half)
        return [fastest(ctx, layer, _where_spread(ctx, op))]
    down = phases(out_h, kh, op.stride[0], op.padding[0])
    across = phases(out_w, kw, op.stride[1], op.padding[1])
    parts = []
    for y, x in itertools.product(down, across):
        # without any tap there is still the epilogue of zero to be stored
        part = np.zeros((outputs, max(1, len(y.taps)), max(1, len(x.taps)), inputs), weights.dtype)
        if y.taps and x.taps:
            part[...] = weights[:, y.taps][:, :, x.taps]
        layer = Layer(Conv2D(padding=(y.padding, x.padding)), source, part, (batch, y.size, x.size, outputs), half)
        parts.append((layer, _where(ctx, op, y, x)))
    joined = _at_once(ctx, parts) if len(parts) > 1 else None
    return [joined] if joined is not None else [fastest(ctx, layer, where) for layer, where in parts]


def _at_once(ctx: KernelContext, parts: Sequence[tuple[Layer, Where]]) -> Launch | None:
    """All phases as one launch: none fills the device as all do together, and nothing waits for the last workgroups of
    each. None where kernels cannot be put together, and where one after the other is estimated to be quicker."""
    layers = [layer for layer, _ in parts]
    effort = [layer.weights.size * math.prod(layer.shape[:3]) for layer in layers]
    units = ctx.features.compute_units or USUAL_UNITS
    shares = [
        dataclasses.replace(ctx.features, compute_units=max(1, round(units * one / sum(effort)))) for one in effort
    ]
    together, apart = estimated(layers, shares, ctx.features)
    if together >= apart:
        return None
    launches: list[Launch] = []
    for i in sorted(range(len(parts)), key=lambda i: -effort[i]):  # the longest begin first
        found = _beside(dataclasses.replace(ctx, features=shares[i]), launches, *parts[i])
        if found is None:
            return None
        launches.append(found)
    return side_by_side(launches)


def _beside(ctx: KernelContext, launches: Sequence[Launch], layer: Layer, where: Where) -> Launch | None:
    """The layer by the first of its candidates that can be put beside the launches."""
    for most in (1, _CANDIDATES):  # of which few are made if the first will do
        first = fastest(dataclasses.replace(ctx, most=most), layer, where)
        for one in (first, *first.others):
            if can_join([*launches, one]):
                return one
    return None


def estimated(layers: Sequence[Layer], shares: Sequence[Features], whole: Features) -> tuple[float, float]:
    """Microseconds of layers side by side, each with its share of the device, and of one after the other."""
    known: dict[tuple[object, ...], float] = {}  # phases with as many taps take as long

    def takes(layer: Layer, features: Features) -> float:
        key = (layer.weights.shape, layer.shape, features.compute_units)
        if key not in known:
            known[key] = estimate(layer, features)
        return known[key]

    together = max(takes(layer, share) for layer, share in zip(layers, shares, strict=True))
    return together, sum(takes(layer, whole) for layer in layers)


def phases(out: int, taps: int, stride: int, padding: int) -> list[Phase]:
    """The phases of an axis of `out` outputs: output o is the sum of x[i] w[k] where i * stride = o + padding - k."""
    found = []
    for first in range(min(stride, out)):
        nearest = (first + padding) % stride  # the tap that reads the input at or just before the output
        own = tuple(reversed(range(nearest, taps, stride)))  # from the first input on
        start = (first + padding) // stride - (len(own) - 1)  # the input of own[0] for the first output
        found.append(Phase(first, -(-(out - first) // stride), own, -start if own else 0))
    return found


def _has_one_tap(ctx: KernelContext, op: TransposeConv2D, weights: np.ndarray) -> bool:
    """Whether windows lie side by side and cover the output, in whole quads of channels."""
    (_, height, width, _), (_, out_h, out_w, outputs) = ctx.value(ctx.node.inputs[0]).shape, ctx.output.shape
    taps = weights.shape[1:3]
    return (
        taps == op.stride
        and op.padding == (0, 0)
        and outputs % 4 == 0
        and ((out_h, out_w) == (height * taps[0], width * taps[1]))
    )


def _where_spread(ctx: KernelContext, op: TransposeConv2D) -> Where:
    """Where four channels are that the 1x1 convolution gives: those of the first row of a window come first."""
    shape, quads = ctx.output.shape, ctx.output.shape[3] // 4
    height, width = shape[1] // op.stride[0], shape[2] // op.stride[1]

    def where(pixel: TracedValue, quad: TracedValue) -> Position:
        row, tap = divide(pixel, width), divide(quad, quads)
        at = (
            0 if shape[0] == 1 else divide(row, height),
            remainder(row, height, shape[0] * height) * op.stride[0] + divide(tap, op.stride[1]),
            remainder(pixel, width, shape[0] * height * width) * op.stride[1]
            + remainder(tap, op.stride[1], math.prod(op.stride)),
        )
        return Position(shape, coordinates=(*at, remainder(quad, quads, quads * math.prod(op.stride))))

    return where


def _where(ctx: KernelContext, op: TransposeConv2D, y: Phase, x: Phase) -> Where:
    shape = ctx.output.shape

    def where(pixel: TracedValue, quad: TracedValue) -> Position:
        row, total = divide(pixel, x.size), shape[0] * y.size * x.size
        at = (
            0 if shape[0] == 1 else divide(row, y.size),
            remainder(row, y.size, shape[0] * y.size) * op.stride[0] + y.first,
            remainder(pixel, x.size, total) * op.stride[1] + x.first,
        )
        return Position(shape, coordinates=(*at, quad))

    return where
