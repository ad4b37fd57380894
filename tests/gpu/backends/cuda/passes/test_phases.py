"""Transposed convolutions along time with few outputs are ordinary ones."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.passes.phases import join_phases
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, Copy, DType, Graph, GraphBuilder, TransposeConv2D, apply


def upsampled(
    stride: int = 4, taps: int = 8, padding: int = 2, outputs: int = 1, rows: int = 1, high: int = 1, cut: int = 0
) -> Graph:
    """x [2, rows, 5, 6] to [2, rows, 5 * stride - cut, outputs], a bias and RELU."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((2, rows, 5, 6), DType.FLOAT32)
    weights = b.constant(rng.standard_normal((outputs, high, taps, 6)).astype(np.float32))
    bias = b.constant(rng.standard_normal(outputs).astype(np.float32))
    y = b.value((2, rows, 5 * stride - cut, outputs), DType.FLOAT32)
    fn = apply("max", apply("add", RESULT, Arg(1)), 0.0)
    b.node(TransposeConv2D((1, stride), (0, padding)), [x, weights], y, fn, [bias])
    return b.graph([x], [y])


@pytest.mark.parametrize(
    "graph",
    [
        upsampled(),
        upsampled(8, 16, 4),
        upsampled(2, 4, 1, 8),
        upsampled(3, 3, 0, 5),
        upsampled(5, 2, 0),
        upsampled(2, 7, 3, 2, 3),
    ],
    ids=["4", "8", "channels", "side by side", "gaps", "rows"],
)
def test_one_convolution(graph: Graph) -> None:
    found = join_phases(graph)
    assert [type(n.op) for n in found.nodes] == [Conv2D, Copy]
    given = [np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "graph", [upsampled(outputs=32), upsampled(high=2, rows=2), upsampled(cut=1)], ids=["many", "high", "cut"]
)
def test_what_stays(graph: Graph) -> None:
    assert join_phases(graph) is graph
