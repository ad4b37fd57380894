"""How long runs took, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.cached import cached_property
from litegpu.tools.statistics import Statistics

PERCENTILES = (5, 50, 90, 95, 99)


@dataclass(frozen=True)
class Timing:
    """Runs in their order: when each ended (seconds on one clock) and how long it took (seconds). Properties are in
    microseconds; without runs they are 0."""

    seconds: tuple[float, ...]
    ends: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return len(self.seconds)

    @cached_property
    def microseconds(self) -> np.ndarray:
        return np.asarray(self.seconds, np.float64) * 1e6

    @property
    def average(self) -> float:
        return float(self.microseconds.mean()) if self.seconds else 0.0

    @property
    def deviation(self) -> float:
        """Of the sample; 0 for a single run."""
        return float(self.microseconds.std(ddof=1)) if len(self.seconds) > 1 else 0.0

    @property
    def first(self) -> float:
        return float(self.microseconds[0]) if self.seconds else 0.0

    @property
    def minimum(self) -> float:
        return float(self.microseconds.min()) if self.seconds else 0.0

    @property
    def maximum(self) -> float:
        return float(self.microseconds.max()) if self.seconds else 0.0

    @property
    def median(self) -> float:
        return self.percentile(50)

    def percentile(self, percent: float) -> float:
        """Interpolated linearly between runs."""
        return float(np.percentile(self.microseconds, percent)) if self.seconds else 0.0

    @property
    def throughput(self) -> float:
        """Runs per second of the time that runs took."""
        total = math.fsum(self.seconds)
        return len(self.seconds) / total if total else 0.0

    @property
    def official(self) -> Statistics:
        """The official tool's figures: whole microseconds, percentiles without interpolation, but the exact average."""
        return Statistics(tuple(int(s * 1e6) for s in self.seconds), self.average)

    def as_dict(self) -> dict[str, Any]:
        """The figures, without the single runs."""
        return {
            "count": self.count,
            "first": self.first,
            "avg": self.average,
            "std": self.deviation,
            "min": self.minimum,
            "max": self.maximum,
            **{"median" if p == 50 else f"p{p}": self.percentile(p) for p in PERCENTILES},
        }
