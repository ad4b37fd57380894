"""A depthwise convolution and the 1x1 convolution behind it are one node where kernels wait for one another."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    SeparableConv2D,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

RELU = apply("max", apply("add", RESULT, Arg(1)), 0.0)


def pair(
    channels: int = 16, outputs: int = 24, multiplier: int = 1, taps: int = 3, pixels: int = 6, read_twice: bool = False
) -> Graph:
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((1, pixels, pixels, channels), DType.FLOAT32)
    wide = channels * multiplier
    y = b.value((1, pixels, pixels, wide), DType.FLOAT32)
    z, other = (b.value((1, pixels, pixels, n), DType.FLOAT32) for n in (outputs, wide))
    weights = [rng.standard_normal((1, taps, taps, wide)), rng.standard_normal((outputs, 1, 1, wide))]
    op = DepthwiseConv2D(padding=(taps // 2, taps // 2), multiplier=multiplier)
    b.node(op, [x, b.constant(weights[0])], y, RELU, [b.constant(rng.standard_normal(wide))], sources=(1,))
    b.node(Conv2D(), [y, b.constant(weights[1])], z, RELU, [b.constant(rng.standard_normal(outputs))], sources=(2,))
    if not read_twice:
        return b.graph([x], [z])
    b.node(Elementwise(), [], other, apply("sin", Arg(0)), [y])
    return b.graph([x], [z, other])


def check(graph: Graph, features: Features | None = None) -> list[object]:
    found = optimise(graph, features or Features())
    x = np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)
    for after, before in zip(evaluate_graph(found, [x]), evaluate_graph(graph, [x]), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    return [type(n.op) for n in found.nodes]


def test_one_node() -> None:
    graph = pair()
    assert check(graph) == [SeparableConv2D]
    assert optimise(graph, Features()).nodes[0].sources == (1, 2)


@pytest.mark.parametrize("units", [0, 132])
def test_many_channels_fit_shared_memory(units: int) -> None:
    """By a tile with fewer pixels."""
    assert check(pair(1024, 1024), Features(compute_units=units)) == [SeparableConv2D]


@pytest.mark.parametrize(
    "graph",
    [
        pair(multiplier=2),
        pair(read_twice=True),
        pair(outputs=8),  # nine products again for eight
        pair(taps=7),
        pair(channels=8192, pixels=2),  # more than shared memory holds
    ],
)
def test_others_stay(graph: Graph) -> None:
    assert SeparableConv2D not in check(graph)


def test_buffers_are_counted() -> None:
    assert SeparableConv2D in check(pair(), Features(max_buffers=6))
    assert SeparableConv2D not in check(pair(), Features(max_buffers=5))


def test_native_kernels_overlap() -> None:
    assert SeparableConv2D not in check(pair(), Features(native="cuda"))
