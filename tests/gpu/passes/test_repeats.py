"""What several nodes compute alike is computed once."""

from __future__ import annotations

import pickle

import numpy as np

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    Arg,
    Copy,
    DType,
    Elementwise,
    Expr,
    GraphBuilder,
    Pad,
    Pool2D,
    Reshape,
    apply,
    arguments,
    tree_size,
)
from litegpu.gpu.passes.repeats import drop_repeats

SHAPE = (1, 4, 4, 8)


def test_equal_nodes_of_equal_constants_are_one() -> None:
    """One after the other: what reads the second of two equal nodes may be equal to what reads the first."""
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)

    def chain(number: float) -> int:
        factor = b.constant(np.array(number, np.float32))
        y = b.node(Elementwise(), (), b.value(SHAPE, DType.FLOAT32), apply("mul", Arg(0), Arg(1)), [x, factor])
        y = b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0)),)), [y], b.value((1, 6, 6, 8), DType.FLOAT32))
        return b.node(Pool2D("max", (3, 3), (1, 1)), [y], b.value(SHAPE, DType.FLOAT32))

    pooled = [chain(2), chain(2), chain(3)]
    total = b.node(
        Elementwise(), (), b.value(SHAPE, DType.FLOAT32), apply("add", Arg(0), apply("sub", Arg(1), Arg(2))), pooled
    )
    graph = b.graph([x], [total])
    found = drop_repeats(graph)
    assert len(graph.nodes) == 10 and len(found.nodes) == 7
    given = [np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)]
    np.testing.assert_array_equal(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0])


def test_outputs_and_mere_views_stay() -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    outputs = [b.node(Elementwise(), (), b.value(SHAPE, DType.FLOAT32), apply("exp", Arg(0)), [x]) for _ in range(2)]
    views = [b.node(Copy((Reshape(SHAPE, (1, 1, 16, 8)),)), [x], b.value((1, 1, 16, 8), DType.FLOAT32)) for _ in "ab"]
    outputs.append(
        b.node(Elementwise(), (), b.value((1, 1, 16, 8), DType.FLOAT32), apply("sub", Arg(0), Arg(1)), views)
    )
    graph = b.graph([x], outputs)
    assert drop_repeats(graph) is graph


def test_types_of_constants_and_results_count() -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    one = b.node(Copy(()), [x], b.value(SHAPE, DType.FLOAT32))
    whole = b.node(Elementwise(), (), b.value(SHAPE, DType.INT32), apply("to_int32", Arg(0)), [one])
    real = b.node(Elementwise(), (), b.value(SHAPE, DType.BOOL), apply("to_int32", Arg(0)), [one])
    total = b.node(Elementwise(), (), b.value(SHAPE, DType.INT32), apply("add", Arg(0), Arg(1)), [whole, real])
    graph = b.graph([x], [total])
    assert drop_repeats(graph) is graph


def test_expressions_that_share_much_are_compared_quickly() -> None:
    """As trees both have 2**200 nodes."""

    def power(x: Expr) -> Expr:
        for _ in range(200):
            x = apply("mul", x, x)
        return x

    first, second, third = power(Arg(0)), power(Arg(0)), power(Arg(1))
    assert first == second and hash(first) == hash(second) and first != third
    assert pickle.loads(pickle.dumps(first)) == first
    assert arguments(third) == {1} and tree_size(first) == 2**201 - 1
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    made = [b.node(Elementwise(), (), b.value(SHAPE, DType.FLOAT32), e, [x]) for e in (first, second)]
    total = b.node(Elementwise(), (), b.value(SHAPE, DType.FLOAT32), apply("add", Arg(0), Arg(1)), made)
    assert len(drop_repeats(b.graph([x], [total])).nodes) == 2
