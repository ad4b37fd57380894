"""Copies between arrays of the host's memory: large ones by several threads, as one alone does not fill the bus."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from litegpu.fork import in_child

#: Smaller arrays are copied sooner than threads are woken.
LARGE_BYTES = 4 << 20
#: So few are copied sooner than other threads get Python's lock, which NumPy would let go of, and it comes back.
_HELD_BYTES = 1 << 20
_THREADS = 8
_ALIGNMENT = 4096
#: Of copies that something follows, piece by piece.
_LEAST_PIECE, _MOST_PIECES = 1 << 20, 32


def copy_bytes(target: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `target`: flat arrays of bytes, of one length. Whatever interrupts it, nobody copies any more
    when it has returned or raised."""
    size = target.size
    if size <= _HELD_BYTES:
        target.data[:] = source.data
        return
    if size < LARGE_BYTES:  # asked first, as to count the processors takes 20 us
        np.copyto(target, source)
        return
    threads = min(_THREADS, os.cpu_count() or 1, size // (LARGE_BYTES // 2))
    if threads < 2:
        np.copyto(target, source)
        return
    _in_pieces(target, source, -(-size // threads), threads, None)


def copy_pieces(target: np.ndarray, source: np.ndarray, copied: Callable[[slice], object]) -> None:
    """The same in pieces of a megabyte or more: `copied` is told of each, in the thread that has copied it, while
    others are still to be copied."""
    piece = max(_LEAST_PIECE, target.size // _MOST_PIECES)
    threads = min(_THREADS, os.cpu_count() or 1, -(-target.size // piece))
    _in_pieces(target, source, piece, threads, copied)


def _in_pieces(
    target: np.ndarray, source: np.ndarray, piece: int, threads: int, copied: Callable[[slice], object] | None
) -> None:
    size, part = target.size, piece + -piece % _ALIGNMENT
    job = _Copy(target, source, [slice(start, min(start + part, size)) for start in range(0, size, part)], copied)
    try:
        jobs = _jobs()
        for _ in range(threads - 1):
            jobs.put(job)
        job.help()
        job.wait()
    except BaseException:
        job.cancel()
        raise


class _Copy:
    """One copy in pieces, which any thread may help with."""

    def __init__(
        self, target: np.ndarray, source: np.ndarray, pieces: list[slice], copied: Callable[[slice], object] | None
    ) -> None:
        self._target, self._source, self._copied = target, source, copied
        self._todo = deque((piece, threading.Lock()) for piece in pieces)
        self._locks = [lock for _, lock in self._todo]  # each held while its piece is copied
        self._done: SimpleQueue[None] = SimpleQueue()
        self._cancelled = False
        self._error: Exception | None = None  # of `copied`

    def help(self) -> None:
        """Copy pieces until none is left."""
        while True:
            try:
                piece, lock = self._todo.popleft()
            except IndexError:
                return
            with lock:
                if self._cancelled:
                    return
                np.copyto(self._target[piece], self._source[piece])
                if self._copied is not None:
                    try:
                        self._copied(piece)
                    except Exception as error:
                        self._error = error
            self._done.put(None)

    def wait(self) -> None:
        """Return when all pieces are copied."""
        for _ in self._locks:
            self._done.get()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Return when nobody copies any more."""
        self._cancelled = True
        for lock in self._locks:
            with lock:
                pass


@in_child
def _forked() -> None:
    _jobs.cache_clear()  # its threads are in the parent


@functools.cache
def _jobs() -> SimpleQueue[_Copy]:
    """Where copies wait for helpers, who begin with the first."""
    jobs: SimpleQueue[_Copy] = SimpleQueue()

    def labour() -> None:
        while True:
            jobs.get().help()

    for i in range(_THREADS - 1):
        threading.Thread(target=labour, name=f"litegpu copy {i}", daemon=True).start()
    return jobs
