"""Which rows run together, and when: what a batcher decides, without threads and without a clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from litegpu.batching.batch import Request, SharedBatch, Slab

#: Seconds after which a lane looks again for rows that were being copied.
_LOOK_AGAIN = 0.02
#: Batches of so many rows keep a whole GPU busy: twice as many rows take it nearly twice as long.
LARGE_SIZE = 16
#: How much the last run counts for the time that a run is expected to take.
_NEWEST = 0.25


@dataclass(frozen=True)
class Rules:
    """`most`: rows of a batch. `delay`: seconds that a row may wait for others while a lane is free. `waiting`: rows
    that may wait. `sizes`: ascending, of which a batch gets the next one."""

    most: int
    delay: float
    waiting: int
    sizes: Sequence[int] = ()


class Collector:
    """Rows that wait, and batches that run in `lanes` lanes. Every method is called under one lock; `now` only grows.

    When a lane is free, the rows that wait are run at once if there are as many as one lane can expect; else when none
    has come for as long as a run takes, and the first of them waits for `delay` at most. What can be expected is known
    from the last runs: the rows that were under way or waiting together, divided among the lanes; or the size that a
    batch of so many gets, if there are as many and that is large: rows that are missing take as long as others. So a
    caller who is alone never waits for others, and callers in a loop meet again in batches. While no lane is free rows
    collect.
    """

    def __init__(self, rules: Rules, lanes: int, slabs: Sequence[Slab], new_slab: Callable[[int], Slab]) -> None:
        """`slabs`: those there are; `new_slab(home)` makes a further one."""
        self.rules = rules
        self.lanes = lanes
        self._homes = {slab.home for slab in slabs}
        self._new_slab = new_slab
        self._slabs = list(slabs)
        self._most_slabs = lanes + 1 + -(-rules.waiting // rules.most)
        self._waiting: list[SharedBatch] = []  # all but the last are sealed
        self.running: list[SharedBatch] = []
        self._around: deque[int] = deque([0], maxlen=2 * lanes)  # rows that were there when the last runs ended
        self._seconds = 0.0  # that a run is expected to take; 0 before the first
        self.expected = 1  # rows that a free lane waits for

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        rows = 0
        for batch in self._waiting:
            rows += batch.rows
        return rows

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not self._waiting and not self.running

    @property
    def patience(self) -> float:
        """Seconds for which a free lane waits for one more row."""
        return self._seconds or self.rules.delay

    def is_only(self, batch: SharedBatch) -> bool:
        """Whether no other batch waits."""
        return len(self._waiting) == 1 and self._waiting[0] is batch

    def offer(self, request: Request, now: float, others: int = 0) -> bool:
        """Give the request a place in a batch, whose memory is then to be filled; False if too much waits, with
        so many rows that `others` have. Wherever a signal breaks this off, no batch and no memory is lost."""
        waiting = self.waiting + others
        if waiting and waiting + request.rows > self.rules.waiting:
            return False
        batch = self._waiting[-1] if self._waiting else None
        if batch is not None and batch.rows + request.rows > self.rules.most:
            batch.sealed = True
        if batch is None or batch.sealed:
            slab = self._slab()
            if slab is None:
                return False
            batch = SharedBatch(slab, now, now)
            self._waiting.append(batch)
        request.start = batch.rows
        request.batch = batch
        # An interruption between the next two leaves a request that nobody waits for, in a place that is used again.
        batch.requests.append(request)
        batch.rows += request.rows
        batch.latest = now
        batch.sealed = batch.rows == self.rules.most
        return True

    def take(self, now: float, home: int = 0) -> SharedBatch | None:
        """The batch that a free lane is to run now, if any: if there is a choice, one whose memory is at its home."""
        for batch in self._waiting:
            batch.sealed |= self._is_late(batch, now)
        for batch in self._waiting:
            if batch.sealed or self._is_enough(batch):
                batch.sealed = True  # it has a lane, so that it is run when the rows that are there are copied
                break
        complete = [batch for batch in self._waiting if batch.sealed and batch.is_copied]
        if not complete:
            return None
        taken = next((b for b in complete if b.home == home), complete[0])
        self._waiting.remove(taken)
        self.running.append(taken)
        taken.begun = now
        return taken

    def wakes(self, now: float) -> bool:
        """Whether take() gives something."""
        for batch in self._waiting:
            if (batch.sealed or self._is_enough(batch) or self._is_late(batch, now)) and batch.is_copied:
                return True
        return False

    def due(self, now: float) -> float | None:
        """Seconds after which a lane that take() had nothing for is to ask again, though nobody tells it to; None if
        nothing waits."""
        if not self._waiting:
            return None
        batch = self._waiting[0]
        left = min(batch.latest + self.patience, batch.opened + self.rules.delay) - now
        return left if left > 0 and not batch.sealed else _LOOK_AGAIN

    def ended(self, batch: SharedBatch, now: float, *, ran: bool = True) -> None:
        """The lane is free again. `ran`: whether it has computed anything."""
        if ran:
            self._around.append(sum(one.rows for one in self.running) + self.waiting)
            self._expect()
            seconds = now - batch.begun
            self._seconds = seconds if not self._seconds else self._seconds + _NEWEST * (seconds - self._seconds)
        self.running.remove(batch)

    def lose(self, home: int) -> None:
        """A lane has ended, as its device is lost."""
        self.lanes -= 1
        self._homes.discard(home)
        self._expect()

    def drop(self) -> list[SharedBatch]:
        """All that waits, which will not be run."""
        dropped, self._waiting = self._waiting, []
        return dropped

    def hurry(self) -> None:
        """No further row will come."""
        for batch in self._waiting:
            batch.sealed = True

    def _expect(self) -> None:
        around = max(self._around)
        share = min(max(-(-around // max(self.lanes, 1)), 1), self.rules.most)
        size = next((n for n in self.rules.sizes if n >= share), share)
        self.expected = size if LARGE_SIZE <= size <= around else share

    def _is_enough(self, batch: SharedBatch) -> bool:
        return batch.rows >= self.expected

    def _is_late(self, batch: SharedBatch, now: float) -> bool:
        return now - batch.latest >= self.patience or now - batch.opened >= self.rules.delay

    def _slab(self) -> Slab | None:
        """Memory for a new batch, at the home that has the least to do; None if there is no more."""
        load = dict.fromkeys(sorted(self._homes), 0)
        used = set()
        for batch in (*self._waiting, *self.running):
            used.add(id(batch.slab))
            if batch.home in load:
                load[batch.home] += batch.rows
        home = min(load, key=load.__getitem__)
        free = [slab for slab in self._slabs if id(slab) not in used]
        for slab in free:
            if slab.home == home:
                return slab
        if len(self._slabs) < self._most_slabs:
            self._slabs.append(self._new_slab(home))
            return self._slabs[-1]
        return free[0] if free else None
