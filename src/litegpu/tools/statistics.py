"""Timings of many runs, summarised as the official benchmark tool does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """Microseconds, in the order of the runs. `mean`: their average before they were truncated, if it is known."""

    values: tuple[int, ...]
    mean: float | None = None

    @property
    def average(self) -> float:
        """0 without runs."""
        return self._truncated_average if self.mean is None else self.mean

    @property
    def deviation(self) -> int:
        """Of the population: sqrt(mean of squares - square of the mean), both truncated to integers."""
        if not self.values:
            return 0
        variance = int(sum(v * v for v in self.values) / len(self.values) - self._truncated_average**2)
        return int(math.sqrt(max(variance, 0)))

    def percentile(self, percent: int) -> int:
        """The sorted element floor(count * percent / 100), without interpolation; 0 without runs."""
        return sorted(self.values)[len(self.values) * percent // 100] if self.values else 0

    @property
    def _truncated_average(self) -> float:
        return sum(self.values) / len(self.values) if self.values else 0.0

    def __str__(self) -> str:
        values = self.values
        tail = f"p5={self.percentile(5)} median={self.percentile(50)} p95={self.percentile(95)}"
        if not values:
            return f"count=0 {tail}"
        if min(values) == max(values):
            same = "(all same)" if len(values) > 1 else ""
            return f"count={len(values)} curr={values[-1]}{same} {tail}"
        return (
            f"count={len(values)} first={values[0]} curr={values[-1]} min={min(values)} max={max(values)} "
            f"avg={number(self.average)} std={self.deviation} {tail}"
        )


def number(value: float) -> str:
    """Six significant digits, scientific from 1e6 on: how a C++ stream prints a double."""
    return f"{value:g}"


def microseconds(seconds: Sequence[float]) -> Statistics:
    """Statistics of durations in seconds, each truncated to whole microseconds."""
    return Statistics(tuple(int(s * 1e6) for s in seconds))
