"""Halves of the channels that change places are one movement, with what is computed of it and of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Arg, Concat, Copy, DType, Elementwise, Graph, GraphBuilder, Slice, Transpose, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.rotary import turn_halves

RNG = np.random.default_rng(0)
SHAPE = (2, 3, 5, 16)


class Net(GraphBuilder):
    def real(self, *shape: int) -> int:
        return self.value(shape, DType.FLOAT32)

    def each(self, fn: str, *values: int) -> int:
        shape = np.broadcast_shapes(*(self.values[v].shape for v in values))
        return self.node(Elementwise(), (), self.real(*shape), apply(fn, *map(Arg, range(len(values)))), values)

    def part(self, x: int, begin: int, size: int) -> int:
        shape = (*self.values[x].shape[:3], size)
        return self.node(Copy((Slice((0, 0, 0, begin), (1, 1, 1, 1), shape),)), [x], self.real(*shape))

    def joined(self, *parts: int) -> int:
        channels = sum(self.values[v].shape[3] for v in parts)
        return self.node(Concat(3), parts, self.real(*self.values[parts[0]].shape[:3], channels))


def same(before: Graph, after: Graph) -> None:
    given = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("negated", [(True, False), (False, False), (True, True)])
def test_a_rotary_embedding_is_one_kernel(negated: tuple[bool, bool]) -> None:
    """x times the cosine, plus x with its halves exchanged and one negated times the sine, of what was transposed."""
    b = Net()
    x = b.real(2, 5, 3, 16)
    y = b.node(Copy((Transpose((0, 2, 1, 3)),)), [x], b.real(*SHAPE))
    halves = [b.part(y, 8, 8), b.part(y, 0, 8)]
    halves = [b.each("neg", v) if minus else v for v, minus in zip(halves, negated, strict=True)]
    cosine, sine = (b.constant(RNG.standard_normal((1, 1, 5, 16)).astype(np.float32)) for _ in range(2))
    z = b.each("add", b.each("mul", y, cosine), b.each("mul", b.joined(*halves), sine))
    graph = b.graph([x], [z])
    found = optimise(graph, Features())
    assert [type(n.op) for n in found.nodes if not (isinstance(n.op, Copy) and n.epilogue == Arg(0))] == [Copy]
    assert len(found.nodes) <= 2, "the other is a view"
    same(graph, found)


def test_what_is_no_exchange_of_halves_stays() -> None:
    for first, second in (((0, 8), (8, 8)), ((8, 4), (0, 8)), ((4, 8), (0, 8)), ((8, 8), (8, 8))):
        b = Net()
        x = b.real(*SHAPE)
        graph = b.graph([x], [b.joined(b.part(x, *first), b.part(x, *second))])
        assert turn_halves(graph) is graph
    b = Net()
    x, y = b.real(*SHAPE), b.real(*SHAPE)
    graph = b.graph([x, y], [b.joined(b.part(x, 8, 8), b.part(y, 0, 8))])
    assert turn_halves(graph) is graph


def test_halves_that_others_read_stay() -> None:
    b = Net()
    x = b.real(*SHAPE)
    right = b.part(x, 8, 8)
    graph = b.graph([x], [b.joined(b.each("neg", right), b.part(x, 0, 8)), b.each("exp", right)])
    assert turn_halves(graph) is graph
