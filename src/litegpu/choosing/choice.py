"""Decides between the CPU and a GPU, by what was measured, or else by what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.choosing.called import Called
from litegpu.choosing.candidate import Candidate, Measured
from litegpu.choosing.predict import NOTHING_CALLED, predicted
from litegpu.delegates.report import DelegationReport
from litegpu.model.types import Subgraph


@dataclass(frozen=True)
class Choice:
    """What runs a model, and why.

    seconds: of one call of `batch` rows, of what was chosen and of each of the `others`; None where nobody knows.
    measured: whether they were measured on this machine, or follow from what the operators cost."""

    candidate: Candidate
    seconds: float | None
    others: tuple[tuple[Candidate, float | None], ...] = ()
    measured: bool = False
    batch: int = 1

    @property
    def reason(self) -> str:
        """A sentence."""
        how = "measured" if self.measured else "expected"
        told = [f"{_time(self.seconds)} on {self.candidate}"]
        told += [f"{_time(seconds)} on {other}" for other, seconds in self.others]
        text = f"{self.candidate} is the quickest for batch {self.batch}, as {how}: {'; '.join(told)}."
        return text if self.measured else f"{text} `litegpu advise MODEL --measure` measures it."


def by_measurement(found: Sequence[Measured], batch: int = 1) -> Choice | None:
    """The quickest for `batch` rows of what was measured; None if nothing was, for that batch or two around it."""
    timed = [(one.candidate, seconds) for one in found if (seconds := _seconds(one, batch)) is not None]
    if not timed:
        return None
    timed.sort(key=lambda pair: pair[1])
    (best, seconds), *rest = timed
    return Choice(best, seconds, tuple(rest), measured=True, batch=batch)


def by_prediction(
    graph: Subgraph,
    report: DelegationReport | None,
    candidates: Sequence[Candidate],
    batch: int = 1,
    called: Called = NOTHING_CALLED,
) -> Choice:
    """The quickest by what the operators, and what they call, cost. `graph` has the shapes of a call with `batch` rows;
    `report`: which of its nodes the GPU takes, None for all. A device that nothing is known of is taken to be quick."""
    nodes, partitions = set(range(len(graph.operators))), 1
    if report is not None:
        nodes = {index for one in report.partitions if one.owner != "CPU" for index in one.nodes}
        partitions = len(report.partitions)
    expected = [(one, predicted(graph, one, nodes, partitions, called)) for one in candidates]
    expected.sort(key=lambda pair: -1.0 if pair[1] is None else pair[1])
    (best, seconds), *rest = expected
    return Choice(best, seconds, tuple(rest), batch=batch)


def comparable(found: Sequence[Measured], precision: str, num_threads: int | None) -> tuple[Measured, ...]:
    """Of what was measured, what load() may take for these arguments: a GPU in the precision, and the CPU with so many
    threads, or, if the caller leaves that open, any."""
    return tuple(
        one
        for one in found
        if not one.problem
        and (
            one.candidate.precision == precision
            if not one.candidate.is_cpu
            else num_threads is None or (one.candidate.num_threads or 1) == num_threads
        )
    )


def _seconds(one: Measured, batch: int) -> float | None:
    known = one.seconds(batch)
    if known is not None or one.latency is None or one.batch_latency is None or not 1 < batch < one.batch:
        return known
    share = (batch - 1) / (one.batch - 1)  # between the two that were measured
    return one.latency + share * (one.batch_latency - one.latency)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "no figure"
    return f"{seconds * 1e3:.3g} ms"
