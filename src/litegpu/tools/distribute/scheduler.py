"""Hands shards to workers, keeps a bounded number under way, and gives every result once, in order."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from litegpu.errors import OptionError
from litegpu.tools.distribute.crew import Crew, Factory, Finished, LocalCrew, Lost, Started, WorkerContext, WorkerDied
from litegpu.tools.distribute.process_crew import ProcessCrew

#: Deaths of workers while starting, without a shard done in between, after which none is started any more.
_MOST_FAILED_STARTS = 5
#: Seconds without a sign of life after which a worker of Ray is replaced.
PATIENCE = 60.0
_LONGEST_PATIENCE = 7 * 24 * 3600.0
#: A worker that lives but finishes nothing is replaced after so many times the patience, and the slowest shard's time.
_STUCK, _SLOWER = 10, 20
#: Seconds after which a scheduler that waits looks whether it is to stop.
_LOOK_AGAIN = 0.25

log = logging.getLogger("litegpu")


@dataclass(frozen=True)
class Outcome:
    """What became of shard number `index`: `value`, or the exception that the function raised or, after too many
    attempts, a WorkerDied. `worker` describes who did it; `attempts` counts those who died of it, and that one."""

    index: int
    shard: Any
    value: Any
    error: Exception | None
    worker: str
    attempts: int


def map_shards(
    factory: Factory,
    shards: Iterable[Any],
    *,
    workers: int | None = None,
    ray: str | None = None,
    gpus: bool = True,
    concurrency: int = 2,
    ahead: int = 4,
    attempts: int = 4,
    patience: float = PATIENCE,
    in_order: bool = True,
    stop: threading.Event | None = None,
    processes: bool = False,
) -> Generator[Outcome, None, None]:
    """Apply a function to every shard: one outcome per shard, in the order of the shards.

    factory: called once in each worker with its Context; gives the function from a shard to its result, called by
        `concurrency` threads at once (so that one shard is read while another is computed). For Ray it is pickled, and
        so are shards and results: keep shards small (paths, ranges), and results in arrays.
    shards: taken when they are needed: no more than 2 * workers * ahead are in memory, results included. A consumer
        that is slow slows everything down rather than fill the memory.
    workers: how many; by default one per GPU of Ray's cluster, one in this process.
    ray: None runs in this process. "auto" joins the Ray cluster that is running or starts one on this machine, "local"
        always starts one, anything else is the address of a cluster.
    patience: seconds without a sign of life after which a worker of Ray is given up and its shards are another one's;
        however long a shard or the start takes, a worker that lives gives such signs. A worker (a thread too) that
        lives and finishes nothing for ten times as long, and 20 times as long as any shard took, is given up as well.
    in_order: False gives outcomes as they come, so that what is known can be kept at once.
    stop: once it is set (from another thread), what is finished is given, however the order, and nothing else: shards
        in hand are not waited for.
    processes: without Ray, have each worker in a process of its own instead of threads of this one: what it gets and
        gives is pickled, and one that dies is replaced.
    gpus: whether each worker needs a GPU, where Ray knows of any.
    ahead: shards given to a worker at a time, so that it need not wait for the next.
    attempts: how many workers may die of a shard. A shard whose worker died is tried again alone, so that those beside
        it are not blamed.

    An exception of the function is an outcome's error; one of the factory is raised here, as is WorkerDied if workers
    die while they start, and what `shards` raises: each after the outcomes of all shards that are finished. Workers are
    ended when the iterator is closed; a KeyboardInterrupt while it waits does not wait for the shards that threads of
    this process are at.
    """
    require_patience(patience)
    if attempts < 1 or ahead < 1 or concurrency < 1:
        raise OptionError("attempts, ahead and concurrency must be at least 1")
    crew: Crew
    if ray is None:
        contexts = plan_workers(1 if workers is None else workers, os.cpu_count() or 1)
        crew = ProcessCrew(factory, contexts, concurrency) if processes else LocalCrew(factory, contexts, concurrency)
    else:
        from litegpu.tools.distribute.ray_crew import RayCrew

        crew = RayCrew(factory, address=ray, workers=workers, gpus=gpus, concurrency=concurrency, patience=patience)
    wait = True
    try:
        yield from _Scheduler(crew, shards, ahead, attempts, patience, in_order, stop or threading.Event()).run()
    except KeyboardInterrupt:
        wait = False  # for the shards in hand, which may take long
        raise
    finally:
        crew.close(wait=wait and not (stop and stop.is_set()))


def require_patience(seconds: float) -> None:
    """Raises OptionError for what is no time to wait."""
    if not 0 < seconds <= _LONGEST_PATIENCE:
        raise OptionError(f"The patience is {seconds} s; it must be above 0, and at most a week")


def plan_workers(count: int, threads: int, *, own_gpus: bool = True) -> list[WorkerContext]:
    """Contexts of the workers of one process, which share `threads` threads; several workers get a GPU each."""
    if count < 1:
        raise OptionError(f"workers is {count}; it must be at least 1")
    each = max(1, threads // count)
    return [WorkerContext(i, count, each, gpu=i if own_gpus and count > 1 else None) for i in range(count)]


@dataclass(frozen=True)
class _Job:
    """A shard on its way; `deaths` are the workers that died while they had it."""

    index: int
    shard: Any
    deaths: int = 0


@dataclass
class _Worker:
    """What the scheduler knows of one worker."""

    description: str = ""
    ready: bool = False
    jobs: dict[int, _Job] = field(default_factory=dict)  # by ticket
    waited: float = 0.0  # seconds in which it was given something to do and has finished nothing

    @property
    def has_suspect(self) -> bool:
        """Whether it works on a shard that may have killed another one."""
        return any(job.deaths for job in self.jobs.values())


class _Scheduler:
    """One run of map_shards()."""

    def __init__(
        self,
        crew: Crew,
        shards: Iterable[Any],
        ahead: int,
        attempts: int,
        patience: float,
        in_order: bool,
        stop: threading.Event,
    ) -> None:
        self._crew = crew
        self._ahead = ahead
        self._attempts = attempts
        self._window = 2 * crew.count * ahead
        self._shards = iter(shards)
        self._exhausted = False
        self._broken: Exception | None = None  # what the shards raised
        self._stop = stop
        self._again: deque[_Job] = deque()  # whose worker died
        self._taken = 0
        self._given = 0
        self._done: dict[int, Outcome] = {}
        self._workers = [_Worker() for _ in range(crew.count)]
        self._tickets = itertools.count()
        self._failed_starts = 0
        self._patience = patience
        self._in_order = in_order
        self._longest = 0.0  # seconds from one result of a worker to its next

    def run(self) -> Iterator[Outcome]:
        try:
            yield from self._running()
        except Exception:
            yield from self._finished()
            raise

    def _running(self) -> Iterator[Outcome]:
        while True:
            if self._stop.is_set():
                yield from self._finished()
                return
            self._hand_out()
            while self._done and (self._given in self._done or not self._in_order):
                self._given += 1
                yield self._done.pop(self._given - 1 if self._in_order else next(iter(self._done)))
                self._hand_out()  # what was taken makes room
            if self._exhausted and self._given == self._taken:
                if self._broken is not None:
                    raise self._broken
                return
            begun = time.monotonic()
            events = self._crew.wait(min(self._patience, _LOOK_AGAIN))
            waited = time.monotonic() - begun
            for one in self._workers:
                one.waited += waited if one.jobs else 0.0
            for event in events:
                match event:
                    case Started(worker, description):
                        self._workers[worker].description = description
                        self._workers[worker].ready = True
                    case Finished():
                        self._finish(event)
                    case Lost():
                        self._bury(event)
            self._give_up_the_stuck()

    def _finished(self) -> Iterator[Outcome]:
        """What has been finished and was not given yet."""
        for event in self._crew.wait(0.0):
            if isinstance(event, Finished):
                self._finish(event)
        for index in sorted(self._done):
            yield self._done.pop(index)

    def _give_up_the_stuck(self) -> None:
        """Replace workers that live, and do not get on: none needs so many times as long as the slowest shard took."""
        limit = max(_STUCK * self._patience, _SLOWER * self._longest)
        for number, worker in enumerate(self._workers):
            if self._longest and worker.jobs and worker.waited > limit:
                cause = f"it finished nothing for {worker.waited:.0f} s"
                log.warning("worker %d is replaced: %s", number, cause)
                self._crew.replace(number)
                self._bury(Lost(number, cause))

    def _hand_out(self) -> None:
        """Give shards to workers, the least busy first, until all have enough."""
        while True:
            ready = [i for i, w in enumerate(self._workers) if w.ready and not w.has_suspect]
            idle = [i for i in ready if not self._workers[i].jobs]
            if self._again and idle:
                self._submit(idle[0], self._again.popleft())
                continue
            # One worker without new shards empties, for the suspects.
            reserved = min(ready, key=self._busyness) if self._again and ready else None
            open_ = [i for i in ready if i != reserved and len(self._workers[i].jobs) < self._ahead]
            job = self._next() if open_ else None
            if job is None:
                return
            self._submit(min(open_, key=self._busyness), job)

    def _busyness(self, worker: int) -> int:
        return len(self._workers[worker].jobs)

    def _next(self) -> _Job | None:
        """The next new shard, None if there is none or too many are under way."""
        if self._exhausted or self._taken - self._given >= self._window:
            return None
        try:
            shard = next(self._shards)
        except StopIteration:
            self._exhausted = True
            return None
        except Exception as error:  # told when what was taken before is done
            self._exhausted, self._broken = True, error
            return None
        self._taken += 1
        return _Job(self._taken - 1, shard)

    def _submit(self, worker: int, job: _Job) -> None:
        ticket = next(self._tickets)
        self._workers[worker].jobs[ticket] = job
        self._crew.submit(worker, ticket, job.shard)

    def _finish(self, event: Finished) -> None:
        worker = self._workers[event.worker]
        job = worker.jobs.pop(event.ticket, None)
        if job is None:  # reported after its worker was buried: another one has the shard
            return
        self._failed_starts = 0
        self._longest = max(self._longest, worker.waited, 1e-3)
        worker.waited = 0.0
        self._done[job.index] = Outcome(
            job.index, job.shard, event.value, event.error, worker.description, job.deaths + 1
        )

    def _bury(self, event: Lost) -> None:
        worker = self._workers[event.worker]
        if not worker.ready:
            if event.error is not None:
                raise event.error
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                raise WorkerDied(f"{self._failed_starts} workers died while they started, the last so: {event.cause}")
        orphans = [replace(job, deaths=job.deaths + 1) for job in worker.jobs.values()]
        description = worker.description
        self._workers[event.worker] = _Worker()
        for job in orphans:
            if job.deaths < self._attempts:
                self._again.append(job)
            else:
                error = WorkerDied(f"{job.deaths} workers died while they worked on this, the last so: {event.cause}")
                self._done[job.index] = Outcome(job.index, job.shard, None, error, description, job.deaths)
