"""Heads within the batch are an axis of their own where the mask of an attention is added."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Attention,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    MatMul,
    Reshape,
    Softmax,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.leading import part_leads

BATCH, HEADS, M, N, D = 2, 3, 5, 7, 4
RNG = np.random.default_rng(0)


class Heads(GraphBuilder):
    def real(self, *shape: int) -> int:
        return self.value(shape, DType.FLOAT32)

    def reshaped(self, v: int, *shape: int) -> int:
        return self.node(Copy((Reshape(self.values[v].shape, shape),)), [v], self.real(*shape))


def attention(*, shown: bool = False, mixed: bool = False) -> Graph:
    """Of heads within the batch, whose logits are apart while a mask for each of the batch is added; `shown`: the first
    product is an output too; `mixed`: the reshape joins other axes."""
    b = Heads()
    q, k, v = (b.real(1, BATCH * HEADS, rows, D) for rows in (M, N, N))
    mask = b.real(BATCH, 1, 1, N)
    scaled = apply("mul", RESULT, 0.5)
    logits = product = b.node(MatMul(transpose_b=True), [q, k], b.real(1, BATCH * HEADS, M, N), scaled)
    if mixed:
        logits = b.reshaped(logits, BATCH, 1, HEADS * M, N)
        shape = (BATCH, 1, HEADS * M, N)
    else:
        logits = b.reshaped(logits, BATCH, HEADS, M, N)
        shape = (BATCH, HEADS, M, N)
    logits = b.node(Elementwise(), [], b.real(*shape), apply("add", Arg(0), Arg(1)), [logits, mask])
    logits = b.reshaped(logits, 1, BATCH * HEADS, M, N)
    weights = b.node(Softmax(), [logits], b.real(1, BATCH * HEADS, M, N))
    out = b.node(MatMul(), [weights, v], b.real(1, BATCH * HEADS, M, D))
    return b.graph([q, k, v, mask], [out, product] if shown else [out])


def same(before: Graph, after: Graph) -> None:
    given = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_attention_becomes_visible() -> None:
    graph = attention()
    found = part_leads(graph)
    assert {found.values[n.output].shape[:2] for n in found.nodes if not isinstance(n.op, Copy)} == {(BATCH, HEADS)}
    same(graph, found)
    optimised = optimise(graph, Features())
    assert [type(n.op) for n in optimised.nodes if not isinstance(n.op, Copy)] == [Attention]
    same(graph, optimised)


@pytest.mark.parametrize("graph", [attention(shown=True), attention(mixed=True)], ids=["read", "of other axes"])
def test_what_else_reshapes(graph: Graph) -> None:
    found = part_leads(graph)
    assert sum(isinstance(n.op, MatMul) and found.values[n.output].shape[0] == BATCH for n in found.nodes) <= 1
    same(graph, found)
    same(graph, optimise(graph, Features()))


def test_what_has_no_reshapes_stays() -> None:
    b = Heads()
    x, y = b.real(2, 3, M, D), b.real(2, 3, D, N)
    graph = b.graph([x, y], [b.node(Softmax(), [b.node(MatMul(), [x, y], b.real(2, 3, M, N))], b.real(2, 3, M, N))])
    assert part_leads(graph) is graph
