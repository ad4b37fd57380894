"""ARG_MAX and ARG_MIN along every axis; the first of equals; NaN and infinities as the official CPU."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, run
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node, lay_out, run_node

from litegpu.gpu.graph import ArgReduce, DType, GraphBuilder, Shape
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType


def node(kind: str, axis: int, shape: Shape, dtype: DType = DType.FLOAT32) -> tuple[GraphBuilder, int, int]:
    builder = GraphBuilder()
    x = builder.value(shape, dtype)
    y = builder.value(tuple(1 if a == axis else n for a, n in enumerate(shape)), DType.INT32)
    builder.node(ArgReduce(kind, axis), [x], y)
    return builder, x, y


@pytest.mark.parametrize("layout", ("padded", "packed", "unaligned_slice", "channels_first"))
@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("kind", ("max", "min"))
def test_axes(kind: str, axis: int, layout: str) -> None:
    rng = np.random.default_rng(2)
    for shape in ((3, 4, 5, 6), (1, 2, 3, 17), (2, 5, 3, 1)):
        for dtype in (DType.FLOAT32, DType.INT32):
            builder, x, y = node(kind, axis, shape, dtype)
            data = rng.integers(-4, 4, shape)  # many equals
            views = {x: LAYOUTS[layout](0, shape, dtype), y: LAYOUTS[layout](1, builder.values[y].shape, DType.INT32)}
            check_node(builder, {x: data}, views=views, interpret=True)


@pytest.mark.parametrize("channels", (256, 1001, 5000))
@pytest.mark.parametrize("kind", ("max", "min"))
def test_long_rows(kind: str, channels: int) -> None:
    rng = np.random.default_rng(3)
    shape = (2, 1, 3, channels)
    builder, x, _ = node(kind, 3, shape)
    check_node(builder, {x: rng.integers(-40, 40, shape)}, interpret=True)
    check_node(builder, {x: np.zeros(shape)}, interpret=True)


@pytest.mark.parametrize(
    ("kind", "start", "expected"),
    [
        ("max", [np.nan, 1, 2, 3], 3), ("max", [1, np.nan, 2, 3], 3), ("max", [3, np.nan, 2, 1], 0),
        ("max", [np.nan] * 4, 0), ("max", [-np.inf] * 4, 0), ("max", [-np.inf, np.nan, np.nan, 5], 3),
        ("max", [np.nan, -np.inf, -np.inf, np.nan], 1), ("max", [np.nan, np.nan, np.inf, np.inf], 2),
        ("min", [1, np.nan, 2, 3], 0), ("min", [3, np.nan, 2, 1], 3), ("min", [np.inf] * 4, 0),
        ("min", [np.nan, -np.inf, -np.inf, 5], 1), ("min", [np.nan, np.inf, np.nan, np.inf], 1),
    ],
)  # fmt: skip
def test_numbers_come_before_nan(kind: str, start: list[float], expected: int) -> None:
    """Along an axis before the last. The indices were measured with ai-edge-litert 2.3, built-in kernels."""
    column = np.full((1, 1, 9, 1), np.nan, np.float32)
    column[0, 0, :4, 0] = start
    builder, x, _ = node(kind, 2, column.shape)
    check_node(builder, {x: column}, interpret=True)
    graph = builder.graph([x], [builder.nodes[0].output])
    assert run_node(graph, lay_out(graph), {x: column}).item() == expected


@pytest.mark.parametrize("channels", (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 40, 259, 1001))
@pytest.mark.parametrize("kind", ("max", "min"))
def test_nan_in_rows_as_the_official_cpu(kind: str, channels: int) -> None:
    """Its vector kernel may lose numbers beside lanes of nothing but NaN."""
    rng = np.random.default_rng(channels)
    x = rng.integers(-3, 4, (1, 1, 200, channels)).astype(np.float32)
    x[rng.random(x.shape) < 0.4] = np.nan
    x[rng.random(x.shape) < 0.1], x[rng.random(x.shape) < 0.1] = np.inf, -np.inf
    x[0, 0, :50, ::4], x[0, 0, 50:100, 2::4], x[0, 0, 100:110] = np.nan, np.nan, np.nan
    b = ModelBuilder()
    operands = [b.input("x", x.shape), b.constant(np.array([3], np.int32))]
    b.output(b.op(f"ARG_{kind.upper()}", operands, x.shape[:3], {"output_type": int(TensorType.INT32)}))
    want = run(official(b.build()), [x])[0]
    builder, source, _ = node(kind, 3, x.shape)
    got = check_node(builder, {source: x}, interpret=channels < 20)
    np.testing.assert_array_equal(got.reshape(want.shape), want)
