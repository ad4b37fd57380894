"""Slices of one value that are joined in another order are one movement; others stay."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Reshape,
    Slice,
    Take,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.movement import join_copies
from litegpu.gpu.passes.rolling import join_slices

SHAPE = (2, 6, 8, 4)


class Moves(GraphBuilder):
    def value_of(self, shape: tuple[int, ...]) -> int:
        return self.value(shape, DType.FLOAT32)

    def part(self, x: int, axis: int, begin: int, end: int) -> int:
        shape = self.values[x].shape
        target = tuple(end - begin if i == axis else n for i, n in enumerate(shape))
        start = tuple(begin if i == axis else 0 for i in range(4))
        return self.node(Copy((Slice(start, (1, 1, 1, 1), target),)), [x], self.value_of(target))

    def joined(self, axis: int, *parts: int) -> int:
        shape = list(self.values[parts[0]].shape)
        shape[axis] = sum(self.values[v].shape[axis] for v in parts)
        return self.node(Concat(axis), parts, self.value_of(tuple(shape)))

    def rolled(self, x: int, by: int) -> int:
        for axis in (1, 2):
            size = self.values[x].shape[axis]
            x = self.joined(axis, self.part(x, axis, by, size), self.part(x, axis, 0, by))
        return x

    def windows(self, x: int) -> int:
        """Of 2 x 2, one after the other."""
        steps = (
            Reshape(SHAPE, (2, 3, 2, 4, 2, 4)),
            Transpose((0, 1, 3, 2, 4, 5)),
            Reshape((2, 3, 4, 2, 2, 4), (1, 24, 4, 4)),
        )
        return self.node(Copy(steps), [x], self.value_of((1, 24, 4, 4)))

    def image(self, x: int) -> int:
        steps = (
            Reshape((1, 24, 4, 4), (2, 3, 4, 2, 2, 4)),
            Transpose((0, 1, 3, 2, 4, 5)),
            Reshape((2, 3, 2, 4, 2, 4), SHAPE),
        )
        return self.node(Copy(steps), [x], self.value_of(SHAPE))


def same(before: Graph, after: Graph) -> None:
    given = [np.random.default_rng(1).standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_array_equal(got, want)


def test_shifted_windows_are_a_movement_there_and_one_back() -> None:
    """The one back does the residual sum too."""
    b = Moves()
    x = b.value_of(SHAPE)
    y = b.windows(b.rolled(x, 1))
    y = b.node(Elementwise(), (), b.value_of((1, 24, 4, 4)), apply("tanh", apply("mul", Arg(0), Arg(0))), [y])
    y = b.rolled(b.image(y), 5)
    y = b.node(Elementwise(), (), b.value_of(SHAPE), apply("add", Arg(0), Arg(1)), [y, x])
    graph = b.graph([x], [y])
    found = optimise(graph, Features())
    assert [type(n.op) for n in found.nodes] == [Copy, Copy]
    same(graph, found)


@pytest.mark.parametrize("axis", [0, 3])
def test_other_axes_stay_joined(axis: int) -> None:
    b = Moves()
    x = b.value_of(SHAPE)
    graph = b.graph([x], [b.joined(axis, b.part(x, axis, 1, 2), b.part(x, axis, 0, 1))])
    assert join_slices(graph) is graph


def test_slices_that_others_read_and_those_of_others_stay() -> None:
    b = Moves()
    x, z = b.value_of(SHAPE), b.value_of(SHAPE)
    shared = b.part(x, 1, 3, 6)
    first = b.joined(1, shared, b.part(x, 1, 0, 3))
    second = b.joined(1, b.part(x, 1, 3, 6), b.part(z, 1, 0, 3))
    graph = b.graph([x, z], [first, second, shared])
    assert join_slices(graph) is graph


def test_any_order_and_repetition() -> None:
    b = Moves()
    x = b.value_of(SHAPE)
    graph = b.graph([x], [b.joined(2, b.part(x, 2, 5, 7), b.part(x, 2, 0, 3), b.part(x, 2, 2, 6))])
    found = join_slices(join_copies(graph))
    (node,) = found.nodes
    assert node.op == Copy((Take(2, (5, 6, 0, 1, 2, 2, 3, 4, 5)),))
    same(graph, found)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("columns_first", [False, True])
@pytest.mark.parametrize("down, across", [(2, 2), (3, 2), (1, 4)])
def test_squares_become_pixels_in_one_movement(down: int, across: int, columns_first: bool, twice: bool) -> None:
    """Of a value that was moved before, in one of two orders, by one slice or by one of rows and one of columns."""
    b = Moves()
    x = b.value_of((1, 24, 4, 4))
    y = b.image(x)
    begins = [(i, j) for i in range(down) for j in range(across)]
    if columns_first:
        begins.sort(key=lambda begin: begin[1])
    parts = phases(b, y, begins, down, across, twice)
    graph = b.graph([x], [b.joined(3, *parts)])
    after = join_slices(graph)
    assert [type(n.op) for n in after.nodes] == [Copy]
    same(graph, after)


def test_other_squares_stay_as_they_are() -> None:
    corners = [(0, 0), (0, 1), (1, 0), (1, 1)]
    for begins, down, across in (
        ([(0, 0), (1, 1), (1, 0), (0, 1)], 2, 2),  # an order that is no movement of axes
        (corners[:3], 2, 2),  # some are missing
        ([*corners[:3], (1, 0)], 2, 2),  # one comes twice
        ([(0, 0), (0, 1), (1, 0), (1, 1)], 4, 4),
    ):
        b = Moves()
        x = b.value_of((2, 8, 8, 4))
        graph = b.graph([x], [b.joined(3, *phases(b, x, begins, down, across))])
        after = join_slices(graph)
        assert [type(n.op) for n in after.nodes] == [type(n.op) for n in graph.nodes]
        same(graph, after)


def phases(b: Moves, x: int, begins: list[tuple[int, int]], down: int, across: int, twice: bool = False) -> list[int]:
    """Every so many rows and columns, from these on."""
    batch, height, width, channels = b.values[x].shape
    found = []
    for i, j in begins:
        rows, target = (batch, height // down, width, channels), (batch, height // down, width // across, channels)
        steps: tuple[Slice, ...] = (Slice((0, i, j, 0), (1, down, across, 1), target),)
        if twice:
            steps = Slice((0, i, 0, 0), (1, down, 1, 1), rows), Slice((0, 0, j, 0), (1, 1, across, 1), target)
        found.append(b.node(Copy(steps), [x], b.value_of(target)))
    return found
