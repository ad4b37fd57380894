"""Large inputs on their way to the device: in pieces, and where they are if they come again."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from racing import race

import litegpu
from litegpu import fork, host_copy, native
from litegpu.model.builder import ModelBuilder
from litegpu.stream import only_kernel

pytestmark = pytest.mark.cuda

FAILS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(lambda *_: 1)
SHAPE = (1, 1024, 1100, 1)  # 4.3 MiB, no multiple of a page


@pytest.fixture(params=["native", "python"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Copies by the native library, and without it."""
    if request.param == "python":
        monkeypatch.setattr(native, "find", lambda: None)
        return None
    found = native.build()
    if found is None:
        pytest.skip(native.problem())
    return found


@pytest.fixture
def model() -> Iterator[litegpu.LoadedModel]:
    """The maximum of a row of x, plus 1."""
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    axes = builder.constant(np.array([2], np.int32))
    y = builder.op("REDUCE_MAX", [x, axes], (1, 1024, 1), {"keep_dims": False})
    builder.output(builder.op("ADD", [y, builder.constant(np.ones(1, np.float32))], (1, 1024, 1)))
    try:
        opened = litegpu.load(builder.build(), "cuda")
    except litegpu.DeviceError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def is_right(model: litegpu.LoadedModel, x: np.ndarray) -> bool:
    return np.array_equal(model(x), x.max(2) + 1)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are registered before the call that does so goes on."""
    from litegpu.gpu.backends.cuda import registered

    monkeypatch.setattr(registered, "leave", lambda work: work())


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sizes of what is copied piece by piece, by native calls too."""
    from litegpu.gpu.backends.cuda import inputs
    from litegpu.gpu.backends.cuda.native_call import NativeCall

    copied: list[Any] = []
    copy = host_copy.copy_on

    def noted(target: np.ndarray, source: np.ndarray, onward: host_copy.Onward, **how: bool) -> int:
        copied.append(source.size)
        return copy(target, source, onward, **how)

    monkeypatch.setattr(inputs, "copy_on", noted)
    targets = NativeCall.targets

    def begun(self: NativeCall) -> Any:
        copied.extend(self._arrays[0][i].bytes for i in self.ways.sent)
        return targets(self)

    monkeypatch.setattr(NativeCall, "targets", begun)
    return copied


def registered(model: litegpu.LoadedModel) -> Any:
    return model.delegate.open_device()._pools.registered  # type: ignore[union-attr]


@pytest.mark.parametrize("piece", [4096, 1 << 20, 1 << 30])
def test_pieces(model: litegpu.LoadedModel, pieces: list[Any], piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copy, "_LEAST_PIECE", piece)
    monkeypatch.setattr(host_copy, "_MOST_PIECES", 1 << 30)
    for seed in range(3):
        assert is_right(model, numbers(seed))
    assert len(pieces) == 3


def test_a_piece_that_fails_fails_a_native_call(model: litegpu.LoadedModel, library: Any) -> None:
    if library is None:
        pytest.skip("there are none without the library")
    for seed in range(2):
        assert is_right(model, numbers(seed))
    route = only_kernel(model)
    assert route is not None
    session: Any = route.kernel.session
    call = session._plain._calls[-1]
    assert call.ways.sent == (0,)
    copy_in = call._call.copy_in
    for seed in range(2):
        call._call.copy_in = ctypes.cast(FAILS, ctypes.c_void_p).value
        with pytest.raises(litegpu.DeviceError, match="the inference failed"):
            model(numbers(2))
        call._call.copy_in = copy_in
        assert is_right(model, numbers(3 + seed)) and session._plain._calls[-1] is call


def test_a_piece_that_fails_fails_the_call(model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends.cuda.inputs import Inputs

    with monkeypatch.context() as patch:
        init = Inputs.send

        def broken(self: Inputs, index: int, array: np.ndarray) -> None:
            patch.setattr(self, "_copy_in", FAILS)
            init(self, index, array)

        patch.setattr(Inputs, "send", broken)
        with pytest.raises(litegpu.DeviceError, match="copy of input"):  # the first one goes this way in any case
            model(numbers(1))
    assert is_right(model, numbers(2))


@pytest.fixture
def collector_alone() -> Iterator[None]:
    """Nothing is called as garbage is collected: what JAX has there, if another test has imported it, swallows what is
    raised in it."""
    before = gc.callbacks[:]
    gc.callbacks[:] = []
    yield
    gc.callbacks[:] = before


@pytest.mark.usefixtures("collector_alone")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_interrupted_anywhere_the_next_call_is_right(model: litegpu.LoadedModel) -> None:
    """A call is broken off after so long, in the middle of its copies too; after that nothing of it is left."""

    class Enough(BaseException):
        pass

    def enough(*_: object) -> None:
        raise Enough

    assert is_right(model, numbers(0))
    before, broken = signal.signal(signal.SIGALRM, enough), 0
    try:
        for seed in range(8):
            x = numbers(seed)
            try:  # around the timer as well, which a busy machine may be late to return from
                signal.setitimer(signal.ITIMER_REAL, 3e-4 * (seed + 1))
                model(x)
                time.sleep(1)
            except Enough:
                broken += 1
            x[...] = np.nan  # which nobody reads any more
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert broken == 8
    for seed in range(2):
        assert is_right(model, numbers(20 + seed))


@pytest.mark.usefixtures("at_once")
def test_arrays_that_come_again_are_read_where_they_are(model: litegpu.LoadedModel, pieces: list[Any]) -> None:
    x, found = numbers(0), registered(model)
    before = found.held
    for i in range(8):
        x[0, i, 0, 0] = 100 + i
        assert is_right(model, x)
    assert len(pieces) == 3 and found.held == before + x.nbytes
    assert is_right(model, numbers(5)), "another one is copied"
    assert is_right(model, x[:, ::-1]), "and so is what is no dense array"
    view = x.reshape(-1)[:].reshape(SHAPE)
    count = len(pieces)
    assert is_right(model, view) and len(pieces) == count
    del x, view
    gc.collect()
    assert found.held == before, "memory is let go of before it is freed"


@pytest.mark.usefixtures("at_once", "collector_alone")
@pytest.mark.parametrize("place", ["before", "after"])
def test_ctrl_c_as_an_array_is_freed(model: litegpu.LoadedModel, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Its memory does not stay registered, and the interrupt arrives, which weak references swallow."""
    from cuda.bindings import driver

    x, found = numbers(0), registered(model)
    before = found.held
    for _ in range(5):
        assert is_right(model, x)
    assert found.held == before + x.nbytes
    unregister, calls = driver.cuMemHostUnregister, []

    def interrupted(address: int) -> Any:
        calls.append(address)
        result = unregister(address) if place == "after" or len(calls) > 1 else None
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(driver, "cuMemHostUnregister", interrupted)
    address = x.ctypes.data
    with pytest.raises(KeyboardInterrupt):
        del x
        gc.collect()
        time.sleep(10)
    assert calls == [address, address] and found.held == before


@pytest.mark.usefixtures("at_once")
def test_what_was_freed_without_a_word_is_not_taken_for_another(model: litegpu.LoadedModel) -> None:
    """As if Ctrl-C had come before the weak reference's function began."""
    x, found = numbers(0), registered(model)
    before = found.held
    for _ in range(5):
        assert is_right(model, x)
    owner = found._seen[id(x)]
    other = numbers(1)
    del found._seen[owner.key]
    owner.key, owner.root = id(other), lambda: None
    found._seen[id(other)] = owner  # which has the place of the one before, and its number
    assert not found.has(other) and is_right(model, other)
    assert not found.known(other) and found.held == before


def test_arrays_are_registered_in_the_background(
    model: litegpu.LoadedModel, pieces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls go on meanwhile; an array that nobody has any more is let go of when that is done."""
    from litegpu.gpu.backends.cuda import registered as module

    x, found = numbers(0), registered(model)
    jobs: list[Any] = []
    before = found.held
    monkeypatch.setattr(module, "leave", jobs.append)
    for _ in range(6):
        assert is_right(model, x)
    assert len(pieces) == 6 and len(jobs) == 1 and found.held == before + x.nbytes
    thread = threading.Thread(target=jobs.pop())
    thread.start()
    thread.join()
    assert is_right(model, x) and len(pieces) == 6
    y = numbers(1)
    for _ in range(4):
        assert is_right(model, y)
    job = jobs.pop()
    del y
    gc.collect()
    assert found.held == before + 2 * x.nbytes, "the job has it"
    job()
    del job
    gc.collect()
    assert found.held == before + x.nbytes
    z = numbers(2)
    for _ in range(4):
        assert is_right(model, z)
    monkeypatch.setattr(fork, "_count", fork.count() + 1)
    jobs.pop()()
    assert is_right(model, z) and found.held == before, "what was registered before the fork, and meanwhile"


def test_many_threads_have_their_own_results(model: litegpu.LoadedModel, library: Any) -> None:
    """Each copies into its own session's memory, with what helpers there are; arrays that come again in between."""
    given = [numbers(seed) for seed in range(4)]
    expected = [x.max(2) + 1 for x in given]

    def work(number: int) -> None:
        for i in range(3):
            place = (number + i) % 4
            x = given[place] if i % 2 else given[place].copy()
            assert np.array_equal(model(x), expected[place])

    race(work, 4)
    assert model._slots is not None and len(model._slots) > 1
    if library is not None:
        kernels = [slot._kernel for slot in model._slots._slots]  # type: ignore[attr-defined]
        assert sum(kernel.session._plain is not None for kernel in kernels) > 1


def test_what_others_own_is_copied(model: litegpu.LoadedModel, pieces: list[Any]) -> None:
    x = np.frombuffer(bytearray(numbers(3).tobytes()), np.float32).reshape(SHAPE)
    for _ in range(6):
        assert is_right(model, x)
    assert len(pieces) == 6


@pytest.mark.usefixtures("at_once")
def test_nothing_stays_registered_after_a_fork(
    model: litegpu.LoadedModel, pieces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, found = numbers(0), registered(model)
    before = found.held
    for _ in range(5):
        assert is_right(model, x)
    monkeypatch.setattr(fork, "_count", fork.count() + 1)
    assert is_right(model, x) and found.held == before


def test_arrays_that_come_once_are_not_remembered_for_long(model: litegpu.LoadedModel) -> None:
    found = registered(model)
    kept = [np.zeros(16) for _ in range(200)]
    assert not any(found.known(array) for array in kept)
    assert len(found._seen) <= 64
    del kept[:]
    gc.collect()
    assert not found._seen


def test_an_interpreter_still_has_what_is_set(model: litegpu.LoadedModel) -> None:
    one = model.interpreter
    index = one.get_input_details()[0]["index"]
    for seed in range(3):
        assert is_right(model, numbers(seed))
        one.set_tensor(index, numbers(seed + 1))
        for _ in range(2):
            one.invoke()
            found = one.get_tensor(one.get_output_details()[0]["index"])
            np.testing.assert_array_equal(found, numbers(seed + 1).max(2) + 1)
