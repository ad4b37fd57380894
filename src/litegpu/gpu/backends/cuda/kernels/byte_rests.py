"""Weights that no signed byte holds, as one and a rest: what the rests add to sums is added beside the products. In
files of old, whose weights have a zero point, one or two of a layer are such: those that its range ends with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Ints = tuple[int, ...]
#: Of one layer, more than which are not taken: each takes instructions.
MOST_RESTS = 12
_LIMITS = np.iinfo(np.int8)


def held(weights: np.ndarray) -> np.ndarray:
    """The bytes next to the weights."""
    return np.asarray(weights.clip(_LIMITS.min, _LIMITS.max))


def are_few(weights: np.ndarray, most: int = MOST_RESTS) -> bool:
    """Whether no more than `most` are no bytes: by default, as byte_inverted.cu takes them."""
    return bool(np.count_nonzero(weights - held(weights)) <= most)


def of_expansion(weights: np.ndarray, order: np.ndarray) -> str:
    """For EXPANSION_RESTS of byte_inverted.cu, of weights [outputs, inputs]; `order`: of 16 outputs, the one at each
    place of four lanes."""
    found = ((_place(output, order), (k,), rest) for (output, k), rest in _rests(weights))
    return _listed(found)


def of_window(weights: np.ndarray, order: np.ndarray) -> str:
    """For WINDOW_RESTS, of weights [1, KH, KW, channels]."""
    found = ((_place(channel, order), (ky, kx), rest) for (_, ky, kx, channel), rest in _rests(weights))
    return _listed(found)


def of_words(weights: np.ndarray) -> str:
    """For RESTS of byte_depthwise.cu, of weights [1, KH, KW, channels]: four channels are a word."""
    return _listed(((channel // 4, channel % 4), (ky, kx), rest) for (_, ky, kx, channel), rest in _rests(weights))


def of_projection(weights: np.ndarray, order: np.ndarray) -> str:
    """For PROJECTION_RESTS, of weights [outputs, channels]. A lane has each output's sum in one of two tiles of 8."""
    found = (
        (_place(channel, order), (output // 16 * 2 + output % 4 // 2, output // 4 % 4, output % 2), rest)
        for (output, channel), rest in _rests(weights)
    )
    return _listed(found)


def _rests(weights: np.ndarray) -> list[tuple[Ints, int]]:
    rests = weights - held(weights)
    return [(tuple(map(int, place)), int(rests[tuple(place)])) for place in np.argwhere(rests)]


def _place(channel: int, order: np.ndarray) -> Ints:
    """The sixteen, the lane of four and its element."""
    place = int(np.flatnonzero(order == channel % 16)[0])
    return channel // 16, place // 4, place % 4


def _listed(found: Iterable[tuple[Ints, Ints, int]]) -> str:
    return " ".join(f"F({', '.join(map(str, (*place, *more)))}, ({rest}))" for place, more, rest in found)
