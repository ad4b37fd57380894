"""Several configurations and batch sizes of one model, in interleaved runs, with ratios and how sure they are."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from litegpu.boundary import typed
from litegpu.errors import LiteGpuError
from litegpu.model.batch import with_batch
from litegpu.model.reader import read_model
from litegpu.tools.benchmark.benchmark_text import Log
from litegpu.tools.benchmark.configurations import Configuration, configurations
from litegpu.tools.benchmark.energy import EnergyWatch
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.loop import Rule, progress_bar, timed_runs
from litegpu.tools.benchmark.measurement import Measurement
from litegpu.tools.benchmark.parse import flags_from
from litegpu.tools.benchmark.profile import profile
from litegpu.tools.benchmark.result import BenchmarkResult
from litegpu.tools.benchmark.timing import Timing

_TURN_SECONDS = 0.02  # about as long a configuration runs before it is the next one's turn
_ROUNDS = 10  # at least, if there are as many runs: what the intervals are made from
_TRIED = 3  # runs to learn how long they take
_SEED = 5489
_RESAMPLES = 4000


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


@dataclass(frozen=True)
class Speedup:
    """How many times as fast a configuration is as the baseline, per row of the batch: the median over rounds of the
    ratio of the medians in a round. `low` and `high` bound the 95% confidence interval."""

    label: str
    baseline: str
    batch: int | None
    value: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> str:
        """ "faster", "slower", or "no difference" where the interval has 1 in it."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "no difference"


@dataclass(frozen=True)
class Comparison:
    """`results` by batch size, then by configuration; `speedups` beside the first configuration of the same batch size;
    `failures` are (configuration, reason) of those that did not run. `interrupted`: Ctrl-C came before the last round;
    the figures are of those before it."""

    model: str
    results: tuple[BenchmarkResult, ...]
    speedups: tuple[Speedup, ...]
    failures: tuple[tuple[str, str], ...] = ()
    interrupted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "model": self.model,
            "results": [result.as_dict() for result in self.results],
            "speedups": [
                {
                    "label": s.label,
                    "baseline": s.baseline,
                    "batch": s.batch,
                    "speedup": s.value,
                    "interval": [s.low, s.high],
                    "rounds": s.rounds,
                    "verdict": s.verdict,
                }
                for s in self.speedups
            ],
            "interrupted": self.interrupted,
            "failures": [{"label": label, "reason": reason} for label, reason in self.failures],
        }


class InterruptedComparison(KeyboardInterrupt):
    """Ctrl-C among the rounds; `comparison`: of those that were over."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison


@typed
def compare_benchmarks(
    model: str | os.PathLike[str] | BenchmarkFlags,
    configurations_: str | Mapping[str, Mapping[str, Any]] = "cpu,gpu",
    *,
    batch_sizes: Sequence[int] = (),
    shuffle: bool = True,
    pause: float = 0.0,
    **flags: Any,
) -> Comparison:
    """Time several configurations of a model in interleaved runs, and print nothing.

        comparison = litegpu.compare_benchmarks("model.tflite", "cpu,gpu,gpu:precision=float32", batch_sizes=[1, 16])
        for s in comparison.speedups: print(s.label, s.batch, s.value, s.low, s.high)

    configurations_: as for --compare, or label -> flags that differ from those of all.
    batch_sizes: each in turn, made with litegpu.model.with_batch.
    shuffle: another order in every round. pause: seconds between two configurations' turns.
    flags: those of the command line, by their names, for all configurations; num_runs, min_secs and max_secs hold for
        each.

    Raises what benchmark() does, before anything is timed, and TensorError for a model that cannot have a batch size.
    """
    found = configurations(flags_from(model, flags), configurations_)
    return run_comparison(found, batch_sizes, Log(silent=True), shuffle=shuffle, pause=pause)


def run_comparison(
    found: Sequence[Configuration],
    batch_sizes: Sequence[int],
    log: Log,
    *,
    shuffle: bool = True,
    pause: float = 0.0,
    keep_going: bool = False,
) -> Comparison:
    """compare_benchmarks(), with the official lines for each configuration in the log. `keep_going`: without the
    configurations that cannot be opened; but if none can, the first one's error is raised. Ctrl-C after a whole round
    raises InterruptedComparison."""
    graph = found[0].flags.graph
    models = _batched(graph, batch_sizes)
    results: list[BenchmarkResult] = []
    speedups: list[Speedup] = []
    failures: dict[str, str] = {}
    interrupted = False
    for batch, content in models:
        if interrupted:
            break
        with contextlib.ExitStack() as stack:
            measured: list[Measurement] = []
            for configuration in found:
                log.plain(f"\n{_name(configuration.label, batch)}")
                try:
                    measurement = Measurement(
                        configuration.flags, log, label=configuration.label, batch=batch, content=content
                    )
                except LiteGpuError as error:
                    if not keep_going:
                        raise
                    failures[configuration.label] = str(error)
                    log.warn(str(error))
                    if configuration is found[-1] and not measured:
                        raise
                    continue
                measured.append(stack.enter_context(measurement))
                measurement.warm_up()
            rounds, interrupted = _interleaved(measured, shuffle, pause, log)
            for measurement, timed in zip(measured, rounds, strict=True):
                results.append(_result(measurement, timed, interrupted))
                ratio = median_ratio([t.median for t in rounds[0]], [t.median for t in timed]) if timed else None
                if ratio is not None and measurement is not measured[0]:
                    speedups.append(_speedup(measurement.label, measured[0].label, batch, ratio, len(timed)))
    comparison = Comparison(graph, tuple(results), tuple(speedups), tuple(failures.items()), interrupted)
    if interrupted:
        raise InterruptedComparison(comparison)
    return comparison


def _batched(graph: str, batch_sizes: Sequence[int]) -> list[tuple[int | None, bytes | None]]:
    """(batch size, the model's bytes) of each; the file itself without batch sizes."""
    if not batch_sizes:
        return [(None, None)]
    model = read_model(graph)
    return [(batch, bytes(with_batch(model, batch).content)) for batch in batch_sizes]


def _interleaved(
    measured: Sequence[Measurement], shuffle: bool, pause: float, log: Log
) -> tuple[list[list[Timing]], bool]:
    """Each configuration's turns, one in each round, and whether Ctrl-C ended them after the first. A turn is one run
    that is not counted, as the caches and the clock of the device have to get used to it, and then runs for some time,
    at most a tenth of those wanted."""
    flags = measured[0].flags
    runs = [_runs_in_turn(m) for m in measured]
    found: list[list[Timing]] = [[] for _ in measured]
    order, chance = list(range(len(measured))), random.Random(_SEED)
    wanted = max(math.ceil(flags.num_runs / count) for count in runs)
    at_least, at_most = flags.min_secs * len(measured), flags.max_secs * len(measured)
    start = time.perf_counter()
    log.info(f"Running {len(measured)} configurations in turn, {wanted} rounds or more")
    with progress_bar("interleaved runs") as redraw, _until_interrupted(found) as until:
        while (len(found[0]) < wanted or time.perf_counter() < start + at_least) and (
            time.perf_counter() <= start + at_most
        ):
            if shuffle:
                chance.shuffle(order)
            for i in order:
                if pause > 0:
                    time.sleep(pause)
                found[i].append(_turn(measured[i], runs[i]))
            if redraw is not None:
                elapsed = time.perf_counter() - start
                redraw(min(len(found[0]) / max(wanted, 1), elapsed / max(at_least, 1e-9)))
    whole = min(len(turns) for turns in found)
    return [turns[:whole] for turns in found], until.interrupted


class _Until:
    interrupted = False


@contextlib.contextmanager
def _until_interrupted(found: Sequence[Sequence[Timing]]) -> Iterator[_Until]:
    """Ctrl-C ends the block, if a whole round is over; else it is raised."""
    until = _Until()
    try:
        yield until
    except KeyboardInterrupt:
        if not all(found):
            raise
        until.interrupted = True


def _runs_in_turn(measurement: Measurement) -> int:
    """So many that a turn lasts some time, but that there are enough rounds."""
    opened = measurement.opened  # the warm-up may have been one run, a slow first one
    typical = timed_runs(opened.prepare, opened.run, Rule(_TRIED, -1.0, math.inf)).minimum * 1e-6
    return max(1, min(math.ceil(_TURN_SECONDS / typical), measurement.flags.num_runs // _ROUNDS))


def _turn(measurement: Measurement, runs: int) -> Timing:
    opened, rule = measurement.opened, replace(measurement.rule(runs, -1.0), at_most=math.inf)
    opened.prepare()
    opened.run()
    return timed_runs(opened.prepare, opened.run, rule)


def _result(measurement: Measurement, turns: Sequence[Timing], interrupted: bool) -> BenchmarkResult:
    """All turns as one timing. Energy is that of more runs, without interruption, as the device's meter is slow."""
    seconds = tuple(s for turn in turns for s in turn.seconds)
    ends = tuple(e for turn in turns for e in turn.ends)
    energy, note = None, ""
    if measurement.meter is not None and not interrupted:
        flags = measurement.flags
        silent = measurement.rule(0, min(max(flags.min_secs, 0.0), flags.max_secs))
        with EnergyWatch(measurement.meter) as watch:
            more = timed_runs(measurement.opened.prepare, measurement.opened.run, silent)
        energy, note = watch.energy(more.count)
    profiled = profile(measurement.opened) if measurement.flags.enable_op_profiling and not interrupted else None
    return measurement.result(Timing(seconds, ends), energy, note, profiled)


def _speedup(label: str, baseline: str, batch: int | None, ratio: Interval, rounds: int) -> Speedup:
    return Speedup(label, baseline, batch, ratio.value, ratio.low, ratio.high, rounds)


def _name(label: str, batch: int | None) -> str:
    return label if batch is None else f"{label}, batch {batch}"
