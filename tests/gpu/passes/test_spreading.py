"""Convolutions whose channels become pixels write them in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Reshape,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.layout import place
from litegpu.gpu.passes.spreading import spread_pixels

RNG = np.random.default_rng(0)


def network(
    times: int, channels: int, *, last: bool = False, residual: bool = False, slopes: int | None = None
) -> Graph:
    """x -> convolution, whose channels are `times` x `times` pixels of so many -> another. `last`: DEPTH_TO_SPACE, with
    the pixels' channels last, else PixelShuffle. `slopes`: of a PRELU in between."""
    b, (n, h, w) = GraphBuilder(), (2, 3, 5)
    x = b.value((n, h, w, 8), DType.FLOAT32)
    many = channels * times**2
    weights, bias = b.constant(RNG.standard_normal((many, 3, 3, 8)) / 9), b.constant(RNG.standard_normal(many))
    y = b.value((n, h, w, many), DType.FLOAT32)
    other = b.value((n, h, w, many), DType.FLOAT32)
    operand = other if residual else bias
    b.node(Conv2D(padding=(1, 1)), [x, weights], y, apply("max", apply("add", RESULT, Arg(1)), 0.0), [operand])
    apart = (n, h, w, times, times, channels) if last else (n, h, w, channels, times, times)
    order = Transpose((0, 1, 3, 2, 4, 5)) if last else Transpose((0, 1, 4, 2, 5, 3))
    large = (n, h * times, w * times, channels)
    joined = (n, h, times, w, times, channels)
    steps = (Reshape((n, h, w, many), apart), order, Reshape(joined, large))
    z = b.node(Copy(steps), [y], b.value(large, DType.FLOAT32))
    if slopes is not None:
        expr = apply("select", apply("ge", Arg(0), 0.0), Arg(0), apply("mul", Arg(0), Arg(1)))
        z = b.node(Elementwise(), [], b.value(large, DType.FLOAT32), expr, [z, b.constant(RNG.standard_normal(slopes))])
    b.node(Conv2D(), [z, b.constant(RNG.standard_normal((4, 1, 1, channels)))], b.value((*large[:3], 4), DType.FLOAT32))
    return b.graph([x, other] if residual else [x], [b.nodes[-1].output])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("times", "channels"), [(2, 4), (3, 8)])
def test_each_row_of_pixels_is_a_convolution_and_nothing_is_copied(times: int, channels: int, last: bool) -> None:
    graph = network(times, channels, last=last)
    found = optimise(graph, Features())
    assert [type(n.op) for n in place(found, half=False).graph.nodes] == [Conv2D] * (times + 1)
    given = [RNG.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-5)


def test_a_prelu_of_one_slope_comes_first() -> None:
    graph = network(2, 8, slopes=1)
    found = optimise(graph, Features())
    assert [type(n.op) for n in place(found, half=False).graph.nodes] == [Conv2D] * 3
    given = [RNG.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [{"slopes": 8}, {"slopes": 1, "residual": True}])
def test_what_is_done_with_pixels_stays_with_the_copy(given: dict[str, Any]) -> None:
    """Slopes of each channel, and where nothing can be written in place."""
    found = optimise(network(2, 8, **given), Features())
    assert [type(n.op) for n in place(found, half=False).graph.nodes] == [Conv2D, Copy, Conv2D]


def test_many_rows_odd_channels_and_sums_with_others_stay() -> None:
    for graph in (network(4, 4), network(2, 6), network(2, 8, residual=True)):
        assert spread_pixels(graph) is graph
