"""A normalisation over the channels is one node, whatever way it was written in, and nothing else is one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder, LayerNorm, Reduce, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.precision import values_in_float32

SHAPE = (1, 2, 5, 12)


class Steps(GraphBuilder):
    """Each op of a file as a node of its own."""

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.x = self.value(shape, DType.FLOAT32)
        self.gamma, self.beta = (self.constant(rng.standard_normal(shape[3])) for _ in range(2))
        self.epsilon = self.constant(np.array(1e-3, np.float32))

    def do(self, fn: str, *operands: int) -> int:
        shape = np.broadcast_shapes(*(self.values[v].shape for v in operands))
        return self.node(
            Elementwise(), (), self.value(shape, DType.FLOAT32), apply(fn, *map(Arg, range(len(operands)))), operands
        )

    def mean(self, x: int, axis: int = 3) -> int:
        shape = [1 if i == axis else n for i, n in enumerate(self.values[x].shape)]
        return self.node(Reduce("mean", (axis,)), [x], self.value(shape, DType.FLOAT32))

    def square(self, x: int) -> int:
        return self.do("mul", x, x)


def by_moments(b: Steps) -> int:
    """tf.nn.moments and tf.nn.batch_normalization."""
    mean = b.mean(b.x)
    variance = b.mean(b.square(b.do("sub", b.x, mean)))
    factor = b.do("mul", b.do("rsqrt", b.do("add", variance, b.epsilon)), b.gamma)
    return b.do("add", b.do("mul", b.x, factor), b.do("sub", b.beta, b.do("mul", mean, factor)))


def by_negated_mean(b: Steps) -> int:
    """Keras 3."""
    mean = b.mean(b.x)
    variance = b.mean(b.square(b.do("sub", b.x, mean)))
    factor = b.do("mul", b.do("rsqrt", b.do("add", variance, b.epsilon)), b.gamma)
    rest = b.do("add", b.do("mul", b.do("neg", mean), factor), b.beta)
    return b.do("add", b.do("mul", b.x, factor), rest)


def by_quotient(b: Steps) -> int:
    """As it comes from PyTorch: what is left of x is computed once, and divided by the standard deviation."""
    left = b.do("sub", b.x, b.mean(b.x))
    two = b.constant(np.array(2, np.float32))
    variance = b.mean(b.do("pow", left, two))
    deviation = b.do("sqrt", b.do("add", variance, b.epsilon))
    return b.do("add", b.do("mul", b.do("div", left, deviation), b.gamma), b.beta)


def by_factor(b: Steps) -> int:
    """Without factor and offset for each channel."""
    left = b.do("sub", b.x, b.mean(b.x))
    return b.do("mul", left, b.do("rsqrt", b.do("add", b.mean(b.square(left)), b.epsilon)))


def with_function_and_residual(b: Steps) -> int:
    """What follows is in the epilogue, x itself among it."""
    return b.do("add", b.do("tanh", by_moments(b)), b.x)


def with_residual(b: Steps) -> int:
    return b.do("add", b.x, by_quotient(b))


WAYS = (by_moments, by_negated_mean, by_quotient, by_factor, with_function_and_residual, with_residual)


def same(before: Graph, after: Graph) -> None:
    given = [np.random.default_rng(1).normal(2, 1, before.values[v].shape).astype(np.float32) for v in before.inputs]
    for got, want in zip(evaluate_graph(after, given), evaluate_graph(before, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("way", WAYS)
def test_ways_of_writing_it(way: Callable[[Steps], int]) -> None:
    b = Steps()
    graph = b.graph([b.x], [way(b)])
    found = optimise(graph, Features())
    (node,) = found.nodes
    assert isinstance(node.op, LayerNorm) and node.op.epsilon == pytest.approx(1e-3)
    same(graph, found)


def test_several_in_turn_with_products_between() -> None:
    b = Steps()
    weights = b.constant(np.random.default_rng(2).standard_normal((12, 1, 1, 12)) / 3)
    first, x = by_moments(b), b.x
    y = b.node(Conv2D(), [first, weights], b.value(SHAPE, DType.FLOAT32))
    b.x = b.do("add", y, x)
    graph = b.graph([x], [by_quotient(b)])
    found = optimise(graph, Features())
    assert [type(n.op) for n in found.nodes] == [LayerNorm, Conv2D, LayerNorm]
    same(graph, found)


def _other_axis(b: Steps) -> int:
    mean = b.mean(b.x, 2)
    left = b.do("sub", b.x, mean)
    return b.do("mul", left, b.do("rsqrt", b.do("add", b.mean(b.square(left), 2), b.epsilon)))


def _mean_of_another(b: Steps) -> int:
    left = b.do("sub", b.x, b.mean(b.do("tanh", b.x)))
    return b.do("mul", left, b.do("rsqrt", b.do("add", b.mean(b.square(left)), b.epsilon)))


def _mean_doubled(b: Steps) -> int:
    mean = b.mean(b.x)
    variance = b.mean(b.square(b.do("sub", b.x, mean)))
    factor = b.do("rsqrt", b.do("add", variance, b.epsilon))
    return b.do("mul", b.do("sub", b.x, b.do("add", mean, mean)), factor)


def _deviation_as_factor(b: Steps) -> int:
    left = b.do("sub", b.x, b.mean(b.x))
    return b.do("mul", left, b.do("sqrt", b.do("add", b.mean(b.square(left)), b.epsilon)))


def _mean_by_itself(b: Steps) -> int:
    mean = b.mean(b.x)
    left = b.do("sub", b.x, mean)
    scaled = b.do("mul", left, b.do("rsqrt", b.do("add", b.mean(b.square(left)), b.epsilon)))
    return b.do("add", scaled, mean)


@pytest.mark.parametrize("way", [_other_axis, _mean_doubled, _deviation_as_factor, _mean_by_itself])
def test_what_is_none(way: Callable[[Steps], int]) -> None:
    b = Steps()
    graph = b.graph([b.x], [way(b)])
    found = optimise(graph, Features())
    assert not any(isinstance(n.op, LayerNorm) for n in found.nodes)
    same(graph, found)


def test_moments_that_are_wanted_are_computed() -> None:
    b = Steps()
    mean = b.mean(b.x)
    left = b.do("sub", b.x, mean)
    y = b.do("mul", left, b.do("rsqrt", b.do("add", b.mean(b.square(left)), b.epsilon)))
    graph = b.graph([b.x], [y, mean])
    found = optimise(graph, Features())
    assert not any(isinstance(n.op, LayerNorm) for n in found.nodes)
    same(graph, found)


def test_what_is_normalised_stays_in_float32_where_precision_is_automatic() -> None:
    b = Steps()
    x = b.x
    b.x = b.do("tanh", x)
    found = optimise(b.graph([x], [b.do("tanh", by_moments(b))]), Features())
    (node,) = [n for n in found.nodes if isinstance(n.op, LayerNorm)]
    kept = values_in_float32(found)
    assert node.inputs[0] in kept and "its mean" in kept[node.inputs[0]]


def by_root_mean_square(b: Steps) -> int:
    factor = b.do("rsqrt", b.do("add", b.mean(b.square(b.x)), b.epsilon))
    return b.do("add", b.do("mul", b.gamma, b.do("mul", b.x, factor)), b.x)


def by_quotient_of_a_root(b: Steps) -> int:
    return b.do("mul", b.do("div", b.x, b.do("sqrt", b.do("add", b.mean(b.square(b.x)), b.epsilon))), b.gamma)


@pytest.mark.parametrize("way", [by_root_mean_square, by_quotient_of_a_root, _mean_of_another])
def test_norms_by_the_root_of_the_mean_square(way: Callable[[Steps], int]) -> None:
    b = Steps()
    graph = b.graph([b.x], [way(b)])
    found = optimise(graph, Features())
    node = found.nodes[-1]
    assert isinstance(node.op, LayerNorm) and not node.op.centred
    same(graph, found)


def test_a_variance_that_divides_what_is_not_centred_is_none() -> None:
    """The root of the mean square of x minus its mean, and x itself over it."""
    b = Steps()
    variance = b.mean(b.square(b.do("sub", b.x, b.mean(b.x))))
    graph = b.graph([b.x], [b.do("mul", b.x, b.do("rsqrt", b.do("add", variance, b.epsilon)))])
    found = optimise(graph, Features())
    assert not any(isinstance(n.op, LayerNorm) for n in found.nodes)
    same(graph, found)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_mean_of_it_reads_it(axis: int) -> None:
    """Where the mean would compute it from x and both moments: three kernels instead of two."""
    b = Steps()
    normal = by_moments(b)
    graph = b.graph([b.x], [b.mean(normal, axis)])
    optimised = optimise(graph, Features())
    assert [type(n.op) for n in optimised.nodes] == [LayerNorm, Reduce]
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(evaluate_graph(optimised, [x])[0], evaluate_graph(graph, [x])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [by_moments, by_quotient])
def test_a_sum_of_it_that_leaves_some_places_out_reads_it(way: Callable[[Steps], int]) -> None:
    """As encoders of sentences sum the words that there are."""
    b = Steps()
    there = b.value((*SHAPE[:3], 1), DType.FLOAT32)
    graph = b.graph([b.x, there], [b.mean(b.do("mul", way(b), there), 2)])
    optimised = optimise(graph, Features())
    assert [type(n.op) for n in optimised.nodes] == [LayerNorm, Reduce]
    same(graph, optimised)
