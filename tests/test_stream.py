"""LoadedModel.stream(): the results of calls in turn, in order, with errors in their place and nothing left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import require_device

import litegpu
from litegpu import InvokeError, OptionError, TensorError, host_copy, native
from litegpu.host_copy import LARGE_BYTES, copy_bytes
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

SHAPE = (1, 6, 5, 3)
DEVICES = [
    "cpu",
    pytest.param("webgpu"),
    pytest.param("cuda", marks=pytest.mark.cuda),
]


def network(outputs: int = 1, shape: tuple[int, ...] = SHAPE) -> bytes:
    b = ModelBuilder()
    x = b.input("x", shape)
    y = b.op("TANH", [x], shape, name="y")
    z = b.op("NEG", [y], shape, name="z")
    b.output(*([z] if outputs == 1 else [y, z]))
    return b.build()


def inputs(count: int, shape: tuple[int, ...] = SHAPE) -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(count)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    require_device(name)
    return name


@pytest.mark.parametrize("ahead", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_are_those_of_calls_in_order(device: str, ahead: int, count: int) -> None:
    with litegpu.load(network(), device) as model:
        expected = [model(x) for x in inputs(count)]
        found = list(model.stream(inputs(count), ahead))
        assert len(found) == count
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)
        assert len({id(f) for f in found}) == count
        for x, want in zip(inputs(count), expected, strict=True):  # calls go on as before
            np.testing.assert_array_equal(model(x), want)


def test_items_are_what_calls_take(device: str) -> None:
    with litegpu.load(network(2), device) as model:
        x = inputs(1)[0]
        want = model(x)
        items: list[Any] = [x, (x,), {"x": x}, x.tolist(), x.astype(np.float32, order="F")]
        for found in model.stream(items):
            assert list(found) == list(want)
            for name in want:
                np.testing.assert_array_equal(found[name], want[name])


def test_nothing_is_begun_once_the_model_is_closed(device: str) -> None:
    drawn: list[int] = []

    def items() -> Iterator[np.ndarray]:
        for i, x in enumerate(inputs(9)):
            drawn.append(i)
            yield x

    model = litegpu.load(network(), device)
    stream = model.stream(items(), 2)
    next(stream)
    begun = len(drawn)
    model.close()
    found = []
    with pytest.raises(InvokeError, match="The model is closed"):
        for one in stream:
            found.append(one)
    assert len(found) <= begun - 1 and len(drawn) <= begun + 1 + (device == "cpu")  # whose thread tells one item later
    assert not list(stream)


def test_an_item_may_be_changed_once_it_was_taken(device: str) -> None:
    with litegpu.load(network(), device) as model:
        expected = [model(x) for x in inputs(6)]
        frame = np.empty(SHAPE, np.float32)

        def frames() -> Iterator[np.ndarray]:
            for x in inputs(6):
                frame[...] = x
                yield frame

        for got, want in zip(model.stream(frames()), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_calls_between(device: str) -> None:
    """The caller may use the model itself meanwhile, with another batch too."""
    other = inputs(1, (2, *SHAPE[1:]))[0]
    with litegpu.load(network(), device) as model:
        expected = [model(x) for x in inputs(6)]
        between = model(other)
        model(inputs(1)[0])
        for i, (got, want) in enumerate(zip(model.stream(inputs(6)), expected, strict=True)):
            np.testing.assert_array_equal(got, want)
            if i in (1, 3):
                np.testing.assert_array_equal(model(other), between)
            else:
                np.testing.assert_array_equal(model(inputs(1)[0]), expected[0])


def test_other_batches(device: str) -> None:
    shapes = [SHAPE, SHAPE, (3, *SHAPE[1:]), (3, *SHAPE[1:]), SHAPE, (2, *SHAPE[1:])]
    items = [inputs(1, shape)[0] + i for i, shape in enumerate(shapes)]
    with litegpu.load(network(), device) as model:
        expected = [model(x) for x in items]
        for got, want in zip(model.stream(items), expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_an_error_of_the_items_comes_after_the_results_before_it(device: str) -> None:
    closed = []

    def items() -> Iterator[np.ndarray]:
        try:
            yield from inputs(5)
            raise KeyError("camera")
        finally:
            closed.append(True)

    with litegpu.load(network(), device) as model:
        expected = [model(x) for x in inputs(5)]
        found = []
        with pytest.raises(KeyError, match="camera"):
            for result in model.stream(items()):
                found.append(result)
        np.testing.assert_array_equal(found, expected)
        assert closed


@pytest.mark.parametrize("bad", [np.zeros((1, 2, 3, 4), np.float32), {"w": 1}, (1, 2, 3), "text"])
def test_an_item_that_does_not_fit(device: str, bad: Any) -> None:
    with litegpu.load(network(), device) as model:
        found = []
        with pytest.raises(TensorError):
            for result in model.stream([*inputs(2), bad, *inputs(2)]):
                found.append(result)
        assert len(found) == 2
        assert model(inputs(1)[0]).shape == SHAPE


def test_an_error_of_the_model_comes_in_its_place(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        pytest.skip("the official runtime has no place to fail at")
    from litegpu.gpu.delegate.kernel import GpuKernel

    collect = GpuKernel.collect
    calls = []

    def failing(self: GpuKernel, outputs: Any) -> list[np.ndarray]:
        calls.append(1)
        if len(calls) == 3:
            raise litegpu.DeviceError("lost")
        return collect(self, outputs)

    monkeypatch.setattr(GpuKernel, "collect", failing)
    with litegpu.load(network(), device) as model:
        found = []
        with pytest.raises(litegpu.DeviceError, match="lost"):
            for result in model.stream(inputs(9)):
                found.append(result)
        assert len(found) == 2


def test_items_are_taken_no_further_ahead_than_asked(device: str) -> None:
    taken = []

    def items() -> Iterator[np.ndarray]:
        for i, x in enumerate(inputs(20)):
            taken.append(i)
            yield x

    with litegpu.load(network(), device) as model:
        for done, _ in enumerate(model.stream(items(), ahead=2)):
            assert len(taken) - done <= 3


def test_abandoned_streams_leave_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        pytest.skip("nothing is made for it")
    from litegpu.gpu.delegate.kernel import GpuKernel

    made: list[GpuKernel] = []
    another = GpuKernel.another

    def counted(self: GpuKernel) -> GpuKernel:
        made.append(another(self))
        return made[-1]

    monkeypatch.setattr(GpuKernel, "another", counted)
    closed = []

    def items() -> Iterator[np.ndarray]:
        try:
            while True:
                yield inputs(1)[0]
        finally:
            closed.append(True)

    with litegpu.load(network(), device) as model:
        want = model(inputs(1)[0])
        for i, _ in enumerate(model.stream(items())):
            if i == 4:
                break
        gc.collect()
        assert closed == [True] and len(made) == 3 and all(kernel.closed for kernel in made)
        stream = model.stream(items())
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert closed == [True, True] and all(kernel.closed for kernel in made)
        assert not list(model.stream([])) and len(made) == 6, "nothing is made for nothing"
        with pytest.raises(ZeroDivisionError):
            for _ in model.stream(items()):
                _ = 1 / 0
        gc.collect()
        assert all(kernel.closed for kernel in made)
        np.testing.assert_array_equal(model(inputs(1)[0]), want)


def test_no_threads_are_left() -> None:
    before = threading.active_count()
    with litegpu.load(network(), "cpu") as model:
        list(model.stream(inputs(4)))
    assert threading.active_count() == before


def test_models_that_keep_variables(device: str) -> None:
    """Their inferences depend on each other, so they run in turn."""
    rng = np.random.default_rng(1)
    b, units = ModelBuilder(), 3
    x = b.input("x", (1, 4))
    states = [b.variable(name, (1, units)) for name in ("output", "state")]
    weights = b.constant(rng.normal(size=(4 * units, 4 + units)).astype(np.float32))
    bias = b.constant(rng.normal(size=4 * units).astype(np.float32))
    shapes = [(1, units), (1, units), (1, 4 + units), (1, 4 * units)]
    results = b.op_multi(
        "LSTM", [x, states[0], weights, bias, states[1]], [(s, TensorType.FLOAT32) for s in shapes],
        dict(kernel_type="BASIC", fused_activation_function="TANH"), version=2,
    )  # fmt: skip
    b.output(results[0])
    items = inputs(6, (1, 4))
    with litegpu.load(b.build(), device) as model:
        expected = [model(item).copy() for item in items]
        model.interpreter.reset_all_variables()
        found = list(model.stream(items))
        np.testing.assert_array_equal(found, expected)
        assert not np.array_equal(expected[0], model(items[0])), "it keeps nothing"


def test_arrays_of_empty_input(device: str) -> None:
    """Large ones go to the GPU from where they are."""
    shape = (3, 300, 300, 3)
    assert np.zeros(shape, np.float32).nbytes > 2 << 20
    with litegpu.load(network(2, (1, *shape[1:])), device) as model:
        arrays = [model.empty_input(batch=3) for _ in range(5)]
        for array, item in zip(arrays, inputs(5, shape), strict=True):
            assert array.shape == shape and array.dtype == np.float32
            array[...] = item
        expected = [model(array.copy()) for array in arrays]
        for _ in range(2):
            for found, want in zip(model.stream(arrays), expected, strict=True):
                for name in want:
                    np.testing.assert_array_equal(found[name], want[name])
        mixed = [arrays[0], np.array(arrays[1]), arrays[2], arrays[0][:, :, ::-1], arrays[3]]
        wanted = [expected[0], expected[1], expected[2], model(np.ascontiguousarray(mixed[3])), expected[3]]
        for found, want in zip(model.stream(mixed), wanted, strict=True):
            np.testing.assert_array_equal(found["z"], want["z"])
        assert model.empty_input("x").shape == shape  # as the model is now
        with pytest.raises(TensorError, match="no input"):
            model.empty_input("w")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("batch", [-1, 1.5, "2", True])
def test_batches_that_no_array_has(device: str, batch: Any) -> None:
    require_device(device)
    with litegpu.load(network(), device) as model, pytest.raises(OptionError, match="batch is"):
        model.empty_input("x", batch)


@pytest.mark.parametrize("ahead", [0, -1, 1.5, True])
def test_bad_options(ahead: Any) -> None:
    with litegpu.load(network(), "cpu") as model, pytest.raises(OptionError, match="ahead"):
        model.stream([], ahead)


@pytest.mark.parametrize("size", [0, 1, 4095, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES + 12345])
def test_large_copies(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copy, "_processors", lambda: 8)
    monkeypatch.setattr(native, "find", lambda: None)
    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    target = np.zeros(size + 8, np.uint8)
    copy_bytes(target[4 : 4 + size], source)
    np.testing.assert_array_equal(target[4 : 4 + size], source)
    assert not target[:4].any() and not target[4 + size :].any()


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 1_769_472, 3 * LARGE_BYTES + 12345])
def test_large_copies_by_native_threads(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as have half a megabyte each."""
    built = native.build()
    if built is None:
        pytest.skip("no compiler")
    library: Any = built
    asked: list[int] = []

    class Counting:
        def copy(self, target: int, source: int, size: int, threads: int, *more: Any) -> int:
            asked.append(threads)
            return int(library.copy(target, source, size, threads, *more))

    monkeypatch.setattr(host_copy, "_processors", lambda: 8)
    monkeypatch.setattr(native, "find", Counting)
    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    target = np.zeros(size + 8, np.uint8)
    copy_bytes(target[4 : 4 + size], source)
    np.testing.assert_array_equal(target[4 : 4 + size], source)
    assert not target[:4].any() and not target[4 + size :].any()
    assert asked == ([min(8, -(-size >> 19))] if size > 1 << 20 else [])


def test_user_code_and_inferences_overlap() -> None:
    """Each of the caller's steps and each inference sleep: together they take as long as the slower of the two."""
    with litegpu.load(network(), "cpu") as model:
        invoke = model.interpreter._engine.invoke

        def slow() -> None:
            time.sleep(0.03)
            invoke()

        model.interpreter._engine.invoke = slow  # type: ignore[method-assign]
        times = []
        for _ in range(3):  # a busy machine may sleep longer
            started = time.perf_counter()
            for _ in model.stream(inputs(10)):
                time.sleep(0.03)
            times.append(time.perf_counter() - started)
        assert min(times) < 0.03 * 20 * 0.8
