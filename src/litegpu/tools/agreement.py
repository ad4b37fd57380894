"""How far apart two results are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "auto": 1e-2}  # relative L2 that the GPU delegate is tested to


@dataclass(frozen=True)
class Agreement:
    """One output of the GPU beside that of the CPU. `relative_l2`: ||gpu - cpu|| / ||cpu|| (infinite if NaN or infinity
    stand in different places); `max_abs`: the largest difference; `identical`: every bit is the same."""

    output: str
    relative_l2: float
    max_abs: float
    identical: bool
    is_float: bool


def compare(name: str, got: np.ndarray, want: np.ndarray) -> Agreement:
    """Two arrays of one shape, in float64."""
    if got.dtype.kind not in "fiub":
        same = bool(np.array_equal(got, want))
        return Agreement(name, 0.0 if same else np.inf, 0.0 if same else np.inf, same, False)
    a, b = got.astype(np.float64), want.astype(np.float64)
    identical = got.tobytes() == want.tobytes()
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return Agreement(name, np.inf, np.inf, False, got.dtype.kind == "f")
    difference, norm = a[finite] - b[finite], float(np.linalg.norm(b[finite]))
    error = float(np.linalg.norm(difference))
    largest = float(np.abs(difference).max(initial=0))
    return Agreement(name, error / norm if norm else error, largest, identical, got.dtype.kind == "f")
