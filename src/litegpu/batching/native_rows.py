"""rows*.c and posts.c as Python calls them: structures, functions, and the memory of one call."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.gpu.backends.abilities import NativeRun
from litegpu.native import NativeLibrary

#: What a call comes to, as rows.h has it.
DONE, PENDING, FAILED, CLOSED, FULL, NEEDS_SLAB, NOT_PLAIN, LATE, HANDED, OFF = range(10)
#: Ports of a model and dimensions of an array at most, and how many calls the times are of.
MOST_PORTS, MOST_RANK, LATEST = 16, 8, 10_000


class RowsSetup(ctypes.Structure):
    """As rows.h has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in NativeRun.FUNCTIONS),
        *((name, ctypes.c_int) for name in ("inputs", "outputs", "lanes", "sizes", "most", "most_slabs", "waiting")),
        ("raises", ctypes.c_int), ("large", ctypes.c_int), ("processors", ctypes.c_int), ("delay", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("forms", "homes", "batches", "recipes")),
    )  # fmt: skip


class Form(ctypes.Structure):
    """As rows.h has it."""

    _fields_ = (
        ("bytes", ctypes.c_int64), ("staged", ctypes.c_int64), ("format", ctypes.c_char * 8), ("rank", ctypes.c_int),
        ("shape", ctypes.c_int64 * MOST_RANK), ("floats", ctypes.c_int),
    )  # fmt: skip


class Recipe(ctypes.Structure):
    """As rows.h has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("context", "stream", "graph", "ended", "event")),
        ("watched", ctypes.c_int), ("inputs", ctypes.c_uint64 * MOST_PORTS),
        ("outputs", ctypes.c_uint64 * MOST_PORTS),
    )  # fmt: skip


class Numbers(ctypes.Structure):
    """As rows.h has it."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("calls", "rows", "refused", "failed", "waiting", "running", "waits", "runs", "expected")
    )


class RowsFunctions:
    """Those of rows*.c and posts.c, by their names without "litegpu_rows_"."""

    def __init__(self, library: NativeLibrary) -> None:
        address, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self.new = library.function("rows_new", address, address, ctypes.c_size_t)
        self.free = library.function("rows_free", None, address)
        self.rounds = library.rounds
        self.add_slab = library.function("rows_add_slab", number, address, number, number, address)
        self.call_size = library.function("rows_call_size", ctypes.c_size_t)
        self.caller = library.function("rows_caller", ctypes.py_object, address)
        self.abandon = library.function("rows_abandon", number, address, address)
        self.take = library.function("rows_take", number, address, number, address)
        self.given = library.function("rows_given", None, address, number, address)
        self.finish = library.function("rows_finish", None, address, number, number)
        self.watch = library.function("rows_watch", None, address, number)
        self.close = library.function("rows_close", None, address, number)
        self.turn_off = library.function("rows_turn_off", None, address)
        self.idle = library.function("rows_idle", number, address, long)
        self.start_posts = library.function("posts_start", number, address, number)
        self.stop_posts = library.function("posts_stop", None, address)
        self.poster = library.function("posts_poster", ctypes.py_object, address)
        self.inbox = library.function("posts_inbox", address, number)
        self.free_inbox = library.function("posts_free_inbox", None, address)
        self.fetch = library.function("posts_fetch", number, address, address, number)
        self.handed = library.function("posts_handed", number, address)
        self.borrow = library.function("rows_borrow", number, address, number, long)
        self.give_back = library.function("rows_give_back", None, address, number)
        self.rehearse = library.function("rows_rehearse", number, address, number, address, long)
        self.statistics = library.function("rows_statistics", None, address, address, address, address)


class Call:
    """One call's memory. `told` and `serial`: what rows.c says of it. It comes back after `slice` nanoseconds."""

    __slots__ = ("_numbers", "address", "memory")

    def __init__(self, size: int, slice_: int) -> None:
        self.memory = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.memory)
        self._numbers = (ctypes.c_int64 * 4).from_buffer(self.memory)
        self._numbers[2] = slice_

    def ends(self, deadline: int) -> None:
        """When the call is late; 0 for never."""
        self._numbers[3] = deadline

    @property
    def told(self) -> int:
        return int(self._numbers[0])

    @property
    def serial(self) -> int:
        return int(self._numbers[1])


def form_of(shape: tuple[int, ...], dtype: np.dtype[Any], staged: np.dtype[Any]) -> Form:
    """Of rows that have the type `staged` in slabs and on the device."""
    sizes, count = (ctypes.c_int64 * MOST_RANK)(-1, *shape), math.prod(shape)
    letter = np.empty(0, dtype).data.format.encode()
    return Form(count * dtype.itemsize, count * staged.itemsize, letter, 1 + len(shape), sizes, dtype == np.float32)


def recipe_of(run: NativeRun, inputs: Sequence[int], outputs: Sequence[int], *, in_turn: bool) -> Recipe:
    """`in_turn`: behind others of the device that are so."""
    found = Recipe(run.context, run.stream, run.graph, run.ended, run.event if in_turn else None, 1)
    for i, place in enumerate(inputs):
        found.inputs[i] = run.inputs[place]
    for i, place in enumerate(outputs):
        found.outputs[i] = run.outputs[place]
    return found


@functools.cache
def functions_of(library: NativeLibrary) -> RowsFunctions:
    """Those of a library."""
    return RowsFunctions(library)
