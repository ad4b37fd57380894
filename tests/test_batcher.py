"""LoadedModel.batcher(): every caller gets its own rows, whatever the others do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_device
from interrupts import Interruptions
from native_runs import FakeDriver
from racing import race
from test_threads import SHAPE, inputs, is_right, network

import litegpu
from litegpu import DeadlineError, InvokeError, OptionError, QueueFullError, TensorError
from litegpu.batching import sizes as batching_sizes
from litegpu.model.builder import ModelBuilder


class Held:
    """Batches on the CPU begin, and go on when `go` is set. `rows`: of each that has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.rows: list[int] = []
        self.error: BaseException | None = None
        run = batching_sizes._OfModel.run

        def held(runner: Any, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            if not self.on:
                return run(runner, arrays)
            self.rows.append(len(next(iter(arrays.values()))))
            self.begun.release()
            assert self.go.wait(60)
            if self.error is not None:
                raise self.error
            return run(runner, arrays)

        self.on = False
        monkeypatch.setattr(batching_sizes._OfModel, "run", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


@pytest.fixture(params=["python", "native"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[litegpu.LoadedModel]:
    if request.param == "native":
        FakeDriver(monkeypatch)
    with litegpu.load(network(), "cpu") as opened:
        yield opened


def busy(batcher: litegpu.Batcher, held: Held) -> Any:
    """The future of a call that keeps the only lane busy until held.go is set."""
    held.on = True
    future = batcher.submit(*inputs(0))
    assert held.begun.acquire(timeout=60)
    return future


def test_sixteen_threads_get_their_own_rows(device: str) -> None:
    with litegpu.load(network(), device) as model, model.batcher(16) as batcher:

        def work(number: int) -> None:
            for i in range(12):
                x, y = inputs(100 * number + i, batch=1 + number % 3)
                assert is_right(batcher(x, y=y), x, y)

        race(work)
        found = batcher.statistics
        assert found.calls == 16 * 12 and found.rows == sum(12 * (1 + n % 3) for n in range(16))
        assert sum(found.sizes.values()) == found.batches <= found.calls
        x, y = inputs(1)
        assert is_right(model(x, y), x, y)  # the model goes on beside it


@pytest.fixture(params=["cpu", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    require_device(name)
    return name


def test_calls_of_a_batch_run_together(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(8) as batcher:
        first = busy(batcher, held)
        calls = [inputs(n) for n in range(1, 7)]
        futures = [batcher.submit(x, y) for x, y in calls]
        held.go.set()
        for future, (x, y) in zip(futures, calls, strict=True):
            assert is_right(future.result(60), x, y)
        assert is_right(first.result(60), *inputs(0))
        assert held.rows == [1, 8]  # six rows in the next size that was prepared
        found = batcher.statistics
        assert (found.batches, found.rows, found.sizes) == (2, 7, {1: 1, 8: 1})
        assert found.mean_fill == pytest.approx(7 / 9)


def test_what_a_call_takes(model: litegpu.LoadedModel) -> None:
    with model.batcher(4) as batcher:
        x, y = inputs(3)
        for found in (
            batcher(x, y), batcher(y=y, x=x), batcher({"x": x, "y": y}), batcher([x, y]), batcher(x.tolist(), y),
            batcher(x.astype(np.float64), y), batcher(np.asfortranarray(x), y, timeout=60),
        ):  # fmt: skip
            assert list(found) == ["negated", "product"] and is_right(found, x, y)


def test_arrays_may_be_changed_after_submit(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(8) as batcher:
        busy(batcher, held)
        x, y = inputs(4)
        future = batcher.submit(x, y)
        before = x.copy(), y.copy()
        x[...], y[...] = 7, 9
        held.go.set()
        assert is_right(future.result(60), *before)


def test_results_stay_as_they_are(device: str) -> None:
    with litegpu.load(network(), device) as model, model.batcher(4) as batcher:
        calls = [inputs(n, batch=1 + n % 4) for n in range(20)]
        found = [batcher(x, y) for x, y in calls]
        gc.collect()
        assert all(is_right(f, x, y) for f, (x, y) in zip(found, calls, strict=True))
        found[0]["negated"][...] = 5  # the caller's own
        assert is_right(batcher(*calls[1]), *calls[1])


def test_a_bad_call_fails_alone(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(8, nan_policy="raise") as batcher:
        busy(batcher, held)
        x, y = inputs(1)
        good = [batcher.submit(x, y) for _ in range(3)]
        bad = y.copy()
        bad[0, 0, 0, 0] = np.nan
        for wrong in ((x,), (x, y[..., :3]), (x, "text"), (x, y, y), (x, bad), (x, np.concatenate([y, y]))):
            with pytest.raises(TensorError):
                batcher.submit(*wrong)
        with pytest.raises(TensorError, match="from 1 to 8 rows"):
            batcher(*inputs(0, batch=9))
        with pytest.raises(TensorError, match="from 1 to 8 rows"):
            batcher(x[:0], y[:0])
        held.go.set()
        assert all(is_right(future.result(60), x, y) for future in good)


def test_callbacks_that_end_threads(model: litegpu.LoadedModel, held: Held) -> None:
    """What a callback raises, SystemExit as well, is its own affair: the others of its batch are answered."""
    with model.batcher(8) as batcher:
        first = busy(batcher, held)
        futures = [batcher.submit(*inputs(n)) for n in range(4)]
        for future in [first, *futures[:2]]:
            future.add_done_callback(lambda _: sys.exit(3))
        seen: list[Any] = []
        futures[0].add_done_callback(seen.append)
        held.go.set()
        assert all(is_right(future.result(60), *inputs(n)) for n, future in enumerate(futures))
        assert is_right(batcher(*inputs(9), timeout=60), *inputs(9)) and seen == [futures[0]]


def test_a_callback_cannot_wait_for_its_own_thread(model: litegpu.LoadedModel, held: Held) -> None:
    """A call, close(), and a submit() that finds no room would wait for ever."""
    batcher = model.batcher(2, max_waiting=2)
    first = busy(batcher, held)
    done = threading.Event()
    found: list[Any] = []

    def callback(_: Any) -> None:
        held.on = False
        if batcher._native is None:
            with pytest.raises(InvokeError, match="cannot wait for another call of the batcher"):
                batcher(*inputs(1))
        with pytest.raises(QueueFullError):
            for _ in range(60):
                found.append(batcher.submit(*inputs(1)))
        batcher.close()
        done.set()

    first.add_done_callback(callback)
    held.go.set()
    assert done.wait(60)
    batcher.close()
    assert found and all(is_right(future.result(60), *inputs(1)) for future in found)


def test_no_memory_for_a_result(model: litegpu.LoadedModel, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    with model.batcher(8) as batcher:
        first = busy(batcher, held)
        futures = [batcher.submit(*inputs(n)) for n in range(4)]
        made = batcher._lanes._result

        def scarce(request: Any, results: Any) -> Any:
            if request.future is futures[1]:
                raise MemoryError("no room")
            return made(request, results)

        monkeypatch.setattr(batcher._lanes, "_result", scarce)
        held.go.set()
        with pytest.raises(InvokeError, match="no room"):
            futures[1].result(60)
        assert all(is_right(futures[n].result(60), *inputs(n)) for n in (0, 2, 3))
        assert is_right(first.result(60), *inputs(0))


def test_nan_is_the_callers_own(model: litegpu.LoadedModel) -> None:
    with model.batcher(8) as batcher:
        x, y = inputs(1)
        y[...] = np.nan
        assert np.isnan(batcher(x, y)["product"]).all()
        calls = [inputs(n) for n in range(5)]
        for future, (x, y) in [(batcher.submit(*call), call) for call in calls]:
            assert is_right(future.result(60), x, y)


def test_padding_is_zeros(model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of one caller gets into the batch of another."""
    given: list[np.ndarray] = []
    run = batching_sizes._OfModel.run

    def noting(runner: Any, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        given.append(arrays["x"].copy())
        return run(runner, arrays)

    with model.batcher(8, sizes=[4]) as batcher:
        monkeypatch.setattr(batching_sizes._OfModel, "run", noting)
        one = np.ones(SHAPE, np.float32)
        for rows in (8, 3, 1, 2, 7, 4, 5):
            for _ in range(3):  # each slab
                batcher(*[np.repeat(one, rows, 0)] * 2)
                assert (given[-1][:rows] == 1).all() and not given[-1][rows:].any(), rows
        assert {len(array) for array in given} == {4, 8}


def test_full_raises(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4, max_waiting=6, when_full="raise") as batcher:
        busy(batcher, held)
        futures = [batcher.submit(*inputs(n)) for n in range(6)]
        with pytest.raises(QueueFullError, match="6 rows wait already"):
            batcher.submit(*inputs(9))
        with pytest.raises(QueueFullError):
            asyncio.run(batcher.call_async(*inputs(9)))
        held.go.set()
        for n, future in enumerate(futures):
            assert is_right(future.result(60), *inputs(n))
        assert is_right(batcher(*inputs(9)), *inputs(9))
        assert batcher.statistics.refused == 2


def test_full_waits(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4, max_waiting=4) as batcher:
        busy(batcher, held)
        done: list[int] = []

        def work(number: int) -> None:
            if number == 15:
                time.sleep(0.1)
                held.go.set()
                return
            for i in range(3):
                x, y = inputs(100 * number + i)
                assert is_right(batcher(x, y), x, y)
            done.append(number)

        race(work)
        assert len(done) == 15 and batcher.statistics.refused == 0

        async def tasks() -> None:
            calls = [inputs(n) for n in range(40)]
            found = await asyncio.gather(*(batcher.call_async(x, y) for x, y in calls))
            assert all(is_right(f, x, y) for f, (x, y) in zip(found, calls, strict=True))

        asyncio.run(tasks())


def test_deadlines(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4, max_waiting=4) as batcher:
        first = busy(batcher, held)
        with pytest.raises(DeadlineError, match="before the result was there") as caught:
            batcher(*inputs(1), timeout=0.05)
        assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, InvokeError)
        late = batcher.submit(*inputs(2), timeout=0.01)
        with pytest.raises(DeadlineError):
            asyncio.run(batcher.call_async(*inputs(3), timeout=0.05))
        patient = batcher.submit(*inputs(4), timeout=60)
        while batcher.statistics.waiting < 4:  # one whose caller has left may have made room
            batcher.submit(*inputs(7))
        with pytest.raises(DeadlineError, match="before there was room"):
            batcher(*inputs(5), timeout=0.05)
        with pytest.raises(DeadlineError):
            asyncio.run(batcher.call_async(*inputs(5), timeout=0.05))
        held.go.set()
        with pytest.raises(DeadlineError, match="before its batch was begun"):
            late.result(60)
        assert is_right(patient.result(60), *inputs(4)) and is_right(first.result(60), *inputs(0))
        assert is_right(batcher(*inputs(6), timeout=60), *inputs(6))
        odd: Any
        for odd in (-1, float("nan"), "1", 1j):
            for way in (batcher, batcher.submit, lambda *args, **how: asyncio.run(batcher.call_async(*args, **how))):
                with pytest.raises(OptionError, match="it must be 0 or more seconds"):
                    way(*inputs(6), timeout=odd)
        long: Any
        for long in (1e9, 1e30, float("inf"), np.float32(60), 60):
            assert is_right(batcher(*inputs(6), timeout=long), *inputs(6))
            assert is_right(batcher.submit(*inputs(6), timeout=long).result(60), *inputs(6))
            assert is_right(asyncio.run(batcher.call_async(*inputs(6), timeout=long)), *inputs(6))
    assert batcher.statistics.late >= 2


def test_a_deadline_that_both_the_task_and_the_batcher_see(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4, nan_policy="raise") as batcher:  # not in C
        busy(batcher, held)

        async def tasks() -> None:
            task = asyncio.ensure_future(batcher.call_async(*inputs(1), timeout=0.03))
            await asyncio.sleep(0)
            time.sleep(0.06)
            held.go.set()
            while batcher.statistics.calls + batcher.statistics.late < 2:  # the loop sees both at once
                time.sleep(0.001)
            with pytest.raises(DeadlineError):
                await task

        asyncio.run(tasks())


def test_cancellation(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4) as batcher:
        first = busy(batcher, held)
        futures = [batcher.submit(*inputs(n)) for n in range(3)]
        assert futures[1].cancel() and futures[1].cancelled()
        assert not first.cancel()

        async def cancelled() -> None:
            task = asyncio.ensure_future(batcher.call_async(*inputs(7)))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        held.go.set()
        assert is_right(futures[0].result(60), *inputs(0)) and is_right(futures[2].result(60), *inputs(2))
        with pytest.raises(concurrent.futures.CancelledError):
            futures[1].result(60)
        assert is_right(batcher(*inputs(8)), *inputs(8))
    assert batcher.statistics.cancelled == 2


def test_a_batch_that_all_have_left_is_not_run(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4) as batcher:
        busy(batcher, held)
        for future in [batcher.submit(*inputs(n)) for n in range(4)]:
            assert future.cancel()
        held.go.set()
    assert held.rows == [1]


def test_errors_reach_every_caller(model: litegpu.LoadedModel, held: Held) -> None:
    with model.batcher(4) as batcher:
        first = busy(batcher, held)
        futures = [batcher.submit(*inputs(n)) for n in range(3)]
        held.error = InvokeError("it broke")
        held.go.set()
        errors = [future.exception(60) for future in [first, *futures]]
        assert all(isinstance(error, InvokeError) and "it broke" in str(error) for error in errors)
        assert len({id(error) for error in errors}) == 4
        held.error = ZeroDivisionError("odd")
        with pytest.raises(InvokeError, match="ZeroDivisionError: odd"):
            batcher(*inputs(1))
        held.error = None
        assert is_right(batcher(*inputs(1)), *inputs(1))
        assert batcher.statistics.failed == 5


def test_close_computes_what_waits(model: litegpu.LoadedModel, held: Held) -> None:
    batcher = model.batcher(4)
    busy(batcher, held)
    futures = [batcher.submit(*inputs(n)) for n in range(7)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    time.sleep(0.02)
    with pytest.raises(InvokeError, match="The batcher is closed"):
        batcher(*inputs(1))
    held.go.set()
    closing.join(60)
    assert not closing.is_alive() and all(future.done() for future in futures)
    for n, future in enumerate(futures):
        assert is_right(future.result(0), *inputs(n))
    batcher.close()
    assert is_right(model(*inputs(1)), *inputs(1))


def test_close_without_draining(model: litegpu.LoadedModel, held: Held) -> None:
    batcher = model.batcher(4, max_waiting=4)
    first = busy(batcher, held)
    futures = [batcher.submit(*inputs(n)) for n in range(4)]
    waits = concurrent.futures.ThreadPoolExecutor(1)
    hopeful = waits.submit(batcher, *inputs(1))
    time.sleep(0.05)
    closing = threading.Thread(target=lambda: batcher.close(drain=False))
    closing.start()
    for future in (*futures, hopeful):
        with pytest.raises(InvokeError, match="closed"):
            future.result(60)
    held.go.set()
    closing.join(60)
    assert is_right(first.result(60), *inputs(0))
    waits.shutdown()


def test_close_while_others_call(device: str) -> None:
    with litegpu.load(network(), device) as model:
        batcher = model.batcher(8)
        ended: list[int] = []

        def work(number: int) -> None:
            if number == 0:
                time.sleep(0.05)
                batcher.close()
                return
            for i in range(100_000):
                x, y = inputs(number + i % 5)
                try:
                    assert is_right(batcher(x, y), x, y)
                except InvokeError as error:
                    assert "closed" in str(error)
                    ended.append(number)
                    return

        race(work, 6)
        assert sorted(ended) == [1, 2, 3, 4, 5]


def test_nothing_is_left_behind(model: litegpu.LoadedModel) -> None:
    before = threading.active_count()
    for way in range(3):
        batcher = model.batcher(4)
        batcher(*inputs(1))
        if way == 0:
            batcher.close()
        del batcher
    gc.collect()
    for _ in range(200):
        if threading.active_count() == before:
            break
        time.sleep(0.02)
    assert threading.active_count() == before


def mixing() -> bytes:
    """Softmax over the batch, by a transposition."""
    b = ModelBuilder()
    x = b.input("x", (2, 3))
    order = b.constant(np.array([1, 0], np.int32))
    turned = b.op("TRANSPOSE", [x, order], (3, 2))
    b.output(b.op("SOFTMAX", [turned], (3, 2), {"beta": 1.0}))
    return b.build()


def test_models_whose_rows_mix_are_refused() -> None:
    with litegpu.load(mixing(), "cpu") as model, pytest.raises(TensorError, match="SOFTMAX"):
        model.batcher()


def test_models_that_keep_variables_are_refused() -> None:
    from batch_networks import recurrent

    with litegpu.load(recurrent(state=True), "cpu") as model, pytest.raises(TensorError, match="keeps variables"):
        model.batcher()


def test_an_input_without_the_batch_is_refused() -> None:
    b = ModelBuilder()
    x, y = b.input("x", (1, 4)), b.input("y", (4,))
    b.output(b.op("ADD", [x, y], (1, 4)))
    with litegpu.load(b.build(), "cpu") as model, pytest.raises(TensorError, match="'y'"):
        model.batcher()


def test_outputs_without_the_batch_are_everybodys() -> None:
    b = ModelBuilder()
    x, one = b.input("x", (1, 4)), b.constant(np.ones(4, np.float32))
    both = b.op("NEG", [x], (1, 4), name="y"), b.op("NEG", [one], (4,), name="constant")
    b.output(*both)
    with litegpu.load(b.build(), "cpu") as model, model.batcher(4) as batcher:
        futures = [batcher.submit(np.full((1, 4), n, np.float32)) for n in range(6)]
        for n, future in enumerate(futures):
            found = future.result(60)
            np.testing.assert_array_equal(found["y"], np.full((1, 4), -n))
            np.testing.assert_array_equal(found["constant"], -np.ones(4))
            found["constant"][...] = 3  # one's own


def test_a_batch_in_the_file(device: str) -> None:
    with litegpu.load(network((3, *SHAPE[1:])), device) as model, model.batcher(8) as batcher:
        for rows in (1, 2, 3, 8):
            x, y = inputs(rows, batch=rows)
            assert is_right(batcher(x, y), x, y)


@pytest.mark.parametrize(
    "options",
    [{"max_batch": 0}, {"max_batch": True}, {"max_delay_ms": -1}, {"max_delay_ms": float("nan")}, {"sizes": [99]},
     {"sizes": 5}, {"sizes": "12"}, {"max_waiting": 0}, {"when_full": "drop"}, {"nan_policy": "omit"}, {"ahead": 0}],
)  # fmt: skip
def test_options_that_cannot_be(model: litegpu.LoadedModel, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        model.batcher(**options)


def test_numbers_of_numpy(model: litegpu.LoadedModel) -> None:
    size: Any = np.int64(2)
    delay: Any = np.float32(1)
    sizes: Any = np.array([1, 2])
    with model.batcher(size, delay, max_waiting=size, ahead=size, sizes=sizes) as batcher:
        assert batcher.sizes == (1, 2) and is_right(batcher(*inputs(1)), *inputs(1))
        assert len(list(model.stream([inputs(1)] * 3, size))) == 3


def test_a_size_that_cannot_be_fails_before_the_others_are_opened(
    model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def too_large(_: Any, batch: int) -> None:
        opened.append(batch)
        raise litegpu.ModelError("too large")

    monkeypatch.setattr(type(model), "_for_batch", too_large)
    with pytest.raises(litegpu.LiteGpuError):
        model.batcher(64)
    assert opened == [64]


def test_of_a_closed_model() -> None:
    model = litegpu.load(network(), "cpu")
    model.close()
    with pytest.raises(InvokeError):
        model.batcher()


def test_statistics_wait_for_other_threads(model: litegpu.LoadedModel) -> None:
    """What they tell is of one moment, unless a signal handler asks in the midst of a call."""
    with model.batcher(4) as batcher:
        told: list[Any] = []
        thread = threading.Thread(target=lambda: told.append(batcher.statistics))
        with batcher._lanes._lock:
            thread.start()
            thread.join(0.3)
            assert not told
        thread.join(60)
        assert told[0].running == 0


SIGNALLED = """
    import os, random, signal, sys, threading, time
    sys.path.insert(0, sys.argv[1])
    from test_threads import inputs, is_right, network
    import litegpu
    kind = sys.argv[2]
    x, y = inputs(0)
    model = litegpu.load(network(), "cpu")
    random.seed(1)
    handled, futures = 0, []
    for attempt in range(40):
        batcher = model.batcher(8, max_delay_ms=0)
        over = []
        def handler(*_):
            global handled
            handled += 1
            over.append(True)
            if kind == "close":
                batcher.close()
            elif kind == "submit":
                changed = x.copy()
                futures.append(batcher.submit(changed, y))
                changed[...] = 0
            elif kind == "call":
                try:
                    assert is_right(batcher(x, y), x, y)
                except litegpu.errors.InvokeError as error:
                    assert "set a flag" in str(error)
            assert batcher.statistics.failed == 0
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.002, 0.03))
        try:
            while not over:
                assert is_right(batcher.submit(x, y).result(), x, y)
        except litegpu.errors.InvokeError as error:
            assert kind == "close" and "closed" in str(error), error
        assert all(is_right(future.result(60), x, y) for future in futures)  # given to a thread: not before this closes
        batcher.close()
    assert handled == 40 and (kind != "submit" or len(futures) == 40)
    print("over", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
@pytest.mark.parametrize("kind", ["close", "submit", "call"])
def test_in_a_signal_handler(kind: str) -> None:
    """That has interrupted a call of the batcher in the same thread: a service that is told to end closes it there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SIGNALLED), str(Path(__file__).parent), kind],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "over\n", done.stderr


def test_interrupted_anywhere(model: litegpu.LoadedModel) -> None:
    """Ctrl-C in a caller reaches it, and nobody else; nothing hangs."""
    with model.batcher(4) as batcher:
        x, y = inputs(1)
        stop = threading.Event()
        failures: list[BaseException] = []

        def other() -> None:
            try:
                while not stop.is_set():
                    assert is_right(batcher(*inputs(5)), *inputs(5))
            except BaseException as error:
                failures.append(error)

        others = [threading.Thread(target=other) for _ in range(2)]
        for thread in others:
            thread.start()
        try:
            counts = []
            for _ in range(20):  # a call that waits, or computes, passes more places than others
                counted = Interruptions()
                counted.during(lambda: batcher(x, y))
                counts.append(counted.count)
            assert max(counts) > 20
            for at in range(1, min(counts) + 1):
                with pytest.raises(KeyboardInterrupt):
                    while True:  # one call may take another way than the one that was counted
                        Interruptions(at).during(lambda: batcher(x, y))
                assert is_right(batcher(x, y), x, y)
        finally:
            stop.set()
            for thread in others:
                thread.join(60)
        assert not failures and not any(thread.is_alive() for thread in others)


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_is_not_swallowed() -> None:
    script = """
        import os, signal, sys, threading, time
        sys.path.insert(0, sys.argv[1])
        from test_threads import inputs, network
        import litegpu
        from litegpu.batching import sizes

        model = litegpu.load(network(), "cpu")
        try:
            with model.batcher(4) as batcher:
                batcher(*inputs(0))
                sizes._OfModel.run = lambda *_: time.sleep(3)
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                batcher(*inputs(1))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "interrupted\n", done.stderr
    assert time.monotonic() - begun < 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
@pytest.mark.parametrize("on", ["cpu", "webgpu"])
def test_the_child_of_a_fork_gets_an_error(on: str) -> None:
    if on == "webgpu":
        from agreement import require_gpu

        require_gpu()
    script = """
        import os, sys, threading, warnings
        sys.path.insert(0, sys.argv[1])
        warnings.simplefilter("ignore")
        from test_threads import inputs, is_right, network
        import litegpu
        from litegpu.errors import ForkError, InvokeError

        x, y = inputs(0)
        with litegpu.load(network(), sys.argv[2]) as model, model.batcher(4) as batcher:
            batcher(x, y)
            batcher._lanes._lock.acquire()  # a thread that the child does not have holds it
            child = os.fork()
            if not child:
                for way in (lambda: batcher(x, y), lambda: batcher.submit(x, y)):
                    try:
                        way()
                    except ForkError as error:
                        print("ForkError", "make one here" in str(error), flush=True)
                batcher.close()
                os._exit(0)
            os.waitpid(child, 0)
            batcher._lanes._lock.release()
            assert is_right(batcher(x, y), x, y)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(Path(__file__).parent), on],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "ForkError True\n" * 2, done.stderr
