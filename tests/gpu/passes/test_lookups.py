"""Rows of many tables side by side are rows of one table."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Concat,
    Copy,
    DType,
    Elementwise,
    Gather,
    Graph,
    GraphBuilder,
    Reshape,
    Slice,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.lookups import join_lookups

RNG = np.random.default_rng(0)
COUNT, WIDTH = 5, 8


def rows(b: GraphBuilder, fields: int, column: int, size: int, *, width: int = WIDTH, stacked: bool = False) -> int:
    """Of a table of `size` rows, one for each number in a column."""
    every = b.values[fields].shape
    first = Reshape(every, (COUNT, every[3]))
    steps = (first, Slice((0, column), (1, 1), (COUNT, 1)), Reshape((COUNT, 1), (1, 1, 1, COUNT)))
    chosen = b.node(Copy(steps), [fields], b.value((1, 1, 1, COUNT), DType.INT32))
    return found(b, chosen, size, width, stacked)


def found(b: GraphBuilder, chosen: int, size: int, width: int = WIDTH, stacked: bool = False) -> int:
    table = b.constant(RNG.standard_normal((size, width)).astype(np.float32))
    shape = (1, COUNT, 1, width) if stacked else (1, 1, COUNT, width)
    return b.node(Gather(1, 1, size, width, COUNT), [table, chosen], b.value(shape, DType.FLOAT32))


def joined(b: GraphBuilder, parts: list[int], axis: int = 3) -> int:
    shape = list(b.values[parts[0]].shape)
    shape[axis] = sum(b.values[v].shape[axis] for v in parts)
    return b.node(Concat(axis), parts, b.value(shape, DType.FLOAT32))


def check(graph: Graph, gathers: int, buffers: int = 16) -> Graph:
    """As before, for indices some of which are out of range, with so many Gathers."""
    after = join_lookups(graph, buffers)
    assert sum(isinstance(n.op, Gather) for n in after.nodes) == gathers
    given = [
        RNG.integers(-2, 14, v.shape).astype(np.int32)
        if v.dtype is DType.INT32
        else RNG.standard_normal(v.shape).astype(np.float32)
        for v in (graph.values[i] for i in graph.inputs)
    ]
    for each in (after, optimise(graph, Features())):
        for got, want in zip(evaluate_graph(each, given), evaluate_graph(graph, given), strict=True):
            np.testing.assert_array_equal(got, want)
    return after


@pytest.mark.parametrize("stacked", [False, True])
def test_a_table_for_each_field(stacked: bool) -> None:
    b = GraphBuilder()
    fields = b.value((1, 1, COUNT, 6), DType.INT32)
    x = b.value((1, COUNT, 1, WIDTH) if stacked else (1, 1, COUNT, WIDTH), DType.FLOAT32)
    parts = [rows(b, fields, i, 4 + i, stacked=stacked) for i in (1, 2, 3, 4)]
    graph = b.graph([fields, x], [joined(b, [x, *parts], 2 if stacked else 3)])
    (copy,) = (n.op for n in check(graph, 1).nodes if isinstance(n.op, Copy))
    assert isinstance(copy.steps[0], Slice)


def test_columns_in_any_order() -> None:
    b = GraphBuilder()
    fields = b.value((1, 1, COUNT, 6), DType.INT32)
    check(b.graph([fields], [joined(b, [rows(b, fields, i, 9) for i in (5, 0, 3)])]), 1)


def test_other_widths_stay_apart() -> None:
    b = GraphBuilder()
    fields = b.value((1, 1, COUNT, 6), DType.INT32)
    parts = [rows(b, fields, i, 9, width=width) for i, width in enumerate((8, 8, 4, 4, 8))]
    check(b.graph([fields], [joined(b, parts)]), 3)


def test_what_else_reads_is_left_alone() -> None:
    """Rows that somebody else reads as well, rows with a function behind them, rows under one another."""
    b = GraphBuilder()
    fields = b.value((1, 1, COUNT, 6), DType.INT32)
    one, two, three = (rows(b, fields, i, 9) for i in range(3))
    other = b.node(Elementwise(), [], b.value((1, 1, COUNT, WIDTH), DType.FLOAT32), apply("neg", RESULT), [two])
    check(b.graph([fields], [joined(b, [one, two, three]), other]), 3)
    b = GraphBuilder()
    fields = b.value((1, 1, COUNT, 6), DType.INT32)
    check(b.graph([fields], [joined(b, [rows(b, fields, i, 9) for i in range(3)], 2)]), 3)


@pytest.mark.parametrize(("buffers", "gathers"), [(16, 1), (8, 2)])
def test_an_input_for_each_field(buffers: int, gathers: int) -> None:
    """As Keras's models have them."""
    b = GraphBuilder()
    fields = [b.value((1, 1, COUNT, 1), DType.INT32) for _ in range(7)]
    check(b.graph(fields, [joined(b, [found(b, v, 4 + i) for i, v in enumerate(fields)])]), gathers, buffers)


def test_two_inputs_are_left_alone() -> None:
    b = GraphBuilder()
    fields = [b.value((1, 1, COUNT, 1), DType.INT32) for _ in range(2)]
    check(b.graph(fields, [joined(b, [found(b, v, 9) for v in fields])]), 2)
