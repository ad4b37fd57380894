"""The library of this package's C files, loaded and told of Python."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from litegpu import fork
from litegpu.native import places
from litegpu.native.compiling import NATIVE

#: What native.h calls of Python, in its order; `none` follows.
_PYTHON = (
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyObject_GetBuffer", "PyBuffer_Release", "PyErr_Clear",
    "PyLong_FromLong", "PyLong_FromVoidPtr", "PyLong_AsVoidPtr", "PyCFunction_NewEx", "Py_DecRef",
)  # fmt: skip
#: What litegpu_counts() counts.
_COUNTS = ("asked", "stolen", "slept", "rested", "lent")


class NativeLibrary:
    """native/*.c. Its functions by their names without "litegpu_", with types; they are called with Python's lock held,
    and let go of it themselves."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._library = ctypes.PyDLL(str(path))
        self._start = self.function("start", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._counts = self.function("counts", None, ctypes.c_void_p)
        #: Whether copies can make float16 of float32 on their way.
        self.rounds = bool(self.function("rounds", ctypes.c_int)())
        #: target, source or None, bytes of the source, threads, None or the address of cuMemcpyHtoDAsync, device
        #: address, stream; whether float16 is made of float32. -1: some of that is infinite.
        self.copy = self.function(
            "copy", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
            ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int,
        )  # fmt: skip
        self._work = self.function("work", None, ctypes.c_int64, ctypes.c_int, ctypes.c_int)
        self._begin()
        fork.follow(self)

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """One of the library's."""
        function = getattr(self._library, f"litegpu_{name}")
        function.restype, function.argtypes = result, arguments
        return function  # type: ignore[no-any-return]

    def calls(self, call: ctypes.Structure) -> tuple[Callable[..., int], Callable[..., int]]:
        """The two functions of litegpu_call() for what call.c calls a call, which has to outlive them. Raises OSError
        if it is declared otherwise there."""
        if self.function("call_size", ctypes.c_size_t)() != ctypes.sizeof(call):
            raise OSError(f"{self.path} is of another version of litegpu: remove it")
        made = self.function("call", ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
        return made(ctypes.addressof(call), 1), made(ctypes.addressof(call), 0)

    def work(self, nanoseconds: int, keeps: bool = False, lends: bool = False) -> None:
        """Wait awake for so long, without Python's lock; `keeps`: with it where that is quicker, as a short call does;
        `lends`: another thread of this kind may have it meanwhile."""
        self._work(nanoseconds, keeps, lends)

    def counts(self) -> dict[str, int]:
        """How often threads asked Python for its lock after they had waited for the turn, did so as one turn lasted
        long, fell asleep, let others in, and lent the turn, since the process began."""
        found = (ctypes.c_int64 * len(_COUNTS))()
        self._counts(found)
        return dict(zip(_COUNTS, found, strict=True))

    def _begin(self) -> None:
        table = (ctypes.c_void_p * (len(_PYTHON) + 1))()
        for i, name in enumerate(_PYTHON):
            table[i] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        table[len(_PYTHON)] = id(None)
        if self._start(table, ctypes.sizeof(table), processors()) != 0:
            raise OSError(f"{self.path} is of another version of litegpu: remove it")

    def _forked(self) -> None:
        self._begin()


def usable() -> bool:
    """Whether there can be a library here: it is for Linux, and for a Python with one lock for all threads."""
    return sys.platform.startswith("linux") and getattr(sys, "_is_gil_enabled", lambda: True)()


def opened(*, build: bool) -> NativeLibrary | None:
    """See places.opened()."""
    return places.opened(NATIVE, NativeLibrary, build=build) if usable() else None


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
