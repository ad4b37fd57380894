"""Launching the inferences of a CUDA session, as a graph or kernel by kernel, and waiting for them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.binding import Bindings, Ways
from litegpu.gpu.backends.cuda.copy import Pinned
from litegpu.gpu.backends.cuda.driver import SUCCESS, CudaError, await_stream, checked, error_text, synchronize
from litegpu.gpu.backends.cuda.graph import CudaGraph, GraphLaunch
from litegpu.gpu.backends.cuda.held import held_calls
from litegpu.gpu.backends.cuda.inputs import Inputs
from litegpu.gpu.backends.cuda.memory import SessionMemory
from litegpu.gpu.backends.cuda.record import Recorder
from litegpu.gpu.program import Program, RegionBlock

#: NVIDIA's own variable: each kernel is launched by itself and awaited, so that an error can name it.
BLOCKING_VARIABLE = "CUDA_LAUNCH_BLOCKING"
#: A wait shorter than this keeps Python's lock: to let go of it takes longer where other threads want it.
_HELD_SECONDS = 40e-6
#: The shortest wait counts so much longer after each further one: the device may be busy now.
_FORGETS = 1.02
#: Errors of running kernels (illegal addresses, traps, timeouts ...), after which a context is of no use to anyone.
_STICKY = {700, 702, *range(709, 720), 999}


class Launcher:
    """Of one session, whose lock is held, and the device's context current, in every method.

    `inputs`: those that the graph does not copy by itself. `working`: the stream of the last
    inference. `running`: whether that was perhaps launched and not awaited. `blocking`: kernels are launched one by one
    and awaited; without that they are launched one by one where the recorder has no graph.
    """

    def __init__(
        self,
        device: CudaDeviceBase,
        program: Program,
        memory: SessionMemory,
        recorder: Recorder,
        bindings: Bindings,
        inputs: Inputs,
        stream: Any,
        blocking: bool,
    ) -> None:
        self._device = device
        self._program = program
        self._memory = memory
        self._recorder = recorder
        self._bindings = bindings
        self._inputs = inputs
        self._stream = stream
        self._blocking = blocking
        self._stepwise = blocking or not recorder.has_whole_graph
        self._flag: np.ndarray | None = None  # where the host reads flags
        self._handles = int(recorder.graph.executable), int(stream)
        self._launch_graph = held_calls().launch_graph
        self._query_stream = held_calls().query_stream
        self._least = math.inf  # seconds of a wait lately, without what other threads took of them
        self.working: Any = None
        self.running = False
        flags = int(driver.CUevent_flags.CU_EVENT_BLOCKING_SYNC) | int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._done: Any = checked(driver.cuEventCreate(flags), "cuEventCreate")  # that a wait sleeps on

    @property
    def is_plain(self) -> bool:
        """Whether an inference is a graph, all ports of which are in the session's own host memory."""
        inputs = self._inputs
        return not (self._stepwise or self._bindings or inputs.in_place or inputs.sent or inputs.halves)

    @property
    def stream(self) -> Any:
        """Of the session."""
        return self._stream

    @property
    def event(self) -> Any:
        """One that nothing else is recorded in while others launch the session's inferences."""
        return self._done

    def launched(self) -> None:
        """An inference is launched next on the session's stream, by others, or perhaps has been."""
        self.working, self.running = self._stream, True
        self._memory.results_are({})

    def fail(self, error: int) -> DeviceError:
        """What to raise for the number of a CUresult of an inference that others launched or waited for."""
        return self._failure("the inference", driver.CUresult(error))

    def launch(self, finish: Callable[[], None]) -> None:
        """One inference; `finish` waits for the device if need be."""
        self._memory.results_are({})
        if self._stepwise:
            self._run_stepwise()
        elif self._bindings or self._inputs.in_place or self._inputs.sent:
            self._run_bound(finish)
        else:
            handles = self._handles
            if self._inputs.halves:
                graph = self._recorder.bound_graph(self._inputs.halves, finish)
                handles = int(graph.executable), handles[1]
            self.working, self.running = self._stream, True
            error = self._launch_graph(*handles)  # at once: there is nothing else on the stream
            if error:
                raise self._failure("cuGraphLaunch", driver.CUresult(error))

    def launch_bound(self, graph: CudaGraph, stream: int, arrays: Sequence[object]) -> bool:
        """Queue an inference on `arrays` of the user's, in whose stream it is; False, with nothing done, if the last
        one was in another one."""
        if self._stepwise or self.working is None or int(self.working) != stream:
            return False
        self.running = True
        (error,) = driver.cuGraphLaunch(graph.executable, self.working)  # which may wait, if much is queued
        if error != SUCCESS:
            raise self._failure("cuGraphLaunch", error)
        self._memory.results_are(graph.elsewhere, arrays)
        return True

    def wait(self, spin: bool, expected: float) -> None:
        """Return when the last inference is done, which takes `expected` seconds, as far as is known."""
        started = time.perf_counter()
        if spin and self._least < _HELD_SECONDS and self._is_done(started):
            error = SUCCESS
        elif spin:
            error = await_stream(self.working, expected=expected)
        elif threading.current_thread() is threading.main_thread():  # which signals must reach
            error = await_stream(self.working, 0.0, expected)
        else:
            (error,) = driver.cuEventRecord(self._done, self.working)
            if error == SUCCESS:
                (error,) = driver.cuEventSynchronize(self._done)
        self.running = False
        if error != SUCCESS:
            raise self._failure("the inference", error)
        self._least = min(_FORGETS * self._least, time.perf_counter() - started)

    def _is_done(self, started: float) -> bool:
        """Whether the last inference is done, after a short while at the latest, in which no other thread runs."""
        query, stream, clock = self._query_stream, int(self.working), time.perf_counter
        while query(stream):  # whatever the error is, those who wait for the stream get it
            if clock() - started > _HELD_SECONDS:
                return False
        return True

    def failed(self, error: CudaError, launch: GraphLaunch | None = None) -> DeviceError:
        """What to raise for an error of the program's kernels, or of one of them."""
        self._device.lost |= error.code in _STICKY
        if launch is not None:
            return DeviceError(f"{self._device}: kernel {launch.kernel.name!r} ({launch.label}): {error}")
        kernels = sorted({launch.kernel.name for launch in self._recorder.launches})
        advice = f"; the program's kernels are {', '.join(kernels)}: set {BLOCKING_VARIABLE}=1 to learn which it was"
        return DeviceError(f"{self._device}: {error}{'' if self._blocking else advice}")

    def close(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            driver.cuEventDestroy(done)

    def _run_bound(self, finish: Callable[[], None]) -> None:
        """An inference on the stream of those whose arrays are bound, with a graph that leaves those ports out."""
        bindings = self._bindings
        ways = bindings.ways(self._recorder.has_graph)
        ways = {
            **self._inputs.halves,
            **ways,
            **{("input", i): None for i in (*self._inputs.in_place, *self._inputs.sent)},
        }
        graph = self._recorder.bound_graph(ways, finish)
        stream, others = bindings.streams()
        if stream is None:
            stream = int(self._stream)
        if self.running and int(self.working) != stream:  # the last inference still uses the arena
            self._device.make_wait(stream, int(self.working))
        if self.working is None or int(self.working) != stream:
            self.working = driver.CUstream(stream)
        self.running = True
        bindings.before(self.working, others, ways)
        self._enqueue_in_place()
        (error,) = driver.cuGraphLaunch(graph.executable, self.working)
        if error != SUCCESS:
            raise self._failure("cuGraphLaunch", error)
        if graph.elsewhere:
            self._memory.results_are(graph.elsewhere, [bindings.outputs[index].array for index in graph.elsewhere])
        bindings.after(self.working, others, ways)

    def _enqueue_in_place(self) -> None:
        for index, array in self._inputs.in_place.items():
            port = self._program.inputs[index]
            answer = driver.cuMemcpyHtoDAsync(self._memory.place(port), array.ctypes.data, port.nbytes, self.working)
            checked(answer, f"copy of input {port.name!r}")

    def _run_stepwise(self) -> None:
        """One kernel after the other; the host reads the flags of regions."""
        self.working, self.running = self._stream, True
        bindings = self._bindings
        _, others = bindings.streams(int(self._stream))
        ports = [
            *(("input", i) for i in {*bindings.inputs, *self._inputs.in_place, *self._inputs.sent}),
            *(("output", i) for i in bindings.outputs),
        ]
        ways: Ways = {**self._inputs.halves, **dict.fromkeys(ports)}
        bindings.before(self._stream, others, ways)
        self._enqueue_in_place()
        self._recorder.enqueue_inputs(ways)
        self._walk(self._recorder.order)
        self._recorder.enqueue_outputs(ways)
        bindings.after(self._stream, others, ways)

    def _walk(self, order: Sequence[int | RegionBlock]) -> None:
        for one in order:
            if isinstance(one, RegionBlock):
                while self._is_set(one.region.flag):
                    self._walk(one.inside)
                    if one.region.kind == "if":
                        break
                continue
            launch = self._recorder.launches[one]
            try:  # NVIDIA's variable makes the launch itself report what the kernel did
                launch.enqueue(self._stream)
                if self._blocking:
                    synchronize(self._stream, "waiting for it failed")
            except CudaError as error:
                raise self.failed(error, launch) from error

    def _is_set(self, flag: int) -> bool:
        if self._flag is None:
            self._flag = np.asarray(Pinned(self._device, 4))
        answer = driver.cuMemcpyDtoHAsync(self._flag.ctypes.data, self._memory.bases["arena"] + flag, 4, self._stream)
        checked(answer, "copy of a flag")
        synchronize(self._stream, "waiting for a flag")
        return bool(self._flag.any())

    def _failure(self, what: str, error: Any) -> DeviceError:
        return self.failed(CudaError(f"{what} failed: {error_text(error)}", int(error)))
