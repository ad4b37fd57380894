"""Workers that are processes of this machine, each with a Python's lock of its own, replaced when they die.

They are started afresh, as drivers do not survive a fork. They ignore Ctrl-C, which the process that started them
heeds, and end when that does."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from litegpu.tools.distribute.crew import (
    Event,
    Factory,
    Finished,
    Lost,
    Started,
    WorkerContext,
    close_function,
    describe,
    portable,
)

log = logging.getLogger("litegpu")

#: Seconds that a worker is given to end by itself.
_PATIENCE = 10.0


class ProcessCrew:
    """Satisfies crew.Crew. Factory, shards and results are pickled."""

    def __init__(self, factory: Factory, contexts: Sequence[WorkerContext], concurrency: int) -> None:
        self.count = len(contexts)
        self._factory, self._contexts, self._concurrency = factory, contexts, concurrency
        self._workers = [_Process(factory, context, concurrency) for context in contexts]

    def submit(self, worker: int, ticket: int, shard: Any) -> None:
        with contextlib.suppress(OSError):  # wait() will find that it has died
            self._workers[worker].connection.send((ticket, shard))

    def wait(self, timeout: float) -> Sequence[Event]:
        """See crew.Crew."""
        ends: dict[Any, int] = {}
        for number, worker in enumerate(self._workers):
            ends[worker.connection] = ends[worker.process.sentinel] = number
        ready = {ends[end] for end in wait(list(ends), timeout)}
        events: list[Event] = []
        for number in sorted(ready):
            worker = self._workers[number]
            events += worker.told()
            if not worker.process.is_alive():
                events += worker.told()  # what it said last
                if not any(isinstance(event, Lost) and event.worker == number for event in events):
                    cause = f"its process ended with exit code {worker.process.exitcode}"
                    log.warning("worker %d is replaced: %s", number, cause)
                    events.append(Lost(number, cause))
                    self.replace(number)
        return events

    def replace(self, worker: int) -> None:
        self._workers[worker].kill()
        self._workers[worker] = _Process(self._factory, self._contexts[worker], self._concurrency)

    def close(self, *, wait: bool = True) -> None:
        for worker in self._workers:
            worker.end(wait)
        deadline = time.monotonic() + _PATIENCE
        for worker in self._workers:
            if wait:
                worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.kill()


class _Process:
    """One worker, as seen from here."""

    def __init__(self, factory: Factory, context: WorkerContext, concurrency: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(
            target=_work, args=(theirs, factory, context, concurrency), name=f"worker-{context.index}", daemon=True
        )
        self.process.start()
        theirs.close()  # else its end would not be noticed

    def told(self) -> list[Event]:
        """What it has said since the last call."""
        found: list[Event] = []
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll():
                found.append(self.connection.recv())
        return found

    def end(self, wait: bool) -> None:
        if not wait:
            self.process.terminate()
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def _work(connection: Connection, factory: Factory, context: WorkerContext, concurrency: int) -> None:
    """A worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sending = threading.Lock()

    def tell(event: Event) -> None:
        with sending:
            connection.send(event)

    try:
        function = factory(context)
    except Exception as error:
        found = portable(error)
        tell(Lost(context.index, str(error), found))
        return
    tell(Started(context.index, describe(function)))
    jobs: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()

    def labour() -> None:
        while (job := jobs.get()) is not None:
            ticket, shard = job
            try:
                event = Finished(context.index, ticket, function(shard))
            except Exception as error:
                event = Finished(context.index, ticket, error=portable(error))
            with contextlib.suppress(OSError):  # nobody wants to know any more
                tell(event)

    threads = [threading.Thread(target=labour, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(EOFError, OSError):  # the one that started it has ended
        while (job := connection.recv()) is not None:
            jobs.put(job)
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()
    close_function(function)
