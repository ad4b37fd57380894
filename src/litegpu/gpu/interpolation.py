"""Which rows or columns integer resizing mixes, with whole weights: as XNNPACK's and the runtime's kernels do."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.gpu.graph import Resize2D

Array = np.ndarray[Any, np.dtype[Any]]

#: Bits of the weights: of XNNPACK's kernels, and of the runtime's own.
XNNPACK_BITS, BUILTIN_BITS = 11, 10


def integer_table(op: Resize2D, size: int, out: int) -> tuple[Array, Array, Array]:
    """The lower and upper index of each output index, and the weight of the upper one in units of 2**-op.bits."""
    lower, weight = (_xnnpack if op.bits == XNNPACK_BITS else _builtin)(op, size, out)
    upper = np.minimum(lower + (weight > 0), size - 1)
    return lower, upper, weight


def _xnnpack(op: Resize2D, size: int, out: int) -> tuple[Array, Array]:
    less = int(op.align_corners and out > 1)
    scale = np.float32(size - less) / np.float32(out - less)
    at = np.arange(out, dtype=np.float32) * scale
    if op.half_pixel_centers:
        at = at + (np.float32(0.5) * scale - np.float32(0.5))
    at = np.clip(at, np.float32(0), np.float32(size - 1))
    lower = at.astype(np.int64)
    return lower, np.rint((at - lower.astype(np.float32)) * np.float32(2048)).astype(np.int64)


def _builtin(op: Resize2D, size: int, out: int) -> tuple[Array, Array]:
    less = int(op.align_corners and out > 1)
    scale = (1024 * (size - less) + (out - less) // 2) // (out - less)
    at = np.arange(out, dtype=np.int64) * scale
    if op.half_pixel_centers:
        at = at + scale // 2 - 512
    lower = np.minimum(np.maximum(at, 0) // 1024, size - 1)
    return lower, np.where(at < 0, 0, np.where(lower == size - 1, 0, at - 1024 * lower))
