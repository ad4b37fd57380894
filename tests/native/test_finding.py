"""The library in C is in the package or compiled, at once or in the background, and nobody needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from litegpu import native


def told(code: str, cache: Path, **environment: str) -> str:
    """What a fresh process prints, with an empty cache of its own."""
    variables = {**os.environ, "LITEGPU_CACHE_DIR": str(cache), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
    return done.stdout.strip()


def test_it_is_compiled_in_the_background(library: native.NativeLibrary, tmp_path: Path) -> None:
    code = """
from litegpu import native
assert native.find() is None
native.prepare()
native.prepare()
assert native._making is not None
native._making.join()
print(native.find().path, native.problem())
"""
    path = told(code, tmp_path)
    assert Path(path).parent == tmp_path / "native" and Path(path).exists()
    assert told("from litegpu import native; print(native.find().path)", tmp_path, CC="none") == path


def test_without_a_compiler(library: native.NativeLibrary, tmp_path: Path) -> None:
    code = """
from litegpu import native
native.prepare()
native._making.join()
assert native.find() is None
print(native.problem())
native.prepare()
assert not native._making.is_alive()
"""
    assert told(code, tmp_path, CC="none").startswith("no C compiler: CC names 'none'")


def test_it_can_be_left_out(library: native.NativeLibrary, tmp_path: Path) -> None:
    code = "from litegpu import native; native.prepare(); print(native.build(), native._making, native.problem())"
    assert told(code, library.path.parents[1], LITEGPU_NATIVE="0") == "None None LITEGPU_NATIVE=0"


def test_the_command(library: native.NativeLibrary, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "litegpu.native"]
    variables = {**os.environ, "LITEGPU_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    assert Path(done.stdout.strip()).exists()
    done = subprocess.run(
        command, capture_output=True, text=True, env={**variables, "LITEGPU_NATIVE": "0"}, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (1, "no native library: LITEGPU_NATIVE=0")


def test_another_version(library: native.NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that knows another number of Python's functions is none."""
    monkeypatch.setattr(native.loading, "_PYTHON", ("PyEval_SaveThread",))
    with pytest.raises(OSError, match="of another version of litegpu"):
        native.NativeLibrary(library.path)


def test_a_python_without_the_lock_goes_without(
    library: native.NativeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import sys
sys._is_gil_enabled = lambda: False
from litegpu import native
native.prepare()
print(native.build(), native.find(), native._making, native.problem())
"""
    expected = "None None None it is for Linux, and for a Python with one lock for all threads"
    assert told(code, library.path.parents[1]) == expected
