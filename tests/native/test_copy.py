"""Large copies by native threads: every byte, and each byte goes on once, after it was copied."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest
from racing import race

from litegpu import host_copy, native
from litegpu.host_copy import Onward, copy_bytes, copy_on

MB = 1 << 20
SIZES = (4 * MB, 4 * MB + 1, 5 * MB - 4097, 13 * MB + 12345)
SEND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
FORKS = hasattr(os, "fork")


class Device:
    """Takes what is sent, which must be there already."""

    def __init__(self, size: int, fails_at: int = -1) -> None:
        self.memory = np.zeros(size, np.uint8)
        self.times = np.zeros(size, np.uint8)
        self.calls, self.fails_at = 0, fails_at
        self.threads: set[int] = set()
        self._function = SEND(self._send)
        self.onward = Onward(self._function, 1 << 20, 77)

    def _send(self, place: int, address: int, size: int, stream: int) -> int:
        self.calls += 1
        self.threads.add(threading.get_ident())
        if self.calls == self.fails_at:
            return 700
        at = place - (1 << 20)
        self.memory[at : at + size] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self.times[at : at + size] += 1
        return 0 if stream == 77 else 1


def source_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8)


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copy, "_processors", lambda: 8)
    if request.param == "native":
        request.getfixturevalue("library")
    else:
        monkeypatch.setattr(native, "find", lambda: None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_is_copied_and_no_other(size: int) -> None:
    for seed in range(5):
        source, target = source_of(size, seed), np.zeros(size + 64, np.uint8)
        copy_bytes(target[31 : 31 + size], source)
        np.testing.assert_array_equal(target[31 : 31 + size], source)
        assert not target[:31].any() and not target[31 + size :].any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", SIZES)
def test_what_is_copied_goes_on_once_and_from_this_thread(size: int) -> None:
    for seed in range(5):
        source, target, device = source_of(size, seed), np.zeros(size, np.uint8), Device(size)
        assert copy_on(target, source, device.onward) == 0
        np.testing.assert_array_equal(device.memory, source)
        np.testing.assert_array_equal(target, source)
        assert (device.times == 1).all() and device.threads == {threading.get_ident()}


@pytest.mark.parametrize("count", [1, 7, 8, 4096, 4097 + 31, MB + 5, 3 * MB + 1234])
def test_numbers_that_are_rounded_on_their_way(
    library: native.NativeLibrary, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """As NumPy rounds them, whatever they are; nothing behind them is touched."""
    if not library.rounds:
        pytest.skip("this processor does not round to float16")
    monkeypatch.setattr(host_copy, "_processors", lambda: 8)
    words = np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)
    source = words.view(np.float32)
    source[::3] = np.float32(1.0) + np.random.default_rng(0).random(source[::3].shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = source.astype(np.float16)
    memory = np.full(2 * count + 4096 + 64, 7, np.uint8)
    for first in (-memory.ctypes.data % 64, 2):  # whole lines, and not
        memory[...] = 7
        target, device = memory[first : first + 2 * count], Device(2 * count)
        assert copy_on(target, source.view(np.uint8), device.onward, rounded=True) == 0
        found = target.view(np.float16)
        np.testing.assert_array_equal(found, expected)
        assert np.array_equal(np.signbit(found), np.signbit(expected)) and (device.memory == target).all()
        assert (device.times == 1).all() and (memory[:first] == 7).all() and (memory[first + 2 * count :] == 7).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("fails_at", [1, 2])
def test_after_an_error_nothing_goes_on(fails_at: int) -> None:
    size = 8 * MB
    for seed in range(5):
        source, target, device = source_of(size, seed), np.zeros(size, np.uint8), Device(size, fails_at)
        if copy_on(target, source, device.onward) == 700:
            assert device.calls == fails_at
        else:  # all went on before
            assert device.calls < fails_at and (device.memory == source).all()


@pytest.mark.usefixtures("way")
def test_many_copies_at_once() -> None:
    def work(seed: int) -> None:
        source, target = source_of(5 * MB + seed, seed), np.zeros(5 * MB + seed, np.uint8)
        for _ in range(6):
            target[...] = 0
            device = Device(target.size)
            copy_on(target, source, device.onward)
            assert np.array_equal(target, source) and np.array_equal(device.memory, source)

    race(work, 8)


@pytest.mark.usefixtures("way")
@pytest.mark.skipif(not FORKS, reason="no fork here")
def test_a_child_of_a_fork_copies_with_threads_of_its_own() -> None:
    source, target = source_of(6 * MB), np.zeros(6 * MB, np.uint8)
    copy_bytes(target, source)
    child = os.fork()
    if not child:
        again = np.zeros(6 * MB, np.uint8)
        copy_bytes(again, source)
        os._exit(0 if np.array_equal(again, source) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_pages_are_made_present_and_no_others(library: native.NativeLibrary) -> None:
    memory = np.full(9 * MB + 300, 7, np.uint8)
    library.copy(memory.ctypes.data + 4096, None, 8 * MB + 100, 8, None, 0, None, False)
    assert (memory[:4096] == 7).all() and (memory[4096 + 8 * MB + 100 :] == 7).all()
    assert not memory[4096 : 4096 + 8 * MB + 100 : 4096].any()
