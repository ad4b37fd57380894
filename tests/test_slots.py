"""Calls of one model from many threads run at once where that pays; nothing of ours makes the official runtime wait."""

from __future__ import annotations

import dataclasses
import gc
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import Interpreter, native, slots
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType
from litegpu.slots import most_on_cpu

GPUS = ["reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]
SHAPE = (1, 8)


def content(variable: bool = False) -> bytes:
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    y = builder.op("ADD", [x, builder.constant(np.ones(1, np.float32))], SHAPE, {"fused_activation_function": "NONE"})
    if variable:
        builder.variable("state", SHAPE)
    builder.output(y)
    return builder.build()


def opened(device: str) -> litegpu.LoadedModel:
    try:
        return litegpu.load(content(), device)
    except litegpu.DeviceError as error:
        pytest.skip(str(error))


def together(work: Callable[[int], None], count: int = 2, inside: threading.Semaphore | None = None) -> None:
    """`work` in so many threads, each begun when the one before is `inside`; raises what any of them raises."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
        if inside is not None:
            assert inside.acquire(timeout=60)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Met:
    """An official interpreter whose invoke() begins when `barrier` says that others are at theirs."""

    def __init__(self, official: Any, barrier: threading.Barrier) -> None:
        self._official, self._barrier = official, barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._official, name)

    def invoke(self) -> None:
        self._barrier.wait(60)
        self._official.invoke()


def test_interpreters_compute_at_once() -> None:
    """With an official runtime that waits for the other one, so that one after the other would never end."""
    barrier = threading.Barrier(2)
    made = [Interpreter(model_content=content()) for _ in range(2)]
    for one in made:
        one.allocate_tensors()
        engine: Any = one._engine
        engine._official = Met(engine._official, barrier)

    def work(number: int) -> None:
        one = made[number]
        for i in range(5):
            one.set_tensor(one.get_input_details()[0]["index"], np.full(SHAPE, i, np.float32))
            one.invoke()
            assert (one.get_tensor(one.get_output_details()[0]["index"]) == i + 1).all()

    together(work)


def test_a_model_on_the_cpu_computes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "processors", lambda: 2)
    barrier = threading.Barrier(2)
    invoke = Interpreter.invoke

    def met(self: Interpreter) -> None:
        barrier.wait(60)
        invoke(self)

    with litegpu.load(content(), "cpu", num_threads=1) as model:
        monkeypatch.setattr(Interpreter, "invoke", met)

        def work(number: int) -> None:
            for i in range(5):
                assert (model(np.full(SHAPE, 10 * i + number, np.float32)) == 10 * i + number + 1).all()

        together(work)
        assert model._slots is not None and len(model._slots) == 2


@pytest.mark.parametrize("device", GPUS)
def test_a_model_on_the_gpu_has_several_sessions(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(device) as model:
        barrier, inside = threading.Barrier(3), threading.Semaphore(0)
        call, plain, made = GpuKernel.call, GpuKernel.call_plain, []
        another = GpuKernel.another

        def met(self: GpuKernel, *given: Any) -> Any:
            with self._lock:
                inside.release()
                barrier.wait(60)
            return call(self, *given)

        def noted(self: GpuKernel, **how: Any) -> GpuKernel:
            made.append(another(self, **how))
            return made[-1]

        monkeypatch.setattr(GpuKernel, "call", met)
        monkeypatch.setattr(GpuKernel, "call_plain", lambda *_: None)
        monkeypatch.setattr(GpuKernel, "another", noted)

        def work(number: int) -> None:
            x = np.full(SHAPE, number, np.float32)
            assert (model(x) == number + 1).all()

        together(work, 3, inside)
        assert len(made) == 2
        monkeypatch.setattr(GpuKernel, "call", call)
        monkeypatch.setattr(GpuKernel, "call_plain", plain)

        def many(number: int) -> None:
            for i in range(30):
                work(10 * number + i)

        together(many, 8)
        assert len(made) <= 15
        assert model(np.zeros((3, 8), np.float32)).shape == (3, 8), "another batch"
        assert not any(kernel.closed for kernel in made), "which may come again"
    assert all(kernel.closed for kernel in made)
    with pytest.raises(litegpu.InvokeError, match="closed"):
        model(np.zeros(SHAPE, np.float32))


@pytest.mark.parametrize("device", GPUS)
def test_a_call_outlives_what_an_interrupt_has_lost(device: str) -> None:
    """As when it comes between two sizes: nobody has the interpreter any more, and another thread's call is inside."""
    with opened(device) as model, opened(device) as other:
        x = np.ones(SHAPE, np.float32)
        model(x)
        inside = model._slots
        assert inside is not None
        model.interpreter = other.interpreter
        gc.collect()
        found = inside.infer({"x": x}, tuple(model.outputs))
        assert found is not None and (found[0] == 2).all()
        model._slots = None


def test_two_threads_are_enough_for_another_slot() -> None:
    with litegpu.load(content(), "reference") as model:
        inside, go = threading.Semaphore(0), threading.Event()

        def work(number: int) -> None:
            for i in range(4):
                assert (model(np.full(SHAPE, i, np.float32)) == i + 1).all()

        model(np.zeros(SHAPE, np.float32))
        first = model._slots
        assert first is not None
        kernel: Any = first._slots[0]
        call = kernel._kernel.call

        def slow(*given: Any) -> Any:
            with kernel._kernel._lock:
                inside.release()
                go.wait(60)
            return call(*given)

        kernel._kernel.call = slow
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        threads[0].start()
        assert inside.acquire(timeout=60)
        for thread in threads[1:]:
            thread.start()
        while len(first) < 2:
            assert any(thread.is_alive() for thread in threads)
        go.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("device", GPUS)
def test_a_divided_model_computes_at_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of it on the CPU, as no GPU takes seven axes."""
    monkeypatch.setattr(native, "processors", lambda: 2)
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    y = builder.op("EXP", [x], SHAPE)
    wide = (1, 1, 1, 1, 1, *SHAPE)
    y = builder.op("BROADCAST_TO", [y, builder.constant(np.array(wide, np.int32))], wide)
    builder.output(builder.op("RESHAPE", [y, builder.constant(np.array(SHAPE, np.int32))], SHAPE))
    try:
        model = litegpu.load(builder.build(), device, fallback="silent")
    except litegpu.DeviceError as error:
        pytest.skip(str(error))
    barrier, invoke = threading.Barrier(2), Interpreter.invoke

    def met(self: Interpreter) -> None:
        barrier.wait(60)
        invoke(self)

    with model:
        assert not model.report.fully_delegated and model.device != "cpu"
        monkeypatch.setattr(Interpreter, "invoke", met)

        def work(number: int) -> None:
            for i in range(4):
                value = np.full(SHAPE, 0.1 * (4 * number + i), np.float32)
                np.testing.assert_allclose(model(value), np.exp(value), rtol=1e-5)

        together(work)
        assert model._slots is not None and len(model._slots) == 2
        delegate: Any = model.delegate
        assert [p.at_work for p in delegate.prepared].count(True) == 1, "buffers are bound to the first"
    assert not any(p.alive for p in delegate.prepared)


def test_how_many_sessions_pay() -> None:
    def most(**about: Any) -> int:
        return slots.most_on_gpu(SimpleNamespace(**{"variables": (), **about}))  # type: ignore[arg-type]

    sizes = [most(arena_size=size) for size in (0, 1 << 20, 64 << 20, 1 << 30)]
    assert sizes == [16, 16, 8, 4] and most(arena_size=0, variables=(1,)) == 1


def test_how_many_interpreters_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "processors", lambda: 6)
    model = litegpu.read_model(content())
    assert [most_on_cpu(model, threads) for threads in (None, 1, 2, 4, 12)] == [6, 6, 3, 1, 1]
    monkeypatch.setattr(native, "processors", lambda: 64)
    sizes = (1 << 10, 20 << 20, 1 << 30)
    assert [most_on_cpu(dataclasses.replace(model, content=bytes(size)), None) for size in sizes] == [64, 51, 8]
    assert most_on_cpu(litegpu.read_model(content(variable=True)), None) == 1


@pytest.mark.parametrize(("name", "most"), [("Resampler", 6), ("TheirOwn", 1)])
def test_operators_that_are_not_known_are_not_run_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    """They may keep something, and are a user's; detectors are run by many."""
    monkeypatch.setattr(native, "processors", lambda: 6)
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    (y,) = builder.custom(name, [x], [(SHAPE, TensorType.FLOAT32)])
    builder.output(y)
    assert most_on_cpu(litegpu.read_model(builder.build()), None) == most
