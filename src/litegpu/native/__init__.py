"""What is done in C, where there is a compiler or a wheel that was made with one; without it Python does the same."""

from __future__ import annotations

import logging
import os
import threading

from litegpu import fork
from litegpu.native.compiling import CompilerError
from litegpu.native.loading import NativeLibrary, opened, processors, usable

__all__ = ["VARIABLE", "NativeLibrary", "build", "find", "prepare", "problem", "processors"]

#: "0": do without the library.
VARIABLE = "LITEGPU_NATIVE"

log = logging.getLogger("litegpu")

_lock = threading.Lock()
_library: NativeLibrary | None = None
_looked = False
_problem = ""
_making: threading.Thread | None = None


@fork.in_child
def _forked() -> None:
    global _lock, _making
    _lock, _making = threading.Lock(), None


def find() -> NativeLibrary | None:
    """The library, if it is there. Looks once; prepare() and build() may bring it later."""
    global _looked
    if _library is None and not _looked:
        with _lock:
            if not _looked:
                _open(build=False)
                _looked = True
    return _library


def build() -> NativeLibrary | None:
    """The library, compiled if it is not there. None where problem() says why."""
    with _lock:
        _open(build=True)
    return _library


def prepare() -> None:
    """Have the library some time, for what is opened then, without waiting: it is compiled in a thread, if there is a
    compiler. Says nothing if that fails: it is a matter of speed."""
    global _making
    if find() is None and _making is None and not _problem and usable() and _is_wanted():
        _making = threading.Thread(target=build, name="litegpu compiles", daemon=True)
        _making.start()


def problem() -> str:
    """Why there is no library; empty if there is one, or nobody has tried to make it."""
    if not _is_wanted():
        return f"{VARIABLE}={os.environ[VARIABLE]}"
    return _problem if usable() else "it is for Linux, and for a Python with one lock for all threads"


def _is_wanted() -> bool:
    return os.environ.get(VARIABLE, "1") not in ("", "0")


def _open(*, build: bool) -> None:
    """With the lock held."""
    global _library, _problem
    if _library is not None or not _is_wanted():
        return
    try:
        _library, _problem = opened(build=build), ""
    except (CompilerError, OSError) as error:
        log.debug("The native library is not there: %s", error)
        _problem = str(error) if build else ""
