"""A session of a CUDA device with arrays of the user's in place of its ports, and with times of its kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends.abilities import NativeRun, UserBuffer
from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.backends.contract import KernelTime
from litegpu.gpu.backends.cuda.array import (
    LEGACY_STREAM,
    CudaArray,
    CudaBuffer,
    empty_like,
    from_torch,
    import_array,
    is_torch_tensor,
    like,
)
from litegpu.gpu.backends.cuda.binding import Bound, check_fit
from litegpu.gpu.backends.cuda.driver import CudaError, synchronize
from litegpu.gpu.backends.cuda.graph import CudaGraph, GraphLaunch
from litegpu.gpu.backends.cuda.held import address_of
from litegpu.gpu.backends.cuda.session_base import CudaSessionBase
from litegpu.gpu.backends.cuda.tensor_calls import TensorCalls
from litegpu.gpu.backends.cuda.timing import added_seconds, graph_seconds, launch_seconds
from litegpu.gpu.program import Program

#: The driver's functions that a NativeRun names.
_NATIVE = {
    "push": "cuCtxPushCurrent", "pop": "cuCtxPopCurrent", "launch": "cuGraphLaunch", "copy_in": "cuMemcpyHtoDAsync",
    "copy_out": "cuMemcpyDtoHAsync", "fill": "cuMemsetD8Async", "query": "cuStreamQuery",
    "write": "cuStreamWriteValue32", "wait_event": "cuStreamWaitEvent", "record": "cuEventRecord",
}  # fmt: skip


class CudaSession(CudaSessionBase):
    """Satisfies contract.Session and abilities.ArrayBinder."""

    def examine(self, buffer: Any, what: str, *, output: bool, stream: Any = None) -> UserBuffer:
        array = import_array(self.device, buffer, what, self.stream, stream=stream, writable=output)
        return UserBuffer(array, array.nbytes, array.shape, array.dtype)

    def bind(self, kind: str, index: int, array: CudaArray | None, what: str, adapter: Program | None = None) -> None:
        """See abilities.Binder. What is bound is neither written nor downloaded, though read() still gives it."""
        ports = self.program.inputs if kind == "input" else self.program.outputs
        with self._lock:
            self._check_usable()
            self._tensor_calls = None
            self._forget_plain()
            table = self._bindings.inputs if kind == "input" else self._bindings.outputs
            before = table.get(index)
            if array is None:
                self._bindings.put(kind, index, None)
            elif adapter is None:
                check_fit(ports[index], array, what)
                self._bindings.put(kind, index, Bound(array, None))
            else:
                check_fit(adapter.inputs[0] if kind == "input" else adapter.outputs[0], array, what)
                kept = before.adapter if before is not None else None
                if kept is None or kept.program is not adapter:
                    kept = CudaSession(self.device, self._pools, adapter, self.wait)
                self._bindings.put(kind, index, Bound(array, kept))
            after = table.get(index)
            if before is not None and before.adapter and (after is None or after.adapter is not before.adapter):
                self._finish()
                before.adapter.close()

    def replace(self, kind: str, index: int, array: Any) -> bool:
        """See abilities.ArrayBinder; for plain PyTorch tensors of the type and shape of what is bound."""
        table = self._bindings.inputs if kind == "input" else self._bindings.outputs
        before = table.get(index)
        if before is None or before.adapter is not None or not is_torch_tensor(array):
            return False
        plain = from_torch(self.device, array)
        if plain is None or plain.dtype != before.array.dtype or plain.shape != before.array.shape:
            return False
        self._bindings.put(kind, index, Bound(plain, None))
        return True

    @property
    def rounded_inputs(self) -> frozenset[int]:
        """See abilities.NativeRunner."""
        return frozenset(index for index, port in enumerate(self.program.inputs) if port.rounded)

    def native_run(self, halves: Collection[int] = ()) -> NativeRun | None:
        """See abilities.NativeRunner. The graph has no copies: those of a batch are of its rows alone."""
        context = self.device.context
        if isinstance(context, fork.Refusal):
            return None
        with self._lock:
            self._check_usable()
            if self._blocking or self.program.regions or self.program.variables or self._bindings:
                return None
            with context:
                rooms = {index: self.memory.room_for_halves(index) for index in halves}
                if not all(rooms.values()):
                    return None
                graph = self.recorder.widening_graph(rooms) if halves else self.recorder.kernel_graph
                synchronize(self._stream)
            inputs = enumerate(self.program.inputs)
            return NativeRun(
                **{name: address_of(function) for name, function in _NATIVE.items()},
                context=int(context.handle), stream=int(self._stream), graph=int(graph.executable),
                ended=self.memory.ended.ctypes.data, event=int(self.launcher.event),
                inputs=tuple(rooms.get(index) or self.place(port) for index, port in inputs),
                outputs=tuple(self.place(port) for port in self.program.outputs),
            )  # fmt: skip

    def is_bound(self, kind: str, index: int) -> bool:
        """Whether an array of the user's stands for the port."""
        return index in (self._bindings.inputs if kind == "input" else self._bindings.outputs)

    def fill_bound_output(self, index: int) -> None:
        """Copy the last inference's output, if there was one, to the array that was bound to it since."""
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            if self._has_run:
                self._bindings.give(index, self._stream)
                synchronize(self._stream)

    def output_buffer(self, index: int, shape: tuple[int, ...]) -> CudaBuffer:
        return self._pools.device.buffer(shape, NUMPY[self.program.outputs[index].dtype])

    def empty_outputs(self, example: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        stream = self.next_stream
        return [
            empty_like(example, shape, NUMPY[port.dtype], self._pools.device, stream)
            for shape, port in zip(shapes, self.program.outputs, strict=True)
        ]

    def call_tensors(self, tensors: Sequence[Any]) -> list[Any] | None:
        """See abilities.ArrayBinder."""
        calls = self._tensor_calls
        if calls is None:
            return None
        with self._lock:
            self._check_usable()
            prepared = calls.prepared(tensors, self._known_graph)
            if prepared is None or self.memory.spoilt:
                return None
            graph, stream, found = prepared
            with self.device.context:
                if not self.launcher.launch_bound(graph, stream, found):
                    return None
            self._has_run = True
            return found

    def expect_tensors(self, tensors: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
        """See abilities.ArrayBinder."""
        with self._lock:
            index = self.device.found.index
            self._tensor_calls = TensorCalls.of(self.program, self._bindings, tensors, shapes, index)

    def _known_graph(self, addresses: tuple[int, ...], inputs: int) -> CudaGraph | None:
        places = [("input", i) for i in range(inputs)] + [("output", i) for i in range(len(addresses) - inputs)]
        return self.recorder.known_graph(dict(zip(places, addresses, strict=True)))

    def in_library(self, example: Any, array: Any) -> Any:
        return like(example, array)

    @property
    def stream(self) -> int:
        """The session's own stream."""
        return int(self._stream)

    @property
    def next_stream(self) -> int:
        """A stream that the next inference is ordered with, if nothing else is bound: that of the bound inputs, or the
        legacy default stream."""
        with self._lock:
            return next((b.array.stream() for b in self._bindings.inputs.values() if b.array.stream), LEGACY_STREAM)

    @property
    def copies(self) -> dict[str, int]:
        """How many copies an inference makes: between host and device, and of bound arrays on the device."""
        bound = [*self._bindings.inputs.values(), *self._bindings.outputs.values()]
        ports = len(self.program.inputs) + len(self.program.outputs)
        return {"host": ports - len(bound), "device": sum(2 if b.adapter else 1 for b in bound)}

    def profile(self) -> Sequence[KernelTime]:
        """GPU time of each dispatch by itself, from time_kernels(). Outputs of the last run() stay readable."""
        return [
            KernelTime(dispatch.label, dispatch.sources, seconds)
            for dispatch, seconds in zip(self.program.dispatches, self.time_kernels(), strict=True)
        ]

    def time_kernels(self) -> list[float]:
        """Seconds of each dispatch: the median of several graphs of the same launch repeated, so with warm caches and
        including the gap to the next kernel. Where kernels overlap, that would count time twice: there it is how much
        longer the graph of all kernels up to this one takes than that of those before it, which adds up to the time of
        the whole. Inputs are random. Spoils the arena, which the next run() does not mind, but for the variables, which
        are restored."""
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            with self.memory.same_variables():
                if not self.overlap.latency:
                    self.memory.put_stand_ins()  # each kernel finds what those before it have made of them
                    return [self._time_launch(launch) for launch in self.recorder.launches]
                try:
                    return added_seconds(self._stream, self.recorder)
                except CudaError as error:
                    raise self.launcher.failed(error) from error

    def time_graph(self, repeats: int = 100) -> float:
        """Seconds of GPU time of all kernels of an inference, without the copies of inputs and outputs, with random
        inputs: graphs are launched back to back, the mean of `repeats` after some to warm up."""
        if self.program.regions:
            raise DeviceError("how often its kernels run is known only when it runs, so they are not timed")
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            try:
                with self.memory.same_variables():
                    return graph_seconds(self._stream, self.recorder.timed_graph, repeats)
            except CudaError as error:
                raise self.launcher.failed(error) from error

    def _time_launch(self, launch: GraphLaunch) -> float:
        try:
            return launch_seconds(self._stream, launch)
        except CudaError as error:
            raise self.launcher.failed(error, launch) from error
