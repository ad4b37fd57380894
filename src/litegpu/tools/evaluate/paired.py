"""Two delegates on the same images: where one is right and the other wrong, and whether that is chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paired:
    """Images that both, only the first, only the second, or neither gets right. `p_value` is that of McNemar's exact
    test (two-sided binomial): how likely so uneven a split is if both are equally accurate."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def images(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Accuracy of the second less that of the first."""
        return (self.only_second - self.only_first) / self.images if self.images else 0.0

    @property
    def p_value(self) -> float:
        return mcnemar_exact(self.only_first, self.only_second)


def paired(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """From whether each image was right on each of the two."""
    pairs = list(zip(first, second, strict=True))
    return Paired(
        pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True)), pairs.count((False, False))
    )


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided p-value: of n = only_first + only_second tosses of a fair coin, that the rarer side comes up at most so
    often, doubled (McNemar 1947, with the binomial distribution in place of its approximation)."""
    n, fewer = only_first + only_second, min(only_first, only_second)
    if 2 * fewer == n:
        return 1.0

    def log_probability(k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)

    return min(1.0, 2 * math.fsum(math.exp(log_probability(k)) for k in range(fewer + 1)))
