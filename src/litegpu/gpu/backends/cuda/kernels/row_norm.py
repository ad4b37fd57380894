"""Rows that are normalised before a product, by what is done with its weights and its results."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import RowNorm
from litegpu.gpu.backends.cuda.kernels.source import float_text
from litegpu.gpu.graph import LayerNorm

#: Instructions for each number of a row that is multiplied.
INSTRUCTIONS = 3.0
#: Microseconds that one takes, where 128 threads have one at a time.
EACH = 1 / (128 * 1700)
#: Weights of an output that may be changed so that their sum is zero.
ADJUSTED = 64


def folded(op: LayerNorm, weights: np.ndarray) -> tuple[RowNorm, np.ndarray]:
    """What products with weights [O,1,1,I] have to know of normalised factors, and the weights for factors as they are:
    without what is the same in all channels, which the mean takes away, and the largest of them near one, as float16
    has digits there: halves."""
    exact = weights.astype(np.float64)
    if op.centred:
        exact = exact - exact.mean(axis=3, keepdims=True)
    largest = float(np.max(np.abs(exact), initial=0.0))
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0
    halves = (exact / scale).astype(np.float16)
    if op.centred:
        halves = _without_sum(halves.reshape(len(halves), -1)).reshape(halves.shape)
    return RowNorm(op, weights.shape[3], scale), halves.astype(np.float32)


def _without_sum(rows: np.ndarray) -> np.ndarray:
    """Rows of halves [O,I] with next to no sum, which would be multiplied with the mean: what rounding left of it is
    taken from some weights, large ones first, by steps of their last digit."""
    order = np.argsort(-np.abs(rows.astype(np.float32)), axis=1)
    some = order[:, np.unique(np.linspace(0, rows.shape[1] - 1, ADJUSTED).astype(int))]
    found, each = rows.astype(np.float64), np.arange(len(rows))
    left = found.sum(axis=1)
    for column in some.T:
        step = np.spacing(np.abs(rows[each, column])).astype(np.float64)
        less = np.clip(np.rint(left / step), -2, 2) * step
        found[each, column] -= less
        left -= less
    return found.astype(np.float16)


def effort(norm: RowNorm | None, numbers: float) -> float:
    """Microseconds of a multiprocessor for so many numbers of rows."""
    return 0.0 if norm is None else numbers * INSTRUCTIONS * EACH


def constants_of(norm: RowNorm | None) -> dict[str, int | str]:
    """As row_norm.cu calls them."""
    if norm is None:
        return {}
    return {
        "CENTRED": int(norm.op.centred), "NORM_DEPTH": f"{norm.depth}.0f", "EPSILON": float_text(norm.op.epsilon),
        "NORM_SCALE": float_text(norm.scale),
    }  # fmt: skip


def files_of(norm: RowNorm | None) -> tuple[str, ...]:
    """Of this folder, what a kernel's file needs in front of it, behind device.cu."""
    return () if norm is None else ("row_norm.cu",)
