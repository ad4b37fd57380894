"""Workers: what the scheduler asks of them, and those that are threads of this process."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from litegpu.errors import LiteGpuError


class WorkerDied(LiteGpuError, RuntimeError):
    """Workers died again and again, while they worked on one shard or while they started."""


@dataclass(frozen=True)
class Context:
    """What a worker knows of its place: it is number `index` of `count`, and may use `threads` threads. `gpu`: its own
    CUDA device as this process counts them, None where no device is its own."""

    index: int
    count: int
    threads: int
    gpu: int | None = None


#: Makes, in the worker, the function that turns a shard into a result. The function is called by several threads at
#: once; if it has an attribute `description` (a string, such as the name of its device), outcomes carry it.
Factory = Callable[[Context], Callable[[Any], Any]]


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
        """Required. Have a worker, one that was reported as started, work on a shard."""

    def wait(self) -> Sequence[Event]:
        """Required. What has happened since the last call; waits for something to happen."""

    def close(self) -> None:
        """Required. End all workers, whatever they are doing."""


class LocalCrew:
    """Workers in this process, each with `concurrency` threads. They cannot die alone."""

    def __init__(self, factory: Factory, contexts: Sequence[Context], concurrency: int) -> None:
        self.count = len(contexts)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._pools = [ThreadPoolExecutor(concurrency, f"worker-{c.index}") for c in contexts]
        self._functions: list[Callable[[Any], Any] | None] = [None] * len(contexts)
        for context, pool in zip(contexts, self._pools, strict=True):
            pool.submit(self._start, factory, context)

    def submit(self, worker: int, ticket: int, shard: Any) -> None:
        self._pools[worker].submit(self._work, worker, ticket, shard)

    def wait(self) -> Sequence[Event]:
        events = [self._events.get()]
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        for function in self._functions:
            close_function(function)

    def _start(self, factory: Factory, context: Context) -> None:
        try:
            function = self._functions[context.index] = factory(context)
        except Exception as error:
            self._events.put(Lost(context.index, str(error), error))
        else:
            self._events.put(Started(context.index, describe(function)))

    def _work(self, worker: int, ticket: int, shard: Any) -> None:
        function = self._functions[worker]
        assert function is not None
        try:
            value = function(shard)
        except Exception as error:
            self._events.put(Finished(worker, ticket, error=error))
        else:
            self._events.put(Finished(worker, ticket, value))


def describe(function: Callable[[Any], Any]) -> str:
    """A worker for people: its process, and what its function says of itself."""
    own = getattr(function, "description", "")
    return f"process {os.getpid()}" + (f" on {own}" if own else "")


def close_function(function: Callable[[Any], Any] | None) -> None:
    """Free what a worker's function holds, if it has close()."""
    close = getattr(function, "close", None)
    if close is not None:
        close()
