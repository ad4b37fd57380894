"""The loop of runs: as little as possible between two of them."""

from __future__ import annotations

import contextlib
import math
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.tools.benchmark.timing import Timing
from litegpu.tools.console import progress

_REDRAWN_AFTER = 0.2  # seconds between two steps of the progress bar

Redraw = Callable[[float], None]


@dataclass(frozen=True)
class Rule:
    """A further run starts while (fewer than `runs` were made or less than `at_least` seconds have passed) and not
    more than `at_most` seconds have. `delay`: seconds of sleep after each; `pace`: seconds between the ends that are
    aimed at, 0 for none."""

    runs: int
    at_least: float
    at_most: float
    delay: float = 0.0
    pace: float = 0.0


class InterruptedRuns(KeyboardInterrupt):
    """Ctrl-C among timed runs; `timing`: those that were over."""

    def __init__(self, timing: Timing) -> None:
        super().__init__()
        self.timing = timing


def timed_runs(
    prepare: Callable[[], object], run: Callable[[], object], rule: Rule, redraw: Redraw | None = None
) -> Timing:
    """Time run() again and again, with prepare() before each, outside the time. `redraw` is told the fraction done.

    Raises InterruptedRuns after Ctrl-C.
    """
    clock = time.perf_counter
    durations, ends = array("d"), array("d")  # arrays keep no objects alive, so that the allocator has nothing to do
    keep, keep_end = durations.append, ends.append
    runs, count = rule.runs, 0
    start = now = clock()
    enough, limit = start + rule.at_least, start + rule.at_most
    sleeps = rule.delay > 0 or rule.pace > 0
    due = math.inf if redraw is None else start + _REDRAWN_AFTER
    try:
        while (count < runs or now < enough) and now <= limit:
            prepare()
            begin = clock()
            run()
            now = clock()
            keep(now - begin)
            keep_end(now)
            count += 1
            if now >= due and redraw is not None:
                redraw(min(count / max(runs, 1), (now - start) / max(rule.at_least, 1e-9)))
                due = clock() + _REDRAWN_AFTER
            if sleeps:
                _sleep(rule, start + count * rule.pace - clock())
                now = clock()
    except KeyboardInterrupt:
        whole = min(len(durations), len(ends))
        raise InterruptedRuns(Timing(tuple(durations[:whole]), tuple(ends[:whole]))) from None
    return Timing(tuple(durations), tuple(ends))


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Redraw | None]:
    """What shows the fraction done on a terminal; None where there is none."""
    with progress() as bar:
        if bar.disable:
            yield None
            return
        task = bar.add_task(what, total=1.0)

        def redraw(fraction: float) -> None:
            bar.update(task, completed=min(fraction, 1.0), refresh=True)

        yield redraw


def setter(interpreter: Any, indices: Sequence[int], arrays: Sequence[Any]) -> Callable[[], None]:
    """A function that copies the arrays into the inputs."""
    set_tensor, pairs = interpreter.set_tensor, list(zip(indices, arrays, strict=True))

    def prepare() -> None:
        for index, value in pairs:
            set_tensor(index, value)

    return prepare


def _sleep(rule: Rule, left: float) -> None:
    """Until the schedule's next run; one that is late starts at once, and catches up."""
    seconds = left if rule.pace > 0 else rule.delay
    if seconds > 0:
        time.sleep(seconds)
