"""Whole rows, and weights for them, in shared memory, as row_tile.cu lays them out."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels import row_norm
from litegpu.gpu.backends.cuda.kernels.layer import Layer

#: Rows of a team of four warps.
TEAM = 64


def slab_of(channels: int) -> int:
    """Channels that lie together in shared memory."""
    return 64 if -(-channels // 32) % 2 == 0 else 32


def depth_of(channels: int) -> int:
    """Channels of a row in whole slabs."""
    return -(-channels // slab_of(channels)) * slab_of(channels)


def constants_of(layer: Layer) -> dict[str, int | str]:
    """As row_tile.cu and what it builds on call them, but for BN, AT_ONCE, PIXELS and QUADS."""
    channels = layer.source.shape[3]
    copied = layer.vector == 8 and layer.pitch is not None
    source, load = layer.load
    pitch: dict[str, int | str] = {"PITCH_X": layer.pitch} if copied and layer.pitch is not None else {}
    return {
        **layer.constants(), "BYTES": 2, "BM": TEAM, "BK": 64, "COPYING": 128, "VECTOR": 8 if copied else 1,
        "DEPTH": depth_of(channels), "SLAB": slab_of(channels), "COPIED": int(copied), "SOURCE": source,
        "LOAD(value)": load, **pitch, **row_norm.constants_of(layer.norm),
    }  # fmt: skip


def in_slabs(matrices: np.ndarray, slab: int) -> np.ndarray:
    """Matrices [n, rows, numbers] as slabs of so many numbers, whose rows' chunks are permuted (place_in_slab() of
    row_tile.cu)."""
    n, rows, numbers = matrices.shape
    chunks = slab // 8
    slabs = matrices.reshape(n, rows, numbers // slab, chunks, 8).transpose(0, 2, 1, 3, 4)
    row, chunk = np.arange(rows)[:, None], np.arange(chunks)[None, :]
    turn = row % 8 if chunks == 8 else row // 2 % 4
    return slabs[:, :, row, chunk ^ turn]
