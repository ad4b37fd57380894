"""Copies between arrays of the host's memory: large ones by several threads, as one alone does not fill the bus. They
are native ones where the library is there (native/copy.c), else Python's, whose lock each piece waits for."""

from __future__ import annotations

import ctypes
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from litegpu import native
from litegpu.fork import in_child

#: Smaller arrays are copied sooner than threads are woken.
LARGE_BYTES = 4 << 20
#: So few are copied sooner than other threads get Python's lock, which NumPy would let go of, and it comes back.
_HELD_BYTES = 1 << 20
_THREADS = 8
#: Native ones, which do not change Python's lock: an H200's host copies 38 MB in 0.7 ms with 8 of them, in 0.4 with 16.
_NATIVE_THREADS = 16
#: Of a copy for each native thread, and the least that several copy: 1.8 MB take 0.09 ms with three, 0.16 alone.
_NATIVE_SHARE = 1 << 19
_ALIGNMENT = 4096
#: Of copies that something follows, piece by piece.
_LEAST_PIECE, _MOST_PIECES = 1 << 20, 16


@dataclass(frozen=True)
class Onward:
    """Where bytes go on to from where they were copied: `send(place, address, bytes, stream)`, a function of ctypes,
    puts that on a device's stream and gives 0 if it could."""

    send: Any
    place: int
    stream: int


def copy_bytes(target: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `target`: flat arrays of bytes, of one length. Whatever interrupts it, nobody copies any more
    when it has returned or raised."""
    size = target.size
    if size <= _HELD_BYTES:
        target.data[:] = source.data
        return
    library = native.find()
    if _processors() < 2 or (library is None and size < LARGE_BYTES):
        np.copyto(target, source)
    elif library is not None:
        threads = min(_NATIVE_THREADS, _processors(), -(-size // _NATIVE_SHARE))
        library.copy(target.ctypes.data, source.ctypes.data, size, threads, None, 0, None, False)
    else:
        threads = min(_THREADS, _processors(), size // (LARGE_BYTES // 2))
        _in_pieces(target, source, -(-size // threads), threads)


def can_round() -> bool:
    """Whether float16 can be made of float32 while it is copied."""
    library = native.find()
    return library is not None and library.rounds


def round_bytes(target: np.ndarray, source: np.ndarray) -> bool:
    """Fill `target` with float16 made of the float32 in `source`, if can_round(); flat arrays of bytes. Whether these
    are the same but for rounding: none became infinite, or was."""
    library = native.find()
    assert library is not None
    threads = min(_NATIVE_THREADS, _processors(), -(-source.size // _NATIVE_SHARE))
    found = library.copy(target.ctypes.data, source.ctypes.data, source.size, threads, None, 0, None, True)
    return bool(found == 0)


def copy_on(target: np.ndarray, source: np.ndarray, onward: Onward, *, rounded: bool = False) -> int:
    """The same in pieces, each of which goes on as soon as it is copied, while others are still to be; the device's
    context is current. `rounded`, if can_round(): the source is float32, the target and what goes on float16. The first
    number that was not 0 of those that `send` gave; then not all has gone on."""
    library = native.find()
    if library is not None:
        threads = min(_NATIVE_THREADS, _processors())
        send = ctypes.cast(onward.send, ctypes.c_void_p)
        found: int = library.copy(
            target.ctypes.data, source.ctypes.data, source.size, threads, send, onward.place, onward.stream, rounded
        )
        return max(found, 0)
    errors: list[int] = []

    def copied(piece: slice) -> None:
        if not errors:
            address = target.ctypes.data + piece.start
            error = onward.send(onward.place + piece.start, address, piece.stop - piece.start, onward.stream)
            errors.extend([error] if error else [])

    piece = max(_LEAST_PIECE, target.size // _MOST_PIECES)
    _in_pieces(target, source, piece, min(_THREADS, _processors(), -(-target.size // piece)), copied)
    return errors[0] if errors else 0


def make_present(memory: np.ndarray) -> None:
    """Have the pages of fresh memory, flat and of bytes, there: who needs them next, page after page, takes several
    times as long. Its content is anything afterwards."""
    library = native.find()
    if library is not None and memory.size >= LARGE_BYTES:
        library.copy(memory.ctypes.data, None, memory.size, min(_NATIVE_THREADS, _processors()), None, 0, None, False)


#: Counted once, as that takes 20 us.
_processors = functools.cache(native.processors)


def _in_pieces(
    target: np.ndarray,
    source: np.ndarray,
    piece: int,
    threads: int,
    copied: Callable[[slice], object] = lambda piece: None,
) -> None:
    """`copied` is told of each piece, in this thread."""
    size, part = target.size, piece + -piece % _ALIGNMENT
    job = _Copy(target, source, [slice(start, min(start + part, size)) for start in range(0, size, part)])
    try:
        jobs = _jobs()
        for _ in range(threads - 1):
            jobs.put(job)
        job.lead(copied)
    except BaseException:
        job.cancel()
        raise


class _Copy:
    """One copy in pieces, which any thread may help with."""

    def __init__(self, target: np.ndarray, source: np.ndarray, pieces: list[slice]) -> None:
        self._target, self._source = target, source
        self._todo = deque((piece, threading.Lock()) for piece in pieces)
        self._locks = [lock for _, lock in self._todo]  # each held while its piece is copied
        self._done: SimpleQueue[slice] = SimpleQueue()
        self._cancelled = False

    def help(self) -> bool:
        """Copy a piece; whether there was one."""
        try:
            piece, lock = self._todo.popleft()
        except IndexError:
            return False
        with lock:
            if self._cancelled:
                return False
            np.copyto(self._target[piece], self._source[piece])
        self._done.put(piece)
        return True

    def lead(self, copied: Callable[[slice], object]) -> None:
        """Return when all pieces are copied, and `copied` was told of each."""
        for _ in self._locks:
            while True:
                try:
                    piece = self._done.get_nowait()
                    break
                except queue.Empty:
                    if not self.help():
                        piece = self._done.get()
                        break
            copied(piece)

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
            job = jobs.get()
            while job.help():
                pass
            del job  # which may hold the last reference to the arrays

    for i in range(_THREADS - 1):
        threading.Thread(target=labour, name=f"litegpu copy {i}", daemon=True).start()
    return jobs
