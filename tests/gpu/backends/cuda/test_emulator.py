"""The emulated GPU has memory that ends where it ends."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="the emulated GPU needs g++ on Linux"
)

#: Buffers of 100 bytes and of 4096, of which the first leaves 12 to the next multiple of 16.
PROGRAM = """
import ctypes, faulthandler
from cuda_emulator import emulator
emulator.install()
driver = emulator.driver
driver.cuMemAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
driver.cuMemFree.argtypes = driver.cuCtxPushCurrent.argtypes = [ctypes.c_void_p]
context, a, b = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and driver.cuCtxPushCurrent(context) == 0
assert driver.cuMemAlloc(ctypes.byref(a), 100) == 0 and driver.cuMemAlloc(ctypes.byref(b), 4096) == 0
a, b = a.value, b.value
assert a % 16 == b % 16 == 0
ctypes.memset(a, 0, 100)
ctypes.memset(b, 0, 4096)
{}
assert driver.cuMemFree(a) == 0 and driver.cuMemFree(b) == 0 and driver.cuMemFree(b) == 1
"""

WRONG = {
    "reads behind": ("ctypes.string_at(a + 112, 1)", "touches byte 112 of a buffer of 100"),
    "reads right behind": ("ctypes.string_at(b, 4097)", "touches byte 4096 of a buffer of 4096"),
    "reads in front": ("ctypes.string_at(b - 1, 1)", "touches 1 bytes before a buffer of 4096"),
    "writes between": ("ctypes.memset(a + 100, 0, 1)", "written beside a buffer of 100 bytes"),
    "writes in front": ("ctypes.memset(a - 1, 0, 1)", "written beside a buffer of 100 bytes"),
    "reads what was freed": ("driver.cuMemFree(a); ctypes.string_at(a, 1)", ""),
}


def run(statement: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement)],
        cwd=Path(__file__).resolve().parents[4], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


def test_memory_may_be_used_and_freed() -> None:
    done = run("")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", WRONG)
def test_what_lies_beside_ends_the_process(name: str) -> None:
    statement, message = WRONG[name]
    done = run(statement)
    assert done.returncode < 0, done.stderr
    assert message in done.stderr
