"""HARD_SWISH of bytes in a few operations, against the CPU's steps, for every byte."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import Arg
from litegpu.gpu.lower import hard_swish
from litegpu.gpu.lower.quantization import Grid


def grids(rng: np.random.Generator, unsigned: bool) -> tuple[Grid, Grid]:
    """Of an input, and of what becomes of it."""
    low, high = (0, 255) if unsigned else (-128, 127)
    given = Grid(float(np.float32(rng.uniform(0.005, 0.12))), int(rng.integers(low, high - 60)), low, high)
    x = np.linspace((low - given.zero) * given.scale, (high - given.zero) * given.scale, 999)
    y = x * np.clip(x + 3, 0, 6) / 6
    scale = float(np.float32(max(max(y.max(), 0) - min(y.min(), 0), 0.01) / 255 * rng.choice([0.8, 1, 1.1])))
    return given, Grid(scale, int(np.clip(np.rint(low - min(y.min(), 0) / scale), low, high)), low, high)


@pytest.mark.parametrize("unsigned", [False, True])
def test_every_byte_is_what_the_steps_make_of_it(unsigned: bool) -> None:
    rng, found = np.random.default_rng(int(unsigned)), 0
    for _ in range(40):
        given, made = grids(rng, unsigned)
        t = np.arange(given.low - given.zero, given.high - given.zero + 1, dtype=np.int32)
        bottom, top = made.low - made.zero, made.high - made.zero
        want = np.clip(evaluate_expr(hard_swish.in_steps(Arg(0), given, made), [t]), bottom, top)
        curve = hard_swish.curve(given, made)
        if curve is None:
            continue
        found += 1
        np.testing.assert_array_equal(evaluate_expr(curve.of(Arg(0), bottom, top), [t]), want)
        # however a device rounds, there is room
        for by in (-0.0004, 0.0004):
            np.testing.assert_array_equal(np.rint(np.clip(curve.values(t) + by, bottom, top)), want)
    assert found >= 36


def test_without_such_numbers_the_steps_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = grids(np.random.default_rng(5), False)
    monkeypatch.setattr(hard_swish, "curve", lambda *_: None)
    assert hard_swish.hard_swish(None, Arg(0), given, made) == hard_swish.in_steps(Arg(0), given, made)  # type: ignore[arg-type]
