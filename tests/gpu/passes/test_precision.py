"""What the pass knows of values is true: ranges hold for every number, and each limit is where the docs have it."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_expr, evaluate_node
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    Pool2D,
    Reduce,
    Softmax,
    apply,
    walk,
)
from litegpu.gpu.passes.precision import _limits, values_in_float32

SHAPE = (1, 4, 4, 4)
UNARY = ("neg", "abs", "exp", "sqrt", "rsqrt", "floor", "ceil", "round", "sign", "sigmoid", "tanh", "sin", "cos", "erf")
BINARY = ("add", "sub", "mul", "div", "min", "max")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


def random_expression(rng: np.random.Generator, depth: int) -> Expr:
    kind = rng.integers(0, 10)
    if depth == 0 or kind == 0:
        return (
            Arg(int(rng.integers(0, 3))) if rng.random() < 0.7 else Literal(float(rng.choice([-3.0, -0.5, 0.0, 2.0])))
        )
    if kind < 4:
        return apply(str(rng.choice(UNARY)), random_expression(rng, depth - 1))
    if kind == 9:
        condition = apply(str(rng.choice(COMPARED)), *(random_expression(rng, depth - 1) for _ in range(2)))
        return apply("select", condition, *(random_expression(rng, depth - 1) for _ in range(2)))
    return apply(str(rng.choice(BINARY)), *(random_expression(rng, depth - 1) for _ in range(2)))


@pytest.mark.parametrize("seed", range(300))
def test_an_expression_stays_within_its_range(seed: int) -> None:
    rng = np.random.default_rng(seed)
    expr = random_expression(rng, 3)
    ranges, values = [], []
    for _ in range(3):
        low, high = sorted(float(x) for x in rng.choice([-50.0, -4.0, -1.0, -0.25, 0.0, 0.5, 3.0, 20.0], 2))
        ranges.append((low, high))
        corners = rng.choice([low, high], 60)
        values.append(np.concatenate([corners, rng.uniform(low, high, 60)]).astype(np.float32))
    with np.errstate(all="ignore"):
        parts = [np.broadcast_to(np.asarray(evaluate_expr(e, values), np.float64), 120) for e in walk(expr)]
        found = np.broadcast_to(np.asarray(evaluate_expr(expr, values), np.float64), 120)
    low, high = _limits(expr, ranges)
    known = found[np.all(np.isfinite(parts), axis=0)]  # of NaN nothing is promised
    slack = 1e-5 * (1 + max(abs(low), abs(high))) if np.isfinite([low, high]).all() else 0.0
    assert low <= high and (known >= low - slack).all() and (known <= high + slack).all(), (expr, ranges)


def test_ranges_are_no_wider_than_they_must_be() -> None:
    a, b = Arg(0), Arg(1)
    args = [(-2.0, 3.0), (0.5, 4.0)]
    for expr, want in (
        (apply("add", a, b), (-1.5, 7.0)), (apply("sub", a, b), (-6.0, 2.5)), (apply("mul", a, b), (-8.0, 12.0)),
        (apply("div", a, b), (-4.0, 6.0)), (apply("min", a, b), (-2.0, 3.0)), (apply("max", a, b), (0.5, 4.0)),
        (apply("abs", a), (0.0, 3.0)), (apply("abs", b), (0.5, 4.0)), (apply("neg", a), (-3.0, 2.0)),
        (apply("sqrt", b), (0.5**0.5, 2.0)), (apply("rsqrt", b), (0.5, 2**0.5)), (apply("sigmoid", a), (0.0, 1.0)),
        (apply("select", apply("lt", a, b), a, b), (-2.0, 4.0)), (apply("lt", a, b), (0.0, 1.0)),
    ):  # fmt: skip
        assert _limits(expr, args) == pytest.approx(want), expr


def kept(graph: Graph, ranges=None) -> list[int]:
    return sorted(values_in_float32(graph, ranges))


def pooled(b: GraphBuilder, x: int) -> int:
    """The same numbers, from a kernel of their own."""
    return b.node(Pool2D("max", (1, 1), (1, 1), (0, 0)), [x], b.value(b.values[x].shape, DType.FLOAT32))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod"])
@pytest.mark.parametrize("least", [0.0, -1.0])
def test_the_range_of_a_sum_is_that_of_all_its_numbers(kind: str, least: float) -> None:
    """A sum of 1,600 numbers up to 1 can reach 1,600, times 20 that is more than 30,000."""
    for factor, spoilt in ((18.0, False), (20.0, True)):
        b = GraphBuilder()
        x = b.value((1, 40, 40, 4), DType.FLOAT32)
        limited = b.node(Elementwise(), [], b.value((1, 40, 40, 4), DType.FLOAT32),
                         apply("min", apply("max", Arg(0), least), 1.0), [x])  # fmt: skip
        total = b.node(
            Reduce(kind, (1, 2)), [limited], b.value((1, 1, 1, 4), DType.FLOAT32), apply("mul", RESULT, factor)
        )
        found = kept(b.graph([x], [total]))
        assert (total in found) == (spoilt and kind == "sum"), (kind, factor, found)


def test_reductions_give_what_their_range_says() -> None:
    rng = np.random.default_rng(0)
    for kind in ("sum", "mean", "max", "min"):
        for axes in ((1,), (1, 2), (3,)):
            b = GraphBuilder()
            x = b.value((1, 3, 5, 4), DType.FLOAT32)
            shape = [1 if a in axes else n for a, n in enumerate((1, 3, 5, 4))]
            y = b.node(Reduce(kind, axes), [x], b.value(shape, DType.FLOAT32))
            graph = b.graph([x], [y])
            from litegpu.gpu.passes.precision import _Precision

            pass_ = _Precision(graph, {})
            pass_.limits[x] = (-2.0, 3.0)
            low, high = pass_.result(graph.nodes[0])
            for data in (np.full((1, 3, 5, 4), 3.0), np.full((1, 3, 5, 4), -2.0), rng.uniform(-2, 3, (1, 3, 5, 4))):
                found = evaluate_node(graph.nodes[0], {x: data.astype(np.float32)}, graph)
                assert found.min() >= low and found.max() <= high
            count = int(np.prod([n for a, n in enumerate((1, 3, 5, 4)) if a in axes])) if kind == "sum" else 1
            assert (low, high) == (-2.0 * count, 3.0 * count)


@pytest.mark.parametrize("least, spoilt", [(-2e4, False), (-4e4, True)])
def test_pooled_squares_are_those_of_the_larger_end(least: float, spoilt: bool) -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    limits = apply("min", apply("max", Arg(0), least), 1.0)
    limited = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), limits, [x])
    y = b.node(Pool2D("squares", (1, 1), (1, 1)), [limited], b.value(SHAPE, DType.FLOAT32), apply("sqrt", RESULT))
    assert (y in kept(b.graph([x], [y]))) == spoilt


@pytest.mark.parametrize("sums, spoilt", [(32, False), (33, True)])
def test_long_chains_of_sums(sums: int, spoilt: bool) -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    weights = b.constant(np.eye(4).reshape(4, 1, 1, 4))
    y = b.node(Conv2D(), [x, weights], b.value(SHAPE, DType.FLOAT32))
    for _ in range(sums):
        small = apply("mul", apply("add", Arg(0), Arg(1)), 0.5)  # so that it does not grow
        y = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), small, [y, pooled(b, x)])
    assert (y in kept(b.graph([x], [y]))) == spoilt


@pytest.mark.parametrize("factor, spoilt", [(250.0, False), (350.0, True)])
def test_large_multiples(factor: float, spoilt: bool) -> None:
    """By one constant or two: what is 300 times as large as a convolution's result may pass what float16 holds."""
    for factors in ((factor,), (factor / 10, 10.0)):
        b = GraphBuilder()
        x = b.value(SHAPE, DType.FLOAT32)
        y = b.node(Conv2D(), [x, b.constant(np.eye(4).reshape(4, 1, 1, 4))], b.value(SHAPE, DType.FLOAT32))
        for one in factors:
            y = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("mul", Arg(0), one), [pooled(b, y)])
        assert (y in kept(b.graph([x], [y]))) == spoilt
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    row = b.constant(np.array([1.0, -factor, 2.0, 3.0]).reshape(1, 1, 1, 4))
    y = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("mul", Arg(0), Arg(1)), [x, row])
    assert (y in kept(b.graph([x], [y]))) == spoilt


def measured(low: float, high: float) -> list[int]:
    """What is kept of a value, number 1, that had this range in calibration."""
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    y = b.value(SHAPE, DType.FLOAT32, tensor=7)
    b.node(Conv2D(), [x, b.constant(np.eye(4).reshape(4, 1, 1, 4))], y)
    return [v for v in kept(b.graph([x], [y]), {7: (low, high)}) if v == y]


def test_what_calibration_saw_may_be_doubled() -> None:
    assert measured(0.0, 16e3) and not measured(0.0, 14e3)
    assert measured(-16e3, 1.0) and not measured(-14e3, 1.0)
    assert measured(-5e-5, 5e-5) and not measured(-2e-4, 2e-4) and measured(0.0, 9e-5) and not measured(0.0, 0.0)


def test_what_is_computed_from_a_measured_value_may_be_twice_as_large() -> None:
    for largest, spoilt in ((90.0, True), (70.0, False)):
        b = GraphBuilder()
        x = b.value(SHAPE, DType.FLOAT32)
        y = b.value(SHAPE, DType.FLOAT32, tensor=7)
        b.node(Conv2D(), [x, b.constant(np.eye(4).reshape(4, 1, 1, 4))], y)
        z = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("mul", Arg(0), 200.0), [y])
        assert (z in kept(b.graph([x], [z]), {7: (-1.0, largest)})) == spoilt


def test_what_is_joined_with_a_value_in_float32_is_kept_too() -> None:
    b = GraphBuilder()
    x, y = (b.value(SHAPE, DType.FLOAT32) for _ in range(2))
    large = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("exp", Arg(0)), [x])
    small = pooled(b, y)
    joined = b.node(Concat(3), [large, small], b.value((1, 4, 4, 8), DType.FLOAT32))
    assert {large, small, joined} <= set(kept(b.graph([x, y], [joined])))


@pytest.mark.parametrize("factor, spoilt", [(7.9, False), (8.1, True)])
def test_logits_that_are_small_may_be_rounded(factor: float, spoilt: bool) -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    logits = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("mul", apply("tanh", Arg(0)), factor), [x])
    y = b.node(Softmax(), [logits], b.value(SHAPE, DType.FLOAT32))
    assert (logits in kept(b.graph([x], [y]))) == spoilt
