"""Matrix product kernels against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, DType, GraphBuilder, MatMul, apply

FLAGS = list(itertools.product([False, True], repeat=2))


def product(a_batch, b_batch, m, inner, n, transpose_a, transpose_b, *, constant=False, packed=False, fused=False,
            data=None, **options):  # fmt: skip
    rng = np.random.default_rng(3)
    a_shape = (*a_batch, *((inner, m) if transpose_a else (m, inner)))
    b_shape = (*b_batch, *((n, inner) if transpose_b else (inner, n)))
    builder = GraphBuilder()
    a, right = rng.standard_normal(a_shape), rng.standard_normal(b_shape).astype(np.float32)
    if data is not None:
        data(a, right)
    x = builder.value(a_shape, DType.FLOAT32)
    inputs: dict[int, np.ndarray] = {x: a}
    if constant:
        v = builder.constant(right)
    else:
        v = builder.value(b_shape, DType.FLOAT32)
        inputs[v] = right
    y = builder.value((*np.maximum(a_batch, b_batch), m, n), DType.FLOAT32)
    op = MatMul(transpose_a, transpose_b)
    if fused:
        bias = builder.constant(rng.standard_normal(n))
        builder.node(op, [x, v], y, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias])
    else:
        builder.node(op, [x, v], y)
    return check_node(
        builder, inputs, packed_values=(x, v, y) if packed else (), interpret=np.prod(a_shape) < 1000, **options
    )


@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
@pytest.mark.parametrize("m, inner, n", [(1, 1, 1), (3, 5, 4), (4, 8, 17), (5, 17, 3), (1, 300, 9)])
def test_shapes(m: int, inner: int, n: int, transpose_a: bool, transpose_b: bool) -> None:
    product((2, 3), (2, 3), m, inner, n, transpose_a, transpose_b)
    product((1, 1), (1, 1), m, inner, n, transpose_a, transpose_b, constant=True, fused=True)
    product((1, 2), (1, 2), m, inner, n, transpose_a, transpose_b, packed=True)


@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
def test_broadcast(transpose_a: bool, transpose_b: bool) -> None:
    product((2, 1), (1, 3), 3, 6, 5, transpose_a, transpose_b)
    product((1, 1), (2, 3), 3, 6, 5, transpose_a, transpose_b)


@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
def test_large(transpose_a: bool, transpose_b: bool) -> None:
    product((1, 2), (1, 1), 130, 70, 259, transpose_a, transpose_b)
    product((1, 1), (1, 1), 7, 1030, 36, transpose_a, transpose_b, half=True)


@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
def test_infinities_stay_in_their_row_and_column(transpose_a: bool, transpose_b: bool) -> None:
    def put(a, right):
        a[...], right[...] = np.abs(a) + 1, np.abs(right) + 1
        a[0, 0, 1, 1] = np.inf
        right[0, 0, 2, 2] = np.inf

    result = product((1, 1), (1, 1), 5, 6, 7, transpose_a, transpose_b, data=put)
    assert np.isinf(result).sum() == 5 + 7 - 1
