"""Softmax of short and long rows, with beta, epilogue and special values."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node, lay_out, run_node

from litegpu.gpu.graph import RESULT, DType, GraphBuilder, Shape, Softmax, apply
from litegpu.gpu.lang.features import Features


@pytest.mark.parametrize("shape", [(2, 3, 5, c) for c in (1, 2, 3, 4, 5, 17, 32, 33, 257, 1001)] + [(1, 70, 70, 45)])
@pytest.mark.parametrize("beta", (1.0, 0.5))
def test_rows(shape: Shape, beta: float) -> None:
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(Softmax(beta), [x], y, apply("mul", RESULT, 100.0))
    check_node(
        builder,
        {x: np.random.default_rng(1).uniform(-30, 30, shape)},
        packed_values=(x,),
        tolerance=2e-6,
        interpret=True,
    )


@pytest.mark.parametrize("beta", (1.0, -0.5))
def test_rows_that_registers_do_not_keep(beta: float) -> None:
    shape = (1, 2, 2, 8197)
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(Softmax(beta), [x], y)
    check_node(builder, {x: np.random.default_rng(1).uniform(-9, 9, shape)}, tolerance=2e-6, interpret=True)


@pytest.mark.parametrize("shape", [(2, 3, 5, c) for c in (3, 17, 33, 257, 1001)] + [(1, 70, 3, 45), (1, 1, 70, 601)])
def test_rows_of_teams(shape: Shape) -> None:
    """Of a subgroup's threads and of several subgroups'."""
    features = Features(
        subgroups=True,
        subgroup_size=32,
        linear_subgroups=True,
        max_threads=1024,
        compute_units=2 if shape[0] == 1 else 99,
    )
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(Softmax(0.5), [x], y, apply("mul", RESULT, 100.0))
    data = np.random.default_rng(1).uniform(-30, 30, shape)
    check_node(builder, {x: data}, tolerance=2e-6, features=features, device=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", (3, 21, 61))
@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.FLOAT16))
def test_layouts(layout: str, channels: int, dtype: DType) -> None:
    shape = (2, 3, 4, channels)
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(Softmax(), [x], y)
    views = {x: LAYOUTS[layout](0, shape, dtype), y: LAYOUTS[layout](1, shape, DType.FLOAT32)}
    check_node(
        builder, {x: np.random.default_rng(2).uniform(-5, 5, shape)}, views=views, tolerance=2e-6, interpret=True
    )


@pytest.mark.parametrize("channels", (4, 6, 200))
def test_special_values_as_the_official_cpu(channels: int) -> None:
    """Rows with NaN, with +infinity, and of nothing but -infinity are NaN throughout; -infinity among numbers is 0."""
    x = np.zeros((1, 1, 5, channels), np.float32)
    x[0, 0, 0, 1], x[0, 0, 1, 2], x[0, 0, 2], x[0, 0, 3, 0] = np.nan, np.inf, -np.inf, -np.inf
    builder = GraphBuilder()
    a, y = builder.value(x.shape, DType.FLOAT32), builder.value(x.shape, DType.FLOAT32)
    builder.node(Softmax(), [a], y)
    graph = builder.graph([a], [y])
    result = run_node(graph, lay_out(graph), {a: x})
    assert np.isnan(result[0, 0, :3]).all()
    np.testing.assert_allclose(result[0, 0, 3], [0, *[1 / (channels - 1)] * (channels - 1)], rtol=1e-6)
    np.testing.assert_allclose(result[0, 0, 4], 1 / channels, rtol=1e-6)


@pytest.mark.parametrize("channels", (1, 2, 3, 4, 5, 6, 7, 33, 130, 1001))
@pytest.mark.parametrize("beta", (0.0, -1.0, -0.25, 1e-42))
def test_padding_takes_no_part_whatever_beta(beta: float, channels: int) -> None:
    shape = (1, 2, 3, channels)
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    builder.node(Softmax(beta), [x], y)
    data = np.random.default_rng(3).uniform(-9, 9, shape)
    result = check_node(builder, {x: data}, packed_values=(x,), tolerance=2e-6, interpret=True)
    np.testing.assert_allclose(result.sum(3), 1, rtol=1e-5)
