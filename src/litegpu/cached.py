"""functools.cached_property as Python has had it since 3.12: without a lock."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # as Python calls it
    """Until Python 3.11 all objects of a class share one lock for such an attribute: threads that open different models
    wait for each other, and a child of a process that was forked meanwhile waits for ever. Without it two threads may
    compute the value of one object at once; the one that is stored last stays."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = contextlib.nullcontext()
