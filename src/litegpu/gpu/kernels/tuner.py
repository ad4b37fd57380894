"""What chooses among kernels by measuring them on the device that a program is built for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from litegpu.gpu.kernels.context import Launch
from litegpu.gpu.program import Program


class Tuner(Protocol):
    """Chooses for a whole program, as what a kernel takes depends on those beside it. (docs/decisions.md: estimates
    choose, measurements may.)"""

    most: int  # launches worth giving where several do the same work

    def chosen(
        self, launches: Sequence[Launch], program_of: Callable[[Sequence[Launch]], Program] | None
    ) -> list[Launch]:
        """The launches, in order, each as it is or another that does the same work (Launch.others). `program_of`: the
        program of given launches; None for what is no program by itself, whose launches are measured alone."""
