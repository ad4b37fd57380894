"""Batches, and the calls whose rows are in them: where the rows lie, and what their callers wait for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from litegpu.background import InferenceFuture
from litegpu.errors import DeadlineError, InvokeError, LiteGpuError

#: Results up to this are copied for their caller; of larger ones the caller gets a view of the batch's array.
COPIED_BYTES = 64 << 10
#: Inputs up to this are copied under Python's lock, which to give away and get again takes longer.
HELD_BYTES = 32 << 10
#: Rows up to this, of a caller who waits, are copied by the thread that computes the batch.
LATE_BYTES = 1 << 20


class Request:
    """A call with `rows` rows of each input, in `arrays` by name. Times are seconds of the batcher's clock.

    `copied`: the rows are in the batch's memory, or will never be. `gone`: nobody waits for the result any more. Plain
    values, so that an interruption of the caller cannot leave them half set."""

    __slots__ = (
        "_done",
        "arrays",
        "arrived",
        "batch",
        "copied",
        "deadline",
        "error",
        "future",
        "gone",
        "rows",
        "start",
    )

    def __init__(
        self, arrays: Mapping[str, np.ndarray], rows: int, arrived: float, deadline: float | None, *, waited: bool
    ) -> None:
        """`waited`: a thread will wait(); else there is a `future`."""
        self.arrays: Mapping[str, np.ndarray] | None = arrays
        self.rows = rows
        self.arrived = arrived
        self.deadline = deadline
        self.batch: SharedBatch | None = None
        self.start = 0
        self.copied = False
        self.gone = False
        self.error: BaseException | None = None
        self.future: InferenceFuture[Any] | None = None
        if waited:
            self._done = threading.Lock()
            self._done.acquire()
        else:
            self.future = InferenceFuture()

    @property
    def is_late(self) -> bool:
        """Whether its rows are copied when the batch is computed: its caller waits, so they stay as they are, and need
        not get Python's lock back after a copy."""
        arrays = self.arrays
        return self.future is None and arrays is not None and sum(a.nbytes for a in arrays.values()) <= LATE_BYTES

    def wait(self, seconds: float | None) -> bool:
        """Whether the result was there before so many seconds had passed. Signals get through."""
        return self._done.acquire(timeout=-1 if seconds is None else max(seconds, 0.0))

    def begins(self, now: float) -> bool:
        """The batch is about to be computed: whether the caller still wants it."""
        if self.gone:
            return False
        if self.future is not None and not self.future.set_running_or_notify_cancel():
            self.gone = True
            return False
        if self.deadline is not None and now > self.deadline:
            self.fail(too_late("before its batch was begun"))
            self.gone = True
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self.error = error
        future = self.future
        if future is None:
            self._done.release()
        elif future.running() or future.set_running_or_notify_cancel():
            future.set_exception(own(error))

    def finish(self, result: Any = None) -> None:
        """End well. `result`: for the future, if there is one."""
        if self.future is None:
            self._done.release()
        else:
            self.future.set_result(result)


@dataclass(eq=False)
class Slab:
    """Memory for the rows of one batch: an array for each input, by name. Rows from `dirty` on hold zeros. `home`: the
    number of the device that reads it quickest."""

    arrays: Mapping[str, np.ndarray]
    home: int = 0
    dirty: int = 0
    _bytes: dict[str, memoryview] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bytes = {name: array.reshape(-1).view(np.uint8).data for name, array in self.arrays.items()}

    def put(self, name: str, start: int, rows: np.ndarray) -> None:
        """Copy rows to a place, without Python's lock if there are many bytes; small ones are copied sooner than other
        threads would give the lock back."""
        size = rows.nbytes
        if size > HELD_BYTES or not rows.flags.c_contiguous:
            self.arrays[name][start : start + len(rows)] = rows
        else:
            at = start * (size // len(rows))
            self._bytes[name][at : at + size] = rows.reshape(-1).view(np.uint8).data


@dataclass(eq=False)
class SharedBatch:
    """Requests whose rows run together. `opened`, `latest` and `begun` are times: of the first row, of the last one,
    and of the run. `sealed`: no more rows come. `direct`: arrays of the only caller's, who waits, in place of the slab.
    `results`: the outputs, once it has ended well."""

    slab: Slab
    opened: float
    latest: float
    rows: int = 0
    requests: list[Request] = field(default_factory=list)
    sealed: bool = False
    begun: float = 0.0
    direct: Mapping[str, np.ndarray] | None = None
    results: Sequence[np.ndarray] | None = None

    @property
    def home(self) -> int:
        return self.slab.home

    @property
    def is_copied(self) -> bool:
        """Whether nobody is copying rows any more."""
        return all(request.copied for request in self.requests)


def own(error: BaseException) -> BaseException:
    """The same error for one of several callers: each gets an exception of its own, with the first as its cause."""
    if isinstance(error, LiteGpuError):
        try:
            copy: BaseException = type(error)(*error.args)
        except Exception:
            copy = InvokeError(str(error))
    else:
        copy = InvokeError(f"{type(error).__name__}: {error}")
    copy.__cause__ = error
    return copy


def too_late(when: str) -> DeadlineError:
    """What a caller gets whose time is over."""
    return DeadlineError(f"the time that the call was given was over {when}")


def rows_of(array: np.ndarray, start: int, rows: int) -> np.ndarray:
    """The rows of a batch's output that are a caller's: a copy, or for large ones a view, which keeps all of the
    batch's array alive."""
    if rows == len(array):
        return array
    part: np.ndarray = array[start : start + rows]
    if part.nbytes > COPIED_BYTES or not part.flags.c_contiguous:
        return part
    # ndarray.copy() would give Python's lock away, and wait for it
    return np.frombuffer(bytearray(part.reshape(-1).view(np.uint8).data), part.dtype).reshape(part.shape)
