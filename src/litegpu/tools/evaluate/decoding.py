"""Decodes inputs ahead of the model: worker processes fill a ring of shared memory, whose slices are the batches."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import math
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, Self

import numpy as np

from litegpu import native
from litegpu.errors import InvokeError
from litegpu.tools.distribute.scheduler import PATIENCE
from litegpu.tools.evaluate.image_list import Item

_RING_BYTES = 512 * 2**20  # of many cores; few need less
_ITEMS_PER_WORKER = 24  # in the ring, if memory allows: what decodes while the model computes
_LARGEST_CHUNK = 8  # items sent to a worker at once
_CHUNKS_IN_FLIGHT = 3  # of a worker: the next ones wait there already while the model computes
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_READY = "ready"
_SILENCES_AT_START = 10

log = logging.getLogger("litegpu")

_FEW_ITEMS = 16  # for a worker to be worth its start


class Prepare(Protocol):
    """Turns a file into a model's input; sent to the workers once, by pickling."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    def __call__(self, path: str, out: np.ndarray) -> dict[str, Any]:
        """Write one input into `out`; gives facts about it. An exception's text says why it could not be read."""


@dataclass(frozen=True)
class DecodedItem:
    """What became of one item: facts about it, or an error; and the seconds that took."""

    item: Item
    facts: dict[str, Any]
    error: str
    seconds: float


@dataclass(frozen=True, eq=False)
class Batch:
    """`array` has a row for each of `rows`, then rows of no meaning; it is overwritten when the next is asked for."""

    rows: tuple[DecodedItem, ...]
    array: np.ndarray


def decoded_batches(
    items: Iterable[Item], prepare: Prepare, batch: int, workers: int, *, patience: float = PATIENCE
) -> Iterator[Batch]:
    """The items in their order, `batch` at a time, decoded by `workers` processes, or by this one if 0.

    At most a ring of memory is decoded ahead: 24 items for each worker and a batch, within 512 MB, but no less than
    two batches. Processes are spawned: a script that calls this needs `if __name__ == "__main__":`, as always with
    multiprocessing.

    A worker that dies, or does not answer for `patience` seconds in which the model waits, is replaced; an item that
    this happens to twice has an error. Raises InvokeError if workers die before they have decoded anything.
    """
    with Decoder(prepare, batch, workers, patience=patience) as decoder:
        yield from decoder.batches(items)


class Decoder:
    """What decoded_batches() decodes with, for several rows of items: its processes live as long as it does."""

    def __init__(self, prepare: Prepare, batch: int, workers: int, *, patience: float = PATIENCE) -> None:
        self._prepare, self._batch, self._patience = prepare, batch, patience
        self._team: list[_Worker] = []
        if workers <= 0:
            return
        context = multiprocessing.get_context("spawn")
        item_bytes = math.prod(prepare.shape) * np.dtype(prepare.dtype).itemsize
        slots = min(max(_RING_BYTES // item_bytes, 1), _ITEMS_PER_WORKER * workers + batch)
        slots = max(slots // batch, 2) * batch  # whole batches, so that each is one slice
        memory = context.RawArray("B", slots * item_bytes)
        self._memory = np.frombuffer(memory, prepare.dtype).reshape(slots, *prepare.shape)
        self._chunk = max(1, min(_LARGEST_CHUNK, slots // (2 * workers)))
        try:
            for _ in range(workers):
                self._team.append(_Worker(context, (prepare, memory, slots)))
        except BaseException:
            self.close()
            raise

    def batches(self, items: Iterable[Item]) -> Iterator[Batch]:
        """The items in their order, a batch at a time. Raises InvokeError if processes die before they decode."""
        if not self._team:
            return _decoded_here(items, self._prepare, self._batch)
        return _Ring(self._memory, self._batch, self._chunk, self._team, self._patience).batches(items)

    def close(self) -> None:
        for worker in self._team:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def worker_count(items: int) -> int:
    """One for each core that this process may use, fewer for few items, none if they are not worth a process."""
    return min(native.processors(), items // _FEW_ITEMS)


def _decoded_here(items: Iterable[Item], prepare: Prepare, batch: int) -> Iterator[Batch]:
    array = np.zeros((batch, *prepare.shape), prepare.dtype)
    for group in _chunks(items, batch):
        yield Batch(tuple(_prepared(prepare, item, array[i]) for i, item in enumerate(group)), array)


Chunk = list[tuple[int, str]]  # places in items, and paths


class _Worker:
    """A process, or the one that replaced it; `chunks` are on the way, the oldest first."""

    def __init__(self, context: Any, arguments: tuple[Any, ...]) -> None:
        self._context, self._arguments = context, arguments
        self.chunks: deque[Chunk] = deque()
        self._start()

    def _start(self) -> None:
        self.connection, there = self._context.Pipe()
        self.process = self._context.Process(target=_work, args=(there, *self._arguments), daemon=True)
        self.process.start()
        there.close()
        self.has_started = self.has_answered = False
        self.silences = 0

    def send(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        with contextlib.suppress(OSError):  # of a process that is gone, which is seen when its answer is due
            self.connection.send(chunk)

    def receive(self) -> Any:
        """The results of the oldest chunk; None if the process is gone."""
        try:
            results = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.silences = 0
        if results == _READY:
            self.has_started = True
            return []
        self.has_answered = True
        self.chunks.popleft()
        return results

    def is_hung(self) -> bool:
        """To be asked after a silence. To start, which is to import, may take as long as several."""
        self.silences += 1
        return self.has_started or self.silences > _SILENCES_AT_START

    def replace(self) -> list[Chunk]:
        """Start another process; the chunks that were on the way, of which the first may be to blame."""
        chunks = list(self.chunks)
        self.chunks.clear()
        self.close()
        self._start()
        return chunks

    def close(self) -> None:
        self.connection.close()
        self.process.kill()  # one that is stopped would not hear of a termination
        self.process.join()


class _Ring:
    """Places in items: `taken` were given to the model and are free again, `sent` are with the workers or done."""

    def __init__(
        self, ring: np.ndarray, batch: int, chunk: int, team: Sequence[_Worker], patience: float = PATIENCE
    ) -> None:
        self.ring, self.batch, self.chunk, self.team, self.patience = ring, batch, chunk, team, patience
        self.suspects: dict[int, int] = {}  # place -> how many workers it was with when they died
        self.pending: deque[Item] = deque()  # sent, in order
        self.done: dict[int, DecodedItem] = {}
        self.sent = self.taken = 0

    def batches(self, items: Iterable[Item]) -> Iterator[Batch]:
        source = iter(items)
        exhausted = False
        while left := [w for w in self.team if w.chunks]:  # of a ring that was not read to its end
            ready = wait([w.connection for w in left], self.patience)
            for worker in left:
                if (worker.connection in ready and worker.receive() is None) or (not ready and worker.is_hung()):
                    worker.replace()
        while True:
            while not exhausted and self.sent - self.taken < len(self.ring):
                idle = min(self.team, key=lambda w: len(w.chunks))
                if len(idle.chunks) >= _CHUNKS_IN_FLIGHT:
                    break
                room = min(self.chunk, len(self.ring) - (self.sent - self.taken))
                group = list(itertools.islice(source, room))
                exhausted = len(group) < room
                if group:
                    self._send(idle, group)
            rows = self._finished(exhausted)
            if rows:
                first = self.taken % len(self.ring)
                yield Batch(tuple(rows), self.ring[first : first + self.batch])
                self.taken += len(rows)
            elif self.pending:
                self._receive()
            elif exhausted:
                return

    def _send(self, worker: _Worker, group: Sequence[Item]) -> None:
        worker.send([(self.sent + i, item.path) for i, item in enumerate(group)])
        self.pending.extend(group)
        self.sent += len(group)

    def _receive(self) -> None:
        """Waits until a worker has something; those that are gone, or silent while nobody else has anything, are
        replaced."""
        busy = [w for w in self.team if w.chunks]
        ready = wait([w.connection for w in busy], self.patience)
        for worker in busy:
            if worker.connection in ready:
                results = worker.receive()
                if results is None:
                    worker.process.join(5)
                    self._replace(worker, f"ended (exit status {worker.process.exitcode}): was memory short?")
                    continue
                for place, facts, error, seconds in results:
                    self.done[place] = DecodedItem(self.pending[place - self.taken], facts, error, seconds)
            elif not ready and worker.is_hung():
                self._replace(worker, f"did not answer for {self.patience:g} s.")

    def _replace(self, worker: _Worker, cause: str) -> None:
        """Have another process decode what one was decoding: what it may have ended of one by one, and at last not."""
        if not worker.has_answered and not any(w.has_answered for w in self.team):
            raise InvokeError(
                f"A decoding process {cause} Fewer workers need less memory; a script must call this under "
                "'if __name__ == \"__main__\":'"
            )
        log.warning("a decoding process %s; another one takes its place", cause)
        first, *others = worker.replace()
        for place, path in first:
            self.suspects[place] = self.suspects.get(place, 0) + 1
            if len(first) == 1 and self.suspects[place] > 1:
                error = f"a process that decoded it {cause}"
                self.done[place] = DecodedItem(self.pending[place - self.taken], {}, error, 0.0)
            else:
                worker.send([(place, path)])
        for chunk in others:
            worker.send(chunk)

    def _finished(self, exhausted: bool) -> list[DecodedItem]:
        """The next batch if all of it is decoded; the last one may be shorter."""
        size = min(self.batch, len(self.pending)) if exhausted else self.batch
        places = range(self.taken, self.taken + size)
        if not size or not all(place in self.done for place in places):
            return []
        rows = [self.done.pop(place) for place in places]
        for _ in places:
            self.pending.popleft()
        return rows


def _work(connection: Connection, prepare: Prepare, memory: Any, slots: int) -> None:
    """A worker process: decodes what it is sent until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends this one
    _keep_freed_memory()
    ring = np.frombuffer(memory, prepare.dtype).reshape(slots, *prepare.shape)
    with contextlib.suppress(EOFError, OSError):
        connection.send(_READY)
        while True:
            results = []
            for place, path in connection.recv():
                found = _prepared(prepare, Item("", path, None), ring[place % slots])
                results.append((place, found.facts, found.error, found.seconds))
            connection.send(results)


def _keep_freed_memory() -> None:
    """Have glibc's malloc reuse what was freed. It would return it to the system, and every image would have its pages
    mapped again, which takes as long as decoding it does."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 * 2**20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 * 2**20)


def _prepared(prepare: Prepare, item: Item, out: np.ndarray) -> DecodedItem:
    start = time.perf_counter()
    facts: dict[str, Any] = {}
    error = ""
    try:
        facts = prepare(item.path, out)
    except Exception as problem:  # whatever a damaged file causes is about that file alone
        error = str(problem) or type(problem).__name__
    return DecodedItem(item, facts, error, time.perf_counter() - start)


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    source = iter(items)
    while group := list(itertools.islice(source, size)):
        yield group
