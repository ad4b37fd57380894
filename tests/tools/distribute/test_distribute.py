"""map_shards(): order, limits, errors, and on Ray exactly one outcome per shard while workers are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.distribute.shards import Counting, Refusing, Squares, Stuck

from litegpu.background import settle_all
from litegpu.errors import OptionError
from litegpu.tools.distribute import WorkerContext, WorkerDied, map_shards, plan_workers


def test_outcomes_come_in_order_from_several_workers() -> None:
    outcomes = list(map_shards(Squares(delay=0.002), range(40), workers=3))
    assert [o.index for o in outcomes] == [o.shard for o in outcomes] == list(range(40))
    assert [int(o.value[1][0]) for o in outcomes] == [i * i for i in range(40)]
    assert all(o.error is None and o.attempts == 1 and f"process {os.getpid()}" in o.worker for o in outcomes)


def test_errors_of_the_function_are_outcomes_and_those_of_the_factory_are_raised() -> None:
    outcomes = list(map_shards(Squares(raises=frozenset({3})), range(6)))
    assert [o.index for o in outcomes if o.error is not None] == [3]
    assert isinstance(outcomes[3].error, ValueError) and outcomes[3].value is None
    with pytest.raises(LookupError, match="has no model"):
        list(map_shards(Refusing(), range(6)))


def test_a_slow_consumer_holds_the_shards_back() -> None:
    taken = 0

    def shards() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken = number
            yield number

    outcomes = map_shards(Squares(), shards(), workers=2, ahead=3)
    for _ in range(5):
        next(outcomes)
    time.sleep(0.05)
    assert taken <= 5 + 2 * 2 * 3
    outcomes.close()


def test_threads_overlap_and_the_function_is_closed() -> None:
    counting = Counting()
    seen = [o.worker for o in map_shards(lambda context: counting, range(12), concurrency=2)]
    assert counting.most == 2 and counting.closed and seen[0].endswith("on a counter")


def test_outcomes_can_come_as_they_are_known() -> None:
    work = Stuck(0)
    outcomes = map_shards(work, range(6), workers=2, concurrency=1, in_order=False)
    first = [next(outcomes).index for _ in range(3)]  # while the first shard is still under way
    assert 0 not in first
    work.release.set()
    assert sorted(first + [o.index for o in outcomes]) == list(range(6)) and work.calls == 1


def test_a_thread_that_does_not_come_back_is_given_up() -> None:
    work = Stuck(3)
    outcomes = list(map_shards(work, range(20), workers=2, concurrency=1, patience=0.02))
    assert [o.value for o in outcomes] == list(range(20)) and work.calls == 2
    assert outcomes[3].attempts == 2 and sum(o.attempts > 1 for o in outcomes) <= 4  # and those that waited behind it
    work.release.set()


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "interrupted"])
def test_an_interruption_does_not_wait_for_the_shard_in_hand(stopped: bool) -> None:
    """The function is closed all the same, when its thread has come back."""
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __call__(self, shard: int) -> int:
            if shard:
                begun.set()
                go_on.wait(60)
            return shard

        def close(self) -> None:
            closed.set()

    def shards() -> Iterator[int]:
        yield 0
        yield 1
        begun.wait(60)
        if not stopped:
            raise KeyboardInterrupt
        stop.set()
        yield 2

    stop = threading.Event()
    outcomes = map_shards(lambda context: Slow(), shards(), concurrency=1, ahead=2, stop=stop)
    with contextlib.nullcontext() if stopped else pytest.raises(KeyboardInterrupt):
        assert [o.value for o in outcomes] == [0]
    assert not go_on.is_set() and not closed.is_set()
    go_on.set()
    assert closed.wait(60)
    settle_all()


def test_what_is_finished_behind_an_unfinished_shard_is_given_when_it_stops() -> None:
    work, stop = Stuck(0), threading.Event()
    outcomes = map_shards(work, range(8), workers=2, concurrency=1, ahead=4, stop=stop)
    given: list[int] = []
    consumer = threading.Thread(target=lambda: given.extend(o.value for o in outcomes))
    consumer.start()
    while len(work.done) < 4:
        threading.Event().wait(0.001)
    known = set(work.done[:-1])  # the last may not be told yet
    stop.set()
    consumer.join()
    assert set(given) >= known and 0 not in given and len(given) == len(set(given))
    work.release.set()
    settle_all()


@pytest.mark.parametrize("in_order", [True, False])
def test_shards_that_cannot_be_read_on_cost_none_of_those_before(in_order: bool) -> None:
    def shards() -> Iterator[int]:
        yield from range(5)
        raise OptionError("the list ends here")

    outcomes = map_shards(Squares(delay=0.01), shards(), workers=2, in_order=in_order)
    found: list[int] = []
    with pytest.raises(OptionError, match="ends here"):
        found.extend(o.index for o in outcomes)
    assert sorted(found) == list(range(5))


def test_the_patience_is_a_time() -> None:
    for patience in (0, -1, float("nan")):
        with pytest.raises(OptionError, match="above 0"):
            list(map_shards(Squares(), range(3), patience=patience))


def test_nothing_to_do() -> None:
    assert list(map_shards(Squares(), [])) == []


def test_contexts_share_threads_and_gpus() -> None:
    assert plan_workers(1, 8) == [WorkerContext(0, 1, 8)]
    assert plan_workers(2, 8) == [WorkerContext(0, 2, 4, 0), WorkerContext(1, 2, 4, 1)]
    with pytest.raises(OptionError, match="at least 1"):
        plan_workers(0, 8)


# --------------------------------------------------------------------------------------------------------------- Ray


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


on_ray = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'litegpu[ray]'"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


class TestProcesses:
    """Of this machine, without Ray."""

    def test_every_shard_is_answered_once_while_workers_are_killed(self) -> None:
        rng, killed = random.Random(5), 0
        pids: set[int] = set()
        answers: list[int] = []
        for outcome in map_shards(Squares(delay=0.01), range(120), workers=2, processes=True, attempts=10):
            assert outcome.error is None and int(outcome.value[1][0]) == outcome.index**2
            answers.append(outcome.index)
            pids.add(outcome.value[0])
            if outcome.index % 40 == 20:
                victim = rng.choice(sorted(pids))
                pids.discard(victim)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
        assert answers == list(range(120)) and killed >= 2 and os.getpid() not in pids
        assert not any(_lives(pid) for pid in pids)

    def test_both_work(self) -> None:
        outcomes = list(map_shards(Squares(delay=0.02), range(60), workers=2, processes=True))
        assert len({outcome.value[0] for outcome in outcomes}) == 2
        assert len({outcome.worker for outcome in outcomes}) == 2

    def test_a_shard_that_kills_is_given_up_and_those_beside_it_are_not(self) -> None:
        work = Squares(kills=frozenset({9}))
        outcomes = list(map_shards(work, range(20), workers=2, processes=True, attempts=2))
        assert [o.index for o in outcomes if o.error is not None] == [9]
        assert isinstance(outcomes[9].error, WorkerDied) and "exit code 7" in str(outcomes[9].error)

    def test_a_worker_that_hangs_is_replaced(self) -> None:
        """Its process lives, and answers nothing."""
        stopped = 0
        answers: Counter[int] = Counter()
        for outcome in map_shards(
            Squares(delay=0.01), range(40), workers=2, processes=True, patience=0.2, in_order=False
        ):
            answers[outcome.index] += 1
            if not stopped:
                stopped = outcome.value[0]
                os.kill(stopped, signal.SIGSTOP)
        assert answers == Counter(range(40)) and not _lives(stopped)

    def test_errors_cross_the_border_of_processes(self) -> None:
        outcomes = list(map_shards(Squares(raises=frozenset({2})), range(4), workers=1, processes=True))
        assert isinstance(outcomes[2].error, ValueError) and "2 is not wanted" in str(outcomes[2].error)
        with pytest.raises(LookupError, match="has no model"):
            list(map_shards(Refusing(), range(4), workers=2, processes=True))

    def test_closing_early_ends_them(self) -> None:
        outcomes = map_shards(Squares(delay=0.01), range(1000), workers=2, processes=True)
        pids = {next(outcomes).value[0] for _ in range(20)}
        outcomes.close()
        assert not any(_lives(pid) for pid in pids)


class TestRay:
    """On a cluster of four workers on this machine, started once."""

    pytestmark = on_ray

    @pytest.fixture(scope="class", autouse=True)
    def cluster(self) -> Iterator[None]:
        import ray

        folders = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {"env_vars": {"PYTHONPATH": folders}}
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=environment)
        yield
        ray.shutdown()

    def test_every_shard_is_answered_once_while_workers_are_killed(self) -> None:
        rng, killed = random.Random(5), 0
        answers: Counter[int] = Counter()
        pids: set[int] = set()
        again = 0
        for outcome in map_shards(Squares(delay=0.01), range(200), workers=4, ray="auto", gpus=False, attempts=10):
            assert outcome.error is None and int(outcome.value[1][0]) == outcome.index**2
            answers[outcome.index] += 1
            again += outcome.attempts > 1
            pids.add(outcome.value[0])
            if outcome.index % 40 == 20:
                victim = rng.choice(sorted(pids))
                pids.discard(victim)
                try:
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass
        assert answers == Counter(range(200)) and list(answers) == list(range(200))
        assert killed >= 3 and again >= 1 and os.getpid() not in pids

    def test_a_worker_that_is_stopped_is_replaced(self) -> None:
        """Its process lives, answers nothing, and would not hear a request to end."""
        stopped = 0
        answers: Counter[int] = Counter()
        outcomes = map_shards(
            Squares(delay=0.01), range(60), workers=2, ray="auto", gpus=False, patience=2, in_order=False
        )
        for outcome in outcomes:
            assert outcome.error is None and int(outcome.value[1][0]) == outcome.index**2
            answers[outcome.index] += 1
            if not stopped:
                stopped = outcome.value[0]
                os.kill(stopped, signal.SIGSTOP)
        assert answers == Counter(range(60))
        deadline = time.monotonic() + 10
        while _lives(stopped) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _lives(stopped)

    def test_a_worker_that_is_busy_is_not_replaced(self) -> None:
        """However long its start and its shards take."""
        outcomes = list(map_shards(Squares(delay=1.0), [1, 3], workers=1, ray="auto", gpus=False, patience=0.8))
        assert [o.attempts for o in outcomes] == [1, 1] and outcomes[0].value[0] == outcomes[1].value[0]

    def test_a_shard_that_kills_is_given_up_and_those_beside_it_are_not(self) -> None:
        work = Squares(kills=frozenset({9}))
        outcomes = list(map_shards(work, range(30), workers=2, ray="auto", gpus=False, attempts=2))
        assert [o.index for o in outcomes] == list(range(30))
        assert [o.index for o in outcomes if o.error is not None] == [9]
        assert isinstance(outcomes[9].error, WorkerDied) and outcomes[9].attempts == 2

    def test_more_workers_than_cores_are_all_placed(self) -> None:
        pids: set[int] = set()
        outcomes = map_shards(Squares(delay=0.01), range(3000), workers=6, ray="auto", gpus=False)
        for outcome in outcomes:  # at least 15 seconds, if one is never placed
            pids.add(outcome.value[0])
            if len(pids) == 6:
                break
        outcomes.close()
        assert len(pids) == 6

    def test_errors_cross_the_border_of_processes(self) -> None:
        outcomes = list(map_shards(Squares(raises=frozenset({2})), range(4), workers=1, ray="auto", gpus=False))
        assert isinstance(outcomes[2].error, ValueError) and "2 is not wanted" in str(outcomes[2].error)
        with pytest.raises(LookupError, match="has no model"):
            list(map_shards(Refusing(), range(4), workers=1, ray="auto", gpus=False))
