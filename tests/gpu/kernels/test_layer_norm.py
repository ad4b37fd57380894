"""Normalisation over the channels, of short and long rows, however many threads share one."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import assert_close, check_node, lay_out, run_node

from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import RESULT, Arg, DType, GraphBuilder, LayerNorm, Shape, apply
from litegpu.gpu.lang.features import Features

SHAPES = [(2, 3, 5, c) for c in (2, 3, 4, 5, 16, 17, 33, 64, 96, 192, 257, 384, 1001)] + [(1, 1, 2, 2500)]


def normalised(shape: Shape) -> tuple[GraphBuilder, int]:
    """With a factor and an offset for each channel, as models have them."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    scale, offset = (builder.constant(rng.standard_normal(shape[3])) for _ in range(2))
    builder.node(LayerNorm(1e-6), [x], y, apply("add", apply("mul", RESULT, Arg(1)), Arg(2)), [scale, offset])
    return builder, x


@pytest.mark.parametrize("shape", SHAPES)
def test_rows(shape: Shape) -> None:
    builder, x = normalised(shape)
    data = np.random.default_rng(1).normal(3, 2, shape)
    check_node(builder, {x: data}, tolerance=3e-6, interpret=True)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("size", [4, 8, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_threads_that_exchange_sums(shape: Shape, size: int, linear: bool) -> None:
    """In the interpreter, whose subgroups are of 32 threads: smaller ones exchange within a part of it."""
    builder, x = normalised(shape)
    data = np.random.default_rng(1).normal(3, 2, shape).astype(np.float32)
    graph = builder.graph([x], [builder.nodes[0].output])
    known = {i: v.data for i, v in graph.values.items() if v.data is not None} | {x: data}
    features = Features(subgroups=True, subgroup_size=size, linear_subgroups=linear, compute_units=2)
    result = run_node(graph, lay_out(graph), {x: data}, features, interpret=True)
    assert_close(result, evaluate_node(graph.nodes[0], known, graph), 3e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", (3, 21, 61))
@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.FLOAT16))
def test_layouts(layout: str, channels: int, dtype: DType) -> None:
    shape = (2, 3, 4, channels)
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(LayerNorm(1e-3), [x], y)
    views = {x: LAYOUTS[layout](0, shape, dtype), y: LAYOUTS[layout](1, shape, DType.FLOAT32)}
    check_node(
        builder, {x: np.random.default_rng(2).uniform(-5, 5, shape)}, views=views, tolerance=3e-6, interpret=True
    )


def test_large_means_do_not_spoil_the_variance() -> None:
    """Squares of what is left, not what is left of squares."""
    builder, x = normalised((1, 1, 7, 96))
    check_node(builder, {x: np.random.default_rng(3).normal(1000, 1, (1, 1, 7, 96))}, tolerance=2e-5, interpret=True)


@pytest.mark.parametrize("channels", [3, 64, 385])
def test_what_is_not_centred(channels: int) -> None:
    builder, shape = GraphBuilder(), (2, 3, 4, channels)
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(LayerNorm(1e-3, False), [x], y)
    data = np.random.default_rng(2).uniform(0, 5, shape)
    result = check_node(builder, {x: data}, tolerance=3e-6, interpret=True)
    np.testing.assert_allclose((result.reshape(shape).astype(np.float64) ** 2).mean(3), 1, rtol=5e-3)


def test_rows_of_one_number_are_zero() -> None:
    builder = GraphBuilder()
    x, y = (builder.value((1, 1, 3, 20), DType.FLOAT32) for _ in range(2))
    builder.node(LayerNorm(1e-6), [x], y)
    result = check_node(builder, {x: np.full((1, 1, 3, 20), 2.5, np.float32)}, interpret=True)
    assert not result.any()
