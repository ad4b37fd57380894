"""Calls of the driver that keep Python's lock, as they return within microseconds.

NVIDIA's bindings give the lock back around every call. Where threads wait for it, each time costs a change of threads,
which takes longer than the call: sixteen threads with an inference each then get less done than one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from litegpu.gpu.backends.cuda.driver_library import NAME


class HeldCalls:
    """Each gives the number of its CUresult. Handles are numbers."""

    def __init__(self, library: Any) -> None:
        self.push_context = _function(library, "cuCtxPushCurrent", 1)
        self._pop = _function(library, "cuCtxPopCurrent", 1)
        self.launch_graph = _function(library, "cuGraphLaunch", 2)
        self.query_stream = _function(library, "cuStreamQuery", 1)
        #: device address, host address (pinned), bytes, stream
        self.copy_in = _function(library, "cuMemcpyHtoDAsync", 4)
        self._popped = ctypes.byref(ctypes.c_void_p())

    def pop_context(self) -> int:
        return self._pop(self._popped)


@functools.cache
def held_calls() -> HeldCalls:
    """Those of the driver that the bindings have loaded."""
    return HeldCalls(ctypes.PyDLL(NAME))


def address_of(name: str) -> int:
    """Of the present version of one of the driver's functions, for native code; 0 if it has none."""
    try:
        return ctypes.cast(_present(ctypes.PyDLL(NAME), name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def _function(library: Any, name: str, arguments: int) -> Callable[..., int]:
    found = _present(library, name)
    found.argtypes = [ctypes.c_void_p] * arguments
    found.restype = ctypes.c_int
    return found  # type: ignore[no-any-return]


def _present(library: Any, name: str) -> Any:
    """The present version of a function, by its plain name in the API."""
    return getattr(library, f"{name}_v2", None) or getattr(library, name)
