"""Gives memory of the C heap that nobody uses back to the system, where the C library can."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable


def trim() -> None:
    """Drivers compile in threads, each of which has a part of glibc's heap that grows, unused, with every model."""
    found = _malloc_trim()
    if found is not None:
        found(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    with contextlib.suppress(OSError, TypeError, AttributeError):  # not on Windows, macOS and musl
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
        return found
    return None
