"""Elementwise work moves in front of copies and concatenations that are views, to the kernels that can do it."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Pad,
    Reshape,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.raising import raise_elementwise

RELU = apply("max", Arg(0), 0.0)
RNG = np.random.default_rng(0)


def value(b: GraphBuilder, *shape: int) -> int:
    return b.value(shape, DType.FLOAT32)


def convolution(b: GraphBuilder, x: int, outputs: int) -> int:
    weights = b.constant(RNG.standard_normal((outputs, 1, 1, b.values[x].shape[3])).astype(np.float32))
    return b.node(Conv2D(), [x, weights], value(b, *b.values[x].shape[:3], outputs))


def same(before: Graph, after: Graph) -> None:
    inputs = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for a, b in zip(evaluate_graph(before, inputs), evaluate_graph(after, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def kernels(graph: Graph) -> int:
    return len(build_program(graph, Features()).dispatches)


def test_through_reshapes_into_a_concatenation() -> None:
    """What SSD's heads do: each convolution is reshaped, joined with others, and a function follows."""
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    parts = []
    for outputs in (8, 16):
        y = convolution(b, x, outputs)
        shape = (1, 1, 16 * outputs // 4, 4)
        parts.append(b.node(Copy((Reshape(b.values[y].shape, shape),)), [y], value(b, *shape)))
    joined = b.node(Concat(2), parts, value(b, 1, 1, 96, 4))
    graph = b.graph([x], [b.node(Elementwise(), (), value(b, 1, 1, 96, 4), RELU, [joined])])
    raised = raise_elementwise(graph)
    same(graph, raised)
    assert isinstance(raised.nodes[-1].op, Concat)
    assert kernels(graph) == 2


def test_stays_where_others_read_what_comes_before() -> None:
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    y = convolution(b, x, 8)
    flat = b.node(Copy((Reshape((1, 4, 4, 8), (1, 1, 16, 8)),)), [y], value(b, 1, 1, 16, 8))
    end = b.node(Elementwise(), (), value(b, 1, 1, 16, 8), RELU, [flat])
    graph = b.graph([x], [end, flat])
    assert [type(n.op) for n in raise_elementwise(graph).nodes] == [type(n.op) for n in graph.nodes]


def test_stays_behind_copies_that_move_or_fill() -> None:
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    padded = b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0), 3.0),)), [x], value(b, 1, 6, 6, 8))
    graph = b.graph([x], [b.node(Elementwise(), (), value(b, 1, 6, 6, 8), apply("neg", Arg(0)), [padded])])
    assert [type(n.op) for n in raise_elementwise(graph).nodes] == [Copy, Elementwise]
    assert raise_elementwise(graph).nodes[-1].epilogue != RESULT


@pytest.mark.parametrize("shared", range(4))
def test_not_over_parts_that_others_read(shared: int) -> None:
    """A function of three joined values becomes theirs, unless two of them would need kernels of their own for that."""
    b = GraphBuilder()
    shape = (1, 2, 2, 4)
    x = b.value(shape, DType.FLOAT32)
    weights = b.constant(np.eye(4).reshape(4, 1, 1, 4))
    parts = [b.node(Conv2D(), [x, weights], b.value(shape, DType.FLOAT32)) for _ in range(3)]
    joined = b.node(Concat(3), parts, b.value((1, 2, 2, 12), DType.FLOAT32))
    out = b.node(Elementwise(), [], b.value((1, 2, 2, 12), DType.FLOAT32), apply("max", Arg(0), 0.0), [joined])
    raised = raise_elementwise(b.graph([x], [out, *parts[:shared]]))
    functions = [n for n in raised.nodes if isinstance(n.op, Elementwise)]
    assert len(functions) == (3 if shared <= 1 else 1)
    values = [np.random.default_rng(0).standard_normal(shape).astype(np.float32)]
    for got, want in zip(evaluate_graph(raised, values), evaluate_graph(b.graph([x], [out, *parts[:shared]]), values),
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)
