"""Constants of formulas, by values that a test on random numbers does not meet: zeros, thresholds, large numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import lower_partition
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder

X = np.array([-1e30, -88, -6, -3, -1, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1, 3, 6, 6.5, 88, 1e30], np.float32)


def evaluated(op: str, x: np.ndarray, options: dict[str, Any] | None = None) -> np.ndarray:
    b = ModelBuilder()
    b.output(b.op(op, [b.input("x", x.shape)], x.shape, options or {}))
    graph = read_model(b.build()).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph
    with np.errstate(all="ignore"):
        (found,) = evaluate_graph(lowered, [x.reshape(lowered.values[lowered.inputs[0]].shape)])
    return found.reshape(x.shape)


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "HARD_SWISH": lambda x: x * (np.clip(x + 3, 0, 6) / 6),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1, 1),
    "RELU_0_TO_1": lambda x: np.clip(x, 0, 1),
    "ELU": lambda x: np.where(x < 0, np.expm1(x), x),
    "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "SQUARE": lambda x: x * x,
    "SIGN": np.sign,
    "ROUND": np.rint,
}


@pytest.mark.parametrize("op", FORMULAS)
def test_formulas(op: str) -> None:
    x = X.astype(np.float64)
    with np.errstate(all="ignore"):
        want = np.asarray(FORMULAS[op](x)).astype(np.float32)
    np.testing.assert_allclose(evaluated(op, X), want, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate: bool) -> None:
    x = np.linspace(-6, 6, 97)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    want = 0.5 * x * (1 + np.tanh(inner)) if approximate else 0.5 * x * (1 + erf(x / math.sqrt(2)))
    found = evaluated("GELU", x.astype(np.float32), {"approximate": approximate})
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=2e-7)


def test_leaky_relu() -> None:
    np.testing.assert_allclose(evaluated("LEAKY_RELU", X, {"alpha": 0.25}), np.where(X > 0, X, X / 4))


def test_the_norm_of_zeros_and_of_tiny_numbers() -> None:
    rows = np.array([[0, 0, 0], [1e-9, 0, 0], [3, 4, 0], [-1e-3, 0, 0]], np.float32)
    want = rows / np.maximum(np.sqrt((rows.astype(np.float64) ** 2).sum(1, keepdims=True)), 1e-6)
    np.testing.assert_allclose(evaluated("L2_NORMALIZATION", rows), want, rtol=1e-6)


@pytest.mark.parametrize("beta", [1.0, 0.5, 3.0])
def test_softmax_of_large_numbers(beta: float) -> None:
    rows = np.array([[1000, 999, -1000], [-1000, -1000, -1001], [0, 0, 0]], np.float32)
    powers = np.exp(beta * (rows.astype(np.float64) - rows.max(1, keepdims=True)))
    np.testing.assert_allclose(evaluated("SOFTMAX", rows, {"beta": beta}), powers / powers.sum(1, keepdims=True), 1e-6)


def test_log_softmax_of_large_numbers() -> None:
    rows = np.array([[1000, 999, -1000], [-1000, -1000, -1001], [0, 0, 0]], np.float32).astype(np.float64)
    shifted = rows - rows.max(1, keepdims=True)
    want = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    np.testing.assert_allclose(evaluated("LOG_SOFTMAX", rows.astype(np.float32)), want, rtol=1e-6, atol=1e-7)
