"""What runs together and when, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.batching.batch import Request, SharedBatch, Slab
from litegpu.batching.collector import Collector, Rules
from litegpu.batching.sizes import chosen_sizes, padded
from litegpu.batching.statistics import BatcherStatistics, Counts
from litegpu.errors import OptionError


def slab(home: int = 0) -> Slab:
    return Slab({"x": np.zeros((8, 1))}, home)


def collector(lanes: int = 1, delay: float = 2.0, waiting: int = 32, homes: int = 1) -> Collector:
    rules = Rules(8, delay, waiting)
    return Collector(rules, lanes, [slab(h) for h in range(homes) for _ in range(1 + lanes // homes)], slab)


def call(rows: int = 1, *, copied: bool = True) -> Request:
    request = Request({}, rows, 0.0, None, waited=True)
    request.copied = copied
    return request


def running(one: Collector, now: float, rows: int, seconds: float) -> None:
    """A batch of so many rows was run until `now`."""
    assert one.offer(call(rows), now - seconds)
    one.hurry()
    batch = taken(one, now - seconds)
    assert batch.rows == rows
    one.ended(batch, now)


def taken(one: Collector, now: float, home: int = 0) -> SharedBatch:
    batch = one.take(now, home)
    assert batch is not None
    return batch


def test_a_caller_who_is_alone_never_waits_for_others() -> None:
    one = collector()
    for now in range(0, 100, 10):
        assert one.offer(call(), now)
        assert one.wakes(now)
        one.ended(taken(one, now), now + 3)


@pytest.mark.parametrize(
    ("lanes", "rows", "sizes", "expected"),
    [
        (4, 192, (8, 16, 32, 64), 64),  # three full batches rather than four of which a quarter is missing
        (4, 256, (8, 16, 32, 64), 64),
        (2, 40, (8, 16, 32, 64), 32),
        (2, 30, (8, 16, 32, 64), 16),
        (4, 24, (1, 2, 4, 8, 64), 6),  # small ones take as long with fewer rows, so all lanes have one
        (2, 60, (1, 64), 30),  # there are not as many
        (1, 20, (), 20),
    ],
)
def test_large_batches_are_full(lanes: int, rows: int, sizes: tuple[int, ...], expected: int) -> None:
    one = Collector(Rules(256, 2.0, 1024, sizes), lanes, [slab() for _ in range(lanes + 1)], slab)
    running(one, 5.0, rows, 1.0)
    assert one.expected == expected


def test_rows_are_collected_while_no_lane_is_free() -> None:
    one = collector()
    assert one.offer(call(), 0.0)
    first = taken(one, 0.0)
    for now in (0.1, 0.2, 0.3):
        assert one.offer(call(), now)
    one.ended(first, 1.0)
    assert one.take(1.2) is None  # who was answered at 1.0 may come back
    second = taken(one, 1.3)
    assert second.rows == 3 and [r.start for r in second.requests] == [0, 1, 2]
    assert one.waiting == 0 and not one.idle


def test_as_many_rows_are_waited_for_as_were_together() -> None:
    one = collector()
    running(one, 0.0, 4, 1.0)
    assert one.expected == 4
    for i in range(3):
        assert one.offer(call(), 0.1 * i)
        assert one.take(0.1 * i) is None and not one.wakes(0.1 * i)
    assert one.offer(call(), 0.3)
    assert one.wakes(0.3) and taken(one, 0.3).rows == 4


def test_no_longer_than_a_run_takes() -> None:
    one = collector()
    running(one, 0.0, 4, 0.5)
    assert one.offer(call(), 10.0)
    assert one.due(10.0) == pytest.approx(0.5)
    assert one.take(10.4) is None
    assert one.due(10.4) == pytest.approx(0.1)
    assert taken(one, 10.51).rows == 1


def test_while_rows_come_more_are_waited_for() -> None:
    one = collector()
    running(one, 0.0, 8, 0.5)
    for now in (10.0, 10.4, 10.8, 11.2, 11.6):
        assert one.offer(call(), now)
        assert one.take(now) is None and one.due(now) == pytest.approx(min(0.5, 12.0 - now))
    assert one.take(11.99) is None
    assert taken(one, 12.0).rows == 5  # the delay


def test_no_longer_than_the_delay() -> None:
    one = collector(delay=0.01)
    running(one, 0.0, 4, 0.5)
    assert one.offer(call(), 10.0)
    assert one.take(10.009) is None and taken(one, 10.0101).rows == 1
    at_once = collector(delay=0.0)
    running(at_once, 0.0, 4, 0.5)
    assert at_once.offer(call(), 10.0) and taken(at_once, 10.0).rows == 1


def test_what_is_expected_is_forgotten() -> None:
    one = collector()
    running(one, 0.0, 8, 0.5)
    for now in (1.0, 2.0, 3.0):
        running(one, now, 1, 0.1)
    assert one.expected == 1


def test_lanes_share_what_is_expected() -> None:
    one = collector(lanes=2)
    running(one, 0.0, 8, 1.0)
    assert one.expected == 4
    for _ in range(4):
        assert one.offer(call(), 0.0)
    first = taken(one, 0.0)
    assert first.rows == 4
    for _ in range(4):
        assert one.offer(call(), 0.1)
    assert taken(one, 0.1).rows == 4
    one.ended(first, 1.0)
    assert one.expected == 4  # 4 in each


def test_a_batch_is_not_larger_than_the_most() -> None:
    one = collector()
    busy = call()
    assert one.offer(busy, 0.0)
    taken(one, 0.0)
    calls = [call(3) for _ in range(4)]
    for request in calls:
        assert one.offer(request, 0.1)
    assert [r.start for r in calls] == [0, 3, 0, 3]
    assert taken(one, 0.2).requests == calls[:2]
    assert one.take(0.2) is None or one.waiting == 0


def test_rows_that_are_being_copied_are_waited_for() -> None:
    one = collector(delay=0.5)
    slow = call(copied=False)
    assert one.offer(slow, 0.0)
    assert one.take(0.0) is None and not one.wakes(0.0)
    assert one.take(1.0) is None  # late, and closed to others
    other = call()
    assert one.offer(other, 1.0) and other.batch is not slow.batch
    slow.copied = True
    assert taken(one, 1.1) is slow.batch


def test_so_many_rows_wait_and_no_more() -> None:
    one = collector(waiting=10)
    assert all(one.offer(call(), 0.0) for _ in range(10))
    assert not one.offer(call(), 0.0)
    batch = taken(one, 0.1)
    assert one.offer(call(), 0.1) and one.waiting == 3
    one.ended(batch, 0.2)


def test_a_large_call_is_taken_where_little_may_wait() -> None:
    one = collector(waiting=2)
    assert one.offer(call(8), 0.0)
    assert not one.offer(call(1), 0.0)


def test_memory_is_used_again_and_bounded() -> None:
    made: list[int] = []

    def more(home: int) -> Slab:
        made.append(home)
        return slab(home)

    one = Collector(Rules(8, 0.0, 16), 1, [slab(), slab()], more)
    for now in range(50):
        assert one.offer(call(8), now)
        one.ended(taken(one, now), now)
    assert not made
    while one.offer(call(5), 50.0):
        pass
    assert len(made) <= 2


def test_batches_go_to_the_device_with_the_least_to_do() -> None:
    one = collector(lanes=2, homes=2, delay=0.0)
    for now in range(4):
        assert one.offer(call(8), now)
    homes = [batch.home for batch in one._waiting]
    assert sorted(homes) == [0, 0, 1, 1] and homes[0] != homes[1]
    assert taken(one, 5.0, home=1).home == 1
    assert taken(one, 5.0, home=1).home == 1
    assert taken(one, 5.0, home=1).home == 0  # rather than nothing
    one.lose(0)
    assert one.lanes == 1
    assert one.offer(call(), 6.0) and one._waiting[-1].home == 1


def test_what_waits_can_be_dropped() -> None:
    one = collector()
    for _ in range(9):
        assert one.offer(call(), 0.0)
    assert [batch.rows for batch in one.drop()] == [8, 1]
    assert one.idle


@pytest.mark.parametrize(
    ("most", "sizes", "found"),
    [(1, None, (1,)), (2, None, (1, 2)), (64, None, (1, 2, 4, 8, 16, 32, 64)), (6, None, (1, 2, 4, 6)),
     (8, [3], (3, 8)), (8, (8, 1, 1), (1, 8))],
)  # fmt: skip
def test_sizes(most: int, sizes: Any, found: tuple[int, ...]) -> None:
    assert chosen_sizes(most, sizes) == found
    for rows in range(1, most + 1):
        assert padded(found, rows) >= rows
        assert not [n for n in found if rows <= n < padded(found, rows)]


@pytest.mark.parametrize("sizes", [[0], [9], [True], ["4"], [2.0]])
def test_sizes_that_cannot_be(sizes: Any) -> None:
    with pytest.raises(OptionError, match="sizes has"):
        chosen_sizes(8, sizes)


def test_statistics() -> None:
    counts = Counts()
    assert counts.summary(0, 0) == BatcherStatistics()
    counts.ran(4, [0.0, 0.001], 3, 0.002, 0.005)
    counts.ran(8, [0.0], 8, 0.0, 0.004)
    counts.refused = 2
    found = counts.summary(5, 6)
    assert (found.batches, found.calls, found.rows, found.sizes) == (2, 3, 11, {4: 1, 8: 1})
    assert found.mean_rows == 5.5 and found.mean_fill == pytest.approx(11 / 12)
    assert found.wait_p50 == pytest.approx(1.0) and found.latency_p50 == pytest.approx(4.0)
    assert found.run_p50 == pytest.approx(3.5)
    assert (found.waiting, found.running) == (5, 6)
    assert "3 calls with 11 rows in 2 batches: 5.5 rows a batch, 92% full" in str(found)
    assert "2 refused, 5 waiting, 6 running" in str(found)
    assert found.as_dict()["sizes"] == {4: 1, 8: 1}
