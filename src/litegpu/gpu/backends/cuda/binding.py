"""Ports of a CUDA session that are the user's arrays: copied on the device, in the order of the user's streams."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cuda.bindings import driver

from litegpu.errors import TensorError
from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.backends.cuda.array import CudaArray
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import checked, make_wait
from litegpu.gpu.program import Port, Program

#: Which ports a graph copies from or to arrays of the user's, and their addresses; None: copied by before() or after().
#: And of those that it copies from the host, the inputs that come as "halves", and the addresses of these.
Ways = Mapping[tuple[str, int], int | None]
#: Addresses that come again among so many inferences are worth a graph of their own.
_REMEMBERED = 16


class BoundSession(Protocol):
    """What bindings need of a session: of the one that they belong to, and of adapters."""

    device: CudaDeviceBase
    program: Program

    def place(self, port: Port) -> int:
        """The address of a port in the arena."""

    def result(self, index: int) -> int:
        """The address of output `index` of the last inference."""

    def enqueue_kernels(self, stream: Any) -> None:
        """Put the kernels alone on a stream."""

    def close(self, *, wait: bool = True) -> None:
        """See contract.Session."""


class Bound(NamedTuple):
    """An array in place of a port; `adapter` runs the program between the array's format and the port's."""

    array: CudaArray
    adapter: BoundSession | None


class Bindings:
    """What is bound to a session. An inference runs on the stream that all arrays are worked with on, if there is one;
    else on the session's own, between two waits for each of the others. The device's context is current and the
    session's lock held in every method."""

    def __init__(self, session: BoundSession) -> None:
        self._session: BoundSession = weakref.proxy(session)  # which is then freed without the garbage collector
        self._device = session.device
        self.inputs: dict[int, Bound] = {}
        self.outputs: dict[int, Bound] = {}
        self._event: object = None
        self._exports: list[object] = []  # capsules, alive until the next inference
        self._recent: deque[Ways] = deque(maxlen=_REMEMBERED)
        self._asked: list[Callable[[], int]] | None = None  # of streams(), until something else is bound
        self._unknown = False  # whether some array's stream cannot be asked for
        self._ways: Ways | None = None  # of ways(), likewise

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    @property
    def complete(self) -> bool:
        """Whether no port is in host memory."""
        program = self._session.program
        return len(self.inputs) == len(program.inputs) and len(self.outputs) == len(program.outputs)

    def put(self, kind: str, index: int, bound: Bound | None) -> None:
        """Let `bound` stand for a port, or nothing."""
        table = self.inputs if kind == "input" else self.outputs
        if bound is None:
            table.pop(index, None)
        else:
            table[index] = bound
        self._asked = self._ways = None

    def streams(self, stream: int | None = None) -> tuple[int | None, list[int]]:
        """(the stream to run on, the others that it is to be ordered with): the one stream that all arrays agree on, or
        None for the session's own; `stream` if that is given."""
        if self._asked is None:
            both = (*self.inputs.values(), *self.outputs.values())
            self._asked = list(dict.fromkeys(b.array.stream for b in both if b.array.stream is not None))
            self._unknown = any(b.array.order is not None for b in both)
        found = [ask() for ask in self._asked]
        if len(found) > 1:
            found = list(dict.fromkeys(found))
        if stream is None and len(found) == 1 and not self._unknown:
            return found[0], []
        return stream, found

    def ways(self, has_graph: Callable[[Ways], bool]) -> Ways:
        """What a graph for the arrays that are bound now leaves to before() and after(): all of it, until the same
        arrays come again and a graph that copies them by itself, which takes a third of the time, pays."""
        if self._ways is not None:
            return self._ways
        both = {("input", i): b for i, b in self.inputs.items()} | {("output", i): b for i, b in self.outputs.items()}
        ways = {port: None if b.adapter else b.array.address for port, b in both.items()}
        if has_graph(ways) or ways in self._recent:
            self._ways = ways
            return ways
        self._recent.append(ways)
        return dict.fromkeys(ways)

    def before(self, stream: Any, others: Sequence[int], ways: Ways) -> None:
        """Put on `stream` what comes before the graph: waiting for those who write the arrays, and the inputs that the
        graph does not copy."""
        for other in others:
            self._wait(int(stream), other)
        if self._unknown:
            both = (*self.inputs.values(), *self.outputs.values())
            self._exports = [bound.array.order(int(stream)) for bound in both if bound.array.order is not None]
        for index, bound in self.inputs.items():
            if ways["input", index] is not None:
                continue
            port = self._session.program.inputs[index]
            place, array, adapter = self._session.place(port), bound.array, bound.adapter
            if adapter is None:
                _copy(place, array.address, port.nbytes, stream, port.name)
            else:
                source, target = adapter.program.inputs[0], adapter.program.outputs[0]
                _copy(adapter.place(source), array.address, source.nbytes, stream, port.name)
                adapter.enqueue_kernels(stream)
                _copy(place, adapter.place(target), port.nbytes, stream, port.name)

    def after(self, stream: Any, others: Sequence[int], ways: Ways) -> None:
        """Put on `stream` what comes after the graph: the outputs that it does not copy; then let the other streams
        wait for it."""
        for index in self.outputs:
            if ways["output", index] is None:
                self.give(index, stream)
        for other in others:
            self._wait(other, int(stream))

    def give(self, index: int, stream: Any) -> None:
        """Copy output `index` to the array that is bound to it."""
        bound, port = self.outputs[index], self._session.program.outputs[index]
        place, array, adapter = self._session.result(index), bound.array, bound.adapter
        if adapter is None and array.address == place:
            return
        if adapter is None:
            _copy(array.address, place, port.nbytes, stream, port.name)
        else:
            source, target = adapter.program.inputs[0], adapter.program.outputs[0]
            _copy(adapter.place(source), place, source.nbytes, stream, port.name)
            adapter.enqueue_kernels(stream)
            _copy(array.address, adapter.place(target), target.nbytes, stream, port.name)

    def close(self) -> None:
        for table in (self.inputs, self.outputs):
            while table:
                _, bound = table.popitem()
                if bound.adapter is not None:
                    bound.adapter.close(wait=False)
        self._exports, self._asked, self._ways = [], None, None
        self._recent.clear()
        event, self._event = self._event, None
        if event is not None and not self._device.lost:
            driver.cuEventDestroy(event)

    def _wait(self, later: int, earlier: int) -> None:
        if later == earlier:
            return
        if self._event is None:
            flags = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            self._event = checked(driver.cuEventCreate(flags), "cuEventCreate")
        make_wait(self._event, later, earlier)


def check_fit(port: Port, array: CudaArray, what: str) -> None:
    """Raise TensorError unless the array is one of the port's type and size."""
    expected = NUMPY[port.dtype]
    two_words = array.dtype.itemsize == 8 and expected.itemsize == 4 and array.nbytes == port.nbytes
    if array.dtype != expected and not two_words:
        raise TensorError(f"{what} holds {expected} on the GPU; the buffer holds {array.dtype}")
    if array.nbytes != port.nbytes:
        raise TensorError(f"{what} has {port.nbytes} bytes; the buffer of shape {list(array.shape)} has {array.nbytes}")


def _copy(target: int, source: int, size: int, stream: Any, name: str) -> None:
    if size:
        checked(driver.cuMemcpyDtoDAsync(target, source, size, stream), f"copy of tensor {name!r}")
