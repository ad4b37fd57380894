"""Copies between arrays of the host's memory: large ones by several threads, as one alone does not fill the bus."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

#: Smaller arrays are copied sooner than threads are woken.
LARGE_BYTES = 4 << 20
_THREADS = 8
_ALIGNMENT = 4096


def copy_bytes(target: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `target`: flat arrays of bytes, of one length."""
    size = target.size
    threads = min(_THREADS, os.cpu_count() or 1, size // (LARGE_BYTES // 2))
    if size < LARGE_BYTES or threads < 2:
        np.copyto(target, source)
        return
    part = -(-size // threads)
    part += -part % _ALIGNMENT
    pieces = [slice(start, min(start + part, size)) for start in range(0, size, part)]
    jobs = [_pool().submit(np.copyto, target[piece], source[piece]) for piece in pieces[1:]]
    np.copyto(target[pieces[0]], source[pieces[0]])
    for job in jobs:
        job.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS - 1, thread_name_prefix="litegpu-copy")
