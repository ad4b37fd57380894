"""Inputs that kernels round to float16 first come as float16, and no result changes by a bit."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from interrupts import Interruptions
from racing import race

import litegpu
from litegpu import GpuDelegate, Interpreter, WaitType, native
from litegpu.gpu.backends.cuda.copy import MOST_BYTES
from litegpu.host_copy import LARGE_BYTES
from litegpu.model.builder import ModelBuilder
from litegpu.stream import only_kernel

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device", "library")]
#: With sizes in bytes that are no multiple of 16.
SMALL, MIDDLE, HALF_LARGE, LARGE = (1, 85, 83, 3), (1, 371, 401, 3), (1, 577, 601, 3), (2, 521, 507, 3)


@pytest.fixture(scope="module")
def library() -> native.NativeLibrary:
    found = native.build()
    if found is None or not found.rounds:
        pytest.skip(native.problem() or "this processor does not round to float16")
    return found


def content(shape: tuple[int, ...], *, also_added: bool = False) -> bytes:
    """A convolution of the input, which may be used once more as it is."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    x = builder.input("x", shape)
    options = {"stride_h": 2, "stride_w": 2, "padding": 0, "fused_activation_function": "NONE"}
    half = (shape[0], -(-shape[1] // 2), -(-shape[2] // 2), 8)
    weights = builder.constant(rng.standard_normal((8, 3, 3, 3)).astype(np.float32))
    builder.output(builder.op("CONV_2D", [x, weights, builder.constant(np.zeros(8, np.float32))], half, options))
    if also_added:
        builder.output(builder.op("ADD", [x, builder.constant(np.ones(1, np.float32))], shape))
    return builder.build()


def items(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Of all sizes, and with all that is special."""
    rng = np.random.default_rng(1)
    found = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    found[1] *= 10.0 ** rng.uniform(-9, 5, shape).astype(np.float32)
    flat = found[2].reshape(-1)
    flat[::97], flat[1::97], flat[2::97], flat[-1] = np.inf, np.nan, 1e-42, 65519.0
    return found


def rounded(model: Any) -> set[tuple[int, ...]]:
    """How the inputs came in native calls of late, of those that were rounded."""
    return {call.ways.rounded for call in session_of(model)._plain._calls}


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each input that was written, whether it was as float16."""
    from litegpu.gpu.backends.cuda.inputs import Inputs

    found: list[bool] = []
    write = Inputs.write

    def noted(self: Inputs, index: int, array: np.ndarray) -> None:
        write(self, index, array)
        found.append(("halves", index) in self.halves)

    monkeypatch.setattr(Inputs, "write", noted)
    return found


@pytest.mark.parametrize("shape", [SMALL, MIDDLE, HALF_LARGE, LARGE])
def test_streams_give_the_same_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, streamed: list[bool], shape: tuple[int, ...]
) -> None:
    given = items(shape)
    expected = without_the_library(monkeypatch, content(shape), given)
    with litegpu.load(content(shape), "cuda", "float16") as model:
        buffer = np.empty(shape, np.float32)

        def one_after_the_other(places: list[int]) -> Any:
            for place in places:
                buffer[...] = given[place]
                yield buffer
                buffer[...] = np.nan  # as who fills it again

        for places in ([0, 3, 0, 1, 3], [0, 2, 3]):
            streamed.clear()
            for place, found in zip(places, model.stream(one_after_the_other(places)), strict=True):
                np.testing.assert_array_equal(found, expected[place])
            assert streamed[0] and len(streamed) >= len(places)  # of a second attempt as well
        assert not all(streamed)  # what does not fit float16 goes as it is


def test_other_ways_in_a_stream(monkeypatch: pytest.MonkeyPatch, streamed: list[bool]) -> None:
    """Arrays in pinned memory, and calls in between."""
    given = items(HALF_LARGE)
    expected = without_the_library(monkeypatch, content(HALF_LARGE), given)
    with litegpu.load(content(HALF_LARGE), "cuda", "float16") as model:
        pinned = [model.empty_input() for _ in given]
        for array, x in zip(pinned, given, strict=True):
            array[...] = x
        places = [0, 1, 3, 0, 2, 0]
        sources = [(pinned if i % 3 == 1 else given)[place] for i, place in enumerate(places)]
        streamed.clear()
        for place, found in zip(places, model.stream(sources, 2), strict=True):
            np.testing.assert_array_equal(found, expected[place])
        np.testing.assert_array_equal(model(given[1]), expected[1])
        assert any(streamed) and not all(streamed)


def test_who_does_not_wait(monkeypatch: pytest.MonkeyPatch, streamed: list[bool]) -> None:
    given = items(SMALL)
    expected = without_the_library(monkeypatch, content(SMALL), given)
    streamed.clear()
    delegate = GpuDelegate(backend="cuda", precision="float16", wait_type=WaitType.DO_NOT_WAIT)
    with Interpreter(model_content=content(SMALL), experimental_delegates=[delegate]) as one:
        one.allocate_tensors()
        (x,), (y,) = one.get_input_details(), one.get_output_details()
        for place in (0, 1, 3, 0, 2, 1):
            one.set_tensor(x["index"], given[place])
            one.invoke()
            one.invoke()  # on the same once more
            np.testing.assert_array_equal(one.get_tensor(y["index"]), expected[place])
        assert streamed[0]


def overflowing(shape: tuple[int, ...]) -> bytes:
    """Two convolutions, of which float16 does not hold what is between them."""
    builder = ModelBuilder()
    x = builder.input("x", shape)
    half = (shape[0], -(-shape[1] // 2), -(-shape[2] // 2))
    for kernel, inputs, channels, size in ((3, 3, 8, 300.0), (1, 8, 8, 1e-3)):
        options = {"stride_h": kernel // 2 + 1, "stride_w": kernel // 2 + 1, "fused_activation_function": "NONE"}
        weights = np.full((channels, kernel, kernel, inputs), size, np.float32)
        operands = [x, builder.constant(weights), builder.constant(np.zeros(channels, np.float32))]
        x = builder.op("CONV_2D", operands, (*half, channels), options)
    builder.output(x)
    return builder.build()


def test_what_is_made_again_is_made_of_what_was_given(monkeypatch: pytest.MonkeyPatch, streamed: list[bool]) -> None:
    """With precision="auto" results that are not finite are computed again in float32, of numbers as they were."""
    given = [np.abs(x) + 1 for x in items(SMALL)[:1] * 4]
    given[2] = given[2] * 100
    with litegpu.load(overflowing(SMALL), "cuda", "auto") as model:
        exact = model(given[2])
    expected = without_the_library(monkeypatch, overflowing(SMALL), given[:2])
    with litegpu.load(overflowing(SMALL), "cuda", "auto") as model:
        found = list(model.stream(given))
        np.testing.assert_array_equal(found[2], exact)
        assert np.isfinite(exact).all() and not any(streamed)
    streamed.clear()
    with litegpu.load(overflowing(SMALL), "cuda", "float16") as model:
        found = list(model.stream(given))
        assert all(streamed[:4]) and not np.isfinite(found[2]).all()
        for i in range(2):
            np.testing.assert_array_equal(found[i], expected[i])


def session_of(model: Any) -> Any:
    route = only_kernel(model)
    assert route is not None
    return route.kernel.session


def without_the_library(monkeypatch: pytest.MonkeyPatch, content: bytes, given: list[np.ndarray]) -> list[Any]:
    with monkeypatch.context() as patch:
        patch.setattr(native, "find", lambda: None)
        with litegpu.load(content, "cuda", "float16") as model:
            return [model(x) for x in given]


@pytest.mark.parametrize("shape", [SMALL, MIDDLE, HALF_LARGE, LARGE])
def test_results_are_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    given = items(shape)
    expected = without_the_library(monkeypatch, content(shape), given)
    with litegpu.load(content(shape), "cuda", "float16") as model:
        session = session_of(model)
        assert session.program.inputs[0].rounded
        kept = [model(x.copy()) for x in given for _ in range(2)]
        for i, found in enumerate(kept):
            np.testing.assert_array_equal(found, expected[i // 2])
        if given[0].nbytes > 2 * MOST_BYTES:
            assert given[0].nbytes >= LARGE_BYTES and session.memory._room[0]
        assert rounded(model) == {(0,)}
        assert {call.ways.sent for call in session._plain._calls} == {(0,) if given[0].nbytes > 2 * MOST_BYTES else ()}


def test_where_somebody_reads_it_as_it_is_it_comes_so() -> None:
    with litegpu.load(content(SMALL, also_added=True), "cuda", "float16") as model:
        assert not session_of(model).program.inputs[0].rounded
        x = items(SMALL)[0] + 1000
        found = [model(x) for _ in range(2)]
        assert rounded(model) == {()} and any(np.array_equal(one, x + 1) for one in found[1].values())
    with litegpu.load(content(SMALL), "cuda", "float32") as model:
        assert not session_of(model).program.inputs[0].rounded


@pytest.mark.parametrize("shape", [SMALL, HALF_LARGE, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_other_ways_in_between(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """Arrays that are read where they are, in pinned memory, and a view of the session's own."""
    given = items(shape)
    expected = without_the_library(monkeypatch, content(shape), given)
    with litegpu.load(content(shape), "cuda", "float16") as model:
        pinned = model.empty_input()
        for i in range(12):
            pinned[...] = given[i % 4]
            found = model(pinned if i % 3 else given[i % 4].copy())
            np.testing.assert_array_equal(found, expected[i % 4])
    delegate = GpuDelegate(backend="cuda", precision="float16")
    with Interpreter(model_content=content(shape), experimental_delegates=[delegate]) as one:
        one.allocate_tensors()
        (x,), (y,) = one.get_input_details(), one.get_output_details()
        for i in range(8):
            if i < 4:
                one.set_tensor(x["index"], given[i])
            else:
                one.tensor(x["index"])()[...] = given[i % 4]
            one.invoke()
            np.testing.assert_array_equal(one.get_tensor(y["index"]), expected[i % 4])


def test_a_device_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends.cuda import memory

    given = items(LARGE)[:1]
    expected = without_the_library(monkeypatch, content(LARGE), given)
    with litegpu.load(content(LARGE), "cuda", "float16") as model:

        def full(*_: Any) -> int:
            raise litegpu.DeviceError("there is no room")

        monkeypatch.setattr(memory, "allocated", full)
        for _ in range(2):
            np.testing.assert_array_equal(model(given[0].copy()), expected[0])
        assert session_of(model).memory._room == {0: 0}


@pytest.mark.parametrize(("shape", "places"), [(SMALL, 20), (LARGE, 8)], ids=["small", "large"])
def test_interrupted_anywhere(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], places: int) -> None:
    given = items(shape)
    expected = without_the_library(monkeypatch, content(shape), given[3:])
    with litegpu.load(content(shape), "cuda", "float16") as model:
        for _ in range(2):
            model(given[0].copy())
        count = Interruptions()
        count.during(lambda: model(given[0].copy()))
        for place in range(1, count.count, count.count // places):
            one, x = Interruptions(place), given[0].copy()
            try:
                one.during(functools.partial(model, x))
            except KeyboardInterrupt:
                pass
            else:
                assert not one.where, f"swallowed at {one.where}"
            np.testing.assert_array_equal(model(given[3].copy()), expected[0])


@pytest.mark.parametrize(("shape", "threads"), [(SMALL, 16), (LARGE, 3)], ids=["small", "large"])
def test_threads_at_once(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], threads: int) -> None:
    """Each gets its own result, until one of them closes the model."""
    given = items(shape)
    expected = without_the_library(monkeypatch, content(shape), given)
    model = litegpu.load(content(shape), "cuda", "float16")

    def check(place: int) -> None:
        np.testing.assert_array_equal(model(given[place % 4].copy()), expected[place % 4])

    def work(number: int) -> None:
        if number == 0:
            for i in range(4):
                check(i)
            model.close()
            return
        with pytest.raises(litegpu.InvokeError, match="closed"):
            for i in itertools.count(number):
                check(i)

    race(work, threads, 300)
