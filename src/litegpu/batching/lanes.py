"""The threads of a batcher: each computes one batch after the other, while callers fill the next ones."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from litegpu import fork
from litegpu.background import leave
from litegpu.batching.batch import Request, SharedBatch, Slab, own, rows_of, too_late
from litegpu.batching.collector import Collector, Rules
from litegpu.batching.native_calls import NativeCalls
from litegpu.batching.sizes import AHEAD, Replica, padded
from litegpu.batching.statistics import BatcherStatistics, Counts
from litegpu.errors import DeviceError, ForkError, InvokeError, QueueFullError
from litegpu.replicas import named

log = logging.getLogger("litegpu")


class _Lane:
    """One thread, which is at `home`, the number of its replica. `gate` is open when there is something to look at.
    `lent`: a caller computes a batch in its place. `given`: a batch that was taken for it."""

    def __init__(self, home: int, number: int, place: int) -> None:
        """`place`: among all lanes of all replicas."""
        self.home, self.number, self.place = home, number, place
        self.gate = threading.Lock()
        self.gate.acquire()
        self.thread: threading.Thread | None = None
        self.lent = False
        self.given: SharedBatch | None = None

    def wake(self) -> None:
        """Open the gate, if it is not open."""
        with contextlib.suppress(RuntimeError):
            self.gate.release()


class Lanes:
    """What is behind a Batcher; its threads hold this, and not the Batcher. `as_result` makes of the outputs what a
    call gives; `outputs` says of each whether it has the batch."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        sizes: Sequence[int],
        rules: Rules,
        outputs: Sequence[bool],
        as_result: Callable[[Sequence[Any]], Any],
        clock: Callable[[], float] = time.monotonic,
        native: NativeCalls | None = None,
        ahead: int = AHEAD,
    ) -> None:
        """`native`: computes batches of its own in the same lanes, and there may be more for it than `ahead`, of which
        each has a thread here."""
        self.clock = clock
        self._native = native
        self._replicas = list(replicas)
        self._sizes = sizes
        self._outputs = outputs
        self._as_result = as_result
        self._lock = threading.Lock()
        places = [(home, i) for home, replica in enumerate(replicas) for i in range(len(replica.lanes))]
        self._lanes = [_Lane(home, i, place) for place, (home, i) in enumerate(places) if i < ahead]
        self._asleep: list[_Lane] = []
        self._timing: _Lane | None = None  # the one that sleeps no longer than until rows are due
        self._alive = len(self._lanes)
        self._hopefuls: deque[Callable[[], object]] = deque()  # told when there may be room
        self._closed = False
        self._drops = False  # what waits ends with an error
        self._forked_away = False
        self.counts = Counts()
        self._answering: set[int] = set()  # threads that call callbacks
        slabs = [self._slab(lane.home) for lane in self._lanes]
        slabs += [self._slab(home) for home in range(len(replicas))]
        self._collector = Collector(rules, len(self._lanes), slabs, self._slab)
        fork.follow(self)
        _living.add(self)
        for lane in self._lanes:
            # not one that the end of the process waits for: settle_all() sees to that
            lane.thread = threading.Thread(target=self._labour, args=(lane,), name="litegpu batcher", daemon=True)
            lane.thread.start()

    def place(self, request: Request, told: Callable[[], object] | None) -> bool:
        """Give the request a place and fill it; False if too much waits: then `told` is called once there may be room,
        and without one that is a QueueFullError. Raises InvokeError once closed."""
        try:
            with self._lock:
                self._check()
                others = 0 if self._native is None else self._native.inside.value
                if not self._collector.offer(request, self.clock(), others):
                    if told is None:
                        self.counts.refused += 1
                        raise QueueFullError(
                            f"{self._collector.waiting + others} rows wait already, and there is room for "
                            f"{self._collector.rules.waiting}: call later, or give max_waiting or when_full='wait'"
                        )
                    self._hopefuls.append(told)
                    return False
                self._tell_native()
                batch, arrays = request.batch, request.arrays
                assert batch is not None and arrays is not None
                lane = self._alone(request, batch)
            if lane is not None:
                batch.direct = arrays
                self._run(lane, batch)
                self._give_back(lane)
                return True
            if not request.is_late:
                for name, array in arrays.items():
                    batch.slab.put(name, request.start, array)
                request.arrays = None
        except BaseException:
            request.gone = True
            request.copied = True
            self._kick(None)
            raise
        request.copied = True
        lane = self._kick(request)
        if lane is not None:
            self._run(lane, batch)
            self._give_back(lane)
        return True

    def forget(self, told: Callable[[], object]) -> None:
        """Who was to be told of room does not want it any more; if it was told already, somebody else is."""
        with self._lock:
            try:
                self._hopefuls.remove(told)
            except ValueError:
                self._tell(1)

    def statistics(self) -> BatcherStatistics:
        native = None if self._native is None or self._forked_away else self._native.numbers()
        if self.interrupted_here and self._lock.locked():  # by what this has interrupted, perhaps
            return self.counts.summary(self._collector.waiting, 0, native)
        with self._lock:
            running = sum(batch.rows for batch in self._collector.running)
            return self.counts.summary(self._collector.waiting, running, native)

    def result(self, request: Request) -> Any:
        """What the caller of a request gets that was answered; raises its error."""
        if request.error is not None:
            raise own(request.error)
        batch = request.batch
        assert batch is not None and batch.results is not None
        return self._result(request, batch.results)

    def close(self, *, drain: bool = True, wait: bool = True) -> None:
        """Take no more; with `drain` compute what waits, else end it with InvokeError. With `wait` return when all is
        done and freed, else, and where `interrupted_here`, at once."""
        if self._forked_away:
            return
        if self._native is not None:
            self._native.close(drain=drain)
        if self.interrupted_here:
            leave(functools.partial(self.close, drain=drain, wait=False))
            return
        self._finish(drop=not drain)
        if not drain:
            leave(self._drop)  # no signal interrupts threads, so no call is forgotten
        if wait and not self.answers_here:
            self._join()

    @property
    def answers_here(self) -> bool:
        """Whether this thread calls the callbacks of a batch, and so cannot wait for another, which might need it."""
        return threading.get_ident() in self._answering

    @property
    def interrupted_here(self) -> bool:
        """Whether a signal handler or a finalizer asks that has interrupted a call of ours in this thread, which may
        hold the lock, or a lane, and goes on only when the handler is done. Told by the frames of the thread, so that
        nothing has to be undone, whatever interrupts whom."""
        if self.answers_here:
            return False
        frame = sys._getframe(2)  # what asks may be one of them itself, and has interrupted nothing
        while frame is not None:
            if frame.f_code in _IN_THE_MIDST and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def settle(self) -> None:
        """The end of the process: compute nothing more."""
        if not self._forked_away:
            if self._native is not None:
                self._native.close(drain=False)
            self._finish(drop=True)
            self._join()

    def _join(self) -> None:
        for lane in self._lanes:
            if lane.thread is not None and lane.thread is not threading.current_thread():
                lane.thread.join()

    def _finish(self, *, drop: bool) -> None:
        """Let the threads end when nothing waits any more, or with `drop` at once."""
        with self._lock:
            self._closed = True
            self._drops |= drop
            self._collector.hurry()
            self._tell(len(self._hopefuls))
            for lane in self._asleep:
                lane.wake()

    # ---------------------------------------------------------------------------------------------- in the threads

    def _labour(self, lane: _Lane) -> None:
        try:
            while (batch := self._next(lane)) is not None:
                self._run(lane, batch)
                del batch  # the last reference, perhaps, to the memory of results
        finally:
            with self._lock:
                self._alive -= 1
                last = self._alive == 0
                if last:  # as it should be, or as something unforeseen was raised
                    self._closed = self._drops = True
                    self._tell(len(self._hopefuls))
            self._drop()
            if last:
                if self._native is not None:
                    self._native.close(drain=True)
                    self._native.settle()
                for replica in self._replicas:
                    replica.close(wait=True)

    def _next(self, lane: _Lane) -> SharedBatch | None:
        """The next batch to run; None if there will be none."""
        while True:
            self._drop()
            with self._lock:
                if self._timing is lane:
                    self._timing = None
                if lane.given is None and self._is_to_leave(lane):
                    return None
                now = self.clock()
                batch, lane.given = lane.given or self._collector.take(now, lane.home), None
                self._tell_native()
                if batch is not None:
                    self._tell(batch.rows if self._collector.waiting else len(self._hopefuls))
                    return batch
                if self._closed and self._collector.idle:
                    for other in self._asleep:
                        other.wake()
                    return None
                seconds = None
                if self._timing is None:
                    seconds = self._collector.due(now)
                    if seconds is not None:
                        self._timing = lane
                self._asleep.append(lane)
            self._sleep(lane, seconds)

    def _drop(self) -> None:
        if self._drops:
            with self._lock:
                dropped = self._collector.drop()
                self._tell_native()
            for batch in dropped:
                for request in batch.requests:
                    if not request.gone:
                        request.fail(closed())

    def _sleep(self, lane: _Lane, seconds: float | None) -> None:
        while True:
            lane.gate.acquire(timeout=-1 if seconds is None else seconds)
            with self._lock:
                if lane in self._asleep:
                    self._asleep.remove(lane)
                elif lane.lent:  # the gate will be opened when it is back
                    seconds = None
                    continue
                elif seconds is not None:  # woken, perhaps just after the time was over
                    lane.gate.acquire(blocking=False)
                return

    def _is_to_leave(self, lane: _Lane) -> bool:
        """Whether the lane's device is lost, and others go on."""
        replica = self._replicas[lane.home]
        if not replica.is_lost or all(one.is_lost for one in self._replicas):
            return False
        if lane.number == 0:
            log.warning("%s is lost: the batcher goes on without it", replica.label)
        self._collector.lose(lane.home)
        if self._asleep:  # for what this one may have been woken for
            self._asleep[-1].wake()
            self._asleep.pop()
        return True

    def _run(self, lane: _Lane, batch: SharedBatch) -> None:
        wanted = [request for request in batch.requests if request.begins(batch.begun)]
        error: BaseException | None = None
        size = padded(self._sizes, batch.rows)
        results: list[np.ndarray] = []
        if wanted:
            try:
                results = self._computed(lane, batch, size)
            except BaseException as raised:
                error = self._named(raised, lane)
        batch.results = results
        with self._lock:
            now = self.clock()
            self._collector.ended(batch, now, ran=bool(wanted))
            self._tell(batch.rows)  # its memory is free
            if wanted and error is None:
                rows = sum(request.rows for request in wanted)
                self.counts.ran(size, [request.arrived for request in wanted], rows, batch.begun, now)
            self.counts.failed += len(wanted) if error is not None else 0
            for request in batch.requests:
                if request.gone:
                    self.counts.late += request.error is not None
                    self.counts.cancelled += request.error is None
        here = threading.get_ident()
        self._answering.add(here)
        try:
            for request in wanted:
                self._answer(request, batch, error)
        finally:
            self._answering.discard(here)

    def _computed(self, lane: _Lane, batch: SharedBatch, size: int) -> list[np.ndarray]:
        native = self._native
        if native is None or native.off:
            return self._computed_here(lane, batch, size)
        native.borrow(lane.place)
        try:
            return self._computed_here(lane, batch, size)
        finally:
            native.check(lane.place)
            native.give_back(lane.place)

    def _computed_here(self, lane: _Lane, batch: SharedBatch, size: int) -> list[np.ndarray]:
        slab, rows = batch.slab, batch.rows
        runner = self._replicas[lane.home].lanes[lane.number][size]
        if batch.direct is not None:
            return self._checked(runner.run(batch.direct), size)
        for request in batch.requests:
            given = request.arrays
            if given is not None and not request.gone:
                for name, array in given.items():
                    slab.put(name, request.start, array)
        if rows < size and slab.dirty > rows:  # what is left of others must not reach anybody
            for array in slab.arrays.values():
                array[rows : min(size, slab.dirty)] = 0
        slab.dirty = max(rows, slab.dirty if slab.dirty > size else 0)
        return self._checked(runner.run({name: array[:size] for name, array in slab.arrays.items()}), size)

    def _checked(self, results: list[np.ndarray], size: int) -> list[np.ndarray]:
        for result, has_batch in zip(results, self._outputs, strict=True):
            if has_batch and len(result) != size:
                raise InvokeError(f"an output has {len(result)} rows for a batch of {size}")
        return results

    def _named(self, error: BaseException, lane: _Lane) -> BaseException:
        """The error, with the name of the device if there are several."""
        if len(self._replicas) == 1 or not isinstance(error, DeviceError | InvokeError):
            return error
        told = named(error, self._replicas[lane.home].label)
        told.__cause__ = error
        return told

    def _answer(self, request: Request, batch: SharedBatch, error: BaseException | None) -> None:
        if error is not None:
            request.fail(error)
        elif request.future is None:
            request.finish()
        elif request.deadline is not None and self.clock() > request.deadline:
            request.fail(too_late("when its batch had ended"))
        else:
            assert batch.results is not None
            try:
                result = self._result(request, batch.results)
            except BaseException as raised:  # no memory, say: this caller's alone
                request.fail(raised)
            else:
                request.finish(result)

    def _result(self, request: Request, results: Sequence[np.ndarray]) -> Any:
        rows = [
            rows_of(array, request.start, request.rows) if has_batch else array.copy()
            for array, has_batch in zip(results, self._outputs, strict=True)
        ]
        return self._as_result(rows)

    def _alone(self, request: Request, batch: SharedBatch) -> _Lane | None:
        """The lane in whose place a caller who is alone is to compute, as _kick() says, from the arrays as they are."""
        if (
            len(batch.requests) > 1
            or batch.rows not in self._sizes
            or batch.rows < self._collector.expected
            or not self._collector.is_only(batch)
            or not self._may_compute(request)
        ):
            return None
        request.copied = batch.sealed = True
        return self._lend(request)

    def _kick(self, request: Request | None) -> _Lane | None:
        """Wake a lane if there is something for it; or give the lane in whose place the caller of this request is to
        compute its batch, which spares a change of threads. Not on the main thread, where a signal might break that
        off, nor where there is a deadline."""
        with self._lock:
            if not self._asleep:
                return None
            now = self.clock()
            if not self._collector.wakes(now):
                if self._timing is None:  # somebody has to look at the clock
                    self._asleep[-1].wake()
                    self._asleep.pop()
                return None
            if request is not None and self._may_compute(request):
                return self._lend(request)
            self._asleep[-1].wake()  # first, as a lane that is on no list and sleeps would be lost
            self._asleep.pop()
            return None

    def _may_compute(self, request: Request) -> bool:
        """Whether the caller can take the place of a lane."""
        return (
            bool(self._asleep)
            and request.future is None
            and request.deadline is None
            and not _is_main_thread()
            and not self._replicas[self._asleep[-1].home].is_lost
        )

    def _lend(self, request: Request) -> _Lane | None:
        """The lane for the request's batch; if another batch comes first, that is given to the lane."""
        lane = self._asleep.pop()
        if self._timing is lane:
            self._timing = None
        batch = self._collector.take(self.clock(), lane.home)
        self._tell_native()
        if batch is not request.batch:
            lane.given = batch
            lane.wake()
            return None
        lane.lent = True
        return lane

    def _give_back(self, lane: _Lane) -> None:
        with self._lock:
            lane.lent = False
            now = self.clock()
            if self._closed or self._collector.wakes(now) or (self._timing is None and self._collector.due(now)):
                lane.wake()
            else:
                self._asleep.append(lane)

    def _tell(self, count: int) -> None:
        for _ in range(min(count, len(self._hopefuls))):
            self._hopefuls[0]()
            self._hopefuls.popleft()

    def _tell_native(self) -> None:
        """How many rows wait here."""
        if self._native is not None:
            self._native.outside.value = self._collector.waiting

    def _slab(self, home: int) -> Slab:
        return Slab(self._replicas[home].empty_inputs(), home)

    def _check(self) -> None:
        if self._forked_away:
            raise ForkError("the batcher's threads are in the process that this one was forked from: make one here")
        if self._closed:
            raise closed()

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._forked_away = True
        batches = [*self._collector.running, *self._collector.drop()]
        for request in (request for batch in batches for request in batch.requests):
            future = request.future
            if future is not None and not future.done():
                future._condition = threading.Condition()  # a thread may have held its lock
                request.fail(InvokeError("The process was forked: the batcher goes on in the parent"))


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def closed() -> InvokeError:
    return InvokeError("The batcher is closed")


_living: WeakSet[Lanes] = WeakSet()


@atexit.register
def _settle_all() -> None:
    """Native code must not be at work while the process is taken down."""
    for one in list(_living):
        one.settle()


#: What holds the lock, or a lane, in threads of callers.
_IN_THE_MIDST = {method.__code__ for method in (Lanes.place, Lanes.forget, Lanes.statistics, Lanes._finish)}
