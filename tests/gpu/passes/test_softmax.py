"""A softmax over places is reductions over these, without transpositions."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Copy, DType, Elementwise, Graph, GraphBuilder, Reduce, Reshape, Softmax, Transpose
from litegpu.gpu.passes.softmax import reduce_softmax

SHAPE = (2, 3, 5, 8)


def weights(axis: int = 2, beta: float = 1.0, *, shown: bool = False, back: bool = True, flat: bool = False) -> Graph:
    """Of x [2, 3, 5, 8]: the axis exchanged with the channels, the softmax, and back."""
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    order = [3 if i == axis else axis if i == 3 else i for i in range(4)]
    turned = tuple(SHAPE[i] for i in order)
    steps = (Reshape(SHAPE, (6, 5, 8)), Transpose((0, 2, 1)), Reshape((6, 8, 5), turned)) if flat else (
        Transpose(tuple(order)),
    )  # fmt: skip
    y = b.node(Copy(steps), [x], b.value(turned, DType.FLOAT32))
    z = b.node(Softmax(beta), [y], b.value(turned, DType.FLOAT32))
    order = order if back else [0, 1, 2, 3]
    out = b.node(Copy((Transpose(tuple(order)),)), [z], b.value([turned[i] for i in order], DType.FLOAT32))
    return b.graph([x], [out, z] if shown else [out])


@pytest.mark.parametrize(
    "graph",
    [weights(), weights(1), weights(beta=0.5), weights(beta=-2.0), weights(beta=0.0), weights(flat=True)],
    ids=["rows", "columns", "beta", "negative", "no beta", "of three axes"],
)
def test_nothing_is_transposed(graph: Graph) -> None:
    found = reduce_softmax(graph)
    assert [type(n.op) for n in found.nodes] == [Reduce, Reduce, Elementwise]
    given = [np.random.default_rng(0).normal(0, 3, SHAPE).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("graph", [weights(shown=True), weights(back=False)], ids=["read", "not put back"])
def test_what_stays(graph: Graph) -> None:
    assert reduce_softmax(graph) is graph
