"""Matrix product kernels against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node, lay_out

from litegpu.gpu.backends.webgpu.printer import print_wgsl
from litegpu.gpu.graph import RESULT, Arg, DType, GraphBuilder, IntegerMatMul, MatMul, apply
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang import Kernel
from litegpu.gpu.lang.features import Features

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


def of_bytes(a_batch, b_batch, m, inner, n, transpose_a, transpose_b, types, zeros, *, at_once=True, **options):
    """Bytes of all values, and of the extreme ones at both ends of each row."""
    rng = np.random.default_rng(5)
    shapes = (
        (*a_batch, *((inner, m) if transpose_a else (m, inner))),
        (*b_batch, *((n, inner) if transpose_b else (inner, n))),
    )
    builder = GraphBuilder()
    inputs: dict[int, np.ndarray] = {}
    for shape, dtype in zip(shapes, types, strict=True):
        low = -128 if dtype is DType.INT8 else 0
        array = rng.integers(low, low + 256, shape)
        array[..., 0], array[..., -1] = low, low + 255
        inputs[builder.value(shape, dtype)] = array
    y = builder.value((*np.maximum(a_batch, b_batch), m, n), DType.INT32)
    builder.node(IntegerMatMul(transpose_a, transpose_b, *zeros), list(inputs), y)
    views = {v: LAYOUTS[layout](v, shape, dtype) for v, shape, dtype, layout in
             zip(inputs, shapes, types, options.pop("layouts", ("padded", "padded")), strict=True)}  # fmt: skip
    return check_node(
        builder, inputs, views=views, features=Features(byte_products=at_once),
        interpret=np.prod(shapes[0]) < 1000, **options,
    )  # fmt: skip


BYTES = [
    ((DType.INT8, DType.INT8), (0, 0)),
    ((DType.INT8, DType.UINT8), (-128, 255)),
    ((DType.UINT8, DType.INT8), (128, 7)),
    ((DType.UINT8, DType.UINT8), (3, 128)),
]


@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
@pytest.mark.parametrize("types, zeros", BYTES)
def test_bytes(types, zeros, transpose_a: bool, transpose_b: bool) -> None:
    """Four at once, and one by one where the device has no such products."""
    for m, inner, n in [(1, 1, 1), (3, 5, 4), (4, 8, 17), (5, 18, 3), (1, 303, 9), (9, 64, 16)]:
        of_bytes((2, 3), (2, 3), m, inner, n, transpose_a, transpose_b, types, zeros)
    of_bytes((2, 1), (1, 3), 3, 6, 5, transpose_a, transpose_b, types, zeros)
    of_bytes((1, 2), (1, 1), 130, 70, 59, transpose_a, transpose_b, types, zeros)
    of_bytes((1, 2), (1, 2), 5, 11, 6, transpose_a, transpose_b, types, zeros, at_once=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
def test_bytes_in_every_layout(layout: str, transpose_a: bool, transpose_b: bool) -> None:
    for layouts in ((layout, "padded"), ("packed", layout)):
        of_bytes((1, 2), (1, 2), 6, 13, 7, transpose_a, transpose_b, *BYTES[2], layouts=layouts)


def test_bytes_are_multiplied_four_at_a_time() -> None:
    builder = GraphBuilder()
    a, b, y = (builder.value((1, 1, 8, 8), t) for t in (DType.INT8, DType.INT8, DType.INT32))
    builder.node(IntegerMatMul(), [a, b], y)
    graph = builder.graph([a, b], [y])
    for at_once, native in ((True, ""), (False, ""), (False, "cuda")):
        features = Features(byte_products=at_once or bool(native), native=native)
        (launch,) = build(KernelContext(graph, graph.nodes[0], lay_out(graph), features, False))
        assert isinstance(launch.kernel, Kernel)
        assert ("dot4I8Packed" in print_wgsl(launch.kernel, features)) == at_once


@pytest.mark.parametrize("transpose_a, transpose_b", FLAGS)
def test_infinities_stay_in_their_row_and_column(transpose_a: bool, transpose_b: bool) -> None:
    def put(a, right):
        a[...], right[...] = np.abs(a) + 1, np.abs(right) + 1
        a[0, 0, 1, 1] = np.inf
        right[0, 0, 2, 2] = np.inf

    result = product((1, 1), (1, 1), 5, 6, 7, transpose_a, transpose_b, data=put)
    assert np.isinf(result).sum() == 5 + 7 - 1
