"""Passes keep the function: random graphs before and after, and the fusions that are promised."""

from __future__ import annotations

import random

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
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
    Pool2D,
    Reduce,
    Reshape,
    Resize2D,
    Slice,
    Softmax,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.layout import place

RELU = apply("max", Arg(0), 0.0)
ADD = apply("add", Arg(0), Arg(1))


class Net:
    """A random graph of convolutions, elementwise ops, copies, concatenations and reductions."""

    def __init__(self, seed: int) -> None:
        self.rnd, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.b = GraphBuilder()
        self.inputs = [self.b.value((1, 4, 6, self.rnd.choice([3, 4, 8])), DType.FLOAT32) for _ in range(2)]
        self.live = list(self.inputs)
        for _ in range(self.rnd.randint(3, 14)):
            self.grow()
        count = min(len(self.live), self.rnd.randint(1, 3))
        self.outputs = self.rnd.sample(self.live[-5:], min(count, len(self.live[-5:])))

    def shape(self, v: int) -> tuple[int, ...]:
        return self.b.values[v].shape

    def out(self, op, inputs, shape, epilogue=RESULT, operands=()) -> None:  # type: ignore[no-untyped-def]
        y = self.b.value(shape, DType.FLOAT32)
        self.live.append(self.b.node(op, inputs, y, epilogue, operands))

    def grow(self) -> None:
        x = self.rnd.choice(self.live[-4:])
        b, h, w, c = self.shape(x)
        match self.rnd.randrange(9):
            case 0:
                o = self.rnd.choice([3, 4, 8])
                weights = self.b.constant(self.rng.standard_normal((o, 3, 3, c)) / 5)
                bias = self.b.constant(self.rng.standard_normal(o))
                if self.rnd.random() < 0.5:
                    padded = self.b.value((b, h + 2, w + 2, c), DType.FLOAT32)
                    x = self.b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0)),)), [x], padded)
                    self.out(Conv2D(), [x, weights], (b, h, w, o), ADD, [bias])
                else:
                    self.out(Conv2D(padding=(1, 1)), [x, weights], (b, h, w, o), ADD, [bias])
            case 1:
                self.out(Elementwise(), [], (b, h, w, c), RELU, [x])
            case 2:
                others = [v for v in self.live if self.shape(v) == (b, h, w, c)]
                self.out(Elementwise(), [], (b, h, w, c), apply("sub", Arg(0), Arg(1)), [x, self.rnd.choice(others)])
            case 3:
                scale = self.b.constant(self.rng.standard_normal(c))
                self.out(Elementwise(), [], (b, h, w, c), Apply("mul", (Arg(1), Arg(0))), [x, scale])
            case 4:
                begin, n = self.rnd.randrange(c), 0
                n = self.rnd.randint(1, c - begin)
                self.out(Copy((Slice((0, 0, 0, begin), (1, 1, 1, 1), (b, h, w, n)),)), [x], (b, h, w, n))
            case 5:
                others = [v for v in self.live if self.shape(v)[:3] == (b, h, w)]
                parts = [x, *(self.rnd.choice(others) for _ in range(self.rnd.randint(1, 2)))]
                self.out(Concat(3), parts, (b, h, w, sum(self.shape(v)[3] for v in parts)))
            case 6:
                self.out(Copy((Reshape((b, h, w, c), (b, w, h, c)),)), [x], (b, w, h, c))
            case 7:
                mean = self.b.value((b, 1, 1, c), DType.FLOAT32)
                self.b.node(Reduce("mean", (1, 2)), [x], mean)
                self.out(Elementwise(), [], (b, h, w, c), apply("sub", Arg(0), Arg(1)), [x, mean])
            case 8:
                self.out(Softmax(), [x], (b, h, w, c))

    def graph(self) -> Graph:
        return self.b.graph(self.inputs, self.outputs)


@pytest.mark.parametrize("seed", range(120))
def test_a_random_graph_keeps_its_function(seed: int) -> None:
    graph = Net(seed).graph()
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    want = evaluate_graph(graph, inputs)
    better = optimise(graph, Features())
    assert len(better.nodes) <= len(graph.nodes)
    for a, b in zip(evaluate_graph(better, inputs), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("seed", range(120))
def test_layout_never_lets_two_values_overlap(seed: int, half: bool) -> None:
    """Every node's output occupies elements that no other node writes, and its views lie inside their memory."""
    placed = place(optimise(Net(seed).graph(), Features()), half)
    written: dict[tuple[int, int], int] = {}
    for node in placed.graph.nodes:
        assert not isinstance(node.op, Concat)
        view = placed.views[node.output]
        index = view.offset + sum(g * s for g, s in zip(np.indices(view.shape), view.strides, strict=True))
        assert index.min() >= 0 and index.max() < placed.roots[view.root][0]
        for i in np.unique(index):
            assert (view.root, int(i)) not in written, f"{node.op} writes over node {written[view.root, int(i)]}"
            written[view.root, int(i)] = node.output
    for v in (*placed.graph.inputs, *placed.graph.outputs):
        assert placed.views[v].dtype is DType.FLOAT32


def test_bias_activation_and_residual_become_the_epilogue() -> None:
    b = GraphBuilder()
    x = b.value((1, 8, 8, 4), DType.FLOAT32)
    y, z, out = (b.value((1, 8, 8, 4), DType.FLOAT32) for _ in range(3))
    b.node(Conv2D(padding=(1, 1)), [x, b.constant(np.ones((4, 3, 3, 4)))], y, ADD, [b.constant(np.ones(4))])
    b.node(Elementwise(), [], z, ADD, [y, x])
    b.node(Elementwise(), [], out, RELU, [z])
    graph = optimise(b.graph([x], [out]), Features())
    assert [type(n.op) for n in graph.nodes] == [Conv2D]


def test_instance_normalisation_is_two_reductions_and_one_pass() -> None:
    b = GraphBuilder()
    x = b.value((1, 8, 8, 4), DType.FLOAT32)
    mean, var, scale = (b.value((1, 1, 1, 4), DType.FLOAT32) for _ in range(3))
    square, centred, out = (b.value((1, 8, 8, 4), DType.FLOAT32) for _ in range(3))
    difference = apply("sub", Arg(0), Arg(1))
    b.node(Reduce("mean", (1, 2)), [x], mean)
    b.node(Elementwise(), [], square, apply("mul", difference, difference), [x, mean])
    b.node(Reduce("mean", (1, 2)), [square], var)
    b.node(Elementwise(), [], scale, apply("rsqrt", apply("add", Arg(0), 1e-5)), [var])
    b.node(Elementwise(), [], centred, difference, [x, mean])
    b.node(Elementwise(), [], out, apply("mul", Arg(0), Arg(1)), [centred, scale])
    graph = optimise(b.graph([x], [out]), Features())
    assert [type(n.op) for n in graph.nodes] == [Reduce, Reduce, Elementwise]


def test_an_output_is_not_fused_away() -> None:
    b = GraphBuilder()
    x, y, z = (b.value((1, 4, 4, 4), DType.FLOAT32) for _ in range(3))
    b.node(Pool2D("max", (3, 3), (1, 1), (1, 1)), [x], y)
    b.node(Elementwise(), [], z, RELU, [y])
    assert len(optimise(b.graph([x], [y, z]), Features()).nodes) == 2


def test_fusion_respects_the_number_of_buffers() -> None:
    b = GraphBuilder()
    xs = [b.value((1, 4, 4, 4), DType.FLOAT32) for _ in range(12)]
    total = xs[0]
    for x in xs[1:]:
        y = b.value((1, 4, 4, 4), DType.FLOAT32)
        total = b.node(Elementwise(), [], y, ADD, [total, x])
    for limit in (4, 8, 32):
        graph = optimise(b.graph(xs, [total]), Features(max_buffers=limit))
        assert max(len(set(n.reads)) + 1 for n in graph.nodes) <= limit
        assert len(graph.nodes) <= -(-11 // (limit - 2))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_mirrored_borders_and_enlargements_become_the_convolution_s_own(symmetric: bool, times: int) -> None:
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.value((2, 5, 4, 3), DType.FLOAT32)
    resized = builder.node(Resize2D("nearest"), [x], builder.value((2, 5 * times, 4 * times, 3), DType.FLOAT32))
    shape = (2, 5 * times + 3, 4 * times + 4, 3)
    mirrored = builder.node(
        Copy((Mirror((0, 2, 3, 0), (0, 1, 1, 0), symmetric),)), [resized], builder.value(shape, DType.FLOAT32)
    )
    weights = builder.constant(rng.standard_normal((4, 3, 2, 3)))
    out = builder.value((2, shape[1] - 2, shape[2] - 1, 4), DType.FLOAT32)
    graph = builder.graph([x], [builder.node(Conv2D(), [mirrored, weights], out)])
    optimised = optimise(graph, Features())
    (node,) = optimised.nodes
    assert node.op == Conv2D(padding=(2, 3), upsample=(times, times), border="symmetric" if symmetric else "reflect")
    values = [rng.standard_normal((2, 5, 4, 3)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(optimised, values)[0], evaluate_graph(graph, values)[0], rtol=1e-6)
