"""Results in pinned memory that the arrays of callers own: nothing changes them, and there is never too much of it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from interrupts import Interruptions

import litegpu
from litegpu.model.builder import ModelBuilder

pytestmark = pytest.mark.cuda

SIDE = 192  # of the result, which is large enough for the pool
FORKS = hasattr(os, "fork")


def network() -> bytes:
    """x -> (x repeated over a large image, x + 1), so that every element tells which call it belongs to."""
    builder = ModelBuilder()
    x = builder.input("x", (1, 1, 1, 1))
    shape = builder.constant(np.array([1, SIDE, SIDE, 1], np.int32))
    large = builder.op("BROADCAST_TO", [x, shape], (1, SIDE, SIDE, 1))
    one = builder.constant(np.ones(1, np.float32))
    options = {"fused_activation_function": "NONE"}
    builder.output(builder.op("MUL", [large, one], (1, SIDE, SIDE, 1), options))
    builder.output(builder.op("ADD", [x, one], (1, 1, 1, 1), options))
    return builder.build()


@pytest.fixture
def pool(device: Any) -> Iterator[Any]:
    from litegpu.gpu.backends.cuda.result_pool import ResultPool

    made = ResultPool(device, 64 << 20)
    yield made
    gc.collect()
    made.trim()
    assert made.held == 0


def x_of(number: float) -> np.ndarray:
    return np.full((1, 1, 1, 1), number, np.float32)


def large_of(model: litegpu.LoadedModel) -> str:
    return next(name for name, detail in model.outputs.items() if detail["shape"][1] == SIDE)


def test_a_block_comes_back_when_the_last_view_is_gone(pool: Any) -> None:
    first = pool.take(300_000)
    address, view = first.ctypes.data, first[1000:2000].view(np.float32)
    first[...] = 7
    del first
    second = pool.take(300_000)
    assert second.ctypes.data != address, "a view still has the first one"
    second[...] = 9
    assert (view.view(np.uint8) == 7).all()
    del view
    third = pool.take(299_999)
    assert third.ctypes.data == address and third.size == 299_999 and third.flags.writeable


def test_what_an_interruption_loses_stays_where_it_is(device: Any) -> None:
    """No other memory comes to lie where the device takes it for that of a block."""
    from litegpu.gpu.backends.cuda.result_pool import ResultPool

    counted = Interruptions()
    counted.during(lambda: ResultPool(device, 64 << 20).take(300_000))
    for place in range(1, counted.count):
        pool = ResultPool(device, 64 << 20)
        with contextlib.suppress(KeyboardInterrupt):
            Interruptions(place).during(functools.partial(pool.take, 300_000))
        gc.collect()
        kept = [np.empty(300_000, np.uint8) for _ in range(4)]
        assert pool.take(300_000) is not None and kept
        gc.collect()
        pool.trim()


def test_who_keeps_all_gets_ordinary_memory_in_the_end(pool: Any) -> None:
    kept = []
    while (block := pool.take(200_000)) is not None:
        kept.append(block)
        assert len(kept) < 100
    assert kept and pool.held <= 64 << 20
    kept.pop()
    assert pool.take(200_000) is not None, "one came back"


def test_who_keeps_some_results_and_drops_the_rest_has_blocks(pool: Any) -> None:
    """As one who has the first ones to compare with: the last result is still there when the next one is asked for."""
    kept = [pool.take(200_000) for _ in range(10)]
    assert any(block is None for block in kept)
    last, given = None, []
    for _ in range(60):
        last = pool.take(200_000)
        given.append(last is not None)
    assert all(given[30:]) and not all(given[:10]) and pool.held <= 10 * 256 << 10


def test_who_keeps_all_is_tried_more_and_more_seldom(pool: Any) -> None:
    kept = [pool.take(130_000) for _ in range(1000)]
    given = [i for i, block in enumerate(kept) if block is not None]
    assert given[:6] == list(range(6)) and 4 <= len(given[6:]) <= 6
    assert np.diff(given[6:]).min() > 16


def test_no_more_than_its_bound(pool: Any) -> None:
    blocks = [pool.take(20 << 20) for _ in range(4)]
    assert [b is None for b in blocks] == [False, False, False, True]
    del blocks
    assert pool.take(50 << 20) is not None, "what is free makes room"
    assert pool.held <= 64 << 20


def test_what_nobody_wants_is_given_up(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litegpu.gpu.backends.cuda.result_pool._PATIENCE", 3)
    pool.take(1 << 20)
    for _ in range(6):
        pool.take(200_000)
    assert pool.held < 1 << 20


def test_blocks_from_before_a_fork_are_not_used_again(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu import fork

    out, free = pool.take(300_000), pool.take(300_000)
    del free
    monkeypatch.setattr(fork, "_count", fork.count() + 1)
    held = [pool.take(300_000)]
    del out
    held += [pool.take(300_000) for _ in range(2)]
    assert all(block._forks == fork.count() for block in blocks_of(held))


def blocks_of(arrays: list[np.ndarray]) -> list[Any]:
    found = []
    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        found.append(base)
    return [type("Seen", (), {"_forks": lease._block.forks}) for lease in found]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_results_are_the_callers(device: Any, precision: str) -> None:
    with litegpu.load(network(), "cuda", precision) as model:
        name = large_of(model)
        kept = [model(x_of(i), outputs=name) for i in range(20)]
        assert not kept[0].flags.owndata, "it lies in the pool"
        kept[3][...] = -1
        streamed = list(model.stream((x_of(i) for i in range(20)), outputs=[name]))
    gc.collect()  # arrays outlive the model
    for i, array in enumerate(kept):
        assert (array == (-1 if i == 3 else i)).all()
    assert all((found[name] == i).all() and list(found) == [name] for i, found in enumerate(streamed))


def test_outputs_that_are_not_wanted_are_not_copied(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends.cuda.memory import SessionMemory
    from litegpu.gpu.backends.cuda.native_call import NativeCall

    sent: list[int] = []
    send = SessionMemory.send

    def noted(self: SessionMemory, index: int, *rest: Any) -> None:
        sent.append(index)
        send(self, index, *rest)

    targets = NativeCall.targets

    def sent_in_c(self: NativeCall) -> Any:
        sent.extend(i for i, (*_, size) in zip(self.wanted.places, self._targets, strict=True) if size)
        return targets(self)

    monkeypatch.setattr(SessionMemory, "send", noted)
    monkeypatch.setattr(NativeCall, "targets", sent_in_c)
    with litegpu.load(network(), "cuda") as model:
        large = large_of(model)
        (small,) = [name for name in model.outputs if name != large]
        assert model(x_of(4), outputs=small) == 5 and not sent
        assert (model(x_of(4), outputs=[large])[large] == 4).all() and len(sent) == 1
        interpreter = model.interpreter
        index = {d["shape"][1]: d["index"] for d in interpreter.get_output_details()}
        source = interpreter.get_input_details()[0]["index"]
        for i in range(3):
            interpreter.set_tensor(source, x_of(i))
            interpreter.invoke()
            assert interpreter.get_tensor(index[1]) == i + 1 and len(sent) == 1
        first, second = interpreter.get_tensor(index[SIDE]), interpreter.get_tensor(index[SIDE])
        second[...] = 0
        assert (first == 2).all() and (interpreter.tensor(index[SIDE])() == 2).all()
        del sent[:]
        for i in range(3):  # what is read comes along with the next inference
            interpreter.set_tensor(source, x_of(i))
            interpreter.invoke()
            assert len(sent) == i + 1
            assert (interpreter.get_tensor(index[SIDE]) == i).all() and len(sent) == i + 1


def overflowing() -> bytes:
    """Two convolutions of ordinary weights between large numbers and small ones, of an image."""
    builder = ModelBuilder()
    y = builder.input("x", (1, SIDE, SIDE, 4))
    options = {"stride_h": 1, "stride_w": 1, "padding": 0, "fused_activation_function": "NONE"}
    for _ in range(2):
        weights = builder.constant(np.full((4, 1, 1, 4), 0.25, np.float32))
        y = builder.op("CONV_2D", [y, weights, builder.constant(np.zeros(4, np.float32))], (1, SIDE, SIDE, 4), options)
    builder.output(y)
    return builder.build()


def test_infinities_of_large_results_are_found_on_the_device(device: Any, caplog: pytest.LogCaptureFixture) -> None:
    """float16 ends at 65504."""
    x = np.ones((1, SIDE, SIDE, 4), np.float32)
    wide = x.copy()
    wide[0, -1, -1] = 3e5
    for precision in ("auto", "float16"):
        caplog.clear()
        with litegpu.load(overflowing(), "cuda", precision) as model:
            np.testing.assert_allclose(model(x), x, rtol=1e-2)
            assert "not finite" not in caplog.text
            found = model(wide)
            assert "not finite" in caplog.text
            assert np.isfinite(found[0, -1, -1]).all() == (precision == "auto")
            assert np.isfinite(found[0, :-1]).all()


def hammer(calls: int, seed: int = 0) -> int:
    """So many calls from 8 threads through one model; how many results were wrong, or changed later."""
    wrong = [0]
    with litegpu.load(network(), "cuda") as model:
        name, pool = large_of(model), model.delegate.open_device()._pools.host  # type: ignore[union-attr]
        device_bound = pool.most_bytes

        def one(number: int) -> None:
            rng = random.Random(seed + number)
            kept: list[tuple[float, np.ndarray]] = []
            for i in range(calls // 8):
                value = float(number * 100_000 + i % 90_000)
                array = model(x_of(value), outputs=name)
                view = array[0, rng.randrange(SIDE), :, 0] if rng.random() < 0.5 else array
                if rng.random() < 0.3:
                    kept.append((value, view))
                while len(kept) > 12:
                    expected, old = kept.pop(rng.randrange(len(kept)))
                    wrong[0] += not (old == expected).all()
                wrong[0] += not (view.flat[0] == value and view.flat[-1] == value) or pool.held > device_bound
            wrong[0] += sum(not (array == value).all() for value, array in kept)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return wrong[0]


def test_no_result_ever_changes(device: Any) -> None:
    assert hammer(1600) == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_result_of_a_million_ever_changes(device: Any) -> None:
    assert hammer(1_000_000) == 0


@pytest.mark.skipif(not FORKS, reason="no fork here")
@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's, if a test before this one imported it: the child does not use it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_child_of_a_fork_still_has_the_results(device: Any) -> None:
    with litegpu.load(network(), "cuda") as model:
        name = large_of(model)
        array = model(x_of(5), outputs=name)
        child = os.fork()
        if not child:
            right = bool((array == 5).all())
            array[...] = 6
            os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert (array == 5).all()
        assert all((model(x_of(i), outputs=name) == i).all() for i in range(4))
