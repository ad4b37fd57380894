"""Normalisation of each channel over the pixels: parts that are even and not, channels that fill workgroups and not."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, DType, GraphBuilder, InstanceNorm, Moments, Shape, apply
from litegpu.gpu.kernels.instance_norm import choose_parts
from litegpu.gpu.lang.features import Features

SHAPES = [(1, 2, 1, 4), (2, 3, 5, 3), (1, 16, 16, 32), (3, 17, 19, 21), (1, 40, 40, 8), (2, 9, 31, 132), (1, 90, 91, 4)]


def moments_of(x: np.ndarray, parts: int) -> np.ndarray:
    pixels = x.reshape(x.shape[0], -1, x.shape[3]).astype(np.float64)
    size = -(-pixels.shape[1] // parts)
    pieces = [pixels[:, i * size : (i + 1) * size] for i in range(parts)]
    return np.stack([np.stack([p.mean(1), p.var(1) * p.shape[1]], 1) for p in pieces], 1).astype(np.float32)


@pytest.mark.parametrize("parts", [1, 2, 3, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_moments(shape: Shape, parts: int | None) -> None:
    """With fewer parts than are best, so that threads go through theirs in rounds."""
    if parts is None:
        parts = choose_parts(shape, Features())
    parts = min(parts, shape[1] * shape[2])
    builder = GraphBuilder()
    x = builder.value(shape, DType.FLOAT32)
    y = builder.value((shape[0], parts, 2, shape[3]), DType.FLOAT32)
    builder.node(Moments(parts), [x], y)
    check_node(builder, {x: np.random.default_rng(1).normal(3, 2, shape)}, tolerance=3e-6, interpret=shape[1] < 40)


@pytest.mark.parametrize("parts", [1, 2, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_normalised(shape: Shape, parts: int | None) -> None:
    """With a factor, an offset and another image, as models have them."""
    if parts is None:
        parts = choose_parts(shape, Features())
    rng, builder = np.random.default_rng(0), GraphBuilder()
    x, y, other = (builder.value(shape, DType.FLOAT32) for _ in range(3))
    moments = builder.value((shape[0], parts, 2, shape[3]), DType.FLOAT32)
    scale, offset = (builder.constant(rng.standard_normal(shape[3])) for _ in range(2))
    epilogue = apply("add", apply("add", apply("mul", RESULT, Arg(1)), Arg(2)), Arg(3))
    builder.node(InstanceNorm(1e-3), [x, moments], y, epilogue, [scale, offset, other])
    data = rng.normal(3, 2, shape).astype(np.float32)
    inputs = {x: data, moments: moments_of(data, parts), other: rng.standard_normal(shape)}
    check_node(builder, inputs, tolerance=1e-5, interpret=shape[1] < 40)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", (3, 21))
@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.FLOAT16))
def test_layouts(layout: str, channels: int, dtype: DType) -> None:
    shape, builder = (2, 3, 4, channels), GraphBuilder()
    x, y, moments = (builder.value(s, DType.FLOAT32) for s in (shape, shape, (2, 2, 2, channels)))
    builder.node(InstanceNorm(1e-3), [x, moments], y)
    views = {x: LAYOUTS[layout](0, shape, dtype), y: LAYOUTS[layout](1, shape, DType.FLOAT32)}
    data = np.random.default_rng(2).uniform(-5, 5, shape).astype(np.float16).astype(np.float32)
    check_node(builder, {x: data, moments: moments_of(data, 2)}, views=views, tolerance=1e-5, interpret=True)


def test_large_means_do_not_spoil_the_variance() -> None:
    shape, builder = (1, 12, 13, 8), GraphBuilder()
    x, y, moments = (builder.value(s, DType.FLOAT32) for s in (shape, shape, (1, 3, 2, 8)))
    builder.node(Moments(3), [x], moments)
    data = np.random.default_rng(3).normal(1000, 1, shape).astype(np.float32)
    found = check_node(builder, {x: data}, tolerance=1e-4, interpret=True).reshape(1, 3, 2, 8)
    norm = GraphBuilder(dict(builder.values))
    norm.node(InstanceNorm(1e-6), [x, moments], y)
    check_node(norm, {x: data, moments: found.astype(np.float32)}, tolerance=2e-4, interpret=True)
