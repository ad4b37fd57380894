"""Transpositions that put channels in front move down until they meet their inverse; others stay where they are."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Mirror,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Take,
    Tile,
    Transpose,
    apply,
    step_shape,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.channels import keep_channels_last

RNG = np.random.default_rng(0)
FORWARD, BACK = Transpose((0, 3, 1, 2)), Transpose((0, 2, 3, 1))
LAST, FRONT = (2, 5, 6, 8), (2, 8, 5, 6)


class Net(GraphBuilder):
    def real(self, *shape: int) -> int:
        return self.value(shape, DType.FLOAT32)

    def copy(self, x: int, *steps: object) -> int:
        shape = self.values[x].shape
        for step in steps:
            shape = step_shape(step, shape)  # type: ignore[arg-type]
        return self.node(Copy(tuple(steps)), [x], self.real(*shape))  # type: ignore[arg-type]

    def each(self, fn: str, *values: int) -> int:
        shape = np.broadcast_shapes(*(self.values[v].shape for v in values))
        return self.node(Elementwise(), (), self.real(*shape), apply(fn, *map(Arg, range(len(values)))), values)

    def conv(self, x: int) -> int:
        """3x3 with the channels last, its padding in front of it."""
        b, h, w, c = self.values[x].shape
        weights = self.constant(RNG.standard_normal((c, 3, 3, c)) / 9)
        return self.node(Conv2D(), [x, weights], self.real(b, h - 2, w - 2, c))


def same(before: Graph, after: Graph, tolerance: float = 1e-6) -> None:
    given = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_a_residual_block_has_no_copies() -> None:
    """As exporters to ONNX leave it: padding, activation, gate and sum have the channels in front."""
    b = Net()
    x = b.real(*LAST)
    y = b.copy(b.each("tanh", x), FORWARD)
    z = b.copy(b.copy(y, Pad((0, 0, 1, 1), (0, 0, 1, 1))), BACK)
    z = b.each("sigmoid", b.copy(b.conv(z), FORWARD))
    mean = b.node(Reduce("mean", (2, 3)), [z], b.real(2, 8, 1, 1))
    z = b.each("mul", z, b.each("exp", mean))
    channels = b.constant(RNG.standard_normal((1, 8, 1, 1)).astype(np.float32))
    z = b.each("max", b.each("add", b.each("mul", z, channels), y), b.constant(np.zeros((1, 1, 1, 1), np.float32)))
    graph = b.graph([x], [b.conv(b.copy(z, BACK))])
    found = optimise(graph, Features())
    assert [type(n.op) for n in found.nodes] == [Elementwise, Conv2D, Reduce, Elementwise, Conv2D]
    same(graph, found, 1e-5)


@pytest.mark.parametrize("step", [
    Pad((0, 1, 0, 2), (0, 0, 3, 1), 0.5), Mirror((0, 2, 1, 0), (0, 1, 0, 2)), Tile((1, 2, 3, 1)), Take(1, (3, 0, 3)),
    Slice((0, 2, 1, 0), (1, 2, 1, 3), (2, 3, 4, 2)), Take(3, (5, 5, 1)),
], ids=lambda step: type(step).__name__)  # fmt: skip
def test_movements_of_axes_pass(step: object) -> None:
    b = Net()
    x = b.real(*LAST)
    graph = b.graph([x], [b.copy(b.copy(b.copy(x, FORWARD), step), BACK)])
    (node,) = keep_channels_last(graph).nodes
    assert isinstance(node.op, Copy) and len(node.op.steps) == 1
    same(graph, keep_channels_last(graph))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_concatenations_and_reductions_along_any_axis(axis: int) -> None:
    b = Net()
    x, y = b.real(*LAST), b.real(*LAST)
    shape = tuple(2 * n if i == axis else n for i, n in enumerate(FRONT))
    z = b.node(Concat(axis), [b.copy(x, FORWARD), b.copy(y, FORWARD)], b.real(*shape))
    reduced = b.node(Reduce("sum", (axis,)), [z], b.real(*(1 if i == axis else n for i, n in enumerate(shape))))
    graph = b.graph([x, y], [b.copy(z, BACK), b.copy(reduced, BACK)])
    found = keep_channels_last(graph)
    assert not any(FORWARD in n.op.steps for n in found.nodes if isinstance(n.op, Copy))
    same(graph, found)


def test_what_wants_the_channels_in_front_gets_them() -> None:
    """A reshape to rows, an output, and a sum with an input that has them there."""
    b = Net()
    x, other = b.real(*LAST), b.real(*FRONT)
    y = b.each("exp", b.copy(x, FORWARD))
    rows = b.copy(y, Reshape(FRONT, (1, 2, 8, 30)))
    graph = b.graph([x, other], [y, rows, b.each("add", y, other)])
    found = keep_channels_last(graph)
    assert sum(isinstance(n.op, Elementwise) for n in found.nodes) == 2
    same(graph, found)


def test_graphs_without_such_transpositions_are_left_alone() -> None:
    b = Net()
    x = b.real(*FRONT)
    graph = b.graph([x], [b.each("exp", b.copy(x, BACK))])
    assert keep_channels_last(graph) is graph


def test_padding_behind_a_movement_is_the_convolution_s_own() -> None:
    b = Net()
    x = b.real(2, 5, 6, 16)
    part = Slice((0, 0, 0, 8), (1, 1, 1, 1), LAST)
    padded = b.copy(x, part, Pad((0, 1, 1, 0), (0, 1, 1, 0)))
    graph = b.graph([x], [b.conv(padded), b.conv(padded)])
    found = optimise(graph, Features())
    assert [n.op for n in found.nodes] == [Copy((part,)), Conv2D(padding=(1, 1)), Conv2D(padding=(1, 1))]
    same(graph, found, 1e-5)


def test_places_between_transpositions_are_a_reshape() -> None:
    """PyTorch's flatten(2).transpose(1, 2) of a convolution, and back: what is added to the places is its epilogue."""
    b = Net()
    x = b.real(*LAST)
    weights = b.constant(RNG.standard_normal((8, 1, 1, 8)).astype(np.float32))
    y = b.copy(b.node(Conv2D(), [x, weights], b.real(*LAST)), FORWARD)
    y = b.copy(b.copy(y, Reshape(FRONT, (1, 2, 8, 30))), Transpose((0, 1, 3, 2)))
    y = b.each("add", y, b.constant(RNG.standard_normal((1, 1, 30, 8)).astype(np.float32)))
    z = b.copy(b.copy(y, Transpose((0, 1, 3, 2))), Reshape((1, 2, 8, 30), FRONT))
    graph = b.graph([x], [b.conv(b.copy(z, BACK))])
    found = optimise(graph, Features())
    assert [type(n.op) for n in found.nodes if not isinstance(n.op, Copy)] == [Conv2D, Conv2D]
    assert all(isinstance(step, Reshape) for n in found.nodes if isinstance(n.op, Copy) for step in n.op.steps)
    same(graph, found, 1e-5)
