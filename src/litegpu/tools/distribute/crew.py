"""Workers: what the scheduler asks of them, and those that are threads of this process."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from litegpu.background import leave
from litegpu.errors import LiteGpuError


class WorkerDied(LiteGpuError, RuntimeError):
    """Workers died again and again, while they worked on one shard or while they started."""


@dataclass(frozen=True)
class WorkerContext:
    """What a worker knows of its place: it is number `index` of `count`, and may use `threads` threads. `gpu`: its own
    GPU as this process counts them, None where no device is its own."""

    index: int
    count: int
    threads: int
    gpu: int | None = None


#: Makes, in the worker, the function that turns a shard into a result. The function is called by several threads at
#: once; if it has an attribute `description` (a string, such as the name of its device), outcomes carry it.
Factory = Callable[[WorkerContext], Callable[[Any], Any]]


@dataclass(frozen=True)
class Started:
    """A worker is ready for shards."""

    worker: int
    description: str


@dataclass(frozen=True)
class Finished:
    """A shard is done: its result, or the exception that the function raised."""

    worker: int
    ticket: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Lost:
    """A worker is gone, with everything that it was working on; another one is being started under its number.
    `error` is set if the factory raised, which no other worker would do better."""

    worker: int
    cause: str
    error: Exception | None = None


Event = Started | Finished | Lost


class Crew(Protocol):
    """Workers 0 to count - 1, each started when the crew is made."""

    count: int

    def submit(self, worker: int, ticket: int, shard: Any) -> None:
        """Have a worker, one that was reported as started, work on a shard."""

    def wait(self, timeout: float) -> Sequence[Event]:
        """What has happened since the last call; waits for something to happen, but not longer than so many
        seconds."""

    def replace(self, worker: int) -> None:
        """Give a worker up, whatever it is doing, and start another one under its number; what it may still
        report is not told."""

    def close(self, *, wait: bool = True) -> None:
        """End all workers, whatever they are doing; without `wait` do not wait for it."""


class LocalCrew:
    """Workers in this process, each with `concurrency` threads. They cannot die alone. One that is given up goes on in
    vain, since nothing can end a thread; the process ends without it."""

    def __init__(self, factory: Factory, contexts: Sequence[WorkerContext], concurrency: int) -> None:
        self.count = len(contexts)
        self._factory, self._contexts, self._concurrency = factory, contexts, concurrency
        self._events: queue.SimpleQueue[tuple[_Threads, Event]] = queue.SimpleQueue()
        self._workers = [_Threads(factory, c, concurrency, self._events) for c in contexts]

    def submit(self, worker: int, ticket: int, shard: Any) -> None:
        self._workers[worker].work.put((ticket, shard))

    def wait(self, timeout: float) -> Sequence[Event]:
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found = [self._events.get(timeout=timeout)]
            while not self._events.empty():
                found.append(self._events.get())
            events = [event for threads, event in found if threads is self._workers[event.worker]]
        return events

    def replace(self, worker: int) -> None:
        self._workers[worker].end()
        self._workers[worker] = _Threads(self._factory, self._contexts[worker], self._concurrency, self._events)

    def close(self, *, wait: bool = True) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            if wait:
                worker.close()
            else:
                leave(worker.close)


class _Threads:
    """One local worker: the first of its threads makes the function."""

    def __init__(
        self, factory: Factory, context: WorkerContext, count: int, events: queue.SimpleQueue[tuple[_Threads, Event]]
    ) -> None:
        self.work: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._context, self._events = context, events
        self._function: Callable[[Any], Any] | None = None
        self._ended = False
        self._count = count
        start = threading.Thread(target=self._start, args=(factory,), name=f"worker-{context.index}", daemon=True)
        self._threads = [start]
        start.start()

    def end(self) -> None:
        """Let the threads end when they have done what they are doing."""
        self._ended = True
        for _ in range(self._count):
            self.work.put(None)

    def close(self) -> None:
        """Wait for the threads, and free what the function holds."""
        for thread in self._threads:
            thread.join()
        close_function(self._function)

    def _tell(self, event: Event) -> None:
        self._events.put((self, event))

    def _start(self, factory: Factory) -> None:
        index = self._context.index
        try:
            self._function = factory(self._context)
        except Exception as error:
            self._tell(Lost(index, str(error), error))
            return
        others = [threading.Thread(target=self._work, name=f"worker-{index}", daemon=True) for _ in range(self._count)]
        self._threads += others[1:]
        for thread in others[1:]:
            thread.start()
        self._tell(Started(index, describe(self._function)))
        self._work()

    def _work(self) -> None:
        assert self._function is not None
        while (item := self.work.get()) is not None and not self._ended:
            ticket, shard = item
            try:
                value = self._function(shard)
            except Exception as error:
                self._tell(Finished(self._context.index, ticket, error=error))
            else:
                self._tell(Finished(self._context.index, ticket, value))


def portable(error: Exception) -> Exception:
    """The exception, or if it cannot be pickled its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LiteGpuError(f"{type(error).__name__}: {error}")
    return error


def describe(function: Callable[[Any], Any]) -> str:
    """A worker for people: its process, and what its function says of itself."""
    own = getattr(function, "description", "")
    return f"process {os.getpid()}" + (f" on {own}" if own else "")


def close_function(function: Callable[[Any], Any] | None) -> None:
    """Free what a worker's function holds, if it has close()."""
    close = getattr(function, "close", None)
    if close is not None:
        close()
