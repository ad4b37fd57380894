"""Whether an array lies in a GPU's memory: each backend knows its own."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import ArrayPlace

_ON_HOST = (np.ndarray, np.generic, list, tuple, int, float)


def backend_of(value: Any) -> str | None:
    """The name of the backend whose memory `value` is an array in; None for everything else."""
    if isinstance(value, _ON_HOST):
        return None
    return next((name for name, place in _places() if place.holds(value)), None)


def is_on_gpu(value: Any) -> bool:
    """Whether `value` is an array in the memory of some backend's devices."""
    return backend_of(value) is not None


@functools.cache
def _places() -> tuple[tuple[str, ArrayPlace], ...]:
    return tuple((name, backend) for name, backend in registry.every() if isinstance(backend, ArrayPlace))
