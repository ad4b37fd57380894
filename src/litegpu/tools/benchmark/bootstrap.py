"""How sure a ratio of times is: paired rounds, resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 4000
_SEED = 5489


@dataclass(frozen=True)
class Interval:
    """A value, and the bounds of its 95% confidence interval."""

    value: float
    low: float
    high: float


def median_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """The median over rounds of numerator[i] / denominator[i], with the percentile bootstrap's interval over rounds: a
    machine that becomes slower for a while slows both of a round. Needs at least one round."""
    ratios = np.asarray(numerator, np.float64) / np.asarray(denominator, np.float64)
    random = np.random.default_rng(_SEED)
    chosen = random.integers(0, ratios.size, (_RESAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[chosen], axis=1), (2.5, 97.5))
    return Interval(float(np.median(ratios)), float(low), float(high))
