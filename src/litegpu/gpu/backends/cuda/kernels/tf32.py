"""Floats as tensor cores multiply them: each as two numbers of TF32, with 11 digits of a float's 24 (product.cu)."""

from __future__ import annotations

import numpy as np

#: The least of what is left of a number, of that number: an infinity times it is not to be NaN.
LEAST_REST = np.float32(2.0**-60)


def rests(weights: np.ndarray) -> np.ndarray:
    """What TF32 leaves of float32 weights, rounded to as many digits, or the least that has their sign; of which the
    tensor cores ignore the 13 last bits, as of the weights."""
    cut = (weights.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    left = (weights - cut) + weights * LEAST_REST
    return (left.view(np.uint32) + np.uint32(0x1000)).view(np.float32)
