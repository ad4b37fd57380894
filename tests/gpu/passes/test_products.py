"""Factors of what is multiplied, transposed keys, choices by a constant and softmax op by op: attention as PyTorch's
converters write it is one node."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Attention,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Literal,
    MatMul,
    Reduce,
    Softmax,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.products import simplify_products
from litegpu.gpu.passes.softmax import join_softmax

RNG = np.random.default_rng(0)
N, D = 5, 8
LOGITS = (2, 3, N, N)


class Words(GraphBuilder):
    """Queries, keys and values [2, heads, N, D], and what is done with them."""

    def real(self, *shape: int) -> int:
        return self.value(shape, DType.FLOAT32)

    def each(self, fn: str, *values: int) -> int:
        shape = np.broadcast_shapes(*(self.values[v].shape for v in values))
        return self.node(Elementwise(), (), self.real(*shape), apply(fn, *map(Arg, range(len(values)))), values)

    def scaled(self, x: int, by: float, fn: str = "mul") -> int:
        return self.each(fn, x, self.constant(np.array(by, np.float32)))

    def turned(self, x: int) -> int:
        b, h, n, d = self.values[x].shape
        return self.node(Copy((Transpose((0, 1, 3, 2)),)), [x], self.real(b, h, d, n))

    def product(self, a: int, b: int, shape: tuple[int, ...], lies: bool = False) -> int:
        return self.node(MatMul(transpose_b=lies), [a, b], self.real(*shape))

    def softmax(self, x: int, apart: bool) -> int:
        shape = self.values[x].shape
        if not apart:
            return self.node(Softmax(), [x], self.real(*shape))
        reduced = (*shape[:3], 1)
        most = self.node(Reduce("max", (3,)), [x], self.real(*reduced))
        y = self.each("exp", self.each("sub", x, most))
        return self.each("div", y, self.node(Reduce("sum", (3,)), [y], self.real(*reduced)))


def same(before: Graph, after: Graph, tolerance: float = 1e-6) -> None:
    given = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_pytorch_is_one_node(apart: bool, causal: bool) -> None:
    b = Words()
    q, k, v = inputs = [b.real(2, 3, N, D) for _ in range(3)]
    logits = b.product(b.scaled(q, 0.5), b.scaled(b.turned(k), 0.25), LOGITS)
    if causal:
        visible, low = b.constant(np.tril(np.ones((1, 1, N, N), bool))), b.constant(np.array(-1e9, np.float32))
        logits = b.each("select", visible, logits, low)
    y = b.product(b.softmax(logits, apart), v, (2, 3, N, D))
    graph = b.graph(inputs, [y])
    found = optimise(graph, Features())
    assert [n.op for n in found.nodes] == [Attention(0.125)]
    assert found.nodes[0].inputs[:3] == tuple(inputs) and len(found.nodes[0].inputs) == (4 if causal else 3)
    same(graph, found, 1e-5)


def test_a_row_without_any_key_and_a_moderate_number_are_chosen_as_they_are() -> None:
    for hidden, low in ((np.zeros((1, 1, 1, N), bool), -1e9), (np.ones((1, 1, 1, N), bool), -100.0)):
        b = Words()
        inputs = [b.real(2, 3, N, D) for _ in range(3)]
        logits = b.product(inputs[0], inputs[1], LOGITS, lies=True)
        logits = b.each("select", b.constant(hidden), logits, b.constant(np.array(low, np.float32)))
        graph = b.graph(inputs, [b.product(b.softmax(logits, False), inputs[2], (2, 3, N, D))])
        found = optimise(graph, Features())
        assert not any(isinstance(n.op, Attention) for n in found.nodes)
        same(graph, found)


def test_factors_of_both_and_divisors_become_one_in_front_of_what_follows() -> None:
    b = Words()
    x, y = b.real(2, 3, N, D), b.real(2, 3, D, N)
    z = b.node(MatMul(), [b.scaled(b.scaled(x, 3), 4, "div"), b.scaled(y, 2)], b.real(*LOGITS), apply("exp", RESULT))
    graph = b.graph([x, y], [z])
    (node,) = simplify_products(graph).nodes
    assert node.inputs == (x, y) and node.epilogue == apply("exp", apply("mul", RESULT, 1.5))
    same(graph, simplify_products(graph))


def test_factors_that_others_read_or_that_are_no_numbers_stay() -> None:
    b = Words()
    x, y = b.real(2, 3, N, D), b.real(2, 3, D, N)
    shared, each = b.scaled(x, 3), b.each("mul", y, b.constant(np.arange(N).astype(np.float32)))
    graph = b.graph([x, y], [b.product(shared, each, LOGITS), shared])
    assert simplify_products(graph).nodes == graph.nodes


def test_a_division_by_zero_stays() -> None:
    b = Words()
    x, y = b.real(2, 3, N, D), b.real(2, 3, D, N)
    graph = b.graph([x, y], [b.product(b.scaled(x, 0, "div"), y, LOGITS)])
    assert simplify_products(graph).nodes == graph.nodes


def test_a_softmax_op_by_op_is_one() -> None:
    b = Words()
    x = b.real(*LOGITS)
    graph = b.graph([x], [b.softmax(x, True)])
    found = join_softmax(graph)
    assert [n.op for n in found.nodes] == [Softmax()]
    same(graph, found)


def test_what_is_no_softmax_stays() -> None:
    def quotient(kind: str = "max", axis: int = 3, other: bool = False, shown: bool = False) -> Graph:
        b = Words()
        x, z = b.real(*LOGITS), b.real(*LOGITS)
        shape = tuple(1 if i == axis else n for i, n in enumerate(LOGITS))
        most = b.node(Reduce(kind, (axis,)), [z if other else x], b.real(*shape))
        y = b.each("exp", b.each("sub", x, most))
        result = b.each("div", y, b.node(Reduce("sum", (axis,)), [y], b.real(*shape)))
        return b.graph([x, z], [result, y] if shown else [result])

    for graph in (quotient("min"), quotient(axis=2), quotient(other=True), quotient(shown=True)):
        assert join_softmax(graph) is graph


def test_scales_within_scales_are_multiplied_those_over_a_mask_too() -> None:
    from litegpu.gpu.passes.attention import _scale

    double = Apply("div", (Apply("mul", (RESULT, Literal(3.0))), Literal(2.0)))
    assert _scale(double) == (1.5, 1.0, ())
    masked = apply("add", double, Arg(1))
    assert _scale(masked) == (1.5, 1.0, (1,))
    assert _scale(apply("mul", masked, 2.0)) == (3.0, 2.0, (1,))
    assert _scale(apply("add", apply("mul", masked, 2.0), Arg(2))) is None  # of two masks one has a factor
