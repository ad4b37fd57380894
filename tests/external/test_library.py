"""The library is in the package or compiled, tried with the installed runtime, and says what is wrong."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import litegpu
from litegpu.external import layout, shared_library
from litegpu.native import compiling


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "external"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_it_is_compiled_once(path: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(path).exists()
    with pytest.raises(litegpu.DelegateError, match="is not there"):
        shared_library.find(build=False)
    first = shared_library.find(build=True)
    assert first.path == cache / compiling.EXTERNAL.file_name()
    assert cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(compiling.Sources, "compile", lambda *_: 1 / 0)
    assert shared_library.find(build=True).path == shared_library.find(build=False).path == first.path


def test_by_several_at_once(path: str, cache: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(shared_library.find(build=True).path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / compiling.EXTERNAL.file_name()] * 4
    assert [p.name for p in cache.iterdir()] == [compiling.EXTERNAL.file_name()]


def test_that_of_the_package_comes_first(
    path: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package" / "external"
    package.mkdir(parents=True)
    shutil.copy(compiling.EXTERNAL.folder / "host.c", package)
    shutil.copy(path, package / compiling.EXTERNAL.file_name())
    monkeypatch.setattr(compiling, "EXTERNAL", compiling.Sources(package, "host"))
    assert shared_library.find(build=False).path == package / compiling.EXTERNAL.file_name()
    with open(package / "host.c", "a") as file:  # a library of another source is none
        file.write("\n")
    with pytest.raises(litegpu.DelegateError, match="is not there"):
        shared_library.find(build=False)


def test_one_that_cannot_be_loaded_is_compiled_anew(
    path: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wheel's on a system with another C library."""
    package = tmp_path / "package" / "external"
    package.mkdir(parents=True)
    shutil.copy(compiling.EXTERNAL.folder / "host.c", package)
    monkeypatch.setattr(compiling, "EXTERNAL", compiling.Sources(package, "host"))
    (package / compiling.EXTERNAL.file_name()).write_bytes(b"no library")
    assert shared_library.find(build=True).path == cache / compiling.EXTERNAL.file_name()
    shutil.rmtree(cache)
    with pytest.raises(litegpu.DelegateError, match=r"is not there: .*host-"):
        shared_library.find(build=False)


def test_without_a_compiler(cache: Path, no_compiler: None) -> None:
    with pytest.raises(litegpu.DelegateError, match="cannot be made: no C compiler: neither cc nor gcc nor clang"):
        shared_library.find(build=True)


def test_a_compiler_that_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m32")
    with pytest.raises(litegpu.DelegateError, match="CC names 'no-such-compiler', which is not there"):
        shared_library.find(build=True)
    monkeypatch.setenv("CC", f"{sys.executable} -c 'import sys; sys.exit(\"no C today\")'")
    with pytest.raises(litegpu.DelegateError, match="failed: no C today"):
        shared_library.find(build=True)
    assert list(cache.iterdir()) == []


def test_a_cache_that_others_can_write(path: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is loaded from there; a folder of the process's own will do."""
    cache.mkdir(parents=True)
    shutil.copy(path, cache / compiling.EXTERNAL.file_name())
    cache.chmod(0o777)
    found = shared_library.find(build=True).path
    assert found.parent != cache and found.exists()
    assert "can be written by others" in caplog.text


def test_the_public_function(path: str) -> None:
    assert litegpu.external_delegate_path() == litegpu.external_delegate_path(build=False) == path
    with pytest.raises(litegpu.LiteGpuError):
        litegpu.external_delegate_path(1, 2)  # type: ignore[arg-type, call-arg]


def test_without_litegpu(path: str) -> None:
    """As in the official C++ tools."""
    code = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
report = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda text: print(text.decode()))
library.tflite_plugin_create_delegate.restype = ctypes.c_void_p
assert library.tflite_plugin_create_delegate(None, None, 0, report) is None
assert library.tflite_plugin_create_delegate(None, None, 0, None) is None
library.tflite_plugin_destroy_delegate(None)
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("has called litegpu.external_delegate_path()")


# ------------------------------------------------------------------------------------------- the runtime's structures


def trial_of(path: str, tmp_path: Path, *changes: tuple[str, str]) -> shared_library.Library:
    """A library whose source was changed."""
    source = tmp_path / "host.c"
    text = (compiling.EXTERNAL.folder / "host.c").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source.write_text(text)
    target = tmp_path / "changed.so"
    subprocess.run(
        [*compiling.compiler(), "-std=c11", "-fPIC", "-shared", str(source), "-o", str(target)], check=True
    )  # fmt: skip
    return shared_library.Library(target)


def test_what_was_tried_is_not_tried_again(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shared_library.Library(Path(path))
    layout.require_checked(own, tmp_path)
    (note,) = tmp_path.iterdir()
    assert note.name.startswith("checked-")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: 1 / 0)
    layout.require_checked(own, tmp_path)
    monkeypatch.setattr(layout, "_package", lambda: tmp_path)  # another runtime
    with pytest.raises(ZeroDivisionError):
        layout.require_checked(own, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ("  size_t tensors_size;\n", "  size_t new_field;\n  size_t tensors_size;\n"),
        ("  int_array *dims;\n", "  int_array *dims;\n  void *new_field;\n"),
        ("  int_array *inputs, *outputs, *intermediates", "  int_array *outputs, *inputs, *intermediates"),
        ("  int recommended_num_threads;\n", "  void *new_field;\n  int recommended_num_threads;\n"),
        ("  void *(*GetScratchBuffer)(struct context *, int);\n", ""),
        ("  const char *(*profiling_string)(const struct context *, const node *);\n", ""),
        (
            "  int64_t flags;\n  void *opaque_delegate_builder;\n",
            "  void *opaque_delegate_builder;\n  int64_t flags;\n",
        ),
    ],
)
def test_another_structure_is_noticed(path: str, tmp_path: Path, change: tuple[str, str]) -> None:
    """Whatever the trial does then, a crash included, is an error here, and nothing is kept."""
    changed = trial_of(path, tmp_path, change)
    with pytest.raises(litegpu.DelegateError, match=r"is not as litegpu .* knows it"):
        layout.require_checked(changed, tmp_path / "keep")
    assert not (tmp_path / "keep").exists()


def test_without_a_python_to_start(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(litegpu.DelegateError, match="could not be tried"):
        layout.require_checked(shared_library.Library(Path(path)), None)


def test_a_function_of_nobody_knows_whom() -> None:
    with pytest.raises(litegpu.DelegateError, match="not known"):
        layout.require_known(8)
    libc = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert libc is not None
    with pytest.raises(litegpu.DelegateError, match=r"is not ai-edge-litert's"):
        layout.require_known(libc)


def test_the_trial_by_itself(path: str) -> None:
    """In this process the library serves already."""
    done: Any = subprocess.run(
        [sys.executable, "-c", "import sys; from litegpu.external.trial import main; main(sys.argv[1])", path],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
