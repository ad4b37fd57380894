"""How far two arrays are apart, by every measure, and what that comes to over many runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from litegpu.tools.agreement import compare
from litegpu.tools.json_text import plain
from litegpu.tools.predictions import dequantized

#: Edges of the histogram of absolute errors: two bins a decade. Smaller errors count as 1e-12, larger ones as 1e6.
EDGES = tuple(10.0 ** (e / 2) for e in range(-24, 13))


@dataclass(frozen=True)
class Difference:
    """A tensor beside its reference, in real numbers (quantized ones dequantized) but for the first two.

    mean_error: mean of |test - reference| of the stored numbers, as the official tool has it: quantized outputs in
        quanta. max_quanta: the largest such difference, None for tensors that are not quantized.
    relative_l2: ||test - reference|| / ||reference||; infinite if NaN or infinity stand in different places.
    max_abs: the largest difference. cosine: of the angle between the two, 1 for two zeros.
    psnr: 20 log10((max - min of the reference) / root mean square error), in dB; infinite for equal tensors.
    top1: share of the rows whose highest score stands at a place that is highest in the reference too; None if the
        tensor does not look like a classifier's. constant: the reference tells no right program from a wrong one (see
        Agreement).
    cosine, psnr and max_abs are of the elements that are finite, if NaN and infinities stand in the same places.
    """

    mean_error: float
    max_quanta: float | None
    relative_l2: float
    max_abs: float
    cosine: float
    psnr: float
    top1: float | None
    constant: bool = False


@dataclass(frozen=True)
class Histogram:
    """How many elements have an absolute error (in real numbers) between each two of EDGES; `exact` have none at all,
    `not_finite` have NaN or infinity on one side only."""

    counts: tuple[int, ...]
    exact: int
    not_finite: int

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Histogram(counts, self.exact + other.exact, self.not_finite + other.not_finite)


@dataclass(frozen=True)
class OutputDifference:
    """One output over all runs. avg_error and std_dev are the official tool's: mean and population standard deviation
    of the runs' mean errors. The other measures are those of the worst run, top1 the mean of all runs. `constant`: the
    reference gave one number throughout in every run, or none that is finite: the comparison says nothing."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    errors: tuple[float, ...]
    max_quanta: float | None
    relative_l2: float
    max_abs: float
    cosine: float
    psnr: float
    top1: float | None
    histogram: Histogram
    constant: bool = False

    @property
    def avg_error(self) -> float:
        return sum(self.errors) / len(self.errors)

    @property
    def std_dev(self) -> float:
        mean = self.avg_error
        return math.sqrt(sum((e - mean) ** 2 for e in self.errors) / len(self.errors))

    @property
    def identical(self) -> bool:
        """Whether every element of every run is equal."""
        return sum(self.histogram.counts) + self.histogram.not_finite == 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values; infinities and NaN as the strings "inf", "-inf" and "nan", which JSON has no numbers for."""
        values: dict[str, Any] = plain({"avg_error": self.avg_error, "std_dev": self.std_dev} | asdict(self))
        return values


def measure(got: np.ndarray, want: np.ndarray, detail: Mapping[str, Any]) -> Difference:
    """`got` beside `want`. `detail` is the tensor's dictionary, of which the quantization counts. Arrays of different
    shapes are infinitely far apart."""
    if got.shape != want.shape:
        return Difference(math.inf, None, math.inf, math.inf, 0.0, -math.inf, None)
    if got.dtype.kind not in "fiub":
        apart = 0.0 if np.array_equal(got, want) else math.inf
        return Difference(apart, None, apart, apart, 1.0 if apart == 0 else 0.0, -math.inf if apart else math.inf, None)
    stored = _errors(got.astype(np.float64), want.astype(np.float64))
    test, reference = (dequantized(a, detail).astype(np.float64) for a in (got, want))
    agreement = compare("", test, reference)
    return Difference(
        mean_error=float(stored.mean()) if stored.size else 0.0,
        max_quanta=float(stored.max(initial=0)) if got.dtype.kind in "iu" and detail["quantization"][0] else None,
        relative_l2=agreement.relative_l2,
        max_abs=agreement.max_abs,
        cosine=_cosine(*_finite(test, reference)),
        psnr=_psnr(*_finite(test, reference)),
        top1=_top1(test, reference),
        constant=agreement.constant,
    )


def histogram(got: np.ndarray, want: np.ndarray, detail: Mapping[str, Any]) -> Histogram:
    """The absolute errors of one run."""
    none = (0,) * (len(EDGES) - 1)
    if got.shape != want.shape or got.dtype.kind not in "fiub":
        return Histogram(none, 0, 0 if np.array_equal(got, want) else max(got.size, want.size))
    test, reference = (dequantized(a, detail).astype(np.float64) for a in (got, want))
    error = _errors(test, reference)
    finite = np.isfinite(error)
    some = error[finite & (error > 0)]
    counts, _ = np.histogram(np.clip(some, EDGES[0], EDGES[-1]), EDGES)
    return Histogram(tuple(counts.tolist()), int((error == 0).sum()), int((~finite).sum()))


def summarise(
    detail: Mapping[str, Any], shape: Sequence[int], runs: Sequence[Difference], errors: Histogram
) -> OutputDifference:
    """One output over all runs."""
    top1 = [r.top1 for r in runs if r.top1 is not None]
    quanta = [r.max_quanta for r in runs if r.max_quanta is not None]
    return OutputDifference(
        name=str(detail["name"]),
        dtype=np.dtype(detail["dtype"]).name,
        shape=tuple(int(n) for n in shape),
        errors=tuple(r.mean_error for r in runs),
        max_quanta=max(quanta) if quanta else None,
        relative_l2=max(r.relative_l2 for r in runs),
        max_abs=max(r.max_abs for r in runs),
        cosine=min(r.cosine for r in runs),
        psnr=min(r.psnr for r in runs),
        top1=sum(top1) / len(top1) if top1 else None,
        histogram=errors,
        constant=all(r.constant for r in runs),
    )


def _errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want|; 0 where both are the same infinity or both NaN."""
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0.0, error)


def _finite(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The elements that are numbers, if the others are equal; else both as they are."""
    both = np.isfinite(want) & np.isfinite(got)
    same = np.array_equal(got[~both], want[~both], equal_nan=True)
    return (got[both], want[both]) if same and both.any() else (got, want)


def _cosine(got: np.ndarray, want: np.ndarray) -> float:
    lengths = float(np.linalg.norm(got)), float(np.linalg.norm(want))
    if not all(math.isfinite(n) for n in lengths):
        return 1.0 if np.array_equal(got, want, equal_nan=True) else math.nan
    if 0.0 in lengths:
        return 1.0 if lengths[0] == lengths[1] else 0.0
    return min(1.0, float(np.vdot(got, want)) / (lengths[0] * lengths[1]))


def _psnr(got: np.ndarray, want: np.ndarray) -> float:
    if np.array_equal(got, want, equal_nan=True):
        return math.inf
    if not (np.isfinite(got).all() and np.isfinite(want).all()):
        return -math.inf
    peak = float(want.max() - want.min()) or float(np.abs(want).max()) or 1.0
    error = float(np.sqrt(np.mean((got - want) ** 2)))
    return 20 * math.log10(peak / error) if error else math.inf


def _top1(got: np.ndarray, want: np.ndarray) -> float | None:
    """For [N, 1, ..., 1, C] with at least two classes. Where the reference has several highest scores, each will do;
    what are no numbers agree where they are the same on both sides."""
    if got.ndim < 2 or got.shape[-1] < 2 or any(n != 1 for n in got.shape[1:-1]) or not got.size:
        return None
    test, reference = (a.reshape(-1, a.shape[-1]) for a in (got, want))
    chosen = np.take_along_axis(reference, test.argmax(axis=1)[:, None], axis=1)[:, 0]
    missing = np.isnan(test)
    same = np.all((test == reference) | (missing & np.isnan(reference)), axis=1)
    return float((same | (~missing.any(axis=1) & (chosen == reference.max(axis=1)))).mean())
