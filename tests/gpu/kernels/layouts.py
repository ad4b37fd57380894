"""Views of every kind for a value, to test kernels with."""

from __future__ import annotations

import math
from collections.abc import Callable

from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.view import View, packed, padded


def aligned_slice(root: int, shape: Shape, dtype: DType) -> View:
    """Channels from 4 on of a wider value, aligned; the lanes behind them are somebody else's."""
    b, h, w, c = shape
    p = -(-c // 4) * 4 + 8
    return View(root, shape, (h * w * p, w * p, p, 1), dtype, 4, zero_padded=c % 4 == 0, size=b * h * w * p)


def unaligned_slice(root: int, shape: Shape, dtype: DType) -> View:
    """Channels from 3 on of a wider value."""
    b, h, w, c = shape
    p = -(-c // 4) * 4 + 8
    return View(root, shape, (h * w * p, w * p, p, 1), dtype, 3, zero_padded=c % 4 == 0, size=b * h * w * p)


def channels_first(root: int, shape: Shape, dtype: DType) -> View:
    """A transposed view: W is innermost in memory, padded to fours."""
    b, h, w, c = shape
    p = -(-w // 4) * 4
    return View(root, shape, (c * h * p, p, 1, h * p), dtype, zero_padded=c % 4 == 0, size=b * c * h * p)


def window(root: int, shape: Shape, dtype: DType) -> View:
    """The middle of a value with one more pixel all around."""
    b, h, w, c = shape
    p = -(-c // 4) * 4
    y = (w + 2) * p
    size = math.prod((b, h + 2, w + 2, p))
    return View(root, shape, ((h + 2) * y, y, p, 1), dtype, y + p, zero_padded=True, size=size)


def odd_pixels(root: int, shape: Shape, dtype: DType) -> View:
    """Pixels of whole quads and one element that is nobody's, so that none but the first is aligned."""
    b, h, w, c = shape
    p = -(-c // 4) * 4 + 1
    return View(root, shape, (h * w * p, w * p, p, 1), dtype, zero_padded=True, size=b * h * w * p)


LAYOUTS: dict[str, Callable[[int, Shape, DType], View]] = {
    "padded": padded,
    "packed": packed,
    "aligned_slice": aligned_slice,
    "unaligned_slice": unaligned_slice,
    "channels_first": channels_first,
    "window": window,
    "odd_pixels": odd_pixels,
}
