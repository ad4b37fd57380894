"""How results of quantized operators are rounded, at ties and limits: what XNNPACK does, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import Arg
from litegpu.gpu.lower.quantization import Grid
from litegpu.model.ops import BUILTIN

#: Quanta with ties among them, beyond the limits on both sides.
TIES = np.arange(-300, 300.5, 0.5, dtype=np.float32)


def half_up(x: np.ndarray) -> np.ndarray:
    return np.floor(x + 0.5)


def half_even(x: np.ndarray) -> np.ndarray:
    return np.rint(x)


def half_away(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


@pytest.mark.parametrize("zero", [0, 3, -128, 127])
@pytest.mark.parametrize("low, high", [(-128, 127), (0, 255), (-32768, 32767)])
@pytest.mark.parametrize("operator", ["ADD", "SUB", "MUL", "CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_ties(operator: str, low: int, high: int, zero: int) -> None:
    grid = Grid(0.25, zero, low, high)
    gpu = BUILTIN[operator].gpu
    assert gpu is not None
    (found,) = (np.asarray(evaluate_expr(grid.rounded(Arg(0), gpu.halves), [TIES])),)
    if operator in ("ADD", "SUB") or (operator == "AVERAGE_POOL_2D" and low == 0):
        nearest = half_up(TIES)
    elif operator == "AVERAGE_POOL_2D":
        nearest = half_away(TIES + zero) - zero
    else:
        nearest = half_even(TIES)
    np.testing.assert_array_equal(found, np.clip(nearest + zero, low, high) - zero)
    assert found.min() + zero >= low and found.max() + zero <= high


@pytest.mark.parametrize("limits, bits", [((-128, 127), 8), ((0, 255), 8), ((-32768, 32767), 16)])
def test_bits(limits: tuple[int, int], bits: int) -> None:
    assert Grid(1.0, 0, *limits).bits == bits
