"""An inference in one call of C, without Python's lock: of a session whose ports are all in host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from litegpu.gpu.backends.abilities import PlainOutputs
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.graph import CudaGraph
from litegpu.gpu.backends.cuda.held import address_of
from litegpu.gpu.backends.cuda.memory import SessionMemory
from litegpu.gpu.backends.cuda.record import Recorder
from litegpu.gpu.backends.cuda.result_pool import ResultPool
from litegpu.gpu.backends.cuda.results import Results
from litegpu.gpu.program import Program
from litegpu.native import NativeLibrary

#: What a call comes to; below zero: the number of a CUresult. NOT_DONE: it takes longer than SPIN_SECONDS. NOT_TAKEN:
#: an array is no plain memory, and nothing has been done.
DONE, NOT_DONE, NOT_FINITE, NOT_TAKEN = range(4)
#: So long a call waits at the most, in which no signals come through.
SPIN_SECONDS = 2e-3
_FUNCTIONS = (
    "cuCtxPushCurrent", "cuCtxPopCurrent", "cuGraphLaunch", "cuStreamQuery", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
    "cuStreamWriteValue32",
)  # fmt: skip
_PARTS = {"write": "wrote", "submit": "submitted", "wait": "waited", "read": "read"}


class _Port(ctypes.Structure):
    """As call.c has it."""

    _fields_ = (
        ("memory", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("place", ctypes.c_uint64),
        ("sent", ctypes.c_uint64), ("rounded", ctypes.c_uint64),
    )  # fmt: skip


class _Floats(ctypes.Structure):
    """As call.c has it."""

    _fields_ = (("first", ctypes.c_void_p), ("count", ctypes.c_size_t))


class _Call(ctypes.Structure):
    """As call.c has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "push", "pop", "launch", "query", "copy_in", "copy_out", "write", "context", "graph", "stream", "look",
            "not_finite", "ended", "inputs", "outputs", "watched",
        )),
        *((name, ctypes.c_int) for name in ("inputs_count", "outputs_count", "watched_count")),
        ("number", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        *((name, ctypes.c_int64) for name in ("spin", *_PARTS.values(), "before")),
    )  # fmt: skip


class SessionParts(NamedTuple):
    """Of a session: what its native calls are made of."""

    native: NativeLibrary
    device: CudaDeviceBase
    program: Program
    memory: SessionMemory
    recorder: Recorder
    results: Results
    pool: ResultPool
    stream: Any


class Ways(NamedTuple):
    """How inputs come, by place: `in_place`, the device reads the arrays where they are; `rounded`, as float16, which
    the device widens, if it has room for those that are sent as well; `sent`, piece by piece, while others are copied
    to pinned memory."""

    in_place: tuple[int, ...]
    rounded: tuple[int, ...]
    sent: tuple[int, ...]


class NativeCall:
    """Of one session, whose lock is held in every method, for these outputs, and inputs that come these ways. `all` and
    `rest` are called with the arrays of the inputs (None: what the session's memory has) and then targets(): they do an
    inference, and what is left of one that was NOT_DONE when it has been waited for.

    The stream of the session and all memory have to stay; `kept` is what the device reads or writes that belongs to the
    caller, of an inference that may be under way."""

    all: Callable[..., int]
    rest: Callable[..., int]

    def __init__(self, parts: SessionParts, wanted: PlainOutputs, ways: Ways) -> None:
        """The device's context is current."""
        library, device, program, memory, recorder, results, self._pool, stream = parts
        self.wanted, self.ways = wanted, ways
        self.kept: Sequence[np.ndarray | None] = ()
        sizes = [program.outputs[i].nbytes if i in memory.results else 0 for i in wanted.places]
        self._targets = list(zip(wanted.shapes, wanted.dtypes, sizes, strict=True))  # 0: of those that are copied
        self._look = look = _look_graph(results, stream)
        ports = program.inputs
        rooms = {i: memory.room_for_halves(i) for i in ways.sent if i in ways.rounded}
        rooms = {i: room for i, room in rooms.items() if room}
        sent = {i: rooms.get(i, memory.place(ports[i])) for i in ways.sent}
        halves = {i: memory.halves(i).ctypes.data for i in ways.rounded if i not in sent or i in rooms}
        there = [*ways.in_place, *(i for i in sent if i not in rooms)]
        brought = {i: address for i, address in halves.items() if i not in sent}
        self._graph = recorder.graph_of(there, brought, rooms) if any(ways) else None
        graph = recorder.graph if self._graph is None else self._graph
        inputs = [
            _Port(
                halves.get(i, array.ctypes.data), port.nbytes, memory.place(port) if i in ways.in_place else 0,
                sent.get(i, 0), i in halves,
            )
            for i, (array, port) in enumerate(zip(memory.inputs, ports, strict=True))
        ]  # fmt: skip
        outputs = [
            _Port(None, program.outputs[i].nbytes, memory.place(program.outputs[i]))
            if i in memory.results
            else _Port(memory.output(i).ctypes.data, program.outputs[i].nbytes)
            for i in wanted.places
        ]
        watched = [_Floats(view.ctypes.data, view.size) for view in results.watched_views]
        self._arrays = (
            (_Port * len(inputs))(*inputs), (_Port * len(outputs))(*outputs), (_Floats * len(watched))(*watched)
        )  # fmt: skip
        self._call = call = _Call(
            *map(address_of, _FUNCTIONS), device.address, int(graph.executable), int(stream),
            None if look is None else int(look.executable), memory.not_finite.ctypes.data, memory.ended.ctypes.data,
            *(ctypes.addressof(array) for array in self._arrays), len(inputs), len(outputs), len(watched),
        )  # fmt: skip
        self.may_spin(True)
        self.all, self.rest = library.calls(call)

    def targets(self) -> list[np.ndarray] | None:
        """New arrays for the outputs; None if there is no pinned memory for one."""
        found = []
        for shape, dtype, size in self._targets:
            if size:
                block = self._pool.take(size)
                if block is None:
                    return None
                found.append(np.ndarray(shape, dtype, block))
            else:
                found.append(np.empty(shape, dtype))
        return found

    def may_spin(self, spins: bool) -> None:
        """Whether it waits for SPIN_SECONDS, or not at all."""
        self._call.spin = int(1e9 * SPIN_SECONDS) if spins else 0

    def times(self) -> dict[str, float]:
        """Seconds of the parts of the last inference, as Session.stats has them."""
        return {name: 1e-9 * getattr(self._call, field) for name, field in _PARTS.items()}

    def close(self) -> None:
        """The device's context is current."""
        self.kept = ()
        graphs = self._look, self._graph
        self._look = self._graph = None
        for graph in graphs:
            if graph is not None:
                graph.close()


def _look_graph(results: Results, stream: Any) -> CudaGraph | None:
    """What looks at large results, if these are watched."""

    def enqueue() -> None:
        for look in looks:
            look.enqueue(stream)

    looks = results.looks
    return CudaGraph(stream, enqueue) if looks else None
