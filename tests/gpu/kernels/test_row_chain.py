"""Reductions over the channels one behind the other, of short and long rows, of floats and of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import assert_close, check_node, lay_out, run_node

from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import Apply, Arg, DType, Expr, GraphBuilder, Literal, RowChain, RowStage, Shape, apply, whole
from litegpu.gpu.kernels.row_chain import parted
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

SHAPES = [(2, 3, 5, c) for c in (2, 3, 4, 5, 16, 17, 33, 64, 96, 192, 257)] + [(1, 1, 2, 2500), (3, 1, 1, 1001)]


def rounded(x: Expr, factor: float) -> Expr:
    """A number times a factor, as a byte."""
    return apply("nearest", apply("min", apply("max", apply("mul", apply("to_float32", x), factor), -128.0), 127.0))


def of_bytes(shape: Shape, kind: DType = DType.INT8) -> tuple[GraphBuilder, int]:
    """A mean that is rounded, the mean of squared differences, a table of that, and all three with constants of
    channels: what a quantized normalisation is like."""
    rng, b, c = np.random.default_rng(0), GraphBuilder(), shape[3]
    x, y = b.value(shape, kind), b.value(shape, DType.INT8)
    gamma = b.constant(rng.integers(-100, 100, c).astype(np.int32))
    table = b.constant(rng.integers(-128, 128, 256).astype(np.int32).reshape(1, 1, 1, 256))
    inputs = [x, gamma, table]
    mean = RowStage("sum", Arg(0), rounded(Arg(3), 1 / c))
    left = apply("sub", Arg(0), Arg(3))
    scaled = Apply("fixed_mul", (apply("mul", left, left), whole(1518500250), whole(-7)))
    place = apply("add", rounded(Arg(4), 0.2 / c), whole(128))
    variance = RowStage("sum", scaled, apply("lookup", place, Arg(2)))
    result = rounded(apply("add", apply("mul", left, Arg(4)), apply("mul", Arg(1), Arg(3))), 1 / 100)
    b.node(RowChain((mean, variance), result), inputs, y)
    return b, x


def of_floats(shape: Shape) -> tuple[GraphBuilder, int]:
    """A softmax whose exponentials are squared, less the least number, times what the row has by itself."""
    b = GraphBuilder()
    x, z, y = b.value(shape, DType.FLOAT32), b.value((*shape[:3], 1), DType.FLOAT32), b.value(shape, DType.FLOAT32)
    most = RowStage("max", Arg(0), Arg(2))
    part = apply("exp", apply("sub", Arg(0), Arg(2)))
    total = RowStage("sum", apply("mul", part, part), apply("sqrt", Arg(3)))
    least, mean = RowStage("min", part, Arg(4)), RowStage("mean", apply("mul", part, Arg(1)), Arg(5))
    result = apply("add", apply("div", apply("sub", part, Arg(4)), Arg(3)), apply("mul", Arg(5), Arg(1)))
    b.node(RowChain((most, total, least, mean), result), [x, z], y)
    return b, x


def numbers(shape: Shape, kind: DType) -> np.ndarray:
    limits = np.iinfo(kind.value)
    return np.random.default_rng(1).integers(limits.min, limits.max + 1, shape).astype(kind.value)


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_bytes(shape: Shape, kind: DType) -> None:
    builder, x = of_bytes(shape, kind)
    data = numbers(shape, kind)
    graph = builder.graph([x], [builder.nodes[0].output])
    known = {i: v.data for i, v in graph.values.items() if v.data is not None} | {x: data}
    want = evaluate_node(graph.nodes[0], known, graph)
    assert want.size < 100 or len(np.unique(want)) > 20
    np.testing.assert_array_equal(check_node(builder, {x: data}, interpret=True).reshape(shape), want)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_floats(shape: Shape) -> None:
    builder, x = of_floats(shape)
    rng, z = np.random.default_rng(1), builder.nodes[0].inputs[1]
    data = {x: rng.normal(0, 2, shape), z: rng.normal(0, 1, (*shape[:3], 1))}
    check_node(builder, data, tolerance=3e-6, interpret=True)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("size", [4, 8, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_threads_that_exchange(shape: Shape, size: int, linear: bool) -> None:
    """In the interpreter, whose subgroups are of 32 threads: smaller ones exchange within a part of it."""
    builder, x = of_bytes(shape)
    data = numbers(shape, DType.INT8)
    graph = builder.graph([x], [builder.nodes[0].output])
    known = {i: v.data for i, v in graph.values.items() if v.data is not None} | {x: data}
    features = Features(subgroups=True, subgroup_size=size, linear_subgroups=linear, compute_units=2)
    result = run_node(graph, lay_out(graph), {x: data}, features, interpret=True)
    assert_close(result, evaluate_node(graph.nodes[0], known, graph), 0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", (3, 21, 61))
def test_layouts(layout: str, channels: int) -> None:
    shape = (2, 3, 4, channels)
    builder, x = of_floats(shape)
    y, z = builder.nodes[0].output, builder.nodes[0].inputs[1]
    views = {v: LAYOUTS[layout](i, shape, DType.FLOAT32) for i, v in enumerate((x, y))}
    views[z] = padded(2, (*shape[:3], 1), DType.FLOAT32)
    rng = np.random.default_rng(2)
    data = {x: rng.normal(0, 2, shape), z: rng.normal(0, 1, (*shape[:3], 1))}
    check_node(builder, data, views=views, tolerance=3e-6, interpret=True)


def test_means_of_whole_numbers_are_cut_off() -> None:
    builder, shape = GraphBuilder(), (1, 2, 3, 10)
    x, y = builder.value(shape, DType.INT8), builder.value(shape, DType.INT32)
    stages = (RowStage("mean", Arg(0), Arg(1)), RowStage("prod", whole(3), Arg(2)))
    builder.node(RowChain(stages, apply("add", apply("mul", Arg(0), Arg(1)), Arg(2))), [x], y)
    data = {x: numbers(shape, DType.INT8)}
    graph = builder.graph([x], [y])
    result = run_node(graph, lay_out(graph), data, None, interpret=True)
    np.testing.assert_array_equal(result.reshape(shape), evaluate_node(graph.nodes[0], data, graph))


def test_what_is_the_same_for_a_row_is_parted_from_the_rest() -> None:
    of_row = apply("mul", Arg(1), Arg(3))
    expr = apply("add", apply("mul", Arg(0), apply("sqrt", of_row)), apply("lookup", of_row, Arg(2)))
    rest, parts = parted(expr, {1, 3}, 4)
    assert rest == apply("add", apply("mul", Arg(0), Arg(4)), Arg(5))
    assert parts == [apply("sqrt", of_row), apply("lookup", of_row, Arg(2))]
    assert parted(of_row, {1, 3}, 4) == (Arg(4), [of_row])
    assert parted(apply("add", Arg(1), Literal(1.0)), set(), 2)[1] == []
