"""Gather with run-time indices, in and out of range, by quads and by elements."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, DType, Gather, GraphBuilder, Shape, apply

CASES: list[tuple[Shape, Shape, Shape, Gather]] = [  # x, indices, output
    ((1, 1, 7, 8), (1, 1, 1, 5), (1, 1, 5, 8), Gather(1, 1, 7, 8, 5)),  # embedding
    ((1, 1, 7, 3), (1, 1, 2, 5), (1, 2, 5, 3), Gather(1, 1, 7, 3, 10)),
    ((1, 2, 5, 6), (1, 1, 1, 4), (1, 2, 4, 6), Gather(1, 2, 5, 6, 4)),
    ((1, 2, 5, 6), (1, 1, 1, 4), (1, 2, 5, 4), Gather(1, 10, 6, 1, 4)),  # along C
    ((2, 3, 4, 4), (1, 1, 1, 3), (3, 3, 4, 4), Gather(1, 1, 2, 48, 3)),  # along B
    ((2, 5, 3, 8), (1, 1, 2, 4), (2, 4, 3, 8), Gather(2, 1, 5, 24, 4)),  # batch_dims
    ((1, 1, 1, 9), (1, 1, 1, 1), (1, 1, 1, 1), Gather(1, 1, 9, 1, 1)),
]


@pytest.mark.parametrize(("x_shape", "index_shape", "target", "op"), CASES)
@pytest.mark.parametrize("layout", ("padded", "packed", "unaligned_slice"))
def test_gather(x_shape: Shape, index_shape: Shape, target: Shape, op: Gather, layout: str) -> None:
    rng = np.random.default_rng(3)
    builder = GraphBuilder()
    x, i = builder.value(x_shape, DType.FLOAT32), builder.value(index_shape, DType.INT32)
    y = builder.value(target, DType.FLOAT32)
    builder.node(op, [x, i], y, apply("add", RESULT, 1.0))
    indices = rng.integers(-2, op.size + 2, index_shape)
    views = {v: LAYOUTS[layout](n, builder.values[v].shape, builder.values[v].dtype) for n, v in enumerate((x, i, y))}
    check_node(builder, {x: rng.standard_normal(x_shape), i: indices}, views=views, interpret=True)


def test_gather_of_int32_and_bool() -> None:
    for dtype in (DType.INT32, DType.BOOL):
        builder = GraphBuilder()
        x, i = builder.value((1, 1, 6, 5), dtype), builder.value((1, 1, 1, 4), DType.INT32)
        y = builder.value((1, 1, 4, 5), dtype)
        builder.node(Gather(1, 1, 6, 5, 4), [x, i], y)
        data = np.arange(30).reshape(1, 1, 6, 5) * (3 if dtype is DType.INT32 else 1) % 7
        check_node(builder, {x: data if dtype is DType.INT32 else data > 3, i: np.array([5, 0, 99, 2])}, interpret=True)
