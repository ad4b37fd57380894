"""How accurate the elementary functions are over their ranges, in float32 ulps, on every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu.lang.test_conformance import elementwise

from litegpu.gpu.lang import Kernel, f32, trace
from litegpu.gpu.lang.functions import Functions
from litegpu.gpu.lang.interpret import run
from litegpu.gpu.lang.math import POLYFILLS

COUNT = 40000
RANDOM = np.random.default_rng(5)


def uniform(low: float, high: float) -> np.ndarray:
    return RANDOM.uniform(low, high, COUNT).astype(np.float32)


def spread(low: float, high: float) -> np.ndarray:
    """Magnitudes from low to high, as many in every octave."""
    return np.exp(RANDOM.uniform(np.log(low), np.log(high), COUNT)).astype(np.float32)


RANGES: list[tuple[str, Callable[..., Any], tuple[np.ndarray, ...], float]] = [
    ("exp", np.exp, (uniform(-87, 88.7),), 2.5),
    ("exp", np.exp, (uniform(-1, 1),), 2.5),
    ("log", np.log, (spread(1e-37, 3e38),), 1.5),
    ("log", np.log, (uniform(0.9, 1.1),), 1.5),
    ("sin", np.sin, (uniform(-10, 10),), 3.5),
    ("sin", np.sin, (uniform(-1e6, 1e6),), 3.5),
    ("sin", np.sin, (spread(1e-30, 3e38),), 3.5),
    ("cos", np.cos, (uniform(-10, 10),), 3.5),
    ("cos", np.cos, (spread(1e-30, 3e38),), 3.5),
    ("tanh", np.tanh, (uniform(-12, 12),), 2.5),
    ("tanh", np.tanh, (spread(1e-30, 1),), 2.5),
    ("pow", np.power, (spread(0.05, 20), uniform(-20, 20)), 3),
    ("pow", np.power, (spread(1e-30, 1e30), uniform(-1, 1)), 3),
    ("pow", np.power, (uniform(0.999, 1.001), uniform(-5e4, 5e4)), 3),
    ("sqrt", np.sqrt, (spread(1e-37, 3e38),), 3),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (spread(1e-37, 3e38),), 3),
    ("div", np.divide, (spread(1e-15, 1e15), spread(1e-15, 1e15)), 2.6),
]


@pytest.mark.parametrize(("op", "function", "args", "ulp"), RANGES, ids=lambda v: v if isinstance(v, str) else "")
def test_accuracy(runner: Any, op: str, function: Callable[..., Any], args: tuple[np.ndarray, ...], ulp: float) -> None:
    kernel = trace(
        elementwise,
        "accuracy",
        (64, 1, 1),
        (COUNT // 64, 1, 1),
        op=op,
        kind="f32",
        lanes=4,
        arity=len(args),
        count=COUNT // 4,
    )
    y = np.zeros(COUNT, np.float32)
    runner.run(kernel, {**dict(zip("ab", args, strict=False)), "y": y})
    assert worst_ulp(y, function(*(a.astype(np.longdouble) for a in args)).astype(np.float64)) <= ulp


@pytest.mark.parametrize(
    ("op", "function", "args", "ulp"),
    [row for row in RANGES if row[0] in POLYFILLS],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("fused", [True, False])
def test_accuracy_of_the_definitions(
    op: str, function: Callable[..., Any], args: tuple[np.ndarray, ...], ulp: float, fused: bool, monkeypatch: Any
) -> None:
    """The functions of `math` themselves in NumPy's float32, with an fma that rounds once and one that rounds twice."""
    if not fused:
        monkeypatch.setattr(Functions, "fma", lambda self, a, b, c: a * b + c)

    def body(kernel: Kernel) -> None:
        inputs = [kernel.buffer("ab"[j], f32, COUNT, access="read") for j in range(len(args))]
        y = kernel.buffer("y", f32, COUNT)
        i = kernel.group_id() * 64 + kernel.local_id()
        y[i] = POLYFILLS[op](kernel, *(b[i] for b in inputs))

    kernel = trace(body, "definition", (64, 1, 1), (COUNT // 64, 1, 1))
    y = np.zeros(COUNT, np.float32)
    run(kernel, {**dict(zip("ab", args, strict=False)), "y": y})
    assert worst_ulp(y, function(*(a.astype(np.longdouble) for a in args)).astype(np.float64)) <= ulp


def worst_ulp(result: np.ndarray, expected: np.ndarray) -> float:
    """Over results that are normal numbers."""
    rounded = expected.astype(np.float32)
    normal = np.isfinite(rounded) & (abs(rounded) >= 2.0**-126)
    assert np.isfinite(result[normal]).all()
    error = abs(result[normal].astype(np.float64) - expected[normal]) / np.spacing(abs(rounded[normal]))
    return float(error.max())
