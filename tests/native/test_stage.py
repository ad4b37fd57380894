"""Copies past the caches: every byte, and none beside them, on processors of all kinds."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from litegpu import native
from litegpu.native import compiling


@pytest.fixture(scope="module", params=["this processor", "an older one"])
def stage(
    request: pytest.FixtureRequest, library: native.NativeLibrary, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    """stage.c alone; `library`: there is a compiler."""
    older = ["-D__builtin_cpu_supports(x)=0"] if request.param == "an older one" else []
    target = tmp_path_factory.mktemp("stage") / "stage.so"
    source = Path(native.__file__).parent / "stage.c"
    subprocess.run(
        [*compiling.compiler(), "-O2", "-fPIC", "-shared", *older, str(source), "-o", str(target)], check=True
    )
    found = ctypes.CDLL(str(target))
    for function in (found.litegpu_stage, found.litegpu_stage_rounded):
        function.restype, function.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return found


@pytest.mark.parametrize("size", [0, 1, 100, 16 << 10, (16 << 10) + 1, 123_457])
@pytest.mark.parametrize("at", [0, 1, 37, 63])
def test_bytes(stage: ctypes.CDLL, size: int, at: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size + 5, np.uint8)[5:]
    memory = np.full(size + 256, 7, np.uint8)
    first = -memory.ctypes.data % 64 + at
    stage.litegpu_stage(memory[first:].ctypes.data, source.ctypes.data, size)
    np.testing.assert_array_equal(memory[first : first + size], source)
    assert (memory[:first] == 7).all() and (memory[first + size :] == 7).all()


@pytest.mark.parametrize("count", [1, 37, 4096, 4099, 40_001])
@pytest.mark.parametrize("at", [0, 1, 31])
def test_numbers(stage: ctypes.CDLL, library: native.NativeLibrary, count: int, at: int) -> None:
    if not library.rounds:
        pytest.skip("this processor does not round to float16")
    source = np.random.default_rng(count).normal(size=count + 1).astype(np.float32)[1:]
    memory = np.full(count + 128, 7, np.float16)
    first = -memory.ctypes.data % 64 // 2 + at
    assert not stage.litegpu_stage_rounded(memory[first:].ctypes.data, source.ctypes.data, source.nbytes)
    np.testing.assert_array_equal(memory[first : first + count], source.astype(np.float16))
    assert (memory[:first] == 7).all() and (memory[first + count :] == 7).all()


@pytest.mark.parametrize("count", [1, 8, 4099, 40_001])
def test_what_becomes_infinite_is_told(stage: ctypes.CDLL, library: native.NativeLibrary, count: int) -> None:
    if not library.rounds:
        pytest.skip("this processor does not round to float16")
    memory = np.zeros(count + 128, np.float16)
    dice = np.random.default_rng(count)
    just, large = np.nextafter(np.float32(65520), np.float32(0)), np.float32(65520)
    for value, told in ((just, 0), (-just, 0), (np.nan, 0), (large, 1), (-large, 1), (np.inf, 1), (-1e30, 1)):
        for place in {0, count - 1, int(dice.integers(count)), int(dice.integers(count))}:
            source = np.zeros(count, np.float32)
            source[place] = value
            found = stage.litegpu_stage_rounded(memory[1:].ctypes.data, source.ctypes.data, source.nbytes)
            assert bool(found) == bool(told) == np.isinf(memory[1 : 1 + count]).any()
