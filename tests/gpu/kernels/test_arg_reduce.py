"""ARG_MAX and ARG_MIN along every axis; the first of equals; NaN and infinities as the official CPU."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node, lay_out, run_node

from litegpu.gpu.graph import ArgReduce, DType, GraphBuilder, Shape


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


@pytest.mark.parametrize("width", (5, 400))
@pytest.mark.parametrize(
    ("kind", "start", "expected"),
    [
        ("max", [np.nan, 1, 2, 3], 0), ("max", [1, np.nan, 2, 3], 3), ("max", [3, np.nan, 2, 1], 0),
        ("max", [np.nan] * 4, 0), ("max", [-np.inf] * 4, 0), ("max", [-np.inf, np.nan, np.nan, 5], 3),
        ("min", [1, np.nan, 2, 3], 0), ("min", [3, np.nan, 2, 1], 3), ("min", [np.inf] * 4, 0),
        ("min", [np.nan, -np.inf, -np.inf, 5], 0),
    ],
)  # fmt: skip
def test_special_values_as_the_official_cpu(kind: str, start: list[float], expected: int, width: int) -> None:
    """The expected indices were measured with ai-edge-litert 2.3, built-in kernels; the rest of the row is NaN."""
    row = np.full(width, np.nan, np.float32)
    row[:4] = start
    for axis in (2, 3):
        shape = (1, 1, width, 1) if axis == 2 else (1, 1, 1, width)
        builder, x, y = node(kind, axis, shape)
        graph = builder.graph([x], [y])
        assert run_node(graph, lay_out(graph), {x: row.reshape(shape)}).item() == expected
