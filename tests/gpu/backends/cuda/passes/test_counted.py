"""Quanta stored as counts of the smallest half: the same numbers, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import Counting
from litegpu.gpu.backends.cuda.passes.counted import UNIT, count_smallest
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    MeanConv2D,
    Pool2D,
    apply,
    walk,
)

SHAPE = (1, 6, 5, 8)
SUM = apply("mul", apply("add", RESULT, Arg(1)), Arg(2))
#: The same, the channels' factor as a quotient, and with another sum.
QUOTIENT = apply("div", apply("sub", Arg(1), RESULT), 64.0)
SUMS = apply("add", apply("mul", Arg(2), RESULT), Arg(1))


def within(expr: Expr, low: float, high: float) -> Expr:
    return apply("min", apply("max", apply("round", expr), low), high)


def network(
    expr: Expr = SUM, low: float = 0.0, high: float = 255.0, *, also: str = "", mean: bool = False
) -> tuple[Graph, set[int]]:
    """x -> 3x3 convolution -> depthwise convolution -> 1x1 convolution, of whole numbers with many halves between two;
    and what is between them. `also`: who else reads what the first one gives, or
    that the last one adds "the same" that it multiplies."""
    rng, b = np.random.default_rng(4), GraphBuilder()

    def layer(op: Any, x: int, window: tuple[int, ...], epilogue: Expr) -> int:
        weights = b.constant(rng.integers(-9, 10, window).astype(np.float32))
        bias = b.constant(rng.integers(-99, 100, (1, 1, 1, 8)).astype(np.float32))
        factor = b.constant(rng.choice([0.5, 0.25, 0.125, 0.0123], (1, 1, 1, 8)).astype(np.float32))
        return b.node(op, [x, weights], b.value(SHAPE, DType.FLOAT32), epilogue, [bias, factor])

    x = b.value(SHAPE, DType.FLOAT32)
    first = layer(Conv2D(padding=(1, 1)), x, (8, 3, 3, 8), within(expr, low, high))
    second = layer(DepthwiseConv2D(padding=(1, 1)), first, (1, 3, 3, 8), within(expr, low, high))
    if mean:
        weights, bias = b.nodes[-1].inputs[1], b.nodes[-1].operands[0]
        kernel = b.constant(rng.integers(-9, 10, (8, 1, 1, 8)).astype(np.float32))
        inner = within(apply("mul", apply("add", Arg(0), Arg(1)), 0.25), low, high)
        assert weights != bias
        last = b.node(MeanConv2D(1, inner), [second, kernel, bias], b.value((1, 1, 1, 8), DType.FLOAT32))
    else:
        last = layer(Conv2D(), second, (8, 1, 1, 8), SUM)
    outputs = [last]
    if also == "output":
        outputs.append(first)
    if also in ("operand", "the same"):
        added = first if also == "operand" else second
        b.nodes[-1] = dataclasses.replace(
            b.nodes[-1], epilogue=apply("add", SUM, Arg(3)), operands=(*b.nodes[-1].operands, added)
        )
    if also == "pool":
        outputs.append(b.node(Pool2D("max", (2, 2), (1, 1)), [first], b.value((1, 5, 4, 8), DType.FLOAT32)))
    return b.graph([x], outputs), {first, second}


def given() -> np.ndarray:
    return np.random.default_rng(5).integers(-128, 128, SHAPE).astype(np.float32)


def in_halves(graph: Graph, halves: set[int]) -> Graph:
    """The graph whose meaning in NumPy stores them as halves."""
    values = {v: dataclasses.replace(x, dtype=DType.FLOAT16) if v in halves else x for v, x in graph.values.items()}
    return dataclasses.replace(graph, values=values)


def counted(graph: Graph) -> int:
    """Layers that give counts."""
    limits = [n.epilogue.args[1] for n in graph.nodes if isinstance(n.epilogue, Apply) and n.epilogue.fn == "min"]
    return sum(isinstance(limit, Literal) and 0 < limit.value < 0.1 for limit in limits)


@pytest.mark.parametrize("low, high", [(0.0, 255.0), (-100.0, 155.0), (-1024.0, 1024.0)])
@pytest.mark.parametrize("expr", [SUM, QUOTIENT, SUMS])
@pytest.mark.parametrize("mean", [False, True])
def test_the_numbers_stay(expr: Expr, low: float, high: float, mean: bool) -> None:
    graph, halves = network(expr, low, high, mean=mean)
    found = count_smallest(graph, halves)
    assert counted(found) == 2
    assert not any(e.fn == "round" for n in found.nodes for e in walk(n.epilogue) if isinstance(e, Apply))
    if expr is SUM and not mean:  # the bias stays in front
        assert [n.epilogue.args[0].args[0] == SUM for n in found.nodes[:2]] == [True, True]  # type: ignore[union-attr]
    want = evaluate_graph(graph, [given()])[0]
    assert len(np.unique(want)) > 6
    np.testing.assert_array_equal(evaluate_graph(in_halves(found, halves), [given()])[0], want)
    between = dataclasses.replace(graph, outputs=tuple(sorted(halves)))
    counts = dataclasses.replace(in_halves(found, halves), outputs=tuple(sorted(halves)))
    for count, number in zip(evaluate_graph(counts, [given()]), evaluate_graph(between, [given()]), strict=True):
        np.testing.assert_array_equal(count.astype(np.float32) / np.float32(UNIT), number)


@pytest.mark.cuda
@pytest.mark.parametrize("low, high", [(0.0, 255.0), (-100.0, 155.0)])
def test_on_a_device(device: Any, low: float, high: float) -> None:
    graph, _ = network(SUM, low, high)
    program = build_program(graph, device.features, "cuda", half=True)
    assert sum("halves_within" in kernel.source for kernel in program.kernels) == 2
    got = first_output(device, program, [given()], SHAPE)
    np.testing.assert_array_equal(got, evaluate_graph(graph, [given()])[0])


@pytest.mark.parametrize("also, expected", [("", 2), ("output", 1), ("operand", 1), ("the same", 1), ("pool", 1)])
def test_who_reads_them(also: str, expected: int) -> None:
    """Layers alone; one of the two is read by others as well."""
    graph, halves = network(also=also)
    found = count_smallest(graph, halves)
    assert counted(found) == expected
    want = evaluate_graph(graph, [given()])
    for got, other in zip(evaluate_graph(in_halves(found, halves), [given()]), want, strict=True):
        np.testing.assert_array_equal(got, other)


def test_what_is_not_counted() -> None:
    graph, halves = network()
    assert count_smallest(graph, set()) is graph  # stored as float32
    for low, high in ((0.0, 1025.0), (-1025.0, 255.0), (0.5, 255.0)):
        graph, halves = network(SUM, low, high)
        assert count_smallest(graph, halves) is graph
    for expr in (apply("mul", RESULT, RESULT), apply("exp", RESULT), RESULT):  # takes another product
        graph, halves = network(expr)
        assert count_smallest(graph, halves) is graph


def test_constants_that_would_lose_digits() -> None:
    graph, halves = network()
    factor = graph.nodes[0].operands[1]
    small = dataclasses.replace(graph.values[factor], data=np.full((1, 1, 1, 8), 1e-33, np.float32))
    graph = dataclasses.replace(graph, values=graph.values | {factor: small})
    assert counted(count_smallest(graph, halves)) == 1


def test_backends() -> None:
    assert isinstance(registry.of_language("cuda"), Counting)
    assert not isinstance(registry.of_language("wgsl"), Counting)
