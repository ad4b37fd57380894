"""Depthwise convolution kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, DepthwiseConv2D, DType, GraphBuilder, apply


def depthwise(shape, kernel, *, multiplier=1, stride=(1, 1), dilation=(1, 1), same=True, runtime=False, fused=False,
              packed=False, **options):  # fmt: skip
    rng = np.random.default_rng(1)
    b, h, w, c = shape
    extent = [(n - 1) * d + 1 for n, d in zip(kernel, dilation, strict=True)]
    if same:
        out = [-(-n // s) for n, s in zip((h, w), stride, strict=True)]
        total = [max(0, (o - 1) * s + e - n) for o, s, e, n in zip(out, stride, extent, (h, w), strict=True)]
    else:
        out = [(n - e) // s + 1 for n, s, e in zip((h, w), stride, extent, strict=True)]
        total = [0, 0]
    builder = GraphBuilder()
    x = builder.value(shape, DType.FLOAT32)
    weights = rng.standard_normal((1, *kernel, c * multiplier)).astype(np.float32)
    inputs = {x: rng.standard_normal(shape)}
    if runtime:
        v = builder.value(weights.shape, DType.FLOAT32)
        inputs[v] = weights
    else:
        v = builder.constant(weights)
    y = builder.value((b, *out, c * multiplier), DType.FLOAT32)
    op = DepthwiseConv2D(stride, dilation, (total[0] // 2, total[1] // 2), multiplier)
    if fused:
        bias = builder.constant(rng.standard_normal(c * multiplier))
        relu6 = apply("min", apply("max", apply("add", RESULT, Arg(1)), 0.0), 6.0)
        builder.node(op, [x, v], y, relu6, [bias])
    else:
        builder.node(op, [x, v], y)
    return check_node(
        builder, inputs, packed_values=(x, y) if packed else (), interpret=np.prod(shape) < 1000, **options
    )


@pytest.mark.parametrize("channels", [1, 3, 4, 5, 17])
@pytest.mark.parametrize("same", [True, False])
def test_channels(channels: int, same: bool) -> None:
    depthwise((2, 7, 9, channels), (3, 3), same=same, fused=True)
    depthwise((1, 8, 9, channels), (3, 3), same=same, packed=True, stride=(2, 2))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 2), (3, 1)])
def test_windows(stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    for kernel in ((2, 3), (5, 5), (1, 1)):
        depthwise((1, 15, 14, 6), kernel, stride=stride, dilation=dilation)
        depthwise((2, 15, 14, 8), kernel, stride=stride, dilation=dilation, same=False)


def test_large_windows_loop() -> None:
    depthwise((1, 20, 23, 4), (9, 11))
    depthwise((1, 70, 140, 2), (3, 111))


def test_many_pixels_share_loads() -> None:
    depthwise((1, 60, 61, 20), (3, 3))
    depthwise((1, 61, 61, 34), (5, 5), stride=(2, 2))


@pytest.mark.parametrize("channels, multiplier", [(1, 8), (1, 3), (3, 2), (2, 4), (5, 3), (4, 8)])
def test_multiplier(channels: int, multiplier: int) -> None:
    depthwise((2, 6, 7, channels), (3, 3), multiplier=multiplier, fused=True)
    depthwise((1, 6, 7, channels), (3, 2), multiplier=multiplier, stride=(2, 1), dilation=(1, 2), packed=True)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_runtime_weights_and_float16(multiplier: int) -> None:
    depthwise((2, 6, 5, 5), (3, 3), multiplier=multiplier, runtime=True)
    depthwise((2, 6, 5, 5), (3, 3), multiplier=multiplier, half=True, fused=True)


def test_not_finite() -> None:
    builder = GraphBuilder()
    x, y = (builder.value((1, 9, 9, 5), DType.FLOAT32) for _ in range(2))
    data = np.ones((1, 9, 9, 5))
    data[0, 0, 0, 4], data[0, 8, 3, 2] = np.nan, -np.inf
    builder.node(DepthwiseConv2D(padding=(1, 1)), [x, builder.constant(np.ones((1, 3, 3, 5)))], y)
    result = check_node(builder, {x: data})
    assert np.isnan(result).sum() == 4
