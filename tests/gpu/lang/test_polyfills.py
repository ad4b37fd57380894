"""The language's own elementary functions, in NumPy: accurate, also for subnormal, huge and special numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litegpu.gpu.lang import f32, i32, trace
from litegpu.gpu.lang.interpret import run
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.math import POLYFILLS

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3e38, -3e38, 88.7, 88.8, 89.5, -87.0,
           -88.0, -103.0, -104.0, -105.0, 0.625, 10.0, 2.0**24, 5e9, 0.5, 2.0, 4.0, 1e6]  # fmt: skip


def numbers(low: float, high: float, count: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(0)
    powers = np.exp2(rng.uniform(-149, 127, count)) * rng.choice([-1, 1], count)
    plain = rng.uniform(low, high, count)
    found = np.concatenate([SPECIAL, powers, plain]).astype(np.float32)
    return np.resize(found, -(-len(found) // 64) * 64)


def computed(name: str, *args: np.ndarray) -> np.ndarray:
    """POLYFILLS[name], run by the language's interpreter."""
    n = len(args[0])
    whole = name == "to_i32_saturating"

    def body(k: Kernel) -> None:
        xs = [k.buffer(f"x{i}", f32, n, access="read") for i in range(len(args))]
        y = k.buffer("y", i32 if whole else f32, n)
        at = k.group_id() * 64 + k.local_id()
        y[at] = POLYFILLS[name](k, *(x[at] for x in xs))

    kernel = trace(body, "polyfill", (64, 1, 1), (n // 64, 1, 1))
    out = np.zeros(n, np.int32 if whole else np.float32)
    with np.errstate(all="ignore"):
        run(kernel, {"y": out} | {f"x{i}": a for i, a in enumerate(args)})
    return out


def check(found: np.ndarray, want: np.ndarray, ulps: float, smallest: float = 0.0) -> None:
    """Specials alike, signs of zeros too; within `ulps` units in the last place of numbers from `smallest` on."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(found[special], rounded[special])
    assert np.isfinite(found[~special]).all()
    unit = np.maximum(np.spacing(np.abs(rounded[~special])).astype(np.float64), smallest)
    error = np.abs(found[~special].astype(np.float64) - want[~special]) / unit
    assert error.max() <= ulps, (error.max(), np.flatnonzero(~special)[error.argmax()])


UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float, float]] = {
    "exp": (np.exp, -110, 95, 2), "log": (np.log, 0, 5, 2), "sin": (np.sin, -1e4, 1e4, 3),
    "cos": (np.cos, -1e4, 1e4, 3), "tanh": (np.tanh, -12, 12, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    function, low, high, ulps = UNARY[name]
    x = numbers(low, high)
    if name in ("sin", "cos"):  # where the result is next to nothing
        x = np.concatenate([x, (np.arange(1, 6401) * (np.pi / 2)).astype(np.float32)])
    with np.errstate(all="ignore"):
        want = function(x.astype(np.float64))
    check(computed(name, x), want, ulps, 2.0**-60 if name in ("sin", "cos") else 0.0)


def test_pow() -> None:
    x, y = numbers(0, 4), np.roll(numbers(-20, 20), 7)
    grid = np.array([(a, b) for a in SPECIAL for b in (*SPECIAL, 3.0, -3.0, -0.5)], np.float32)
    grid = np.resize(grid, (-(-len(grid) // 64) * 64, 2))
    for a, b in (
        (x, y),
        (np.abs(x), np.roll(y, 3)),
        (np.ascontiguousarray(grid[:, 0]), np.ascontiguousarray(grid[:, 1])),
    ):
        with np.errstate(all="ignore"):
            want = np.power(a.astype(np.float64), b.astype(np.float64))
            inside = ~((np.abs(want) < 2.0**-126) & (want != 0))  # subnormal results may be zero
        check(computed("pow", a, b)[inside], want[inside], 3)


def test_to_integers() -> None:
    x = np.array([0.5, -0.5, 1.9, -1.9, 2147483520.0, 2147483648.0, 3e9, -2147483648.0, -3e9, np.inf, -np.inf, np.nan,
                  1e-40, -0.0] + [7.0] * 50, np.float32)  # fmt: skip
    high, low = 2**31 - 1, -(2**31)
    want = [0, 0, 1, -1, 2147483520, high, high, low, low, high, low, high, 0, 0] + [7] * 50
    assert computed("to_i32_saturating", x).tolist() == want
