"""Made-up inputs for a model, the same in every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.errors import OptionError

# The default seed of the 32-bit Mersenne Twister, which the official benchmark tool draws from.
_SEED = 5489
_RANGES = {
    "int32": (0, 99),
    "uint32": (0, 99),
    "int64": (0, 99),
    "uint8": (0, 254),
    "int8": (-127, 127),
    "bool": (0, 1),
}
_RANGES |= {"int16": (0, 0), "uint16": (0, 0)}
_SENTENCE = b"a sentence of made-up text"


def random_inputs(
    details: Sequence[Mapping[str, Any]], ranges: Mapping[str, tuple[int, int]] | None = None
) -> list[np.ndarray]:
    """One array per input detail dictionary, in the distributions of the official benchmark tool.

    float32 and float64: uniform in [-0.5, 0.5), or from low to high; float16: always [-0.5, 0.5); int32, uint32, int64:
    0..99; uint8: 0..254; int8: -127..127; int16, uint16: 0; bool: 0 or 1. float32 draws are those of the official tool
    bit for bit. `ranges` (tensor name -> lowest, highest, inclusive for integers) replaces the default range.
    """
    random = np.random.RandomState(_SEED)
    return [_random(random, detail, (ranges or {}).get(detail["name"])) for detail in details]


def _random(random: np.random.RandomState, detail: Mapping[str, Any], given: tuple[int, int] | None) -> np.ndarray:
    dtype, shape = np.dtype(detail["dtype"]), tuple(int(n) for n in detail["shape"])
    if dtype.kind in "SO":
        return np.full(shape, _SENTENCE, dtype=object)
    words: np.ndarray = random.randint(0, 2**32, size=shape, dtype=np.uint32)
    if dtype.kind in "fc":
        low, high = given if given and dtype != np.float16 else (-0.5, 0.5)
        fractions: np.ndarray = words.astype(np.float32) / np.float32(2**32)
        return np.asarray(fractions * np.float32(high - low) + np.float32(low)).astype(dtype)
    if dtype.name not in _RANGES:
        raise OptionError(f"No values can be made up for input '{detail['name']}' of type {dtype}")
    lowest, highest = given or _RANGES[dtype.name]
    scaled: np.ndarray = words.astype(np.int64) * (highest - lowest + 1)
    return np.asarray(lowest + (scaled >> 32)).astype(dtype)
