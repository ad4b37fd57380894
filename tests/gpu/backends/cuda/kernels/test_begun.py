"""Sums of whole numbers that begin with their bias: the same numbers, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import biased, depthwise
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DepthwiseConv2D, DType, Expr, Graph, GraphBuilder, apply
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang.features import Features

HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132, cache_bytes=50 << 20)
SHAPE = (1, 24, 24, 32)
SUM = apply("add", RESULT, Arg(1))
QUANTA = apply("min", apply("max", apply("round", apply("mul", SUM, Arg(2))), 0.0), 255.0)


def network(last: Expr = QUANTA, scale: float = 1.0) -> Graph:
    """x -> 1x1 convolution -> depthwise convolution -> 1x1 convolution of whole numbers, or of multiples of `scale`."""
    rng, b = np.random.default_rng(8), GraphBuilder()

    def layer(op: Any, x: int, window: tuple[int, ...], epilogue: Expr) -> int:
        weights = b.constant(rng.integers(-127, 128, window).astype(np.float32) * np.float32(scale))
        bias = b.constant(rng.integers(-9999, 10000, (1, 1, 1, 32)).astype(np.float32))
        factor = b.constant(rng.uniform(0.005, 0.02, (1, 1, 1, 32)).astype(np.float32))
        return b.node(op, [x, weights], b.value(SHAPE, DType.FLOAT32), epilogue, [bias, factor])

    x = b.value(SHAPE, DType.FLOAT32)
    first = layer(Conv2D(), x, (32, 1, 1, 32), QUANTA)
    second = layer(DepthwiseConv2D(padding=(1, 1)), first, (1, 3, 3, 32), QUANTA)
    return b.graph([x], [layer(Conv2D(), second, (32, 1, 1, 32), last)])


@pytest.mark.cuda
@pytest.mark.parametrize("last", [QUANTA, apply("mul", SUM, Arg(2))])
@pytest.mark.parametrize("pixels", [(1, 1), (2, 4)])
def test_on_a_device(device: Any, monkeypatch: pytest.MonkeyPatch, last: Expr, pixels: tuple[int, int]) -> None:
    """Also with several pixels of a thread."""
    monkeypatch.setattr(depthwise, "PIXELS", (pixels,))
    graph = network(last)
    program = build_program(graph, device.features, "cuda", half=True)
    if device.features.capability == 90:  # elsewhere warps do not share a product's depth
        assert ["#define BEGUN 1" in kernel.source for kernel in program.kernels] == [True] * 3
    x = np.random.default_rng(9).integers(-128, 128, SHAPE).astype(np.float32)
    want = evaluate_graph(graph, [x])[0]
    assert len(np.unique(want)) > 100
    np.testing.assert_array_equal(first_output(device, program, [x], SHAPE), want)


def test_other_layers_end_with_it() -> None:
    program = build_program(network(scale=0.37), HOPPER, "cuda", half=True)
    assert not any("#define BEGUN 1" in kernel.source for kernel in program.kernels)


def begun(weights: np.ndarray, bias: np.ndarray, expr: Expr = SUM) -> np.ndarray | None:
    """The bias that sums of weights [outputs, 9] begin with, padded to eight."""
    b = GraphBuilder()
    x, y = b.value((1, 4, 4, 9), DType.FLOAT32), b.value((1, 4, 4, len(weights)), DType.FLOAT32)
    w, added = b.constant(weights.reshape(-1, 1, 1, 9)), b.constant(bias.reshape(1, 1, 1, -1))
    graph = b.graph([x], [b.node(Conv2D(), [x, w], y, expr, [added])])
    found = biased.with_begun_sums(KernelContext(graph, graph.nodes[0], {}, HOPPER), weights, 8)
    if found is None:
        return None
    assert found[0].node.epilogue == biased.begun(expr)
    return found[1]


@pytest.mark.parametrize("unit", [1.0, 2.0**-24])
def test_what_is_exact(unit: float) -> None:
    """Whole numbers, or counts of the smallest half, that floats hold with all that may be added to them."""
    weights, bias = np.full((6, 9), 3, np.float32), np.arange(6, dtype=np.float32) * np.float32(unit)
    most = 2.0**24 - 27 * 255
    found = begun(weights, bias)
    assert found is not None and found.tolist() == [*bias.tolist(), 0, 0]
    one = begun(weights, bias[3:4])
    assert one is not None and one.tolist() == [3 * unit] * 6 + [0, 0]
    for number, exact in ((most, True), (-most, True), (most + 1, False), (-most - 1, False), (0.5, False)):
        bias[1] = number * unit
        assert (begun(weights, bias) is not None) == exact
    weights[1] = 0  # nothing is added
    assert begun(weights, bias) is not None
    weights[2, 3] = 0.5
    assert begun(weights, bias) is None


def test_no_sum_is_a_negative_zero() -> None:
    found = begun(np.ones((6, 9), np.float32), np.full(6, -0.0, np.float32))
    assert found is not None and not np.signbit(found).any()


def test_where_it_stands() -> None:
    weights, bias = np.ones((6, 9), np.float32), np.ones(6, np.float32)
    assert begun(weights, bias, apply("exp", apply("add", Arg(1), RESULT))) is not None
    for expr in (RESULT, apply("mul", RESULT, Arg(1)), apply("add", SUM, RESULT), apply("mul", SUM, Arg(1))):
        assert begun(weights, bias, expr) is None
