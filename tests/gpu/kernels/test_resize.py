"""Resizing kernels against NumPy, and their tables against the official CPU runtime's choice of pixels."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node, lay_out, run_node

from litegpu.gpu.graph import DType, GraphBuilder, Resize2D
from litegpu.gpu.kernels.resize import axis_table

RULES = [(False, False), (True, False), (False, True)]


def resize(op, shape, size, *, packed=False, data=None, **options):
    builder = GraphBuilder()
    x = builder.value(shape, DType.FLOAT32)
    y = builder.value((shape[0], *size, shape[3]), DType.FLOAT32)
    builder.node(op, [x], y)
    data = np.random.default_rng(0).standard_normal(shape) if data is None else data
    return check_node(
        builder, {x: data}, packed_values=(x, y) if packed else (), interpret=np.prod(shape) < 1000, **options
    )


@pytest.mark.parametrize("kind", ["bilinear", "nearest"])
@pytest.mark.parametrize("aligned, half_pixel", [*RULES, (True, True)])
@pytest.mark.parametrize("size", [(14, 10), (13, 3), (1, 1), (7, 5)])
def test_sizes(kind: str, aligned: bool, half_pixel: bool, size: tuple[int, int]) -> None:
    if kind == "bilinear" and aligned and half_pixel:
        pytest.skip("TFLite refuses this")
    op = Resize2D(kind, aligned, half_pixel)
    for channels in (1, 3, 4, 17):
        resize(op, (2, 7, 5, channels), size)
    resize(op, (1, 1, 1, 3), size, packed=True)
    resize(op, (2, 7, 5, 5), size, half=True)


def test_nearest_of_integers() -> None:
    builder = GraphBuilder()
    x, y = builder.value((1, 3, 3, 2), DType.INT32), builder.value((1, 5, 7, 2), DType.INT32)
    builder.node(Resize2D("nearest"), [x], y)
    check_node(builder, {x: np.arange(18).reshape(1, 3, 3, 2)})


def test_infinities_where_the_cpu_has_them() -> None:
    """RESIZE_BILINEAR of TFLite weighs neighbours also by zero."""
    data = np.arange(4.0).reshape(1, 1, 4, 1)
    data[0, 0, 1] = np.inf
    builder = GraphBuilder()
    x, y = builder.value((1, 1, 4, 1), DType.FLOAT32), builder.value((1, 1, 8, 1), DType.FLOAT32)
    builder.node(Resize2D("bilinear"), [x], y)
    graph = builder.graph([x], [y])
    result = run_node(graph, lay_out(graph), {x: data.astype(np.float32)})
    np.testing.assert_array_equal(result.ravel(), [0, np.nan, np.nan, np.nan, 2, 2.5, 3, 3])


def test_tables_stay_inside() -> None:
    for kind in ("bilinear", "nearest"):
        for aligned, half_pixel in RULES:
            for size in range(1, 40):
                for out in range(1, 60):
                    table = axis_table(Resize2D(kind, aligned, half_pixel), size, out)
                    assert (table[:, :2] < size).all()
                    weight = table[:, 2].copy().view(np.float32)
                    assert ((weight >= 0) & (weight < 1)).all()
