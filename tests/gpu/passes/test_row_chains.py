"""Reductions over the channels and what is computed of them are one node, where nobody else reads what is between."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Lookup,
    Reduce,
    RowChain,
    apply,
    whole,
)
from litegpu.gpu.passes.row_chains import LARGEST, join_rows

SHAPE = (2, 3, 5, 12)
ROW = (*SHAPE[:3], 1)
BUFFERS = 8


def quantized(*, table: bool = True, axes: tuple[int, ...] = (3,)) -> Graph:
    """A mean and the mean of squared differences, each rounded to a byte; a table; and what is computed of all."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x, y = b.value(SHAPE, DType.INT8), b.value(SHAPE, DType.INT8)
    mean, variance, found = (b.value(ROW if axes == (3,) else (2, 1, 1, 12), DType.INT8) for _ in range(3))

    def kept(factor: float):
        number = apply("nearest", apply("mul", apply("to_float32", RESULT), factor))
        return apply("min", apply("max", number, whole(-128)), whole(127))

    left = apply("sub", Arg(0), Arg(1))
    b.node(Reduce("sum", axes), [x], mean, kept(1 / 12), sources=[1])
    b.node(Reduce("sum", axes, apply("mul", left, left)), [x, mean], variance, kept(1 / 500), sources=[2])
    numbers = b.constant(rng.integers(-128, 128, (1, 1, 1, 256)).astype(np.int32))
    if table:
        b.node(Lookup(-128), [variance, numbers], found, sources=[3])
    gamma = b.constant(rng.integers(-9, 9, 12).astype(np.int32))
    product = apply("add", apply("mul", left, Arg(2)), Arg(3))
    result = apply("min", apply("max", apply("shift_right", product, whole(6)), whole(-128)), whole(127))
    b.node(Elementwise(), (), y, result, [x, mean, found if table else variance, gamma], [4])
    return b.graph([x], [y])


def data(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(-128, 128, graph.values[v].shape).astype(np.int8) for v in graph.inputs]


def ops(graph: Graph) -> list[str]:
    return [type(node.op).__name__ for node in graph.nodes]


@pytest.mark.parametrize("table", [False, True])
def test_a_normalisation_that_rounds_is_one_node(table: bool) -> None:
    graph = quantized(table=table)
    joined = join_rows(graph, BUFFERS)
    assert ops(joined) == ["RowChain"]
    assert joined.nodes[0].sources == ((1, 2, 3, 4) if table else (1, 2, 4))
    assert joined.nodes[0].inputs.count(graph.inputs[0]) == 1  # x is read once
    np.testing.assert_array_equal(evaluate_graph(joined, data(graph))[0], evaluate_graph(graph, data(graph))[0])


def test_what_others_read_stays() -> None:
    graph = quantized()
    mean, variance, found = (node.output for node in graph.nodes[:3])
    for outputs, left in (
        ((mean,), ["Reduce", "RowChain"]),
        ((variance,), ["Reduce", "Reduce", "Lookup", "Elementwise"]),
        ((found,), ["Reduce", "Reduce", "Lookup", "Elementwise"]),
    ):
        several = dataclasses.replace(graph, outputs=(*graph.outputs, *outputs))
        joined = join_rows(several, BUFFERS)
        assert ops(joined) == left, outputs
        for got, want in zip(evaluate_graph(joined, data(graph)), evaluate_graph(several, data(graph)), strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_is_not_of_rows_stays() -> None:
    graph = quantized(axes=(1, 2))
    assert join_rows(graph, BUFFERS) is graph
    graph = quantized()
    wide = dataclasses.replace(graph.values[graph.inputs[0]], shape=(2, 3, 5, 9000))
    assert join_rows(dataclasses.replace(graph, values={**graph.values, wide.id: wide}), BUFFERS).nodes == graph.nodes


def test_a_kernel_has_room_for_it() -> None:
    graph = quantized()
    assert ops(join_rows(graph, 4)) == ["RowChain"]  # x, the table, the factors, and the output
    assert ops(join_rows(graph, 3)) == ops(graph)
    last = graph.nodes[-1]
    epilogue = last.epilogue
    for i in range(LARGEST):
        epilogue = apply("sub", whole(i), epilogue)
    graph = dataclasses.replace(graph, nodes=(*graph.nodes[:-1], dataclasses.replace(last, epilogue=epilogue)))
    assert ops(join_rows(graph, BUFFERS)) == ops(graph)


def test_two_chains_one_behind_the_other() -> None:
    b = GraphBuilder()
    x, first, mean, second, most, last = (b.value(s, DType.FLOAT32) for s in (SHAPE, SHAPE, ROW, SHAPE, ROW, SHAPE))
    b.node(Elementwise(), (), first, apply("exp", Arg(0)), [x])
    b.node(Reduce("mean", (3,)), [first], mean)
    b.node(Elementwise(), (), second, apply("sub", Arg(0), Arg(1)), [first, mean])
    b.node(Reduce("max", (3,), apply("abs", Arg(0))), [second], most)
    b.node(Elementwise(), (), last, apply("div", Arg(0), Arg(1)), [second, most])
    graph = b.graph([x], [last])
    joined = join_rows(graph, BUFFERS)
    assert ops(joined) == ["RowChain"]
    given = [np.random.default_rng(2).normal(0, 1, SHAPE).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(joined, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-6)
    both = dataclasses.replace(graph, outputs=(second, last))
    joined = join_rows(both, BUFFERS)
    assert ops(joined) == ["RowChain", "RowChain"]
    for got, want in zip(evaluate_graph(joined, given), evaluate_graph(both, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert isinstance(joined.nodes[0].op, RowChain)


def test_a_reduction_over_an_axis_of_one_is_none_over_channels() -> None:
    b, shape = GraphBuilder(), (2, 1, 5, 12)
    x, most, mean, last = (b.value(s, DType.FLOAT32) for s in (shape, shape, (2, 1, 5, 1), shape))
    b.node(Reduce("max", (1,)), [x], most)
    b.node(Reduce("mean", (3,)), [most], mean)
    b.node(Elementwise(), (), last, apply("sub", Arg(0), Arg(1)), [most, mean])
    graph = b.graph([x], [last])
    given = [np.random.default_rng(2).normal(0, 1, shape).astype(np.float32)]
    np.testing.assert_allclose(
        evaluate_graph(join_rows(graph, BUFFERS), given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-6
    )
