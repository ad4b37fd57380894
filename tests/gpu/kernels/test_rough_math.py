"""Functions whose results are kept as float16: as good as that asks for, and the same at the ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from gpu.kernels.run_launch import lay_out, run_node

from litegpu.gpu.graph import Arg, DType, Elementwise, Expr, GraphBuilder, Softmax, apply
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang import Kernel
from litegpu.gpu.lang.features import Features

X = Arg(0)
HALF = apply("mul", X, 0.5)
GELU = apply("mul", HALF, apply("add", apply("erf", apply("mul", X, math.sqrt(0.5))), 1))
#: The same in other words.
GELU_OF_QUOTIENT = apply("mul", HALF, apply("add", apply("erf", apply("div", X, math.sqrt(2))), 1))
GELU_OF_FACTOR = apply("mul", apply("add", 1, apply("erf", apply("mul", math.sqrt(0.5), X))), HALF)
CUBE = apply("mul", X, apply("add", apply("mul", apply("mul", X, X), 0.0356774), 0.7978846))
TANH_GELU = apply("mul", apply("add", 1, apply("tanh", CUBE)), HALF)


def gelu_by_tanh(factor: float) -> Expr:
    """As converters write it, op by op."""
    cube = apply("mul", apply("mul", X, X), X)
    inner = apply("mul", apply("add", X, apply("mul", cube, factor)), math.sqrt(2 / math.pi))
    return apply("mul", HALF, apply("add", apply("tanh", inner), 1))


GELU_OP_BY_OP = gelu_by_tanh(0.044715)
_erf = np.vectorize(math.erf, otypes=[np.float64])


def graph_of(expr: Expr, count: int) -> tuple[GraphBuilder, int]:
    builder = GraphBuilder()
    x, y = (builder.value((1, 1, count // 4, 4), DType.FLOAT32) for _ in range(2))
    builder.node(Elementwise(), [], y, expr, [x])
    return builder, x


def text_of(expr: Expr, half: bool) -> str:
    builder, x = graph_of(expr, 64)
    graph = builder.graph([x], [builder.nodes[0].output])
    (launch,) = build(KernelContext(graph, graph.nodes[0], lay_out(graph, half), Features(float16=True), half))
    assert isinstance(launch.kernel, Kernel)
    return str(launch.kernel)


CASES: dict[str, tuple[Expr, Callable[[np.ndarray], np.ndarray]]] = {
    "sigmoid": (apply("sigmoid", X), lambda x: 1 / (1 + np.exp(-x))),
    "swish": (apply("mul", X, apply("sigmoid", X)), lambda x: x / (1 + np.exp(-x))),
    "tanh": (apply("tanh", X), np.tanh),
    "exp": (apply("exp", X), np.exp),
    "quotient": (apply("div", X, apply("add", apply("mul", X, X), 3)), lambda x: x / (x * x + 3)),
    "third": (apply("div", X, 3), lambda x: x / 3),
    "gelu": (GELU, lambda x: x * (1 + _erf(x * math.sqrt(0.5))) / 2),
    "gelu of a quotient": (GELU_OF_QUOTIENT, lambda x: x * (1 + _erf(x * math.sqrt(0.5))) / 2),
    "gelu, factor first": (GELU_OF_FACTOR, lambda x: x * (1 + _erf(x * math.sqrt(0.5))) / 2),
    "gelu by tanh": (TANH_GELU, lambda x: x * (1 + np.tanh(x * (0.7978846 + 0.0356774 * x * x))) / 2),
    "gelu by tanh, op by op": (GELU_OP_BY_OP, lambda x: x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))) / 2),
    "1 + tanh": (apply("add", apply("tanh", X), 1), lambda x: 2 / (1 + np.exp(-2 * x))),
}


@pytest.mark.parametrize("fn", ["mul", "div"])
def test_a_factor_costs_nothing(fn: str) -> None:
    """What the error function's argument is multiplied with is in the coefficients."""
    scaled, plain = (
        apply("mul", HALF, apply("add", apply("erf", v), 1)) for v in (apply(fn, X, 0.3), X)
    )  # neither is GELU
    assert text_of(scaled, True).count("\n") == text_of(plain, True).count("\n")


@pytest.mark.parametrize("expr", [GELU, GELU_OF_QUOTIENT, GELU_OF_FACTOR, TANH_GELU, GELU_OP_BY_OP])
def test_gelu_takes_one_slow_function(expr: Expr) -> None:
    """In whatever words it comes."""
    text = text_of(expr, True)
    assert text.count("rough_exp2") == 1 and "rough_reciprocal" not in text


@pytest.mark.parametrize("factor", (0.044, 0.0447, 1.0))
def test_what_is_nearly_gelu_stays_what_it_is(factor: float) -> None:
    expr, function = gelu_by_tanh(factor), lambda x: x * (1 + np.tanh(0.7978845608 * (x + factor * x**3))) / 2
    assert "rough_reciprocal" in text_of(expr, True)
    check(expr, function)


@pytest.mark.parametrize("name", CASES)
def test_as_good_as_float16(name: str) -> None:
    """To a part in 1500, where float16 holds one in 2048, or 1e-5; in the interpreter and on the device."""
    check(*CASES[name])


def check(expr: Expr, function: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.linspace(-11, 11, 4096).astype(np.float16).astype(np.float64)
    x[:64] = np.linspace(-0.07, 0.07, 64).astype(np.float16)
    builder, v = graph_of(expr, x.size)
    graph = builder.graph([v], [builder.nodes[0].output])
    want = function(x)
    for interpret in (True, False):
        got = run_node(
            graph, lay_out(graph, half=True), {v: x.reshape(graph.values[v].shape)}, interpret=interpret, half=True
        )
        error = np.abs(got.reshape(-1).astype(np.float64) - want)
        assert (error <= np.abs(want) / 1500 + 1e-5).all(), x[np.argmax(error - np.abs(want) / 1500)]


@pytest.mark.parametrize("name", CASES)
def test_float32_is_computed_as_ever(name: str) -> None:
    assert "_rough" not in text_of(CASES[name][0], half=False)


@pytest.mark.parametrize("fn", ("round", "floor", "to_int32"))
def test_what_counts_steps_is_exact(fn: str) -> None:
    """A quotient that is a whole number, or half of one, is decided by its last bit."""
    expr = apply(fn, apply("div", X, apply("add", apply("sigmoid", X), 1.0)))
    assert "_rough" not in text_of(expr if fn != "to_int32" else apply("to_float32", expr), half=True)


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 65504, -65504, 1e-7], np.float32)
    wanted: dict[str, list[float]] = {
        "sigmoid": [np.nan, 1, 0, 0.5, 0.5, 1, 0, 0.5],
        "tanh": [np.nan, 1, -1, 0, 0, 1, -1, float(np.float16(1e-7))],
        "exp": [np.nan, np.inf, 0, 1, 1, np.inf, 0, 1],
        "gelu": [np.nan, np.inf, np.nan, 0, 0, 65504, 0, float(np.float16(5e-8))],
    }
    wanted["gelu by tanh"] = wanted["gelu"]
    for name, want in wanted.items():
        builder, v = graph_of(CASES[name][0], x.size)
        graph = builder.graph([v], [builder.nodes[0].output])
        for interpret in (True, False):
            got = run_node(graph, lay_out(graph, half=True), {v: x.reshape(1, 1, 2, 4)}, interpret=interpret, half=True)
            np.testing.assert_allclose(got.reshape(-1), want, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("channels", (4, 61, 300))
def test_softmax(channels: int) -> None:
    builder = GraphBuilder()
    x, y = (builder.value((1, 2, 9, channels), DType.FLOAT32) for _ in range(2))
    builder.node(Softmax(0.7), [x], y)
    data = np.random.default_rng(2).uniform(-5, 5, (1, 2, 9, channels))
    graph = builder.graph([x], [y])
    want = np.exp(0.7 * data) / np.exp(0.7 * data).sum(3, keepdims=True)
    for interpret in (True, False):
        got = run_node(graph, lay_out(graph, half=True), {x: data}, interpret=interpret, half=True)
        np.testing.assert_allclose(got, want, rtol=5e-3, atol=1e-6)
