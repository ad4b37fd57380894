"""The shared library: found in the package, or compiled into the user's cache; loaded, and told of Python."""

from __future__ import annotations

import atexit
import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.background import in_finalizer
from litegpu.errors import DelegateError
from litegpu.native import compiling, places

_ABSENT = "the library for the official runtime is not there"


class ToldTensor(ctypes.Structure):
    """As host.c tells it."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("name", ctypes.c_void_p), ("shape", ctypes.POINTER(ctypes.c_int)),
        ("bytes", ctypes.c_size_t), ("rank", ctypes.c_int), ("type", ctypes.c_int),
        ("allocation", ctypes.c_int), ("variable", ctypes.c_int),
    )  # fmt: skip


class ToldNode(ctypes.Structure):
    """As host.c tells it."""

    _fields_ = (
        ("inputs", ctypes.POINTER(ctypes.c_int)), ("outputs", ctypes.POINTER(ctypes.c_int)),
        ("custom", ctypes.c_char_p), ("inputs_count", ctypes.c_int), ("outputs_count", ctypes.c_int),
        ("code", ctypes.c_int), ("delegated", ctypes.c_int),
    )  # fmt: skip


class ToldSubset(ctypes.Structure):
    """As host.c tells it."""

    _fields_ = (
        ("nodes", ctypes.POINTER(ctypes.c_int)), ("inputs", ctypes.POINTER(ctypes.c_int)),
        ("outputs", ctypes.POINTER(ctypes.c_int)), ("nodes_count", ctypes.c_int),
        ("inputs_count", ctypes.c_int), ("outputs_count", ctypes.c_int),
    )  # fmt: skip


class Creation(ctypes.Structure):
    """The arguments of tflite_plugin_create_delegate()."""

    _fields_ = (
        ("keys", ctypes.POINTER(ctypes.c_char_p)), ("values", ctypes.POINTER(ctypes.c_char_p)),
        ("count", ctypes.c_size_t),
    )  # fmt: skip


class Preparation(ctypes.Structure):
    """A graph that a delegate is to look at: addresses of the runtime's context and of the delegate."""

    _fields_ = (("context", ctypes.c_void_p), ("delegate", ctypes.c_void_p))


#: What host.c calls of Python, in its order; `none`, `create` and `finalizing` follow.
_PYTHON = (
    "PyGILState_Ensure", "PyGILState_Release", "PyObject_CallNoArgs", "PyObject_CallOneArg", "PyLong_FromVoidPtr",
    "PyUnicode_AsUTF8", "PyCallable_Check", "Py_IncRef", "Py_DecRef", "PyErr_Fetch", "PyErr_Restore",
    "Py_AddPendingCall",
)  # fmt: skip


class Library:
    """host.c, loaded. Its functions by their names without "litegpu_", with types; they keep Python's lock."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._library = ctypes.PyDLL(str(path))
        address, number, numbers, thing = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.py_object
        self.runtime = self._function("runtime", address, address)
        self.tensors_count = self._function("tensors_count", ctypes.c_size_t, address)
        self.threads = self._function("threads", number, address)
        self.tensor = self._function("tensor", None, address, number, ctypes.POINTER(ToldTensor))
        self.plan = self._function("plan", number, address, numbers, number)
        self.node = self._function("node", number, address, number, ctypes.POINTER(ToldNode))
        self.preview = self._function(
            "preview", number, address, number, numbers, ctypes.POINTER(ToldSubset), number
        )  # fmt: skip
        self.replace = self._function(
            "replace", number, address, address, number, numbers, ctypes.POINTER(address), number
        )  # fmt: skip
        self.kernel_new = self._function(
            "kernel_new", address, number, number, number, numbers, thing, thing, thing, thing
        )  # fmt: skip
        self.kernel_free = self._function("kernel_free", None, address)
        self.taken = self._function("taken", number, address)
        self.memory = self._function("memory", ctypes.POINTER(address), address)
        self.lent = self._function("lent", ctypes.POINTER(address), address)
        self.reclaim = self._function("reclaim", None, address)
        self.resize = self._function("resize", number, address, number, number, numbers)
        self._start = self._function("start", number, address, ctypes.c_size_t)

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function = getattr(self._library, f"litegpu_{name}")
        function.restype, function.argtypes = result, arguments
        return function  # type: ignore[no-any-return]

    def start(self, create: Callable[[int], Any]) -> None:
        """From now on delegates are made by `create`, which gets the address of a Creation and gives a function, or a
        text that says what is wrong. Until Python ends, as late as atexit lets us know of that."""
        own = (None, create, _finalizing)
        table = (ctypes.c_void_p * (len(_PYTHON) + len(own)))()
        for i, name in enumerate(_PYTHON):
            table[i] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(create))  # for good: the runtime may ask at any time
        table[len(_PYTHON) :] = [id(one) for one in own]
        if self._start(ctypes.addressof(table), ctypes.sizeof(table)) != 0:
            raise DelegateError(f"{self.path} is of another version of litegpu: remove it")
        atexit.register(self._start, None, 0)


def _finalizing() -> bool | None:
    """True within a finalizer."""
    return in_finalizer(sys._getframe()) or None


def numbers(values: Sequence[int]) -> Any:
    """A C array of int."""
    return (ctypes.c_int * len(values))(*values)


def memory_at(address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An array of the memory there, which has to outlive it."""
    count = math.prod(shape)
    if count == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    found: np.ndarray = np.frombuffer(memoryview(memory).cast("B"), dtype).reshape(shape)
    return found


def find(*, build: bool) -> Library:
    """The library of this version. `build`: compile it if it is not there. Raises DelegateError."""
    try:
        found = places.opened(compiling.EXTERNAL, Library, build=build)
    except compiling.CompilerError as error:
        raise DelegateError(f"the library for the official runtime cannot be made: {error}") from None
    except OSError as error:
        if build:
            raise DelegateError(f"the library for the official runtime cannot be made or loaded: {error}") from None
        raise DelegateError(f"{_ABSENT}: {error}. Call external_delegate_path()") from None
    if found is None:
        raise DelegateError(f"{_ABSENT}. Call external_delegate_path()")
    return found


def cache_folder() -> Path | None:
    """The folder of what was compiled, and found out about the runtime."""
    return places.cache_folder(compiling.EXTERNAL, make=True)
