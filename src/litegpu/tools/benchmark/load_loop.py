"""Calls under load: as many callers as one likes, who begin again at once, or arrivals that wait for nobody."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from litegpu.errors import LiteGpuError
from litegpu.tools.benchmark.loop import Rule

#: The backlog has grown when it is larger than before by this factor and so many calls ...
_GROWN, _GROWN_CALLS = 1.5, 4
#: ... and less than this share of what arrived was answered meanwhile.
_ANSWERED = 0.97


@dataclass(frozen=True)
class Clock:
    """Seconds, and waiting; tests have one of their own."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], object] = time.sleep


@dataclass
class Calls:
    """What became of the calls: when each was due (it arrived, or its caller was ready), and when it was answered, in
    the order of the answers. `failures`: the others, by the name of their error; `error` is the first. `left`: arrivals
    whose calls were not begun, as the time was over."""

    due: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None
    left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def answered(self, due: float, end: float) -> None:
        with self._lock:
            self.due.append(due)
            self.ends.append(end)

    def failed(self, error: Exception) -> None:
        """Raises what is no error of litegpu's."""
        if not isinstance(error, LiteGpuError):
            raise error
        with self._lock:
            self.failures[type(error).__name__] += 1
            self.error = self.error or error

    @property
    def latencies(self) -> np.ndarray:
        """Seconds from due to answered."""
        return np.asarray(self.ends, np.float64) - np.asarray(self.due, np.float64)

    @property
    def seconds(self) -> float:
        """From the first that was due to the last answer."""
        return max(self.ends) - min(self.due) if self.ends else 0.0


def closed_loop(call: Callable[[], object], threads: int, rule: Rule, clock: Clock = Clock()) -> Calls:
    """`threads` callers, each of whom calls again as soon as its answer is there."""
    calls = Calls()
    start = clock.now()

    def work() -> None:
        due = clock.now()
        while due <= start + rule.at_most and (len(calls.ends) < rule.runs or due < start + rule.at_least):
            try:
                call()
            except Exception as error:
                calls.failed(error)
                if sum(calls.failures.values()) > rule.runs:
                    return
            else:
                calls.answered(due, clock.now())
            due = clock.now()

    in_threads(work, threads)
    return calls


def stream_loop(
    stream: Callable[[Iterable[Any], int], Iterator[Any]], item: Any, ahead: int, rule: Rule, clock: Clock = Clock()
) -> Calls:  # fmt: skip
    """One caller who keeps `ahead` inferences in flight: a call is due when its item is drawn."""
    calls = Calls()
    start = clock.now()
    drawn: deque[float] = deque()

    def items() -> Iterator[Any]:
        for count in itertools.count():
            now = clock.now()
            if now > start + rule.at_most or (count >= rule.runs and now >= start + rule.at_least):
                return
            drawn.append(now)
            yield item

    for _ in stream(items(), ahead):
        calls.answered(drawn.popleft(), clock.now())
    return calls


def arrivals(rate: float, rule: Rule, seed: int = 0) -> list[float]:
    """When calls arrive, in seconds from the beginning: a Poisson process of `rate` a second, the same each time, for
    at least so many calls and seconds as the rule says."""
    count = max(rule.runs, round(rate * rule.at_least))
    return list(np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist())


def open_loop(
    call: Callable[[], object], threads: int, times: Sequence[float], at_most: float, clock: Clock = Clock()
) -> Calls:  # fmt: skip
    """A call at each of these times, by the next of `threads` threads that is free; one that is due while none is
    waits, and its latency counts from when it was due."""
    calls = Calls()
    start = clock.now()
    waiting = iter(times)
    turn = threading.Lock()

    def work() -> None:
        while True:
            with turn:
                moment = next(waiting, None)
            if moment is None:
                return
            due = start + moment
            if not _until(due, start + at_most, clock):
                with turn:
                    calls.left += 1
                continue
            try:
                call()
            except Exception as error:
                calls.failed(error)
            else:
                calls.answered(due, clock.now())

    in_threads(work, threads)
    return calls


def submitted_loop(
    submit: Callable[[], Future[Any]], times: Sequence[float], at_most: float, clock: Clock = Clock()
) -> Calls:  # fmt: skip
    """The same where calls are submitted, and answered in the background."""
    calls = Calls()
    start = clock.now()
    ended = threading.Semaphore(0)
    begun = 0
    unforeseen: list[Exception] = []
    for number, moment in enumerate(times):
        due = start + moment
        if not _until(due, start + at_most, clock):
            calls.left = len(times) - number
            break

        def done(future: Future[Any], due: float = due) -> None:
            try:
                future.result()
            except Exception as error:
                try:
                    calls.failed(error)
                except Exception as other:
                    unforeseen.append(other)
            else:
                calls.answered(due, clock.now())
            ended.release()

        try:
            future = submit()
        except Exception as error:
            calls.failed(error)
            continue
        future.add_done_callback(done)  # futures are not kept: their results would be
        begun += 1
    for _ in range(begun):
        ended.acquire()
    if unforeseen:
        raise unforeseen[0]
    return calls


@dataclass(frozen=True)
class Stability:
    """Whether arrivals were kept up with: calls that waited or ran, on average, in the second and in the last quarter
    of the arrivals, and the share of the arrivals of the last half that was answered in that time."""

    before: float
    after: float
    answered: float

    @property
    def is_overload(self) -> bool:
        grown = self.after > _GROWN * self.before + _GROWN_CALLS
        return grown and self.answered < _ANSWERED


def stability(calls: Calls) -> Stability | None:
    """None for too few calls to tell."""
    due, ends = np.sort(np.asarray(calls.due)), np.sort(np.asarray(calls.ends))
    if len(due) < 16:
        return None
    backlog = np.arange(1, len(due) + 1) - np.searchsorted(ends, due, side="right")
    quarter = len(due) // 4
    middle = due[2 * quarter]
    arrived = len(due) - 2 * quarter
    answered = int(np.searchsorted(ends, due[-1], side="right") - np.searchsorted(ends, middle, side="right"))
    return Stability(float(backlog[quarter : 2 * quarter].mean()), float(backlog[-quarter:].mean()), answered / arrived)


def in_threads(work: Callable[[], None], threads: int) -> None:
    """`work()` in so many threads at once; in this one alone if it is one. Raises what the first of them raised."""
    if threads == 1:
        work()
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, name=f"caller {i}", daemon=True) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]


def _until(due: float, end: float, clock: Clock) -> bool:
    """Sleep until a call is due; False if that is not before the end."""
    now = clock.now()
    if max(now, due) > end:
        return False
    if due > now:
        clock.sleep(due - now)
    return True
