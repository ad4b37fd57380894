"""A normalisation over the pixels is two nodes, whatever way it was written in, and nothing else is one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu.passes.test_layer_norm import Steps

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import DType, Elementwise, Graph, InstanceNorm, Moments, Reduce
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

SHAPE = (2, 5, 6, 12)


class OfPixels(Steps):
    def mean(self, x: int, axis: int = 3) -> int:
        b, _, _, c = self.values[x].shape
        return self.node(Reduce("mean", (1, 2)), [x], self.value((b, 1, 1, c), DType.FLOAT32))

    def factor(self, variance: int) -> int:
        return self.do("rsqrt", self.do("add", variance, self.epsilon))


def by_moments(b: OfPixels) -> int:
    """tf.nn.moments and tf.nn.batch_normalization."""
    mean = b.mean(b.x)
    factor = b.do("mul", b.factor(b.mean(b.square(b.do("sub", b.x, mean)))), b.gamma)
    return b.do("add", b.do("mul", b.x, factor), b.do("sub", b.beta, b.do("mul", mean, factor)))


def by_quotient(b: OfPixels) -> int:
    left = b.do("sub", b.x, b.mean(b.x))
    deviation = b.do("sqrt", b.do("add", b.epsilon, b.mean(b.square(left))))
    return b.do("add", b.do("mul", b.do("div", left, deviation), b.gamma), b.beta)


def by_factor(b: OfPixels) -> int:
    left = b.do("sub", b.x, b.mean(b.x))
    return b.do("mul", left, b.factor(b.mean(b.square(left))))


def with_residual(b: OfPixels) -> int:
    """x itself, and a function of what is normalised, are in the epilogue."""
    return b.do("add", b.do("tanh", by_moments(b)), b.x)


def by_other_channels(b: OfPixels) -> int:
    """Factor and offset are computed, as for style transfer."""
    b.gamma, b.beta = b.do("tanh", b.mean(b.square(b.x))), b.do("sin", b.mean(b.do("abs", b.x)))
    return by_moments(b)


def graph_of(make: Callable[[OfPixels], int], shape: tuple[int, ...] = SHAPE) -> Graph:
    b = OfPixels(shape)
    y = make(b)
    return b.graph([b.x], [y])


def check(graph: Graph, features: Features | None = None) -> Graph:
    """`graph` optimised, which computes the same."""
    found = optimise(graph, features or Features())
    x = np.random.default_rng(1).normal(3, 2, graph.values[graph.inputs[0]].shape).astype(np.float32)
    (before,), (after,) = evaluate_graph(graph, [x]), evaluate_graph(found, [x])
    np.testing.assert_allclose(after, before, rtol=2e-5, atol=2e-5)
    return found


@pytest.mark.parametrize("make", [by_moments, by_quotient, by_factor, with_residual])
def test_two_nodes(make: Callable[[OfPixels], int]) -> None:
    found = check(graph_of(make))
    assert [type(n.op) for n in found.nodes] == [Moments, InstanceNorm]
    assert {i for n in found.nodes for i in n.sources} == {i for n in graph_of(make).nodes for i in n.sources}


def test_many_pixels() -> None:
    found = check(graph_of(by_moments, (1, 100, 90, 4)))
    assert found.nodes[0].op == Moments(5)


def test_computed_factors() -> None:
    found = check(graph_of(by_other_channels))
    assert sum(isinstance(n.op, InstanceNorm) for n in found.nodes) == 1
    assert not any(isinstance(n.op, Elementwise) for n in found.nodes)


def other_multiple_of_the_mean(b: OfPixels) -> int:
    mean = b.mean(b.x)
    factor = b.factor(b.mean(b.square(b.do("sub", b.x, mean))))
    return b.do("sub", b.do("mul", b.x, factor), b.do("mul", b.do("mul", mean, b.gamma), factor))


def no_root(b: OfPixels) -> int:
    mean = b.mean(b.x)
    left = b.do("sub", b.x, mean)
    return b.do("mul", left, b.do("add", b.mean(b.square(left)), b.epsilon))


def of_rows(b: OfPixels) -> int:
    """Over the height alone."""
    _, _, w, c = b.values[b.x].shape
    mean = b.node(Reduce("mean", (1,)), [b.x], b.value((SHAPE[0], 1, w, c), DType.FLOAT32))
    left = b.do("sub", b.x, mean)
    squares = b.square(left)
    variance = b.node(Reduce("mean", (1,)), [squares], b.value((SHAPE[0], 1, w, c), DType.FLOAT32))
    return b.do("mul", left, b.factor(variance))


@pytest.mark.parametrize("make", [other_multiple_of_the_mean, no_root, of_rows])
def test_others_stay(make: Callable[[OfPixels], int]) -> None:
    assert not any(isinstance(n.op, InstanceNorm) for n in check(graph_of(make)).nodes)


def test_the_mean_as_an_output() -> None:
    b = OfPixels(SHAPE)
    y = by_moments(b)
    mean = b.nodes[0].output
    found = optimise(b.graph([b.x], [y, mean]), Features())
    assert not any(isinstance(n.op, InstanceNorm) for n in found.nodes)


def test_the_mean_read_by_others() -> None:
    b = OfPixels(SHAPE)
    y = by_moments(b)
    other = b.do("tanh", b.nodes[0].output)
    found = optimise(b.graph([b.x], [y, other]), Features())
    assert not any(isinstance(n.op, InstanceNorm) for n in found.nodes)


def test_native_kernels_overlap() -> None:
    found = optimise(graph_of(by_moments), Features(native="cuda", capability=0))
    assert not any(isinstance(n.op, InstanceNorm) for n in found.nodes)
