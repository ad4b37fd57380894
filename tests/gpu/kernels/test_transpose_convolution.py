"""Transposed convolution kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, DType, GraphBuilder, TransposeConv2D, apply


def deconvolve(shape, kernel, outputs, stride, *, same=True, runtime=False, extra=0, packed=False, **options):
    rng = np.random.default_rng(2)
    b, h, w, c = shape
    out = [
        n * s - (s - 1 if same and extra else 0) if same else (n - 1) * s + e + extra
        for n, s, e in zip((h, w), stride, kernel, strict=True)
    ]
    total = [max(0, (n - 1) * s + e - o) if same else 0
             for n, s, e, o in zip((h, w), stride, kernel, out, strict=True)]  # fmt: skip
    builder = GraphBuilder()
    x = builder.value(shape, DType.FLOAT32)
    weights = rng.standard_normal((outputs, *kernel, c)).astype(np.float32)
    inputs = {x: rng.standard_normal(shape)}
    if runtime:
        v = builder.value(weights.shape, DType.FLOAT32)
        inputs[v] = weights
    else:
        v = builder.constant(weights)
    y = builder.value((b, *out, outputs), DType.FLOAT32)
    bias = builder.constant(rng.standard_normal(outputs))
    op = TransposeConv2D(stride, (total[0] // 2, total[1] // 2))
    builder.node(op, [x, v], y, apply("add", RESULT, Arg(1)), [bias])
    return check_node(
        builder, inputs, packed_values=(x, y) if packed else (), interpret=np.prod(shape) < 1000, **options
    )


@pytest.mark.parametrize("channels", [1, 3, 4, 5, 17])
@pytest.mark.parametrize("outputs", [1, 4, 6])
def test_channels(channels: int, outputs: int) -> None:
    deconvolve((2, 5, 4, channels), (3, 3), outputs, (2, 2))
    deconvolve((1, 5, 4, channels), (2, 2), outputs, (2, 2), packed=True)


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1), (2, 4)])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 2)])
def test_windows(stride: tuple[int, int], kernel: tuple[int, int]) -> None:
    deconvolve((1, 5, 6, 6), kernel, 5, stride)
    deconvolve((1, 5, 6, 6), kernel, 5, stride, extra=1)
    deconvolve((2, 5, 6, 6), kernel, 5, stride, same=False)
    deconvolve((1, 5, 6, 6), kernel, 5, stride, same=False, extra=2)


def test_large_and_deep() -> None:
    deconvolve((1, 33, 31, 20), (3, 3), 40, (2, 2))
    deconvolve((1, 4, 4, 130), (4, 4), 8, (2, 2))


def test_runtime_weights_and_float16() -> None:
    deconvolve((2, 5, 4, 5), (3, 3), 6, (2, 2), runtime=True)
    deconvolve((2, 5, 4, 5), (3, 3), 6, (2, 2), half=True)
