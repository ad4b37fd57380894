"""What moves windows over images: convolutions and pools."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.evaluate.expressions import Array
from litegpu.gpu.graph import (
    Conv2D,
    DepthwiseConv2D,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerTransposeConv2D,
    Pool2D,
    Shape,
    TransposeConv2D,
)


def _windows(
    x: Array, shape: Shape, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], fill: float,
) -> list[tuple[int, int, Array]]:  # fmt: skip
    """(ky, kx, the cell of `x` that each output pixel sees through that cell of the window)."""
    (oh, ow), (_, h, w, _) = shape[1:3], x.shape
    after = [
        max(0, (o - 1) * s + (k - 1) * d + 1 - n - p)
        for o, s, k, d, n, p in zip((oh, ow), stride, window, dilation, (h, w), padding, strict=True)
    ]
    x = np.pad(x, [(0, 0), (padding[0], after[0]), (padding[1], after[1]), (0, 0)], constant_values=fill)
    return [
        (ky, kx, x[:, ky * dilation[0] :: stride[0], kx * dilation[1] :: stride[1]][:, :oh, :ow])
        for ky, kx in itertools.product(range(window[0]), range(window[1]))
    ]


def conv2d(op: Conv2D, x: Array, weights: Array, shape: Shape) -> Array:
    if op.zero_point is not None:
        x = x.astype(np.float32) - op.zero_point
    return _convolved(op, x, weights, shape).astype(np.float32)


def integer_conv2d(op: IntegerConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    plain = Conv2D(op.stride, op.dilation, op.padding, op.groups)
    return wrapped(_convolved(plain, x - float(op.zero_point), weights - float(op.weights_zero_point), shape))


def wrapped(sums: Array) -> Array:
    """Whole numbers as INT32 holds them."""
    return sums.astype(np.int64).astype(np.int32)


def _convolved(op: Conv2D, x: Array, weights: Array, shape: Shape) -> Array:
    outputs, kh, kw, depth = weights.shape
    x = np.repeat(np.repeat(x, op.upsample[0], 1), op.upsample[1], 2)
    padding = op.padding
    if op.border != "zero":
        after = [
            max(0, (o - 1) * s + (k - 1) * d + 1 - n - p)
            for o, s, k, d, n, p in zip(
                shape[1:3], op.stride, (kh, kw), op.dilation, x.shape[1:3], padding, strict=True
            )
        ]
        x = np.pad(x, [(0, 0), *zip(padding, after, strict=True), (0, 0)], mode=op.border)  # type: ignore[call-overload]
        padding = (0, 0)
    total = np.zeros((op.groups, shape[0] * shape[1] * shape[2], outputs // op.groups))
    grouped = weights.astype(np.float64).reshape(op.groups, outputs // op.groups, kh, kw, depth)
    for ky, kx, cell in _windows(x.astype(np.float64), shape, (kh, kw), op.stride, op.dilation, padding, 0):
        columns = cell.reshape(-1, op.groups, depth).transpose(1, 0, 2)
        total += columns @ grouped[:, :, ky, kx].transpose(0, 2, 1)
    return total.transpose(1, 0, 2).reshape(shape)


def depthwise(op: DepthwiseConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    return _convolved_apart(op, x, weights, shape).astype(np.float32)


def integer_depthwise(op: IntegerDepthwiseConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    plain = DepthwiseConv2D(op.stride, op.dilation, op.padding, op.multiplier)
    return wrapped(_convolved_apart(plain, x - float(op.zero_point), weights, shape))


def _convolved_apart(op: DepthwiseConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    total = np.zeros(shape)
    wide = weights.astype(np.float64)
    for ky, kx, cell in _windows(x.astype(np.float64), shape, wide.shape[1:3], op.stride, op.dilation, op.padding, 0):
        total += np.repeat(cell, op.multiplier, axis=3) * wide[0, ky, kx]
    return total


def transpose_conv(op: TransposeConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    return _transposed(op, x, weights, shape).astype(np.float32)


def integer_transpose_conv(op: IntegerTransposeConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    plain = TransposeConv2D(op.stride, op.padding)
    return wrapped(_transposed(plain, x - float(op.zero_point), weights - float(op.weights_zero_point), shape))


def _transposed(op: TransposeConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    batch, h, w, _ = x.shape
    outputs, kh, kw, _ = weights.shape
    reach = [(n - 1) * s + k for n, s, k in zip((h, w), op.stride, (kh, kw), strict=True)]
    size = [max(r, p + o) for r, p, o in zip(reach, op.padding, shape[1:3], strict=True)]
    total = np.zeros((batch, size[0], size[1], outputs))
    wide = weights.astype(np.float64)
    for ky, kx in itertools.product(range(kh), range(kw)):
        rows = slice(ky, ky + (h - 1) * op.stride[0] + 1, op.stride[0])
        columns = slice(kx, kx + (w - 1) * op.stride[1] + 1, op.stride[1])
        total[:, rows, columns] += x.astype(np.float64) @ wide[:, ky, kx].T
    (top, left), (_, oh, ow, _) = op.padding, shape
    return np.asarray(total[:, top : top + oh, left : left + ow])


def pool(op: Pool2D, x: Array, shape: Shape) -> Array:
    if op.kind == "max":
        whole = x.dtype.kind == "i"
        lowest = np.iinfo(np.int32).min if whole else float(np.finfo(np.float32).min)
        best = np.full(shape, lowest, x.dtype if whole else np.float32)
        fill = lowest if op.outside is None else op.outside
        for _, _, cell in _windows(x, shape, op.window, op.stride, (1, 1), op.padding, fill):
            best = np.where(best < cell, cell, best)
        return best
    total, count = np.zeros(shape), np.zeros((1, *shape[1:3], 1))
    arguments = (shape, op.window, op.stride, (1, 1), op.padding, 0)
    x = x * x if op.kind == "squares" else x
    for _, _, cell in _windows(x.astype(np.float64), *arguments):
        total += cell
    for _, _, cell in _windows(np.ones((1, *x.shape[1:3], 1)), *arguments):
        count += cell if op.outside is None else 1
    if x.dtype.kind == "i":
        return np.asarray(np.sign(total) * ((np.abs(total) + count // 2) // count)).astype(np.int32)
    return (total / count).astype(np.float32)
