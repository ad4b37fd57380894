"""A Program on a CUDA device: one allocation, pinned staging, and one graph that is launched for every inference."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.program import Dispatch, Port, Program
from litegpu.gpu.runtime.base import SHORT_SECONDS, KernelTime
from litegpu.gpu.runtime.check import NUMPY, check_array, check_program
from litegpu.gpu.runtime.cuda_array import LEGACY_STREAM, CudaArray, from_torch, is_torch_tensor
from litegpu.gpu.runtime.cuda_binding import Bindings, Bound, Ways, check_fit
from litegpu.gpu.runtime.cuda_copy import MOST_BYTES, Pinned, copy_launch, is_pinned
from litegpu.gpu.runtime.cuda_device import CudaDevice
from litegpu.gpu.runtime.cuda_driver import SUCCESS, CudaError, checked, error_text
from litegpu.gpu.runtime.cuda_graph import Graph, Launch, Stopwatch, make_launch
from litegpu.gpu.runtime.host_copy import copy_bytes

#: Of the constants behind the arena, and of ports in the staging memory.
_ALIGNMENT = 256
#: Each kernel is timed in a graph of so many launches of it, so often.
_LAUNCHES_TIMED, _ROUNDS_TIMED = 20, 5
#: A microsecond or less on a fast GPU: what starting a kernel costs.
LITTLE_BYTES = 3 << 20
#: NVIDIA's own variable: each kernel is launched by itself and awaited, so that an error can name it.
_BLOCKING_VARIABLE = "CUDA_LAUNCH_BLOCKING"
#: What kernels read at once: arrays of the user's that they read in place begin and end at multiples of it.
_BLOCK = 16
#: Graphs kept for different bound arrays.
_BOUND_GRAPHS = 4
_NOTHING_BOUND: Ways = {}
_OUT_OF_MEMORY = int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
#: Errors of running kernels (illegal addresses, traps, timeouts ...), after which a context is of no use to anyone.
_STICKY = {700, 702, *range(709, 720), 999}


class CudaSession:
    """One Program on one CudaDevice; satisfies base.Session.

    Inputs wait in pinned host memory, from which the graph copies them into the arena; so the arena may reuse their
    place, and an inference without a write() before it sees the inputs of the last one. Works on a stream of its own
    that waits for no other, unless arrays of the user's are bound to ports.
    """

    def __init__(self, device: CudaDevice, program: Program, wait: str, validation: bool = False) -> None:
        self.device = device
        self.program = program
        self.wait = wait
        self.overlap = False
        self._after_kernel = False  # whether what was enqueued last is a kernel
        self._copies: dict[tuple[int, int], Launch] = {}
        self._lock = threading.RLock()
        self._closed = False
        self._has_run = False
        self._running = False  # launched and not awaited
        self._allocations = 0
        self._stats = dict.fromkeys(("write", "encode", "submit", "wait", "read", "compile", "upload"), 0.0)
        self._writing = 0.0  # seconds of write() since the last run
        self._memory = 0  # address
        self._stream: Any = None
        self._working: Any = None  # the stream of the last inference
        self._bindings = Bindings(self)
        self._in_place: dict[int, np.ndarray] = {}  # inputs in pinned memory that is not the session's
        self._bound_graphs: list[tuple[Ways, Graph]] = []  # for arrays that are bound, latest last
        self._done: Any = None  # the event that a passive wait sleeps on
        self._graph: Graph | None = None
        self._kernel_graph: Graph | None = None  # without the copies, for timing
        self._input_memory: list[np.ndarray] = []
        self._output_memory: list[np.ndarray] = []
        self._blocking = validation or os.environ.get(_BLOCKING_VARIABLE, "0") not in ("", "0")
        try:
            check_program(program, device.features, str(device))
            self._check_usable()
            started = time.perf_counter()
            self.overlap = device.overlaps(program)
            *kernels, self._copy = device.program_kernels(program)
            self._stats["compile"] = time.perf_counter() - started
            with device.context:
                self._build(kernels)
        except BaseException:
            self.close()
            raise

    def write(self, index: int, array: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.inputs, index, "input", array)
        with self._lock:
            self._check_usable()
            if self._running:  # the copy from the staging memory may still be under way
                self._finish()
            if array.nbytes > MOST_BYTES and is_pinned(array, self.device):
                self._in_place[index] = array
            else:
                self._in_place.pop(index, None)
                copy_bytes(self._input_memory[index], array.reshape(-1).view(np.uint8))
            self._writing += time.perf_counter() - started

    def input_memory(self, index: int) -> np.ndarray | None:
        """Input `index` in the pinned memory that run() copies it from, flat: what is written there needs no write().
        None if run() returns before that copy is done. Stays valid after close(), then without effect."""
        if self.wait == "do_not_wait":
            return None
        return self._input_memory[index].view(NUMPY[self.program.inputs[index].dtype])

    def run(self, *, wait: bool = True) -> None:
        """See base.Session; without `wait` it returns at once in any case."""
        with self._lock:
            self._check_usable()
            if self._running and not self._bindings.complete:  # graphs use the staging memory in turn
                self._finish()
            clock, stats = time.perf_counter, self._stats
            started = clock()
            with self.device.context:
                if self._blocking:
                    self._run_blocking()
                elif self._bindings or self._in_place:
                    self._run_bound()
                else:
                    self._working = self._stream
                    (error,) = driver.cuGraphLaunch(self._executable, self._stream)
                    if error != SUCCESS:
                        raise self._failure("cuGraphLaunch", error)
                    self._running = True
                submitted = clock()
                if wait and self.wait != "do_not_wait":
                    self._await()
            self._has_run = True
            stats["submit"], stats["wait"] = submitted - started, clock() - submitted
            stats["write"], stats["read"], self._writing = self._writing, 0.0, 0.0

    def read(self, index: int, out: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.outputs, index, "output", out)
        with self._lock:
            self._check_usable()
            if not self._has_run:
                raise DeviceError(f"output {index} was read before the first run: call run() first")
            if self._running:
                self._finish()
            if index in self._bindings.outputs:
                self._download(index)
            copy_bytes(out.reshape(-1).view(np.uint8), self._output_memory[index])
            self._stats["read"] += time.perf_counter() - started

    def bind(self, kind: str, index: int, array: CudaArray | None, what: str, adapter: Program | None = None) -> None:
        """Let the user's array stand for a port (`kind` "input" or "output") in every inference from the next on; None
        ends that. `adapter`: a program with one input and one output, between the array's format and the port's. What
        is bound is neither written nor downloaded, though read() still gives it. Raises TensorError, with `what` being
        the port's name, if it does not fit."""
        ports = self.program.inputs if kind == "input" else self.program.outputs
        with self._lock:
            self._check_usable()
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
                    kept = CudaSession(self.device, adapter, self.wait)
                self._bindings.put(kind, index, Bound(array, kept))
            after = table.get(index)
            if before is not None and before.adapter and (after is None or after.adapter is not before.adapter):
                self._finish()
                before.adapter.close()

    def replace(self, kind: str, index: int, array: Any) -> bool:
        """Let a plain PyTorch tensor stand for a port in place of an array of the same type and shape that is bound to
        it. What does not fit is left to bind(), which is slower: then False."""
        table = self._bindings.inputs if kind == "input" else self._bindings.outputs
        before = table.get(index)
        if before is None or before.adapter is not None or not is_torch_tensor(array):
            return False
        plain = from_torch(self.device, array)
        if plain is None or plain.dtype != before.array.dtype or plain.shape != before.array.shape:
            return False
        self._bindings.put(kind, index, Bound(plain, None))
        return True

    def fill_bound_output(self, index: int) -> None:
        """Copy the last inference's output, if there was one, to the array that was bound to it since."""
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            if self._has_run:
                self._bindings.give(index, self._stream)
                checked(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

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

    def place(self, port: Port) -> int:
        """The address of a port in the arena."""
        return self._memory + port.offset

    def enqueue_kernels(self, stream: Any) -> None:
        """Put the kernels alone on a stream."""
        for launch in self._launches:
            launch.enqueue(stream)

    def reset_variables(self) -> None:
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            for port in self.program.variables:
                checked(driver.cuMemsetD8Async(self.place(port), 0, port.nbytes, self._stream), "cuMemsetD8Async")
            checked(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    def profile(self) -> Sequence[KernelTime]:
        """GPU time of each dispatch by itself, from time_kernels(). Outputs of the last run() stay readable."""
        return [
            KernelTime(dispatch.label, dispatch.sources, seconds)
            for dispatch, seconds in zip(self.program.dispatches, self.time_kernels(), strict=True)
        ]

    def time_kernels(self) -> list[float]:
        """Seconds of each dispatch: the median of several graphs of the same launch repeated, so with warm caches and
        including the gap to the next kernel. The arena's content is spoilt, which the next run() does not mind, except
        for the variables, which are restored."""
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            with self._same_variables():
                return [self._time_launch(launch) for launch in self._launches]

    def time_graph(self, repeats: int = 100) -> float:
        """Seconds of GPU time of all kernels of an inference, without the copies of inputs and outputs: graphs are
        launched back to back, the mean of `repeats` after some to warm up."""
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            if self._kernel_graph is None:
                self._kernel_graph = self._capture(self._enqueue_kernels)
            graph = self._kernel_graph

            def launch(times: int) -> None:
                for _ in range(times):
                    graph.launch(self._stream)

            watch = Stopwatch()
            try:
                with self._same_variables():
                    watch.seconds(self._stream, lambda: launch(max(3, repeats // 10)))
                    return watch.seconds(self._stream, lambda: launch(repeats)) / repeats
            except CudaError as error:
                raise self._failed(error) from error
            finally:
                watch.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._input_memory = self._output_memory = []
            if self.device.lost:
                return  # the driver has freed everything
            with self.device.context:
                for stream in (self._stream, self._working):
                    if stream is not None:
                        driver.cuStreamSynchronize(stream)
                self._bindings.close()
                for graph in (self._graph, self._kernel_graph, *(graph for _, graph in self._bound_graphs)):
                    if graph is not None:
                        graph.close()
                if self._done is not None:
                    driver.cuEventDestroy(self._done)
                if self._stream is not None:
                    driver.cuStreamDestroy(self._stream)
                if self._memory:
                    driver.cuMemFree(self._memory)

    def __del__(self) -> None:
        if hasattr(self, "_blocking") and not sys.is_finalizing():
            self.close()

    @property
    def allocations(self) -> int:
        return self._allocations

    @property
    def stats(self) -> Mapping[str, float]:
        return dict(self._stats)

    @contextlib.contextmanager
    def _same_variables(self) -> Iterator[None]:
        """Restore the variables afterwards."""
        kept = [np.asarray(Pinned(self.device, port.nbytes)) for port in self.program.variables]
        for port, memory in zip(self.program.variables, kept, strict=True):
            what = f"copy of variable {port.name!r}"
            checked(driver.cuMemcpyDtoHAsync(memory.ctypes.data, self.place(port), port.nbytes, self._stream), what)
        checked(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")
        yield
        for port, memory in zip(self.program.variables, kept, strict=True):
            what = f"copy of variable {port.name!r}"
            checked(driver.cuMemcpyHtoDAsync(self.place(port), memory.ctypes.data, port.nbytes, self._stream), what)
        checked(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    # Building

    def _build(self, kernels: Sequence[Any]) -> None:
        program = self.program
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = checked(driver.cuStreamCreate(int(flags)), "cuStreamCreate")
        flags = int(driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC) | int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._done = checked(driver.cuEventCreate(flags), "cuEventCreate")
        started = time.perf_counter()
        constants = _aligned(program.arena_size)
        self._allocate(constants + program.constants.nbytes)
        self._upload(constants)
        self._stats["upload"] = time.perf_counter() - started
        self._stage()
        bases = {"arena": self._memory, "constants": self._memory + constants}
        self._launches = [self._launch(kernels, dispatch, bases) for dispatch in program.dispatches]
        self._graph = self._capture(self._enqueue_inference)
        self._executable = self._graph.executable
        checked(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    def _allocate(self, size: int) -> None:
        """The arena, with zeros, and the constants."""
        try:
            self._memory = int(checked(driver.cuMemAlloc(max(size, _ALIGNMENT)), "cuMemAlloc"))
        except CudaError as error:
            if error.code != _OUT_OF_MEMORY:
                raise
            free, total = checked(driver.cuMemGetInfo(), "cuMemGetInfo")
            raise DeviceError(
                f"this model needs {size >> 20} MiB on {self.device}, where {free >> 20} of {total >> 20} MiB are free:"
                " use a smaller batch or input, or close other programs"
            ) from error
        self._allocations += 1
        checked(driver.cuMemsetD8Async(self._memory, 0, max(size, _ALIGNMENT), self._stream), "cuMemsetD8Async")

    def _upload(self, offset: int) -> None:
        constants = np.ascontiguousarray(self.program.constants)
        if constants.nbytes:
            target, source = self._memory + offset, constants.ctypes.data
            checked(
                driver.cuMemcpyHtoDAsync(target, source, constants.nbytes, self._stream), "the upload of the constants"
            )
            checked(driver.cuStreamSynchronize(self._stream), "the upload of the constants")

    def _stage(self) -> None:
        """Pinned host memory for the inputs and outputs."""
        ports = (*self.program.inputs, *self.program.outputs)
        offsets, size = [], 0
        for port in ports:
            offsets.append(size)
            size += _aligned(port.nbytes)
        memory = np.asarray(Pinned(self.device, max(size, _ALIGNMENT)))
        self._allocations += 1
        memory[...] = 0
        views = [memory[at : at + port.nbytes] for at, port in zip(offsets, ports, strict=True)]
        count = len(self.program.inputs)
        self._input_memory, self._output_memory = views[:count], views[count:]

    def _launch(self, kernels: Sequence[Any], dispatch: Dispatch, bases: Mapping[str, int]) -> Launch:
        code = self.program.kernels[dispatch.kernel]
        addresses = [bases[b.space] + b.offset for b in dispatch.bindings]
        loaded = kernels[dispatch.kernel]
        return make_launch(loaded, dispatch.groups, code.workgroup, code.shared_bytes, dispatch.label, addresses)

    def _capture(self, enqueue: Callable[[], object]) -> Graph:
        return Graph(self._stream, enqueue)

    def _enqueue_inference(self, ways: Ways = _NOTHING_BOUND) -> Sequence[Launch]:
        self._after_kernel = False
        launches = self._enqueue_inputs(ways)
        for launch in launches:
            self._enqueue(launch)
        self._enqueue_outputs(ways)
        return launches

    def _enqueue_kernels(self) -> None:
        self._after_kernel = False
        for launch in self._launches:
            self._enqueue(launch)

    def _enqueue_inputs(self, ways: Ways) -> Sequence[Launch]:
        """Put the copies of inputs on the stream; the launches of the kernels, of which those that can read arrays of
        the user's where they are do so."""
        launches: Sequence[Launch] = self._launches
        for index, (port, memory) in enumerate(zip(self.program.inputs, self._input_memory, strict=True)):
            bound = ways.get(("input", index), memory.ctypes.data)
            places = None
            if ("input", index) in ways and bound is not None and (bound | port.nbytes) % _BLOCK == 0:
                places = port.readers
            if places is not None and bound is not None:
                launches = _moved(launches, places, bound)
            elif bound is not None:
                copy = driver.cuMemcpyDtoDAsync if ("input", index) in ways else driver.cuMemcpyHtoDAsync
                self._enqueue_copy(self.place(port), bound, port.nbytes, copy, f"copy of input {port.name!r}")
        return launches

    def _enqueue_outputs(self, ways: Ways) -> None:
        for index, (port, memory) in enumerate(zip(self.program.outputs, self._output_memory, strict=True)):
            bound = ways.get(("output", index), memory.ctypes.data)
            if bound is not None:
                copy = driver.cuMemcpyDtoDAsync if ("output", index) in ways else driver.cuMemcpyDtoHAsync
                self._enqueue_copy(bound, self.place(port), port.nbytes, copy, f"copy of output {port.name!r}")

    def _enqueue_copy(self, target: int, source: int, nbytes: int, copy: Callable[..., Any], what: str) -> None:
        """Put a copy of a port on the stream, as a kernel where that can be."""
        ours = copy is not driver.cuMemcpyDtoDAsync  # with room behind the last byte
        fits = ours or (nbytes % 4 == 0 and target % 16 == 0 and source % 16 == 0)
        by_kernel = fits and nbytes <= MOST_BYTES
        self._after_kernel &= by_kernel
        if not by_kernel:
            checked(copy(target, source, nbytes, self._stream), what)
            return
        launch = self._copies.get((target, source))
        if launch is None:
            launch = self._copies[target, source] = copy_launch(self._copy, target, source, nbytes, what)
        self._enqueue(launch)

    def _enqueue(self, launch: Launch) -> None:
        """Put a kernel on the stream: it overlaps with what is in front if that is a kernel as well."""
        launch.enqueue(self._stream, overlap=self.overlap and self._after_kernel)
        self._after_kernel = True

    # Running

    def _finish(self) -> None:
        """Wait for the inference that was launched, if any."""
        if self._running:
            with self.device.context:
                self._await()

    def _await(self) -> None:
        """_finish() while an inference runs and the context is current."""
        self._running = False
        if self.wait == "passive" and not (self._has_run and self._stats["wait"] < SHORT_SECONDS):
            (error,) = driver.cuEventRecord(self._done, self._working)
            if error == SUCCESS:
                (error,) = driver.cuEventSynchronize(self._done)
        else:
            (error,) = driver.cuStreamSynchronize(self._working)
        if error != SUCCESS:
            raise self._failure("the inference", error)

    def _run_bound(self) -> None:
        """An inference on the stream of those whose arrays are bound, with a graph that leaves those ports out."""
        bindings = self._bindings
        ways = bindings.ways(self._has_graph)
        if self._in_place:
            ways = {**ways, **{("input", i): None for i in self._in_place}}
        executable = self._bound_graph(ways).executable
        stream, others = bindings.streams()
        if stream is None:
            stream = int(self._stream)
        if self._running and int(self._working) != stream:  # the last inference still uses the arena
            self.device.make_wait(stream, int(self._working))
        if self._working is None or int(self._working) != stream:
            self._working = driver.CUstream(stream)
        bindings.before(self._working, others, ways)
        self._enqueue_in_place()
        (error,) = driver.cuGraphLaunch(executable, self._working)
        if error != SUCCESS:
            raise self._failure("cuGraphLaunch", error)
        self._running = True
        bindings.after(self._working, others, ways)

    def _enqueue_in_place(self) -> None:
        for index, array in self._in_place.items():
            port = self.program.inputs[index]
            answer = driver.cuMemcpyHtoDAsync(self.place(port), array.ctypes.data, port.nbytes, self._working)
            checked(answer, f"copy of input {port.name!r}")

    def _has_graph(self, ways: Ways) -> bool:
        return any(ways == known for known, _ in self._bound_graphs)

    def _bound_graph(self, ways: Ways) -> Graph:
        """The graph for what is bound, made if there is none yet."""
        graphs = self._bound_graphs
        for known, graph in graphs:
            if known is ways or known == ways:
                return graph
        if len(graphs) == _BOUND_GRAPHS:
            self._finish()
            old, graph = graphs.pop(0)
            graph.close()
            addresses = {address for address in old.values() if address is not None}
            self._copies = {pair: launch for pair, launch in self._copies.items() if addresses.isdisjoint(pair)}
        launches: list[Launch] = []
        graph = self._capture(lambda: launches.extend(self._enqueue_inference(ways)))
        graph.launches = launches
        graphs.append((ways, graph))
        return graph

    def _download(self, index: int) -> None:
        """Copy a bound output, which the arena still holds, to where read() finds it."""
        port, memory = self.program.outputs[index], self._output_memory[index]
        with self.device.context:
            what = f"copy of output {port.name!r}"
            checked(driver.cuMemcpyDtoHAsync(memory.ctypes.data, self.place(port), port.nbytes, self._stream), what)
            checked(driver.cuStreamSynchronize(self._stream), what)

    def _run_blocking(self) -> None:
        """One kernel after the other, each awaited."""
        self._after_kernel = False
        self._working = self._stream
        bindings = self._bindings
        _, others = bindings.streams(int(self._stream))
        ports = [
            *(("input", i) for i in {**bindings.inputs, **self._in_place}),
            *(("output", i) for i in bindings.outputs),
        ]
        ways: Ways = dict.fromkeys(ports)
        bindings.before(self._stream, others, ways)
        self._enqueue_in_place()
        self._enqueue_inputs(ways)
        for launch in self._launches:
            try:  # NVIDIA's variable makes the launch itself report what the kernel did
                launch.enqueue(self._stream)
                checked(driver.cuStreamSynchronize(self._stream), "waiting for it failed")
            except CudaError as error:
                raise self._failed(error, f"kernel {launch.kernel.name!r} ({launch.label})") from error
        self._enqueue_outputs(ways)
        bindings.after(self._stream, others, ways)
        self._running = True

    def _time_launch(self, launch: Launch) -> float:
        def enqueue() -> None:
            for _ in range(_LAUNCHES_TIMED):
                launch.enqueue(self._stream)

        graph, watch = self._capture(enqueue), Stopwatch()
        try:
            graph.launch(self._stream)
            rounds = [watch.seconds(self._stream, lambda: graph.launch(self._stream)) for _ in range(_ROUNDS_TIMED)]
            return statistics.median(rounds) / _LAUNCHES_TIMED
        except CudaError as error:
            raise self._failed(error, f"kernel {launch.kernel.name!r} ({launch.label})") from error
        finally:
            watch.close()
            graph.close()

    def _failure(self, what: str, error: Any) -> DeviceError:
        return self._failed(CudaError(f"{what} failed: {error_text(error)}", int(error)))

    def _failed(self, error: CudaError, what: str = "") -> DeviceError:
        self.device.lost |= error.code in _STICKY
        kernels = sorted({launch.kernel.name for launch in self._launches})
        advice = f"; the program's kernels are {', '.join(kernels)}: set {_BLOCKING_VARIABLE}=1 to learn which it was"
        if self._blocking or what:
            advice = ""
        return DeviceError(f"{self.device}: {what}{': ' if what else ''}{error}{advice}")

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceError("the session was closed: build a new one")
        if self.device.lost:
            raise DeviceError(f"{self.device} was lost by an earlier error: start the process anew")


def _moved(launches: Sequence[Launch], places: Sequence[tuple[int, int]], address: int) -> list[Launch]:
    """The launches with another address at some of (launch, argument)."""
    found = list(launches)
    for i, argument in places:
        old = found[i]
        addresses = list(old.arguments)
        addresses[argument] = address
        found[i] = make_launch(old.kernel, old.groups, old.workgroup, old.shared_bytes, old.label, addresses)
    return found


def latency_bound(program: Program) -> bool:
    """Whether most kernels touch so little memory that their time goes into starting and waiting: then overlap pays
    (on an H200, MobileNet v1 80 to 70 us at batch 1), else it does not (DeepLab v3, batch 64: 2.4 to 2.7 ms)."""
    touched = [sum(binding.size for binding in d.bindings) for d in program.dispatches]
    return bool(touched) and statistics.median(touched) <= LITTLE_BYTES


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
