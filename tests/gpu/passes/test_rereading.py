"""Cheap work on what is stored anyway is done by its readers."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder, Reduce, apply
from litegpu.gpu.passes.rereading import reread

SHAPE = (2, 6, 5, 8)


def normalised(axes: tuple[int, ...], function: str = "sub", reader: str = "elementwise", stored: bool = True) -> Graph:
    """What is left of x less its mean, over the root of its variance; `stored`: x is the graph's input, else what it is
    computed of."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    small = tuple(1 if i in axes else n for i, n in enumerate(SHAPE))
    start = b.value(SHAPE, DType.FLOAT32)
    x = start if stored else b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("exp", Arg(0)), [start])
    mean = b.node(Reduce("mean", axes), [start], b.value(small, DType.FLOAT32))
    left = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply(function, Arg(0), Arg(1)), [x, mean])
    square = Reduce("mean", axes, apply("mul", Arg(0), Arg(0)))
    inverse = apply("rsqrt", apply("add", RESULT, 1e-3))
    deviation = b.node(square, [left], b.value(small, DType.FLOAT32), inverse)
    y = b.value(SHAPE, DType.FLOAT32)
    if reader == "elementwise":
        b.node(Elementwise(), [], y, apply("mul", Arg(0), Arg(1)), [left, deviation])
    else:
        weights = b.constant(rng.standard_normal((8, 1, 1, 8)).astype(np.float32))
        b.node(Conv2D(), [left, weights], y, apply("mul", RESULT, Arg(1)), [deviation])
    return b.graph([start], [y])


@pytest.mark.parametrize("axes", [(1, 2), (1, 2, 3)])
def test_what_is_left_of_a_mean_is_not_stored(axes: tuple[int, ...]) -> None:
    """Norms of each channel, and those of a whole picture."""
    graph = normalised(axes)
    better = reread(graph, 8)
    assert [type(n.op) for n in better.nodes] == [Reduce, Reduce, Elementwise]
    given = [np.random.default_rng(1).normal(3, 2, SHAPE).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(better, given)[0], evaluate_graph(graph, given)[0], rtol=1e-6)


@pytest.mark.parametrize(
    "graph",
    [normalised((1, 2), "div"), normalised((1, 2), reader="convolution"), normalised((1, 2), stored=False)],
    ids=["long work", "a reader that cannot do it", "nobody else reads it"],
)
def test_what_stays(graph: Graph) -> None:
    assert reread(graph, 8) is graph


def test_kernels_with_too_few_buffers_are_left() -> None:
    """The last node would read x, its mean and its deviation, and has a result."""
    graph = normalised((1, 2))
    assert len(reread(graph, 4).nodes) == 3
    assert reread(graph, 3) is graph
