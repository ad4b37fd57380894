"""All quotients of two 8-bit numbers, as the CPU's kernel of DIV computes them: by a reciprocal in fixed point."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.quantization import Grid

Array = np.ndarray[Any, np.dtype[Any]]
_TOP = 2**31 - 1


def quotients(x: Grid, y: Grid, made: Grid) -> Array:
    """Quanta of the results, int32 [256, 256], for stored numbers of x and of y from the lowest on. What is divided by
    zero, for which the CPU gives an error, saturates."""
    a, b = np.meshgrid(*(np.arange(g.low, g.high + 1, dtype=np.int64) - g.zero for g in (x, y)), indexing="ij")
    multiplier, shift = multiplier_of(float(np.float32(x.scale) / (np.float32(y.scale) * np.float32(made.scale))))
    signed, divisor = np.where(b < 0, -a, a), np.maximum(np.abs(b), 1)
    inverse, over = _reciprocal(divisor)
    headroom = np.where(signed >= 0, _leading_zeros(signed) - 1, _leading_zeros(2 * -signed - 1))
    unscaled = _high_product(_int32(signed << headroom), inverse)
    result = _divided(_high_product(unscaled, np.asarray(multiplier)), -(shift - over - headroom))
    low, high = made.low - made.zero, made.high - made.zero
    by_zero = np.where(a > 0, high, np.where(a < 0, low, 0))
    return np.where(b == 0, by_zero, np.clip(result, low, high)).astype(np.int32)


def _reciprocal(x: Array) -> tuple[Array, Array]:
    """GetReciprocal: 1 / x of 31 bits, and how many bits x has above the point; three steps of Newton's."""
    room = _leading_zeros(x)
    fraction = _int32((x << room) - 2**31)
    half = fraction + _TOP
    half = (half + np.where(half >= 0, 1, -1)) // 2  # never negative
    guess = _int32(1515870810 + _high_product(half, np.asarray(-1010580540)))
    for _ in range(3):
        rest = _int32((1 << 29) - _high_product(half, guess))
        guess = _int32(guess + np.clip(_high_product(guess, rest) << 2, -_TOP - 1, _TOP))
    return np.clip(guess << 1, -_TOP - 1, _TOP), 31 - room


def _high_product(a: Array, b: Array) -> Array:
    """SaturatingRoundingDoublingHighMul of numbers of 32 bits."""
    product = a * b
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    return np.asarray(np.sign(nudged) * (np.abs(nudged) >> 31))


def _divided(x: Array, exponent: Array) -> Array:
    """RoundingDivideByPOT, with shifts as x86 has them where the exponent is out of range."""
    mask = _int32((np.int64(1) << (exponent & 63)) - 1)
    threshold = (mask >> 1) + (x < 0)
    return np.asarray((x >> (exponent & 31)) + ((x & mask) > threshold))


def _leading_zeros(x: Array) -> Array:
    """Of numbers from 0 to 2**32 - 1, in 32 bits."""
    return 32 - np.ceil(np.log2(x.clip(0) + 1.0)).astype(np.int64)


def _int32(x: Array) -> Array:
    return x.astype(np.int32).astype(np.int64)
