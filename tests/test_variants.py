"""Sizes that come again find what was opened for them; what is open for others is bounded, and in nobody's way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from racing import race

import litegpu
from litegpu import native, variants
from litegpu.interpreter import Interpreter
from litegpu.model.builder import ModelBuilder
from litegpu.slots import Slots

DEVICES = ["cpu", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def content(*, open_batch: bool = False, variable: bool = False) -> bytes:
    """x + 1, of rows of eight."""
    b = ModelBuilder()
    x = b.input("x", (1, 8), shape_signature=(-1, 8) if open_batch else None)
    b.output(b.op("ADD", [x, b.constant(np.ones(8, np.float32))], (1, 8), name="y"))
    if variable:
        b.variable("state", (1, 8))
    return b.build()


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[Interpreter]:
    """Interpreters, as often as they were prepared."""
    found: list[Interpreter] = []
    allocate = Interpreter.allocate_tensors

    def noted(self: Interpreter) -> None:
        found.append(self)
        allocate(self)

    monkeypatch.setattr(Interpreter, "allocate_tensors", noted)
    return found


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    models: list[litegpu.LoadedModel] = []

    def open_one(device: str = "cpu", **about: bool) -> litegpu.LoadedModel:
        try:
            models.append(litegpu.load(content(**about), device))
        except litegpu.DeviceError as error:
            pytest.skip(str(error))
        return models[-1]

    yield open_one
    for model in models:
        model.close()


def rows(count: int, value: float = 0.0) -> np.ndarray:
    return np.full((count, 8), value, np.float32)


def check(model: litegpu.LoadedModel, count: int, value: float = 0.0) -> None:
    found = model(rows(count, value))
    assert found.shape == (count, 8) and (found == value + 1).all()


def is_closed(one: Interpreter) -> bool:
    try:
        one.get_input_details()
    except litegpu.InvokeError:
        return True
    return False


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("open_batch", [False, True])
def test_sizes_that_come_again(
    device: str, open_batch: bool, opened: Callable[..., Any], allocated: list[Interpreter]
) -> None:
    model = opened(device, open_batch=open_batch)
    used: dict[int, Interpreter] = {}
    for value, count in enumerate((1, 3, 2, 3, 1, 2, 2, 1, 3)):
        check(model, count, value)
        assert model.inputs["x"]["shape"].tolist() == [count, 8] and model.device == device
        assert model.empty_input().shape == (count, 8) and model.outputs["y"]["shape"].tolist() == [count, 8]
        assert used.setdefault(count, model.interpreter) is model.interpreter
    if open_batch and device == "cpu":
        assert len(set(used.values())) == 1, "the official runtime resizes, which is sooner done than opening"
    else:
        assert len(set(used.values())) == len(allocated) == 3
    model.close()
    assert all(map(is_closed, used.values())) and not model._variants
    with pytest.raises(litegpu.InvokeError, match="closed"):
        model(rows(2))


def test_streams_find_them_too(opened: Callable[..., Any], allocated: list[Interpreter]) -> None:
    model = opened("reference")
    for _ in range(2):
        items = [rows(count, value) for value, count in enumerate((1, 1, 2, 2, 1, 2))]
        for x, found in zip(items, model.stream(items), strict=True):
            np.testing.assert_array_equal(found, x + 1)
    assert len(allocated) == 2


def test_so_many_and_so_much_are_kept(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_MOST", 2)
    model, used = opened(), {}
    for count in (1, 2, 3, 1, 4):  # 1 was used after 2
        check(model, count)
        used[count] = model.interpreter
    assert [is_closed(used[count]) for count in (1, 2, 3, 4)] == [False, True, False, False]
    monkeypatch.setattr(variants, "_MOST_BYTES", 1)
    check(model, 5)
    assert [is_closed(used[count]) for count in (1, 3, 4)] == [True, True, False], "one in any case"
    for count in (2, 1, 4, 3):
        check(model, count, count)


def test_what_a_variant_holds_is_counted(opened: Callable[..., Any]) -> None:
    model = opened("reference")
    check(model, 1)
    check(model, 1000)
    check(model, 1)
    (kept,) = model._variants
    (kernel,) = kept.interpreter.plan.kernels
    program = kernel.program
    assert program.arena_size >= 32_000
    assert kept.nbytes == len(kept.interpreter.model.content) + kernel.held_bytes(1)
    assert kernel.held_bytes(3) - kernel.held_bytes(1) == 2 * (program.arena_size + 64_000)


def test_models_that_keep_values_are_open_once(opened: Callable[..., Any], allocated: list[Interpreter]) -> None:
    model = opened(variable=True)
    first = model.interpreter
    for count in (1, 2, 1):
        check(model, count)
    assert not model._variants and (model.interpreter is first or is_closed(first))


@pytest.mark.parametrize("device", DEVICES)
def test_threads_with_batches_of_their_own(device: str, opened: Callable[..., Any]) -> None:
    model = opened(device)

    def work(number: int) -> None:
        for i in range(30):
            check(model, 1 + (number + i // 3) % 4, 100 * number + i)

    race(work, 6)


def test_threads_while_variants_come_and_go(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped ends when the calls in it have; those that come meanwhile open it again."""
    monkeypatch.setattr(variants, "_MOST", 1)
    model = opened()

    def work(number: int) -> None:
        for i in range(30):
            check(model, 1 + (number + i) % 4, 100 * number + i)

    race(work, 6)


def test_what_is_opened_beside_a_call_is_of_the_same_size(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, allocated: list[Interpreter]
) -> None:
    """Also where the model has been opened for another one since."""
    monkeypatch.setattr(native, "processors", lambda: 4)
    model = opened()
    inside, go, found = threading.Event(), threading.Event(), []
    invoke = Interpreter.invoke

    def slow(self: Interpreter) -> None:
        if not inside.is_set():
            inside.set()
            assert go.wait(60)
        invoke(self)

    monkeypatch.setattr(Interpreter, "invoke", slow)
    thread = threading.Thread(target=lambda: found.append(model(rows(1, 7))))
    thread.start()
    assert inside.wait(60)
    check(model, 2)
    (busy,) = (variant.slots for variant in model._variants)
    assert busy is not None and busy.shapes == {"x": (1, 8)}
    del allocated[:]
    (result,) = busy.infer({"x": rows(1, 3)}, ("y",)) or [None]  # as a thread that has just seen that it is current
    assert result is not None and (result == 4).all() and len(busy) == 2
    assert [one.get_input_details()[0]["shape"].tolist() for one in allocated] == [[1, 8]]
    (made,) = allocated
    assert made.model.main.tensors[made.model.main.inputs[0]].shape == (1, 8), "of the file that it was made of"
    go.set()
    thread.join()
    assert (found[0] == 8).all()


def test_nobody_waits_for_a_call_in_what_is_dropped(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_MOST", 1)
    model = opened()
    inside, go, ended, found = threading.Event(), threading.Event(), threading.Event(), []
    invoke, end = Interpreter.invoke, Slots.end

    def slow(self: Interpreter) -> None:
        if not inside.is_set():
            inside.set()
            assert go.wait(60)
        invoke(self)

    def noted(self: Slots) -> None:
        end(self)
        if self.shapes == {"x": (1, 8)}:
            ended.set()

    monkeypatch.setattr(Interpreter, "invoke", slow)
    monkeypatch.setattr(Slots, "end", noted)
    thread = threading.Thread(target=lambda: found.append(model(rows(1, 7))))
    thread.start()
    assert inside.wait(60)
    for count in (2, 3, 4, 2):
        check(model, count)
    assert not ended.is_set()
    go.set()
    thread.join()
    assert (found[0] == 8).all() and ended.wait(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_fork_has_them_too(opened: Callable[..., Any]) -> None:
    model = opened()
    check(model, 1)
    check(model, 2)
    child = os.fork()
    if not child:
        try:
            for count in (1, 2, 3, 1):
                check(model, count, 5)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    check(model, 1)


@pytest.mark.parametrize("device", ["reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_delegate_is_asked_about_what_is_at_work(device: str, opened: Callable[..., Any]) -> None:
    from litegpu.gpu.delegate import prepared
    from litegpu.stream import only_kernel

    model = opened(device)
    for count in (1, 2, 1, 3):
        check(model, count)
        (index,) = (d["index"] for d in model.interpreter.get_input_details())
        kernel, *_ = prepared.find(model.delegate.prepared, index)
        route = only_kernel(model)
        assert route is not None and route.kernel is kernel and kernel.input_shapes[0] == (count, 8)


def test_where_the_device_has_no_room_others_are_dropped(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if there were room for two: the third falls to the CPU, unless another one is closed."""
    from litegpu.gpu.delegate.delegate import GpuDelegate

    model, prepare = opened("reference"), GpuDelegate.prepare

    def full(self: GpuDelegate, partition: Any) -> Any:
        if sum(one.alive for one in self.prepared) >= 2:
            raise litegpu.DeviceError("out of memory")
        return prepare(self, partition)

    monkeypatch.setattr(GpuDelegate, "prepare", full)
    for count in (1, 2, 3, 1, 2):
        check(model, count)
        assert model.device == "reference" and len(model._variants) <= 1
