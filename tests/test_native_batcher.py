"""The quick way of a batcher, through native code: the right rows for everybody, whatever else happens."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_runs import FakeDriver
from racing import race
from test_threads import inputs, is_right, network

import litegpu
from litegpu import DeadlineError, InvokeError, QueueFullError, TensorError
from litegpu.batching import collector, native_calls, native_rows, sizes
from litegpu.batching.batch import Request, SharedBatch, Slab
from litegpu.batching.collector import Collector, Rules


@pytest.fixture
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch, lanes=getattr(request, "param", 1))


@pytest.fixture
def model(driver: FakeDriver) -> Iterator[litegpu.LoadedModel]:
    with litegpu.load(network(), "cpu") as opened:
        yield opened


def native(batcher: litegpu.Batcher) -> native_calls.NativeCalls:
    assert batcher._native is not None
    return batcher._native


@pytest.mark.parametrize("driver", [1, 3], indirect=True)
def test_thousands_of_calls_of_sixteen_threads(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    calls = [[inputs(8 * n + i, batch=1 + (n + i) % 5) for i in range(8)] for n in range(16)]
    with model.batcher(16) as batcher:

        def work(number: int) -> None:
            for i in range(200):
                x, y = calls[number][i % 8]
                assert is_right(batcher(x, y), x, y)

        race(work)
        found = batcher.statistics
        assert found.calls == 3200 and found.failed == 0
        assert found.batches == driver.launches < 3200
        assert found.latency_p99 >= found.wait_p99 > 0 and found.run_p50 > 0


def test_the_same_decisions_as_in_python(model: litegpu.LoadedModel) -> None:
    """A made-up clock, and calls that come and batches that end at random."""
    dice = random.Random(4)
    for _ in range(30):
        waiting, delay = dice.choice([8, 20, 40]), dice.choice([0, 1, 5])
        with model.batcher(8, max_delay_ms=delay, max_waiting=waiting) as batcher:
            quick = native(batcher)
            try:
                compare(quick, Rules(8, delay * MS, waiting, batcher.sizes), dice)
            finally:
                quick.close(drain=False)


@pytest.mark.parametrize("driver", [2], indirect=True)
@pytest.mark.parametrize("large", [1, 4, 16])
def test_the_same_is_expected_of_two_lanes(
    model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(collector, "LARGE_SIZE", large)
    dice, now, seen = random.Random(large), 0, set()
    with model.batcher(8, sizes=[3, 5, 8]) as batcher:
        quick = native(batcher)
        slabs = [Slab({"x": np.zeros((8, 1))}) for _ in range(4)]
        slow = Collector(Rules(8, 2 * MS, 32, batcher.sizes), 2, slabs, lambda home: slabs[0])
        for _ in range(100):
            ends = []
            for _ in range(2):
                count, now = dice.randint(1, 8), now + 100 * MS
                call, request = native_rows.Call(quick._call_size, 0), Request({}, count, now, None, waited=True)
                ctypes.c_int.from_address(call.address + 44).value = count
                request.copied = True
                assert slow.offer(request, now) and quick.functions.rehearse(quick.rows, 0, call.address, now)
                now += 100 * MS
                batch = slow.take(now)
                assert batch is not None and quick.functions.rehearse(quick.rows, 1, call.address, now)
                ends.append((batch, call))
            for batch, call in ends:
                slow.ended(batch, now)
                quick.functions.rehearse(quick.rows, 2, call.address, now)
                assert quick.numbers().expected == slow.expected
                seen.add(slow.expected)
    assert 8 in seen and (7 in seen) == (large == 16)


MS = 1_000_000


def compare(quick: native_calls.NativeCalls, rules: Rules, dice: random.Random) -> None:
    rehearse, rows, now = quick.functions.rehearse, quick.rows, 0
    slow = Collector(rules, 1, [Slab({"x": np.zeros((8, 1))})], lambda home: Slab({"x": np.zeros((8, 1))}))
    while len(quick._slabs) < slow._most_slabs:
        quick.grow(0)
    waiting: dict[int, tuple[SharedBatch, native_rows.Call]] = {}
    running: tuple[SharedBatch, native_rows.Call] | None = None
    try:
        for _ in range(300):
            now += dice.choice([0, MS // 10, MS // 3, 2 * MS])
            if dice.random() < 0.6:
                count = dice.randint(1, 8)
                call = native_rows.Call(quick._call_size, 0)
                ctypes.c_int.from_address(call.address + 44).value = count
                request = Request({}, count, now, None, waited=True)
                request.copied = True
                placed = slow.offer(request, now)
                assert rehearse(rows, 0, call.address, now) == placed
                if placed:
                    assert request.batch is not None
                    waiting.setdefault(id(request.batch), (request.batch, call))
            elif running is not None:
                ended, running = running, None
                slow.ended(ended[0], now)
                rehearse(rows, 2, ended[1].address, now)
            elif waiting:
                batch, call = next(iter(waiting.values()))
                taken = slow.take(now)
                if rehearse(rows, 1, call.address, now):
                    running = waiting.pop(id(batch))
                assert taken is (running and running[0])
            numbers = quick.numbers()
            assert (numbers.waiting, numbers.expected) == (slow.waiting, slow.expected)
            assert numbers.running == sum(batch.rows for batch in slow.running)
    finally:
        if running is not None:
            rehearse(rows, 2, running[1].address, now)


@pytest.mark.parametrize("driver", [2], indirect=True)
def test_what_comes_while_a_batch_with_a_lane_is_filled_is_the_next_ones(model: litegpu.LoadedModel) -> None:
    with model.batcher(8) as batcher:
        quick = native(batcher)
        calls = [native_rows.Call(quick._call_size, 0) for _ in range(5)]
        for call in calls:
            ctypes.c_int.from_address(call.address + 44).value = 1
            assert quick.functions.rehearse(quick.rows, 3, call.address, 0)
        first = calls[0].serial
        assert [call.serial - first for call in calls] == [0, 1, 2, 2, 2]  # one row is enough, and there are two lanes
        for call in (calls[0], calls[1], calls[4]):
            assert quick.functions.rehearse(quick.rows, 1, call.address, MS)
            quick.functions.rehearse(quick.rows, 2, call.address, MS)


@pytest.mark.parametrize("driver", [2], indirect=True)
def test_large_batches_are_computed_one_after_the_other(
    model: litegpu.LoadedModel, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And small ones at once."""
    monkeypatch.setattr(collector, "LARGE_SIZE", 4)
    with model.batcher(4, sizes=[1, 4]) as batcher, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for rows in (4, 1):
            driver.late, before = 1 << 30, driver.launches
            calls = []
            for n in range(2):
                calls.append(pool.submit(batcher, *inputs(n, rows)))
                while driver.launches < before + n + 1:
                    time.sleep(0.001)
            first, second = driver.streams_by_launch[-2:]
            driver.late = second.value = 0
            time.sleep(0.02)
            assert calls[1].done() == (rows == 1) and not calls[0].done()
            first.value = 0
            for n, call in enumerate(calls):
                assert is_right(call.result(60), *inputs(n, rows))


def test_padding_is_zeros(model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[np.ndarray] = []
    run = sizes._OfModel.run

    def noting(runner: Any, arrays: Any) -> list[np.ndarray]:
        given.append(arrays["x"].copy())
        return run(runner, arrays)

    with model.batcher(8, sizes=[4]) as batcher:
        monkeypatch.setattr(sizes._OfModel, "run", noting)
        one, _ = inputs(0)
        one = np.ones_like(one)
        for rows in (8, 3, 1, 2, 7, 4, 5):
            batcher(*[np.repeat(one, rows, 0)] * 2)
            assert (given[-1][:rows] == 1).all() and not given[-1][rows:].any(), rows


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("late", [0, 3, 2000])
def test_inferences_of_any_length(monkeypatch: pytest.MonkeyPatch, late: int, writes: bool) -> None:
    driver = FakeDriver(monkeypatch)
    driver.late, driver.writes = late, writes
    with litegpu.load(network(), "cpu") as model, model.batcher(8) as batcher:
        race(lambda n: _right(batcher, n), 4)


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeDriver, litegpu.Batcher]]:
    """Whose `y` comes as float16."""
    monkeypatch.setattr(native_calls, "_WORTH_ROUNDING", 0)
    driver = FakeDriver(monkeypatch, 2, ["y"])
    with litegpu.load(network(), "cpu") as model, model.batcher(8) as batcher:
        if not native(batcher).functions.rounds:
            pytest.skip("this processor has no instructions for it")
        assert list(native(batcher).halves) == ["y"]
        yield driver, batcher


def test_rows_in_float16(rounding: tuple[FakeDriver, litegpu.Batcher]) -> None:
    _, batcher = rounding

    def work(number: int) -> None:
        for i in range(50):
            _right(batcher, 5 * number + i)  # whole numbers, which stay as they are
            x, y = inputs(i, batch=2)
            y = y + np.float32(0.1)
            assert is_right(batcher(x, y), x, y.astype(np.float16).astype(np.float32))

    race(work, 8)

    async def tasks() -> None:
        calls = [inputs(i, batch=1 + i % 3) for i in range(30)]
        found = await asyncio.gather(*(batcher.call_async(*call) for call in calls))
        assert all(is_right(f, x, y) for f, (x, y) in zip(found, calls, strict=True))

    asyncio.run(tasks())


def test_python_computes_with_what_was_given(rounding: tuple[FakeDriver, litegpu.Batcher]) -> None:
    """And not with what was made of it for the device."""
    driver, batcher = rounding
    driver.error = 700

    def work(number: int) -> None:
        for i in range(5):
            x, y = inputs(5 * number + i, batch=1 + i % 3)
            x, y = x + np.float32(1e-5), y + np.float32(0.1)
            assert is_right(batcher(x, y), x, y)

    race(work, 8)

    async def tasks() -> None:
        x, y = inputs(3)
        y = y + np.float32(0.1)
        assert is_right(await batcher.call_async(x, y), x, y)

    asyncio.run(tasks())


def _right(batcher: litegpu.Batcher, number: int, **how: Any) -> None:
    x, y = inputs(number, batch=1 + number % 3)
    assert is_right(batcher(x, y, **how), x, y)


def test_a_deadline_while_the_batch_runs(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    with model.batcher(8) as batcher, concurrent.futures.ThreadPoolExecutor(2) as pool:
        driver.late = 1 << 30
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="before the result was there"):
            batcher(*inputs(1), timeout=0.05)
        assert time.monotonic() - begun < 10
        driver.late = 0
        for stream in driver.streams:
            stream.value = 0  # the device is done after all, and the lane is free
        _right(batcher, 2, timeout=60)
        driver.late = 1 << 30
        patient = pool.submit(_right, batcher, 3)  # leads, or is led by who leaves
        hasty = pool.submit(_right, batcher, 4, timeout=0.1)
        with pytest.raises(DeadlineError):
            hasty.result(60)
        driver.late = 0
        for stream in driver.streams:
            stream.value = 0
        patient.result(60)
        assert batcher.statistics.late == 2


def test_full(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    driver.late = 1 << 30
    with (
        model.batcher(4, max_waiting=4, when_full="raise") as batcher,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        calls = [pool.submit(_right, batcher, 3 * n) for n in range(5)]  # of one row
        while batcher.statistics.waiting < 4:
            time.sleep(0.001)
        with pytest.raises(QueueFullError, match="4 rows wait already"):
            batcher(*inputs(0))
        with pytest.raises(QueueFullError):  # there is one queue for both ways
            batcher.submit(*inputs(0))
        driver.late = 0
        while not all(call.done() for call in calls):
            for stream in driver.streams:
                stream.value = 0
            time.sleep(0.001)
        for call in calls:
            call.result(60)
        assert batcher.statistics.refused == 2


def test_room_that_threads_make_is_seen_by_all(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    driver.late = 1 << 30
    with model.batcher(4, max_waiting=4) as batcher, concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(_right, batcher, 3 * n) for n in range(5)]
        while batcher.statistics.waiting < 4:
            time.sleep(0.001)
        hopeful = pool.submit(batcher.submit, *inputs(1))
        task: concurrent.futures.Future[Any] = pool.submit(lambda: asyncio.run(batcher.call_async(*inputs(2))))
        late = pool.submit(batcher.submit, *inputs(3), timeout=0.02)
        with pytest.raises(DeadlineError, match="before there was room"):
            late.result(60)
        assert not hopeful.done() and not task.done()
        driver.late = 0
        while not all(call.done() for call in calls) or not (hopeful.done() and task.done()):
            for stream in driver.streams:
                stream.value = 0
            time.sleep(0.001)
        assert is_right(hopeful.result(60).result(60), *inputs(1)) and is_right(task.result(60), *inputs(2))


def test_what_is_wrong_is_said_as_ever(model: litegpu.LoadedModel) -> None:
    with model.batcher(8) as batcher:
        x, y = inputs(1)
        for wrong in ((x,), (x, y[..., :3]), (x, "text"), (x, y, y), (x, np.concatenate([y, y])), (x[0], y[0])):
            with pytest.raises(TensorError):
                batcher(*wrong)
        with pytest.raises(TensorError, match="from 1 to 8 rows"):
            batcher(*inputs(0, batch=9))
        with pytest.raises(TensorError, match="from 1 to 8 rows"):
            batcher(x[:0], y[:0])
        for found in (batcher(x[:, ::-1], y), batcher(x.astype(">f4"), y), batcher({"x": x, "y": y})):
            assert list(found) == ["negated", "product"]
        frozen = x.copy()
        frozen.flags.writeable = False
        assert is_right(batcher(frozen, y), x, y)


def test_python_computes_what_the_driver_refuses(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    with model.batcher(8) as batcher:
        driver.error = 700
        race(lambda n: _right(batcher, n), 8)
        driver.error = 0
        _right(batcher, 1)
        assert batcher.statistics.failed == 0


def test_errors_of_a_batch_reach_all_of_its_callers(
    model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sizes._OfModel.run

    def failing(runner: Any, arrays: Any) -> Any:
        raise ZeroDivisionError("odd")

    with model.batcher(8) as batcher:
        monkeypatch.setattr(sizes._OfModel, "run", failing)
        errors: list[BaseException] = []

        def work(number: int) -> None:
            with pytest.raises(InvokeError, match="ZeroDivisionError: odd") as caught:
                batcher(*inputs(number))
            errors.append(caught.value)

        race(work, 8)
        assert len({id(error) for error in errors}) == 8 and batcher.statistics.failed == 8
        monkeypatch.setattr(sizes._OfModel, "run", run)
        _right(batcher, 1)


def test_what_is_not_finite_is_computed_in_python(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.watched = True
    with litegpu.load(network(), "cpu") as model, model.batcher(8) as batcher:
        x, y = inputs(1)
        given = driver.launches
        y[0, 0, 0, 0] = np.inf
        handed: list[int] = []
        compute = native_calls.NativeCalls.compute

        def noted(self: Any, number: int) -> None:
            handed.append(number)
            compute(self, number)

        monkeypatch.setattr(native_calls.NativeCalls, "compute", noted)
        found = batcher(x, y)
        np.testing.assert_array_equal(np.isinf(found["negated"]), np.isinf(y))
        assert np.isinf(found["product"]).any() and len(handed) == 1 and driver.launches == given + 1
        _right(batcher, 1)
        assert len(handed) == 1


def test_without_native_code_from_a_moment_on(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    """As after a device is lost, or a kernel has gone over to float32: those who wait are answered in Python."""
    with model.batcher(4) as batcher:
        stop = threading.Event()

        def work(number: int) -> None:
            if number == 0:
                time.sleep(0.05)
                native(batcher).turn_off()
                time.sleep(0.05)
                stop.set()
                return
            i = 0
            while not stop.is_set():
                _right(batcher, 100 * number + i % 7)
                i += 1

        race(work, 6)
        before = driver.launches
        _right(batcher, 1)
        assert driver.launches == before


@pytest.mark.parametrize("driver", [1, 3], indirect=True)
def test_threads_futures_and_tasks_together(model: litegpu.LoadedModel) -> None:
    with model.batcher(8) as batcher:

        def work(number: int) -> None:
            calls = [inputs(100 * number + i) for i in range(30)]
            if number % 3 == 0:
                for x, y in calls:
                    assert is_right(batcher(x, y), x, y)
            elif number % 3 == 1:
                for future, (x, y) in [(batcher.submit(*call), call) for call in calls]:
                    assert is_right(future.result(60), x, y)
            else:

                async def tasks() -> None:
                    found = await asyncio.gather(*(batcher.call_async(*call) for call in calls))
                    assert all(is_right(f, x, y) for f, (x, y) in zip(found, calls, strict=True))

                asyncio.run(tasks())

        race(work, 6)
        assert batcher.statistics.calls == 180


@pytest.mark.parametrize("driver", [1, 3], indirect=True)
def test_thousands_of_calls_of_tasks(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    calls = [inputs(i, batch=1 + i % 5) for i in range(20)]
    with model.batcher(16, max_waiting=40) as batcher:

        async def work(number: int) -> None:
            for i in range(25):
                x, y = calls[(number + i) % 20]
                assert is_right(await batcher.call_async(x, y=y), x, y)

        async def tasks() -> None:
            await asyncio.gather(*(work(n) for n in range(64)))

        for _ in range(2):  # two loops, one after the other
            asyncio.run(tasks())
        found = batcher.statistics
        assert found.calls == 3200 and found.batches == driver.launches < 1600
        assert batcher._lanes.counts.summary(0, 0).calls == 0  # none in Python


def test_tasks_that_leave(model: litegpu.LoadedModel, driver: FakeDriver) -> None:
    with model.batcher(4) as batcher:
        driver.late = 1 << 30

        async def tasks() -> None:
            patient = asyncio.ensure_future(batcher.call_async(*inputs(1)))
            cancelled = asyncio.ensure_future(batcher.call_async(*inputs(2)))
            await asyncio.sleep(0.02)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            with pytest.raises(DeadlineError):
                await batcher.call_async(*inputs(3), timeout=0.02)
            driver.late = 0
            while not patient.done():
                for stream in driver.streams:
                    stream.value = 0
                await asyncio.sleep(0.001)
            assert is_right(patient.result(), *inputs(1))
            assert is_right(await batcher.call_async(*inputs(4), timeout=60), *inputs(4))

        asyncio.run(tasks())
        assert (batcher.statistics.cancelled, batcher.statistics.late) == (1, 1)


def test_tasks_whose_batch_fails(
    model: litegpu.LoadedModel, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sizes._OfModel.run

    def failing(runner: Any, arrays: Any) -> Any:
        raise ZeroDivisionError("odd")

    async def tasks() -> None:
        monkeypatch.setattr(sizes._OfModel, "run", failing)
        found = await asyncio.gather(*(batcher.call_async(*inputs(n)) for n in range(6)), return_exceptions=True)
        assert all(isinstance(one, InvokeError) and "ZeroDivisionError: odd" in str(one) for one in found)
        assert len({id(one) for one in found}) == 6
        monkeypatch.setattr(sizes._OfModel, "run", run)
        driver.error = 700  # of the driver alone: Python computes it
        assert is_right(await batcher.call_async(*inputs(7)), *inputs(7))

    with model.batcher(8) as batcher:
        asyncio.run(tasks())
    assert batcher.statistics.failed == 6


@pytest.mark.parametrize("drain", [True, False])
def test_closed_while_tasks_wait(model: litegpu.LoadedModel, driver: FakeDriver, drain: bool) -> None:
    batcher = model.batcher(2)
    driver.late = 300

    async def tasks() -> None:
        waiting = [asyncio.ensure_future(batcher.call_async(*inputs(n))) for n in range(8)]
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: batcher.close(drain=drain))
        done = await asyncio.gather(*waiting, return_exceptions=True)
        right = [n for n, one in enumerate(done) if isinstance(one, dict) and is_right(one, *inputs(n))]
        refused = [one for one in done if isinstance(one, InvokeError) and "closed" in str(one)]
        assert len(right) + len(refused) == 8 and (not drain or len(right) == 8)
        with pytest.raises(InvokeError, match="closed"):
            await batcher.call_async(*inputs(1))

    asyncio.run(tasks())


@pytest.mark.parametrize("drain", [True, False])
def test_closed_in_the_middle(model: litegpu.LoadedModel, drain: bool) -> None:
    batcher = model.batcher(8)
    ended: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            time.sleep(0.05)
            batcher.close(drain=drain)
            return
        for i in range(100_000):
            try:
                _right(batcher, number + i % 5)
            except InvokeError as error:
                assert "closed" in str(error)
                ended.append(number)
                return

    race(work, 6)
    assert sorted(ended) == [1, 2, 3, 4, 5]
    _, y = inputs(1)
    with pytest.raises(InvokeError, match="closed"):
        batcher(y, y)


_SCRIPT = """
    import os, signal, sys, threading, time, warnings
    sys.path.insert(0, sys.argv[1])
    warnings.simplefilter("ignore")
    import pytest
    from native_runs import FakeDriver
    from test_threads import inputs, is_right, network
    import litegpu
    from litegpu.errors import ForkError, InvokeError

    driver = FakeDriver(pytest.MonkeyPatch())
    stop = threading.Event()

    def work(number):
        while not stop.is_set():
            x, y = inputs(number)
            assert is_right(batcher(x, y), x, y)

    with litegpu.load(network(), "cpu") as model, model.batcher(4) as batcher:
        assert batcher._native is not None
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
"""


def _ran(script: str) -> str:
    whole = textwrap.dedent(_SCRIPT) + textwrap.indent(textwrap.dedent(script), "    ")
    done = subprocess.run(
        [sys.executable, "-c", whole, str(Path(__file__).parent)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_forked_in_the_middle() -> None:
    told = _ran("""
        given = inputs(0)  # not in a child: NumPy imports its numbers when they are first asked for, under a lock
        for thread in threads: thread.start()
        for _ in range(5):
            time.sleep(0.02)
            child = os.fork()
            if not child:
                for way in (batcher, batcher.submit):
                    try:
                        way(*given)
                    except ForkError as error:
                        print("ForkError", "make one here" in str(error), flush=True)
                str(batcher.statistics)
                batcher.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads: thread.join()
        x, y = inputs(0)
        assert is_right(batcher(x, y), x, y)
        """)
    assert told == "ForkError True\n" * 10


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_while_the_main_thread_waits() -> None:
    told = _ran("""
        driver.late = 1 << 40  # whoever computes does not come to an end
        others = []

        def other():
            x, y = inputs(3)
            others.append(is_right(batcher(x, y), x, y))

        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        try:
            batcher(*inputs(1))
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begun < 30, flush=True)
        thread = threading.Thread(target=other)
        thread.start()
        driver.late = 0
        while thread.is_alive():
            for stream in driver.streams:
                stream.value = 0
            time.sleep(0.001)
        print(others, flush=True)
        """)
    assert told == "interrupted True\n[True]\n"
