"""What the scheduler hands out, with workers that do what they are told; and who counts as silent."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from litegpu.errors import OptionError
from litegpu.tools.distribute import pulses as pulses_module
from litegpu.tools.distribute.crew import Event, Finished, Lost, Started, WorkerDied
from litegpu.tools.distribute.pulses import Pulses
from litegpu.tools.distribute.scheduler import Outcome, _Scheduler, map_shards, require_patience

Act = Callable[["Scripted"], Event | None]


class Scripted:
    """A crew whose workers are all there; each wait() does the next act, and then what is oldest is done."""

    def __init__(self, count: int, acts: Iterable[Act] = (), *, started: bool = True) -> None:
        self.count = count
        self.under_way: deque[tuple[int, int, Any]] = deque()
        self.handed: list[tuple[int, Any]] = []
        self.most = 0
        self._acts = deque(acts)
        self._events: list[Event] = [Started(i, f"worker {i}") for i in range(count)] if started else []

    def submit(self, worker: int, ticket: int, shard: Any) -> None:
        self.under_way.append((worker, ticket, shard))
        self.handed.append((worker, shard))
        self.most = max(self.most, len(self.under_way))

    def wait(self, timeout: float) -> Sequence[Event]:
        if self._events:
            events, self._events = self._events, []
            return events
        event = self._acts.popleft()(self) if self._acts else None
        if event is not None:
            return [event]
        if not timeout and not self.under_way:
            return []  # asked for what is there, as it ends
        worker, ticket, shard = self.under_way.popleft()
        return [Finished(worker, ticket, shard)]

    def replace(self, worker: int) -> None:
        raise AssertionError("nobody is stuck")

    def close(self, *, wait: bool = True) -> None:
        pass


def dies(worker: int, *, replaced: bool = True) -> Act:
    """The worker dies with all that it has, and another one comes."""

    def act(crew: Scripted) -> Event:
        crew.under_way = deque(one for one in crew.under_way if one[0] != worker)
        crew._events = [Started(worker, "another")] if replaced else []
        return Lost(worker, "it was killed")

    return act


def outcomes(crew: Scripted, shards: int, *, ahead: int = 2, attempts: int = 4) -> list[Outcome]:
    return list(_Scheduler(crew, iter(range(shards)), ahead, attempts, 60.0, True, threading.Event()).run())


def test_what_a_worker_has_is_bounded() -> None:
    crew = Scripted(2)
    assert [o.value for o in outcomes(crew, 20, ahead=3)] == list(range(20))
    assert crew.most == 6
    assert crew.handed[:6] == [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5)]  # the least busy first


def test_no_more_is_taken_than_the_window_holds() -> None:
    taken = []

    def shards() -> Iterable[int]:
        for i in range(30):
            taken.append(i)
            yield i

    class Slow(Scripted):
        """The first shard is done last of those under way."""

        def wait(self, timeout: float) -> Sequence[Event]:
            if len(self.under_way) > 1 and self.under_way[0][2] == 0:
                self.under_way.rotate(-1)
            elif self.under_way and self.under_way[0][2] == 0:
                assert len(taken) == 8  # twice two workers with two shards each
            return super().wait(timeout)

    assert len(list(_Scheduler(Slow(2), shards(), 2, 4, 60.0, True, threading.Event()).run())) == 30


def test_a_shard_whose_worker_died_is_tried_alone() -> None:
    crew = Scripted(1, [dies(0)])
    found = outcomes(crew, 3, ahead=3)
    assert [o.value for o in found] == [0, 1, 2] and [o.attempts for o in found] == [2, 2, 2]
    assert {o.worker for o in found} == {"another"}
    assert crew.handed == [(0, 0), (0, 1), (0, 2)] * 2
    held: list[int] = []

    class Watched(Scripted):
        def submit(self, worker: int, ticket: int, shard: Any) -> None:
            super().submit(worker, ticket, shard)
            held.append(len(self.under_way))

    outcomes(Watched(1, [dies(0)]), 6, ahead=3)
    assert held[:3] == [1, 2, 3] and held[3:6] == [1, 1, 1]


def test_one_worker_empties_for_the_suspects() -> None:
    """The other one goes on with new shards."""
    crew = Scripted(3, [dies(0, replaced=False)])
    found = outcomes(crew, 12, ahead=2)
    assert [o.value for o in found] == list(range(12))
    again = [i for i, (_, shard) in enumerate(crew.handed) if shard in (0, 3)][2:]
    assert len(again) == 2 and max(again) < len(crew.handed) - 2  # before the new shards are all gone


def test_suspects_do_not_wait_for_the_last_of_the_new_shards() -> None:
    """As they would where outcomes are taken as they come, and so new shards without end."""
    crew = Scripted(3, [dies(0, replaced=False)])
    found = list(_Scheduler(crew, iter(range(60)), 2, 4, 60.0, False, threading.Event()).run())
    assert sorted(o.value for o in found) == list(range(60))
    again = [i for i, (_, shard) in enumerate(crew.handed) if shard in (0, 3)][2:]
    assert len(again) == 2 and max(again) < 20


def test_as_many_attempts_as_are_said() -> None:
    for attempts in (1, 3):
        (found,) = outcomes(Scripted(1, [dies(0)] * attempts), 1, attempts=attempts)
        assert isinstance(found.error, WorkerDied) and found.attempts == attempts
        assert f"{attempts} workers died while they worked on this" in str(found.error)
        (found,) = outcomes(Scripted(1, [dies(0)] * (attempts - 1)), 1, attempts=attempts)
        assert found.error is None and found.attempts == attempts


def test_what_a_buried_worker_reports_is_not_told() -> None:
    def late(crew: Scripted) -> Event:
        worker, ticket, _ = crew.under_way[0]
        crew._acts.appendleft(lambda crew: Finished(worker, ticket, "late"))
        return dies(0)(crew) or Lost(0, "")

    assert [o.value for o in outcomes(Scripted(1, [late]), 2)] == [0, 1]


def test_starts_that_fail_one_after_the_other() -> None:
    def fails(crew: Scripted) -> Event:
        return Lost(0, "no memory")

    with pytest.raises(WorkerDied, match="5 workers died while they started, the last so: no memory"):
        outcomes(Scripted(1, [fails] * 5, started=False), 1)
    crew = Scripted(1, [*[fails] * 4, lambda crew: Started(0, "at last")], started=False)
    assert [o.worker for o in outcomes(crew, 1)] == ["at last"]

    def dead(crew: Scripted) -> Event:
        dies(0)(crew)
        crew._events = []
        return Lost(0, "it was killed")

    def at_last(crew: Scripted) -> Event:
        return Started(0, "at last")

    # A shard that is done in between begins the count anew.
    crew = Scripted(1, [*[fails] * 4, at_last, lambda crew: None, dead, *[fails] * 4, at_last], started=False)
    assert [o.error for o in outcomes(crew, 3)] == [None] * 3


def test_what_can_never_be() -> None:
    for name in ("attempts", "ahead", "concurrency"):
        with pytest.raises(OptionError, match="must be at least 1"):
            wrong: dict[str, Any] = {name: 0}
            list(map_shards(lambda context: abs, [1], **wrong))
    require_patience(7 * 24 * 3600.0)
    with pytest.raises(OptionError, match="at most a week"):
        require_patience(7 * 24 * 3600.0 + 1)


class Silent:
    """Stands for Ray, whose actors answer when they are told to."""

    def __init__(self) -> None:
        self.answering = True
        self.asked = 0
        self.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.pulse = SimpleNamespace(options=lambda concurrency_group: SimpleNamespace(remote=self._remote))

    def _remote(self) -> int:
        self.asked += 1
        return self.asked

    def wait(self, due: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        assert num_returns == len(due)
        return (due, []) if self.answering else ([], due)

    def get(self, reference: int) -> tuple[int, str]:
        return 4321, "here"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=50.0)
    monkeypatch.setattr(pulses_module, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def look(pulses: Pulses, clock: SimpleNamespace, *seconds: float) -> None:
    for wait in seconds:
        clock.now += wait
        pulses.look()


def test_an_actor_is_silent_after_its_patience(clock: SimpleNamespace) -> None:
    ray = Silent()
    pulses = Pulses(ray, 8.0)
    pulses.begin(3, ray)
    look(pulses, clock, 1)
    assert ray.asked == 1 and pulses.asked == []
    look(pulses, clock, 1)
    assert ray.asked == 1  # it has just answered
    ray.answering = False
    look(pulses, clock, 1)
    assert ray.asked == 2 and pulses.asked == [2]
    look(pulses, clock, 2, 2, 2)
    assert pulses.silent() == []
    look(pulses, clock, 1)
    assert pulses.silent() == [3]
    ray.answering = True
    look(pulses, clock, 1)
    assert pulses.silent() == []


def test_an_actor_that_never_answered_is_not_silent_yet(clock: SimpleNamespace) -> None:
    ray = Silent()
    ray.answering = False
    pulses = Pulses(ray, 4.0)
    pulses.begin(0, ray)
    look(pulses, clock, *[1] * 20)
    assert pulses.silent() == [] and ray.asked == 1


def test_time_in_which_nobody_looked_does_not_count(clock: SimpleNamespace) -> None:
    ray = Silent()
    pulses = Pulses(ray, 8.0)
    pulses.begin(0, ray)
    look(pulses, clock, 1)
    ray.answering = False
    look(pulses, clock, 3600, 3600, 3600, 3600)
    assert pulses.silent() == []
    look(pulses, clock, 3600)
    assert pulses.silent() == [0]
