"""Layers of places between two transpositions are products that leave everything where it lies."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.passes.places import join_places
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, Copy, DType, Graph, GraphBuilder, MatMul, Reshape, Transpose, apply
from litegpu.gpu.lang.features import Features

HOPPER, AMPERE = (Features(float16=True, native="cuda", capability=n, compute_units=132) for n in (90, 80))
BATCH, PLACES, CHANNELS = 2, 49, 64
RELU = apply("max", apply("add", RESULT, Arg(1)), 0.0)


def mixer(inner: tuple[int, ...] = (64,), *, read: bool = False, back: bool = True, odd: bool = False) -> Graph:
    """x, exchanged, through layers of so many places, exchanged back, times a value and plus x. `read`: the result of
    the first layer is an output too; `odd`: something of each place and channel is added to it."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((1, BATCH, PLACES, CHANNELS), DType.FLOAT32)
    y, count = b.node(_exchange(b, x), [x], b.value((1, BATCH, CHANNELS, PLACES), DType.FLOAT32)), PLACES
    first = None
    for size in (*inner, PLACES):
        weights = b.constant((rng.standard_normal((size, 1, 1, count)) / count**0.5).astype(np.float32))
        large = (1, 1, CHANNELS, size) if odd else (1, 1, 1, size)
        bias = b.constant(rng.standard_normal(large).astype(np.float32))
        y = b.node(Conv2D(), [y, weights], b.value((1, BATCH, CHANNELS, size), DType.FLOAT32), RELU, [bias])
        first, count = first or y, size
    if back:
        scale = b.constant(rng.standard_normal((1, 1, 1, CHANNELS)).astype(np.float32))
        expr = apply("add", apply("mul", RESULT, Arg(1)), Arg(2))
        y = b.node(_exchange(b, y), [y], b.value((1, BATCH, PLACES, CHANNELS), DType.FLOAT32), expr, [scale, x])
    assert first is not None
    return b.graph([x], [y, first] if read else [y])


def _exchange(b: GraphBuilder, v: int) -> Copy:
    """As a converter writes it for [batch, n, d]."""
    _, batch, n, d = b.values[v].shape
    steps = Reshape((1, batch, n, d), (batch, n, d)), Transpose((0, 2, 1)), Reshape((batch, d, n), (1, batch, d, n))
    return Copy(steps)


@pytest.mark.parametrize("inner", [(), (64,), (96, 40)])
def test_nothing_is_transposed(inner: tuple[int, ...]) -> None:
    graph = mixer(inner)
    found = join_places(graph, HOPPER)
    assert [type(n.op) for n in found.nodes] == [MatMul] * (len(inner) + 1)
    given = [np.random.default_rng(1).standard_normal((1, BATCH, PLACES, CHANNELS)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "graph",
    [mixer(read=True), mixer(back=False), mixer(odd=True), mixer((300,)), mixer((16,))],
    ids=["read in between", "not exchanged back", "sums of channels", "deep", "few places"],
)
def test_what_stays(graph: Graph) -> None:
    assert join_places(graph, HOPPER) is graph


def test_other_devices() -> None:
    graph = mixer()
    assert join_places(graph, AMPERE) is graph
