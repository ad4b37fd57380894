"""A second attempt: results of float16 that are not finite are looked at once more in float32."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.program import Program

log = logging.getLogger("litegpu")

#: Elements that are looked at together: they stay in the processor's cache.
_TOGETHER = 1 << 16
#: After so many attempts that gave nothing better, a model that only is to be warned of is left alone.
_FRUITLESS = 3


def all_finite(arrays: Sequence[np.ndarray]) -> bool:
    """Whether there is neither NaN nor infinity among the floats."""
    for array in arrays:
        if array.dtype.kind == "f":
            flat = array.reshape(-1)
            for start in range(0, flat.size, _TOGETHER):
                if not np.isfinite(flat[start : start + _TOGETHER]).all():
                    return False
    return True


@dataclass(eq=False)
class Told:
    """Whether the user was told about a model."""

    already: bool = False


class SecondAttempt:
    """Of one partition whose program stores values as float16, for its kernel and all copies of that.

    build: the partition's program in float32. stays: what float32 gives is the user's result, and the kernels go on
    with it (precision="auto"); else it only tells whether a warning is due, of which there is one for a model (`told`).
    """

    def __init__(self, build: Callable[[], Program], told: Told, *, stays: bool) -> None:
        self.stays = stays
        self.settled = False  # the partition runs in float32 from now on
        self._build, self._told = build, told
        self._program: Program | None = None
        self._fruitless = 0
        self._lock = threading.Lock()

    @property
    def watching(self) -> bool:
        """Whether results are to be looked at."""
        if self.stays:
            return not self.settled
        return not self._told.already and self._fruitless < _FRUITLESS

    @property
    def program(self) -> Program:
        """The program in float32, which is built when it is first asked for."""
        with self._lock:
            if self._program is None:
                self._program = self._build()
            return self._program

    def judge(self, half: Sequence[np.ndarray], single: Sequence[np.ndarray]) -> bool:
        """Whether float32 is finite somewhere where float16 was not; then the user is told."""
        better = any(
            bool(np.any(np.isfinite(b) & ~np.isfinite(a)))
            for a, b in zip(half, single, strict=True)
            if b.dtype.kind == "f"
        )
        if not better:
            self._fruitless += 1
        elif self.stays:
            self.settled = True
            self._tell("computed again in float32, which the model stays in from now on")
        else:
            self._tell('float32 is finite: use precision="auto" or "float32"')
        return better

    def give_up(self, why: str) -> None:
        """Say that results are not finite and could not be computed again."""
        self._tell(f'not computed again in float32, as {why}. If the model is right, use precision="float32"')

    def _tell(self, what: str) -> None:
        with self._lock:
            already, self._told.already = self._told.already, True
        if not already:
            log.warning("A result in float16 was not finite (too large for it, or NaN): %s", what)
