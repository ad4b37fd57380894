"""Joined limits give what the separate ones give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import Apply, Arg, Expr, walk
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.passes.clamp import join_clamps

X = np.concatenate([np.arange(-12, 12.25, 0.25), [np.nan, np.inf, -np.inf, -0.0]]).astype(np.float32)


def rounded(kind: str, x: Expr) -> Expr:
    return fn("round", x) if kind == "round" else fn("floor", fn("add", x, 0.5))


@pytest.mark.parametrize("kind", ["round", "floor"])
def test_same_results(kind: str) -> None:
    inner = [lambda x: x, lambda x: fn("max", x, 0.0), lambda x: fn("min", fn("max", x, 0.0), 6.5)]
    inner += [lambda x: fn("min", fn("max", x, -3.5), 2.5), lambda x: fn("max", fn("min", x, -9.0), -2.5)]
    for limit, low, high in itertools.product(inner, (-8.0, -1.0, 3.0), (-5.0, 2.0, 9.0)):
        expr = fn("min", fn("max", rounded(kind, limit(fn("mul", Arg(0), 1.5))), low), high)
        joined = join_clamps(expr)
        np.testing.assert_array_equal(evaluate_expr(joined, [X]), evaluate_expr(expr, [X]), str(expr))
        assert sum(isinstance(e, Apply) for e in walk(joined)) <= sum(isinstance(e, Apply) for e in walk(expr))


@pytest.mark.parametrize("kind", ["round", "floor"])
def test_same_results_whatever_the_limits(kind: str) -> None:
    """Up to four limits inside in any order, ties and infinities among them, and such as leave one number only."""
    rng = np.random.default_rng(0)
    choices = [-np.inf, -6.5, -2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.49, 6.0, np.inf]
    for _ in range(400):
        expr: Expr = Arg(0)
        for _ in range(rng.integers(0, 5)):
            expr = fn(str(rng.choice(["min", "max"])), expr, float(rng.choice(choices)))
        low, high = (float(n) for n in rng.integers(-8, 9, 2))
        expr = fn("min", fn("max", rounded(kind, expr), low), high)
        np.testing.assert_array_equal(evaluate_expr(join_clamps(expr), [X]), evaluate_expr(expr, [X]), str(expr))


def test_limits_are_joined() -> None:
    """The tighter ones win, rounded as the numbers are."""
    for kind, tie in (("round", 2.0), ("floor", 3.0)):
        inner = fn("min", fn("max", Arg(0), -1.0), 2.5)
        joined = join_clamps(fn("min", fn("max", rounded(kind, inner), -128.0), 127.0))
        assert joined == fn("min", fn("max", rounded(kind, Arg(0)), -1.0), tie)


def test_an_activation_costs_nothing() -> None:
    relu6 = fn("min", fn("max", Arg(0), 0.0), 899.4)
    assert join_clamps(fn("min", fn("max", fn("round", relu6), 0.0), 255.0)) == fn(
        "min", fn("max", fn("round", Arg(0)), 0.0), 255.0
    )


def test_others_stay() -> None:
    for expr in (Arg(0), fn("max", fn("round", Arg(0)), 0.0), fn("min", fn("max", fn("ceil", Arg(0)), 0.0), 9.0)):
        assert join_clamps(expr) is expr
