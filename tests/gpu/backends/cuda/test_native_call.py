"""Inferences in one call of C give what Python gives step by step, for every kind of array, end and error."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from interrupts import Interruptions
from racing import race

import litegpu
from litegpu import GpuDelegate, Interpreter, native
from litegpu.gpu.backends.cuda import native_call, plain_calls
from litegpu.gpu.backends.cuda.native_call import NativeCall
from litegpu.gpu.backends.cuda.session_base import CudaSessionBase
from litegpu.gpu.backends.waiting import wait_until
from litegpu.model.builder import ModelBuilder
from litegpu.stream import only_kernel

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device", "library")]
SHAPE, LARGE = (1, 4, 5, 3), (1, 200, 200, 3)


@pytest.fixture(scope="module")
def library() -> native.NativeLibrary:
    found = native.build()
    if found is None:
        pytest.skip(native.problem())
    return found


def content(shape: tuple[int, ...] = SHAPE) -> bytes:
    """(x + y, |x|): the inputs are not in the order of their names, and there are two outputs."""
    builder = ModelBuilder()
    x, y = builder.input("x", shape), builder.input("a", shape)
    builder.output(builder.op("ADD", [x, y], shape, name="sum"))
    builder.output(builder.op("ABS", [x], shape, name="abs"))
    return builder.build()


def items(number: int, shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape).astype(np.float32)


def check(model: Any, number: int = 0, shape: tuple[int, ...] = SHAPE) -> None:
    x, y = items(number, shape)
    found = model(x, y)
    np.testing.assert_array_equal(found["sum"], x + y)
    np.testing.assert_array_equal(found["abs"], np.abs(x))


class Counted:
    """How often a native call began, and how often it had to be done another way."""

    def __init__(self) -> None:
        self.calls = self.others = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    targets, call = NativeCall.targets, CudaSessionBase.call

    def began(self: NativeCall) -> Any:
        found.calls += 1
        return targets(self)

    def other(self: CudaSessionBase, *given: Any) -> Any:
        found.others += 1
        return call(self, *given)

    monkeypatch.setattr(NativeCall, "targets", began)
    monkeypatch.setattr(CudaSessionBase, "call", other)
    return found


@pytest.fixture
def model() -> Iterator[Any]:
    with litegpu.load(content(), "cuda") as opened:
        yield opened


@pytest.mark.parametrize("shape", [SHAPE, (1, 83, 101, 3), LARGE, (1, 301, 311, 3)])
def test_calls_of_a_model(counted: Counted, shape: tuple[int, ...]) -> None:
    with litegpu.load(content(shape), "cuda") as model:
        check(model, 0, shape)
        counted.calls = counted.others = 0
        for i in range(20):
            check(model, i, shape)
        assert (counted.calls, counted.others) == (20, 0)
        x, y = items(1, shape)
        assert np.array_equal(model(x, y, outputs="abs"), np.abs(x))
        assert np.array_equal(model(a=y, x=x)["sum"], x + y)


def test_results_belong_to_the_caller(model: Any) -> None:
    kept = [model(*items(i)) for i in range(30)]
    gc.collect()
    for i, found in enumerate(kept):
        x, y = items(i)
        assert np.array_equal(found["sum"], x + y) and found["sum"].flags.writeable


def test_calls_of_an_interpreter(counted: Counted) -> None:
    one = Interpreter(model_content=content(), experimental_delegates=[GpuDelegate(backend="cuda")])
    one.allocate_tensors()
    places = {d["name"]: d["index"] for d in (*one.get_input_details(), *one.get_output_details())}
    for i in range(12):
        x, y = items(i)
        one.set_tensor(places["x"], x)
        if i % 4 == 0:  # others keep the value from before
            one.set_tensor(places["a"], y)
            last = y
        one.invoke()
        if i % 3:
            assert np.array_equal(one.get_tensor(places["sum"]), x + last)
        assert np.array_equal(one.get_tensor(places["abs"]), np.abs(x))
        assert np.array_equal(one.tensor(places["sum"])(), x + last)
    assert counted.calls == 12
    one.close()


def test_other_arrays_go_another_way(model: Any, counted: Counted) -> None:
    x, y = items(0)
    expected = x + y
    model(x, y)
    counted.calls = counted.others = 0
    apart = np.zeros((1, 4, 5, 6), np.float32)[..., ::2]
    apart[...] = x
    for given in (apart, x.astype(">f4"), x.astype(np.float32).tolist(), np.asfortranarray(x)):
        assert np.array_equal(model(given, y)["sum"], expected)
    assert counted.others == 4
    locked = x.copy()
    locked.flags.writeable = False
    counted.others = 0
    assert np.array_equal(model(locked, y)["sum"], expected) and counted.others == 0
    with pytest.raises(litegpu.TensorError):
        model(x.astype(np.float64) + 1e-12, y)
    with pytest.raises(litegpu.TensorError):
        model(x)
    assert model(np.repeat(x, 3, axis=0), np.repeat(y, 3, axis=0))["sum"].shape == (3, 4, 5, 3)
    check(model, 7)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, counted: Counted) -> None:
    monkeypatch.setattr(native, "find", lambda: None)
    with litegpu.load(content(), "cuda") as model:
        for i in range(3):
            check(model, i)
    assert (counted.calls, counted.others) == (0, 3)


@pytest.mark.parametrize("wait", ["passive", "active"])
def test_what_takes_longer_is_waited_for_elsewhere(monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    """As if no call ever saw the device done by itself."""
    with litegpu.load(content(LARGE), "cuda", wait_type=wait) as model:
        route = only_kernel(model)
        assert route is not None
        session: Any = route.kernel.session
        check(model, 0, LARGE)
        real, rests = NativeCall.__init__, []

        def short(self: NativeCall, *given: Any) -> None:
            real(self, *given)
            every, rest = self.all, self.rest

            def begun(*arrays: Any) -> int:
                result = every(*arrays)
                for array in arrays[2:]:
                    if array.nbytes < 128 << 10:
                        array[...] = -1
                return native_call.NOT_DONE if result == native_call.DONE else result

            def ended(*arrays: Any) -> int:
                rests.append(rest(*arrays))
                return rests[-1]

            self.all, self.rest = begun, ended

        monkeypatch.setattr(NativeCall, "__init__", short)
        session._forget_plain()
        for i in range(5):
            check(model, i, LARGE)
        assert rests == [native_call.DONE] * 5
        assert session.stats["wait"] > 0 and not session.launcher.running


def test_passive_waits_do_not_spin_where_they_are_long(model: Any) -> None:
    route = only_kernel(model)
    assert route is not None
    session: Any = route.kernel.session
    check(model)
    check(model)
    (call,) = session._plain._calls
    x, y = items(0)
    session._plain._rest_of(call, [x, y, *call.targets()], lambda: wait_until(iter([0, 0, 1]).__next__, expected=0.01))
    assert call._call.spin == 0 and session.stats["wait"] >= 2e-3
    session._plain._rest_of(call, [x, y, *call.targets()], lambda: None)
    assert call._call.spin == 2_000_000


@pytest.mark.parametrize("shape", [LARGE, (1, 301, 311, 3)])
def test_inputs_that_come_again_are_read_where_they_are(shape: tuple[int, ...]) -> None:
    """And those in pinned memory, but not others; what the caller changes in between is seen."""
    with litegpu.load(content(shape), "cuda") as model:
        route = only_kernel(model)
        assert route is not None
        session: Any = route.kernel.session
        x, y = items(0, shape)
        pinned = model.empty_input("x")
        seen = set()
        registered = session._pools.registered
        for i in range(150):
            while i == 100 and not (registered.has(x) and registered.has(y)):  # in the background
                time.sleep(1e-3)
            x[...] = pinned[...] = i
            given = (x, x.copy(), pinned)[i % 3]
            found = model(given, y)
            assert np.array_equal(found["sum"], i + y) and np.array_equal(found["abs"], np.full(shape, i, np.float32))
            if session._plain is not None:
                seen.add((i % 3, session._plain._calls[-1].ways.in_place))
        assert {(0, (0, 1)), (1, (1,)), (2, (0, 1)), (1, ()), (2, (0,))} <= seen
        assert not any(kind == 1 and 0 in places for kind, places in seen), "an array that was never seen"
        assert registered.held == x.nbytes + y.nbytes
        del x, given
        gc.collect()
        assert registered.held == y.nbytes


def test_kinds_of_calls_number_their_inferences_together() -> None:
    """By the word that the device writes when one has ended: else one would be taken for over as another has the same
    number, before the device has begun it."""
    shape = LARGE
    with litegpu.load(content(shape), "cuda") as model:
        route = only_kernel(model)
        assert route is not None
        session: Any = route.kernel.session
        x, y = items(0, shape)
        pinned = model.empty_input("x")
        pinned[...] = x
        kinds, before = set(), session.memory.ended[0]
        for i in range(12):
            model((x, pinned)[i // 2 % 2], y)
            if session._plain is None:  # not at first
                continue
            call = session._plain._calls[-1]
            kinds.add(call.ways)
            assert call._call.number == session.memory.ended[0] != before
            before = session.memory.ended[0]
        assert len(kinds) == 2


def test_many_kinds_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few are kept."""
    monkeypatch.setattr(plain_calls, "_MOST_CALLS", 2)
    one = Interpreter(model_content=content(), experimental_delegates=[GpuDelegate(backend="cuda")])
    one.allocate_tensors()
    places = {d["name"]: d["index"] for d in (*one.get_input_details(), *one.get_output_details())}
    for i in range(12):
        x, y = items(i)
        one.set_tensor(places["x"], x)
        one.set_tensor(places["a"], y)
        one.invoke()
        for name in (("sum",), ("abs",), ("sum", "abs"))[i % 3]:
            assert np.array_equal(one.get_tensor(places[name]), x + y if name == "sum" else np.abs(x))
    one.close()


def test_a_call_is_expected_to_take_as_long_as_the_quicker_of_two(model: Any, library: native.NativeLibrary) -> None:
    """A thread's first one after it has slept takes longer, and would end its turn."""
    for i in range(3):
        check(model, i)
    route = only_kernel(model)
    assert route is not None
    session: Any = route.kernel.session
    (made,) = session._plain._calls
    expected = library.function("call_expected", ctypes.c_int64, ctypes.c_void_p)
    call = made._call
    call.before = call.wrote = call.submitted = call.read = 0
    found = []
    for microseconds in (9, 9, 400, 10, 500, 600, 11):
        call.waited = 1000 * microseconds
        found.append(expected(ctypes.addressof(call)) // 1000)
    assert found == [9, 9, 9, 10, 10, 500, 11]


def test_stats(model: Any) -> None:
    check(model)
    check(model)
    route = only_kernel(model)
    assert route is not None
    session: Any = route.kernel.session
    stats = session.stats
    assert stats["write"] > 0 and stats["submit"] > 0 and stats["wait"] >= 0 and stats["read"] > 0
    assert model.last_inference_duration_ns > 0


def overflowing(shape: tuple[int, ...]) -> bytes:
    """Two convolutions: sums of a pixel's channels that float16 need not hold, and a quarter."""
    builder = ModelBuilder()
    y = builder.input("x", shape)
    options = {"stride_h": 1, "stride_w": 1, "padding": 0, "fused_activation_function": "NONE"}
    for value in (1.0, 0.25 / shape[-1]):
        weights = builder.constant(np.full((shape[-1], 1, 1, shape[-1]), value, np.float32))
        bias = builder.constant(np.zeros(shape[-1], np.float32))
        y = builder.op("CONV_2D", [y, weights, bias], shape, options)
    builder.output(y)
    return builder.build()


@pytest.mark.parametrize("shape", [SHAPE, LARGE])
def test_results_that_are_not_finite(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 overflows: computed again in float32, from the caller's arrays."""
    found: list[Any] = []
    call = CudaSessionBase.call_plain

    def noted(self: CudaSessionBase, *given: Any) -> Any:
        found.append(call(self, *given))
        return found[-1]

    monkeypatch.setattr(CudaSessionBase, "call_plain", noted)
    with litegpu.load(overflowing(shape), "cuda", "auto") as model:
        for value in (8.0, 8.0, 6e4, 5e4, 8.0):
            np.testing.assert_allclose(model(np.full(shape, value, np.float32)), 0.75 * value, rtol=1e-2)
    assert [isinstance(one, list) for one in found] == [True, False, True, True] and found[1] is False


def test_an_error_of_the_device(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check(model)
    check(model)
    route = only_kernel(model)
    assert route is not None
    session: Any = route.kernel.session
    monkeypatch.setattr(session._plain._calls[-1], "all", lambda *_: -700)
    try:
        with pytest.raises(litegpu.LiteGpuError, match=r"the inference failed: .*; the program's kernels are"):
            model(*items(0))
        assert session.device.lost
        with pytest.raises(litegpu.LiteGpuError, match="lost by an earlier error"):
            model(*items(0))
    finally:
        session.device.lost = False


def test_closing_while_others_call() -> None:
    for _ in range(5):
        model = litegpu.load(content(), "cuda")

        def work(number: int, model: Any = model) -> None:
            if number == 0:
                check(model)
                model.close()
                return
            with pytest.raises(litegpu.InvokeError, match="closed"):
                while True:
                    check(model)

        race(work, 5)


@pytest.mark.parametrize("ways", ["model", "interpreters"])
def test_sixteen_threads(ways: str, model: Any) -> None:
    """Every result is compared; one thread fails in between, one sleeps with what it has."""
    delegate = GpuDelegate(backend="cuda")

    def cycle() -> Any:
        one = Interpreter(model_content=content(), experimental_delegates=[delegate])
        one.allocate_tensors()
        places = {d["name"]: d["index"] for d in (*one.get_input_details(), *one.get_output_details())}

        def call(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
            one.set_tensor(places["x"], x)
            one.set_tensor(places["a"], y)
            one.invoke()
            return {name: one.get_tensor(places[name]) for name in ("sum", "abs")}

        return call

    calls = [model if ways == "model" else cycle() for _ in range(16)]

    def work(number: int) -> None:
        for i in range(60):
            check(calls[number], 1000 * number + i)
            if number == 3 and i % 20 == 0:
                with pytest.raises((litegpu.LiteGpuError, ValueError)):
                    calls[number](np.zeros((2, 2), np.float32), np.zeros(3, np.int8))
            if number == 5 and i % 20 == 0:
                time.sleep(0.01)

    race(work)


@pytest.mark.parametrize("shape", [SHAPE, LARGE])
def test_interrupted_anywhere(shape: tuple[int, ...]) -> None:
    """And what was interrupted leaves results of other inferences alone."""
    with litegpu.load(content(shape), "cuda") as model:
        for i in range(3):
            check(model, i, shape)
        before = model(*items(5, shape))
        count = Interruptions()
        count.during(lambda: model(*items(1, shape)))
        assert 10 < count.count < 200
        for place in range(1, count.count):
            one = Interruptions(place)
            try:
                one.during(lambda: model(*items(1, shape)))
            except KeyboardInterrupt:
                pass
            else:
                assert not one.where, f"swallowed at {one.where}"
            check(model, place, shape)
        x, y = items(5, shape)
        assert np.array_equal(before["sum"], x + y)


@pytest.mark.parametrize("shape", [SHAPE, (1, 301, 311, 3)])
def test_a_view_that_was_lent(counted: Counted, shape: tuple[int, ...]) -> None:
    """What lies in the session's own memory already is not copied onto itself."""
    one = Interpreter(model_content=content(shape), experimental_delegates=[GpuDelegate(backend="cuda")])
    one.allocate_tensors()
    places = {d["name"]: d["index"] for d in (*one.get_input_details(), *one.get_output_details())}
    x, y = items(0, shape)
    one.tensor(places["x"])()[...] = x
    one.set_tensor(places["a"], y)
    one.invoke()
    assert np.array_equal(one.get_tensor(places["sum"]), x + y) and counted.calls == 1
    one.close()


def test_kernels_with_other_arithmetic_take_no_plain_arrays() -> None:
    """Inputs of float16 and of whole numbers cross the border in other types."""
    from litegpu.model.types import TensorType

    builder = ModelBuilder()
    x = builder.input("x", (1, 8), TensorType.FLOAT16)
    builder.output(builder.op("CAST", [x], (1, 8), {"in_data_type": 1, "out_data_type": 0}))
    with litegpu.load(builder.build(), "cuda") as model:
        for _ in range(3):
            assert np.array_equal(model(np.arange(8, dtype=np.float16)[None]), np.arange(8, dtype=np.float32)[None])
            with pytest.raises(litegpu.TensorError):
                model(np.full((1, 8), 0.1, np.float32))


def test_inputs_that_several_threads_copy(counted: Counted) -> None:
    """Of no whole number of parts, by several callers at once."""
    shape = (1, 601, 499, 1)
    with litegpu.load(content(shape), "cuda") as model:
        check(model, 0, shape)

        def work(number: int) -> None:
            for i in range(2):
                check(model, 10 * number + i, shape)

        race(work, 3, 600)
    assert counted.calls > counted.others
