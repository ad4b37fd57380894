"""How full a batcher's batches were, and how long its callers waited."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

#: Calls that the percentiles are of.
_LATEST = 10_000


@dataclass(frozen=True)
class BatcherStatistics:
    """What a batcher has done so far. Milliseconds; percentiles are of the latest 10,000 calls, 0 without any.

    batches: that were computed. calls, rows: that were answered. sizes: prepared size -> batches of it.
    mean_rows: rows in a batch, and mean_fill: how much of the prepared size that was. wait: from a call's arrival to
    the beginning of its batch; latency: to the end of it. run: what the batches took. refused: calls for which there
    was no room; late: whose deadline had passed; cancelled: by their callers; failed: whose batch raised."""

    batches: int = 0
    calls: int = 0
    rows: int = 0
    sizes: Mapping[int, int] = field(default_factory=dict)
    mean_rows: float = 0.0
    mean_fill: float = 0.0
    wait_p50: float = 0.0
    wait_p99: float = 0.0
    latency_p50: float = 0.0
    latency_p99: float = 0.0
    run_p50: float = 0.0
    refused: int = 0
    late: int = 0
    cancelled: int = 0
    failed: int = 0
    waiting: int = 0
    running: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.calls} calls with {self.rows} rows in {self.batches} batches: {self.mean_rows:.1f} rows a batch, "
            f"{self.mean_fill:.0%} full",
            f"waited {self.wait_p50:.3f} ms (p50), {self.wait_p99:.3f} ms (p99); answered after {self.latency_p50:.3f} "
            f"ms (p50), {self.latency_p99:.3f} ms (p99); a batch takes {self.run_p50:.3f} ms",
        ]
        others = ("refused", "late", "cancelled", "failed", "waiting", "running")
        told = [f"{getattr(self, name)} {name}" for name in others if getattr(self, name)]
        return "\n".join([*lines, ", ".join(told)] if told else lines)


@dataclass(frozen=True)
class ToldInC:
    """What native code has done: as Counts has it. Times are seconds; `expected`: rows that a free lane waits for."""

    sizes: Mapping[int, int]
    calls: int
    rows: int
    refused: int
    failed: int
    late: int
    cancelled: int
    waiting: int
    running: int
    expected: int
    waits: Sequence[float]
    latencies: Sequence[float]
    runs: Sequence[float]


class Counts:
    """The numbers as they come in; under the batcher's lock."""

    def __init__(self) -> None:
        self.refused = self.late = self.cancelled = self.failed = 0
        self._sizes: Counter[int] = Counter()
        self._calls = self._rows = 0
        self._waits: deque[float] = deque(maxlen=_LATEST)
        self._latencies: deque[float] = deque(maxlen=_LATEST)
        self._runs: deque[float] = deque(maxlen=_LATEST)

    def ran(self, size: int, arrivals: list[float], rows: int, begun: float, ended: float) -> None:
        """A batch of a prepared size was computed for calls that arrived at these times, with so many rows."""
        self._sizes[size] += 1
        self._calls += len(arrivals)
        self._rows += rows
        self._waits.extend([begun - arrived for arrived in arrivals])
        self._latencies.extend([ended - arrived for arrived in arrivals])
        self._runs.append(ended - begun)

    def summary(self, waiting: int, running: int, native: ToldInC | None = None) -> BatcherStatistics:
        """Together with what native code has done."""
        told = native or ToldInC({}, 0, 0, 0, 0, 0, 0, 0, 0, 1, (), (), ())
        sizes = self._sizes + Counter(told.sizes)  # without those of which there was none
        batches = sum(sizes.values())
        places = sum(size * count for size, count in sizes.items())
        rows = self._rows + told.rows
        waits, latencies = [*self._waits, *told.waits], [*self._latencies, *told.latencies]
        return BatcherStatistics(
            batches=batches,
            calls=self._calls + told.calls,
            rows=rows,
            sizes=dict(sorted(sizes.items())),
            mean_rows=rows / batches if batches else 0.0,
            mean_fill=rows / places if places else 0.0,
            wait_p50=_percentile(waits, 50),
            wait_p99=_percentile(waits, 99),
            latency_p50=_percentile(latencies, 50),
            latency_p99=_percentile(latencies, 99),
            run_p50=_percentile([*self._runs, *told.runs], 50),
            refused=self.refused + told.refused,
            late=self.late + told.late,
            cancelled=self.cancelled + told.cancelled,
            failed=self.failed + told.failed,
            waiting=waiting + told.waiting,
            running=running + told.running,
        )


def _percentile(seconds: Sequence[float], percent: float) -> float:
    """In milliseconds."""
    return 1e3 * float(np.percentile(seconds, percent)) if seconds else 0.0
