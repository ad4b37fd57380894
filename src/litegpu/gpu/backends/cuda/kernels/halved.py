"""Weights as tensor cores multiply them with floats that are halved: each as two halves, scaled (halved.cu)."""

from __future__ import annotations

import numpy as np

#: The weights of an output are scaled by a power of two that makes the largest one from 2^14 to 2^15 of these.
_EXPONENT = 14
#: The least half above zero: no weight but zero is to have a zero half, as an infinity times it would not be one.
_LEAST = np.float32(2.0**-24)


def scales(weights: np.ndarray) -> np.ndarray:
    """For float32 weights [outputs, ..] float32 [outputs]: the power of two that each output's are to be scaled by.
    Its inverse is a float, too."""
    largest = np.abs(weights.reshape(len(weights), -1)).max(axis=1, initial=0.0)
    exponent = np.frexp(largest)[1] - 1  # largest is from 2^exponent on
    found: np.ndarray = np.ldexp(np.float32(1.0), np.clip(_EXPONENT - exponent, -113, 126) * (largest > 0))
    return found.astype(np.float32)


def halves(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of scaled float32 weights: their first 11 digits as float16, what is left of them (22 digits in all, but none
    below 2^-24), and the former by 2^-11, for rests of the other factor that are as much larger."""
    size = np.abs(weights)
    cut = (size.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    high = np.where(size < 2.0**-14, np.floor(size / _LEAST) * _LEAST, cut)
    high = np.where((size > 0) & (high == 0), _LEAST, high)
    rest = np.maximum(size - high, 0)
    below = np.where(high > 0, np.maximum(high * np.float32(2.0**-11), _LEAST), 0)
    first, second, third = (np.copysign(part, weights).astype(np.float16) for part in (high, rest, below))
    return first, second, third


def paired(depth: np.ndarray) -> np.ndarray:
    """[.., 16 n] in the order in which a warp has numbers of the depth: of each eight those four apart are a pair."""
    *outer, size = depth.shape
    return depth.reshape(*outer, size // 8, 2, 4).swapaxes(-1, -2).reshape(*outer, size)
