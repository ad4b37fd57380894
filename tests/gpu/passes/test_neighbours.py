"""Slices that are joined as they lay are one slice, or the value itself, which is written where they are joined."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Concat, Conv2D, Copy, DType, Graph, GraphBuilder, Slice
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.layout import place
from litegpu.gpu.passes.neighbours import join_neighbours

RNG = np.random.default_rng(0)
SHAPE = (2, 3, 4, 16)


def part(b: GraphBuilder, x: int, begin: int, size: int, stride: int = 1) -> int:
    shape = (*SHAPE[:3], size)
    return b.node(Copy((Slice((0, 0, 0, begin), (1, 1, 1, stride), shape),)), [x], b.value(shape, DType.FLOAT32))


def joined(b: GraphBuilder, *parts: int) -> int:
    channels = sum(b.values[v].shape[3] for v in parts)
    return b.node(Concat(3), parts, b.value((*SHAPE[:3], channels), DType.FLOAT32))


def same(before: Graph, after: Graph) -> None:
    given = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_halves_with_what_becomes_of_one_need_no_copies() -> None:
    """As in YOLOv8's blocks: the layer before writes both halves into what is joined."""
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)

    def convolution(v: int, channels: int) -> int:
        weights = b.constant(RNG.standard_normal((channels, 1, 1, b.values[v].shape[3])).astype(np.float32))
        return b.node(Conv2D(), [v, weights], b.value((*SHAPE[:3], channels), DType.FLOAT32))

    y = convolution(x, 16)
    left, right = part(b, y, 0, 8), part(b, y, 8, 8)
    graph = b.graph([x], [convolution(joined(b, left, right, convolution(right, 8)), 8)])
    placed = place(optimise(graph, Features()), False).graph
    assert [type(n.op) for n in placed.nodes] == [Conv2D, Conv2D, Conv2D]
    same(graph, join_neighbours(graph))


def test_a_part_of_a_value_is_one_slice() -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    graph = b.graph([x], [joined(b, part(b, x, 4, 2), part(b, x, 6, 5), part(b, x, 0, 4))])
    found = join_neighbours(graph)
    (first,) = (n for n in found.nodes if isinstance(n.op, Copy) and n.output == found.nodes[-1].inputs[0])
    assert first.op == Copy((Slice((0, 0, 0, 4), (1, 1, 1, 1), (*SHAPE[:3], 7)),))
    assert len(found.nodes[-1].inputs) == 2
    same(graph, found)


def test_others_stay() -> None:
    for pairs in ([(8, 8, 1), (0, 8, 1)], [(0, 4, 1), (5, 4, 1)], [(0, 4, 2), (4, 4, 2)]):
        b = GraphBuilder()
        x = b.value(SHAPE, DType.FLOAT32)
        graph = b.graph([x], [joined(b, *(part(b, x, *pair) for pair in pairs))])
        assert join_neighbours(graph) is graph
    b = GraphBuilder()
    x, y = b.value(SHAPE, DType.FLOAT32), b.value(SHAPE, DType.FLOAT32)
    graph = b.graph([x, y], [joined(b, part(b, x, 0, 8), part(b, y, 8, 8))])
    assert join_neighbours(graph) is graph
