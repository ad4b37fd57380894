"""Networks of a widening layer, a depthwise one and a 1x1 of bytes, each perhaps left out."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    DType,
    Expr,
    GraphBuilder,
    IntegerConv2D,
    Literal,
    apply,
)


def whole_network(
    shape, channels, op, *, taps=(3, 3), outputs=0, dtype=DType.INT8, residual=False, expands=True, narrower=0,
    steep=1.0, far=0, above=(3, 0, 100, 77), seed=0, first=None, outlying=0,
    alike=False,
):  # fmt: skip
    """x (-> 1x1 or `first` (window, stride, padding) to `channels`) -> depthwise (-> 1x1 to `outputs`), each
    requantized to bytes, which end so much earlier (`narrower`), with scales so much larger (`steep`) and a bias of
    so much more (`far`). `above`: zero points, from the least byte on."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    lowest, highest = (-128, 127) if dtype is DType.INT8 else (0, 255)
    x = builder.value(shape, dtype)
    points = [lowest + n for n in above]

    def convolution(op, source, weights, size, point, more=()) -> int:
        bias = builder.constant((rng.integers(-3000, 3000, (1, 1, 1, size[3])) - far).astype(np.int32))
        scale = builder.constant((rng.uniform(0.001, 0.01, (1, 1, 1, size[3])) * steep).astype(np.float32))
        scaled = apply("mul", apply("to_float32", apply("add", RESULT, Arg(1))), Arg(2))
        operands = [bias, scale]
        if alike:
            operands, scaled = [], apply("mul", apply("to_float32", RESULT), 0.004 * steep)
        scaled = apply("small", scaled) if size[3] % 8 == 0 and steep == 1 else scaled
        clamped = apply("min", apply("max", scaled, float(lowest - point)), float(highest - point - narrower))
        expr: Expr = Apply("add", (Apply("nearest", (clamped,)), Literal(point, DType.INT32)))
        if more:
            expr = Apply("bit_xor", (expr, Arg(len(operands) + 1)))
        inputs = [source, builder.constant(weights, narrow=weights.dtype == np.int8)]
        return builder.node(op, inputs, builder.value(size, dtype), expr, [*operands, *more])

    shift = 25 if outlying else 0  # the zero point of weights

    def weights(*size: int) -> np.ndarray:
        found = rng.integers(shift - 127, 128, size).astype(np.int8)
        found.reshape(-1)[rng.permutation(found.size)[:outlying]] = -127
        return found

    b, h, w, c = shape
    wide = x
    if expands:
        kernel, stride, padding = first or ((1, 1), (1, 1), (0, 0))
        opening = IntegerConv2D(stride, (1, 1), padding, zero_point=points[0], weights_zero_point=shift)
        h, w = (-(-n // s) if first else n for n, s in zip((h, w), stride, strict=True))  # as TFLite's SAME
        wide = convolution(opening, x, weights(channels, *kernel, c), (b, h, w, channels), points[1])
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip((h, w), op.padding, taps, op.stride, strict=True)]
    window = dataclasses.replace(op, zero_point=points[1 if expands else 0])
    depthwise = weights(1, *taps, channels).astype(np.int32) - shift
    out = convolution(window, wide, depthwise, (b, *size, channels), points[2])
    if outputs:
        last, more = IntegerConv2D(zero_point=points[2], weights_zero_point=shift), [x] if residual else []
        out = convolution(last, out, weights(outputs, 1, 1, channels), (b, *size, outputs), points[3], more)
    return builder.graph([x], [out]), rng.integers(lowest, highest + 1, shape).astype(dtype.value)
