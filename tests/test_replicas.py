"""One model on several devices: calls, streams and batches are spread, and an error names its device."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from racing import race
from test_threads import inputs, is_right, network

import litegpu
from litegpu import DeviceError, LiteGpuError, LoadedModel, OptionError, TensorError
from litegpu.batching import sizes as batching_sizes
from litegpu.device_choice import every_device, is_device
from litegpu.replicas import Spread


@pytest.fixture(params=["cpu", "reference", pytest.param("cuda", marks=pytest.mark.cuda)])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadedModel]:
    """On two devices; on the first twice where there is no other."""
    if request.param == "cuda":
        from litegpu.gpu.backends.cuda import opening

        reason = opening.available()
        if reason is not None or len(opening.list_devices()) < 2:
            pytest.skip(f"no two CUDA devices: {reason}")
        yield from opened()
        return
    monkeypatch.setattr("litegpu.session.every_device", lambda device: (request.param,) * (2 if ":" in device else 1))
    yield from opened()


def opened() -> Iterator[LoadedModel]:
    with litegpu.load(network(), "cuda:all") as model:
        assert len(model.replicas) == 2 and model.replicas[0] is model
        yield model
    assert all(one._closed for one in model.replicas)
    with pytest.raises(LiteGpuError):
        model(*inputs(0))


def counted(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the device of each call that is begun from now on."""
    seen: list[int] = []
    call = LoadedModel._call

    def counting(self: LoadedModel, values: Mapping[str, Any], wanted: Any) -> Any:
        seen.append(model.replicas.index(self))
        return call(self, values, wanted)

    def counting_quick(self: LoadedModel, args: Any) -> Any:
        found = quick(self, args)
        seen.extend([] if found is None else [model.replicas.index(self)])
        return found

    quick = LoadedModel._call_like_before
    monkeypatch.setattr(LoadedModel, "_call", counting)
    monkeypatch.setattr(LoadedModel, "_call_like_before", counting_quick)
    return seen


def test_calls_are_spread(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = counted(model, monkeypatch)
    for i in range(4):
        assert is_right(model(*inputs(i)), *inputs(i))
    assert seen == [0, 1, 0, 1]

    def work(number: int) -> None:
        for i in range(6):
            x, y = inputs(100 * number + i, batch=1 + number % 2)
            assert is_right(model(x, y), x, y)

    race(work, 8)
    assert {0, 1} == set(seen) and len(seen) == 4 + 48
    found = model(*inputs(1), outputs=["product"])
    assert list(found) == ["product"]


def test_a_call_goes_to_the_device_with_the_least_to_do() -> None:
    class Slow:
        _label, _is_lost = "slow", False

        def __init__(self) -> None:
            self.inside, self.go, self.count = threading.Semaphore(0), threading.Event(), 0

        def _call(self, values: Any, wanted: Any) -> Any:
            self.count += 1
            self.inside.release()
            assert self.go.wait(60)

        def _call_like_before(self, args: Any) -> None: ...

        def _as_result(self, arrays: Any) -> None: ...

    slow = [Slow(), Slow(), Slow()]
    slow[1].go.set()
    spread = Spread(slow)
    threads = []
    for expected in (0, 1, 2, 1, 1, 1, 1):
        threads.append(threading.Thread(target=spread.call, args=({}, None)))
        threads[-1].start()
        assert slow[expected].inside.acquire(timeout=60)
        if expected == 1:
            threads[-1].join(60)
    assert [one.count for one in slow] == [1, 5, 1]
    for one in slow:
        one.go.set()
    for thread in threads:
        thread.join(60)


def test_streams_are_spread_and_in_order(model: LoadedModel) -> None:
    items = [inputs(i, batch=1 + i // 5) for i in range(11)]
    for ahead in (1, 2):
        found = list(model.stream(items, ahead))
        assert all(is_right(f, x, y) for f, (x, y) in zip(found, items, strict=True)) and len(found) == 11
    stream: Any = model.stream(items)
    next(stream)
    stream.close()  # with inferences under way
    with pytest.raises(TensorError):
        list(model.stream([items[0], (1, 2, 3)]))
    assert is_right(model(*inputs(5)), *inputs(5))


def test_batches_are_spread(model: LoadedModel) -> None:
    with model.batcher(4) as batcher:
        homes = {lane.home for lane in batcher._lanes._lanes}
        assert homes == {0, 1}

        def work(number: int) -> None:
            for i in range(6):
                x, y = inputs(100 * number + i)
                assert is_right(batcher(x, y), x, y)

        race(work, 8)
        assert batcher.statistics.calls == 48


def test_what_it_says_of_itself(model: LoadedModel) -> None:
    if model.device == "cuda":
        assert model.hardware.count("(cuda)") in (1, 2)
        assert model._label.startswith("cuda:0 (") and model.replicas[1]._label.startswith("cuda:1 (")
    else:
        assert model.hardware.startswith("2 x ")
    assert set(model.inputs) == {"x", "y"} and set(model.outputs) == {"negated", "product"}


def test_an_error_names_its_device(model: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    infer = LoadedModel._infer
    second = model.replicas[1]

    def failing(self: LoadedModel, *args: Any) -> Any:
        if self is second:
            raise DeviceError("it fell off the bus")
        return infer(self, *args)

    def is_lost(lost: bool, one: LoadedModel) -> bool:
        return one is second and lost

    monkeypatch.setattr(LoadedModel, "_infer", failing)
    assert is_right(model(*inputs(1)), *inputs(1))
    for lost in (False, True):
        monkeypatch.setattr(LoadedModel, "_is_lost", property(functools.partial(is_lost, lost)))
        with pytest.raises(DeviceError) as caught:
            for _ in range(2):
                model(*inputs(1))
        assert str(caught.value) == f"{second._label}: it fell off the bus"
    assert f"{second._label} is lost: calls go to the others" in caplog.text
    for i in range(4):  # which now all go to the first
        assert is_right(model(*inputs(i)), *inputs(i))
    with pytest.raises(TensorError):
        model(1, 2, 3)


def test_a_batcher_goes_on_without_a_lost_device(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING)
    lost: list[Any] = []
    with model.batcher(4) as batcher:
        replicas = batcher._lanes._replicas
        failing = {runner for lane in replicas[1].lanes for runner in lane.values()}
        for kind in (batching_sizes._OfModel, batching_sizes._OfKernel):

            def run(self: Any, arrays: Any, run: Any = kind.run) -> Any:
                if self in failing:
                    lost.append(replicas[1])
                    raise DeviceError("it fell off the bus")
                return run(self, arrays)

            monkeypatch.setattr(kind, "run", run)
        monkeypatch.setattr(batching_sizes.Replica, "is_lost", property(lambda self: self in lost))
        errors = []

        def work(number: int) -> None:
            for i in range(12):
                x, y = inputs(100 * number + i)
                try:
                    assert is_right(batcher(x, y), x, y)
                except DeviceError as error:
                    errors.append(str(error))

        race(work, 8)
        if lost:
            assert set(errors) == {f"{replicas[1].label}: it fell off the bus"}
            for i in range(10):
                assert is_right(batcher(*inputs(i)), *inputs(i))
            assert f"{replicas[1].label} is lost: the batcher goes on without it" in caplog.text


def test_words() -> None:
    assert is_device("cuda:all") and is_device("webgpu:all") and is_device("cuda:1")
    assert not is_device("cpu:all") and not is_device("cuda:every")
    assert every_device("cuda:1") == ("cuda:1",) and every_device("cpu") == ("cpu",)
    with pytest.raises(OptionError, match="reference"):
        litegpu.load(network(), "reference:all")


def test_all_of_webgpu() -> None:
    from agreement import require_gpu

    require_gpu()
    words = every_device("webgpu:all")
    assert words and all(word.startswith("webgpu:") for word in words) and len(set(words)) == len(words)
    with litegpu.load(network(), "webgpu:all") as model:
        assert len(model.replicas) == len(words) and model.device == "webgpu"
        assert is_right(model(*inputs(1)), *inputs(1))


def test_who_takes_one_device_says_so() -> None:
    from litegpu.device_choice import delegate_for

    with pytest.raises(OptionError, match=r"cuda:all.*this does not: give 'cuda:0'"):
        delegate_for("cuda:all", "float32", {})


@pytest.mark.cuda
def test_arrays_on_a_gpu_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("no two CUDA devices")
    with litegpu.load(network(), "cuda:all") as model:
        for number in (1, 0, 1):
            x, y = inputs(number)
            found = model(torch.from_numpy(x).to(f"cuda:{number}"), torch.from_numpy(y).to(f"cuda:{number}"))
            assert all(array.device.index == number for array in found.values())
            assert is_right({name: array.cpu().numpy() for name, array in found.items()}, x, y)


def test_what_was_opened_is_closed_where_another_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "litegpu.session.every_device", lambda device: ("cpu", "cuda:99") if ":a" in device else (device,)
    )
    closed = []
    monkeypatch.setattr(LoadedModel, "_close", lambda self, wait: closed.append(wait))
    with pytest.raises(DeviceError):
        litegpu.load(network(), "cuda:all")
    assert closed == [False]


def test_results_are_the_callers(model: LoadedModel) -> None:
    found = [model(*inputs(i)) for i in range(6)]
    assert all(is_right(f, *inputs(i)) for i, f in enumerate(found))
    assert not any(np.shares_memory(a["product"], b["product"]) for a in found for b in found if a is not b)
