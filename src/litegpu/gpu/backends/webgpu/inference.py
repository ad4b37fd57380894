"""What one inference consists of: dispatches, and the copies around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One dispatch, as wgpu-py objects."""

    pipeline: Any
    bind_group: Any
    groups: tuple[int, int, int]


@dataclass(frozen=True)
class BufferCopy:
    """`size` bytes from offset `source` of one buffer to offset `target` of another; all multiples of 4."""

    source: int
    target: int
    size: int


@dataclass(frozen=True)
class RecordedInference:
    """Copy `uploads` from the upload buffer into the arena, run the steps in order and then the `looks` at their
    results, copy `downloads` from the arena into the download buffer. A buffer without copies is None."""

    arena: Any
    upload: Any | None
    download: Any | None
    steps: tuple[Step, ...]
    uploads: tuple[BufferCopy, ...]
    downloads: tuple[BufferCopy, ...]
    looks: tuple[Step, ...] = ()


def padded(size: int) -> int:
    """Copies and buffers are whole 32-bit words."""
    return -(-size // 4) * 4
