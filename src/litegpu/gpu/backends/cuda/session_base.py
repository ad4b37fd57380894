"""A Program on a CUDA device: one allocation, pinned staging, and one graph that is launched for every inference."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from cuda.bindings import driver

from litegpu import fork, native
from litegpu.errors import DeviceError
from litegpu.gpu.backends.abilities import PlainOutputs
from litegpu.gpu.backends.check import NUMPY, check_array, check_has_run, check_program
from litegpu.gpu.backends.contract import SHORT_SECONDS
from litegpu.gpu.backends.cuda.access_policy import streamed_bindings
from litegpu.gpu.backends.cuda.array import MemoryPool
from litegpu.gpu.backends.cuda.base import CudaDeviceBase, LoadedKernel
from litegpu.gpu.backends.cuda.binding import Bindings
from litegpu.gpu.backends.cuda.conditional import needed
from litegpu.gpu.backends.cuda.copy import told_apart, with_helpers
from litegpu.gpu.backends.cuda.driver import await_stream, checked, synchronize
from litegpu.gpu.backends.cuda.inputs import Inputs
from litegpu.gpu.backends.cuda.launching import BLOCKING_VARIABLE, Launcher
from litegpu.gpu.backends.cuda.memory import SessionMemory
from litegpu.gpu.backends.cuda.native_call import SessionParts
from litegpu.gpu.backends.cuda.overlap import ALONE
from litegpu.gpu.backends.cuda.plain_calls import PlainCalls, has_few_ports
from litegpu.gpu.backends.cuda.record import Recorder
from litegpu.gpu.backends.cuda.registered import Registered
from litegpu.gpu.backends.cuda.result_pool import ResultPool
from litegpu.gpu.backends.cuda.results import Results
from litegpu.gpu.backends.cuda.tensor_calls import TensorCalls
from litegpu.gpu.program import Port, Program
from litegpu.host_copy import copy_bytes

_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


class Pools(NamedTuple):
    """Memory for outputs, on the device and on the host, and inputs in memory of the caller's."""

    device: MemoryPool
    host: ResultPool
    registered: Registered


class CudaSessionBase:
    """One Program on one CudaDevice; satisfies contract.Session, but for what CudaSession adds.

    Inputs wait in pinned host memory, from which the graph copies them into the arena; so the arena may reuse their
    place, and an inference without a write() before it sees the inputs of the last one. Works on a stream of its own
    that waits for no other, unless arrays of the user's are bound to ports.
    """

    def __init__(
        self, device: CudaDeviceBase, pools: Pools, program: Program, wait: str, validation: bool = False
    ) -> None:
        """`pools`: where memory for outputs that the caller keeps comes from."""
        self.device = device
        self._pools = pools
        self.program = program
        self.wait = wait
        self.overlap = ALONE
        self._lock: Any = threading.RLock()
        fork.follow(self)
        self._closed = False
        self._has_run = False
        self._stats = dict.fromkeys(("write", "encode", "submit", "wait", "read", "compile", "upload"), 0.0)
        self._writing = 0.0  # seconds of write() since the last run
        self._memory: SessionMemory | None = None
        self._recorder: Recorder | None = None
        self._stream: Any = None
        self._launcher: Launcher | None = None
        self._results: Results | None = None
        self._bindings = Bindings(self)
        self._tensor_calls: TensorCalls | None = None
        self._inputs: Inputs | None = None
        self._plain: PlainCalls | None = None  # until something changes that they were made of
        self._blocking = validation or os.environ.get(BLOCKING_VARIABLE, "0") not in ("", "0")
        try:
            check_program(program, device.features, str(device))
            self._check_usable()
            started = time.perf_counter()
            self.overlap = device.overlap(program)
            kernels = device.kernels(with_helpers(program), self.overlap)
            setters = device.kernels(needed(program)) if device.conditional else []
            self._stats["compile"] = time.perf_counter() - started
            with device.context:
                self._build(kernels, setters)
        except BaseException:
            self.close()
            raise

    def write(self, index: int, array: np.ndarray) -> None:
        started = time.perf_counter()
        with self._lock:
            self._check_usable()
            self._finish()  # the copy from the staging memory may still be under way
            self.inputs.write(index, array)
            self._writing += time.perf_counter() - started

    def input_memory(self, index: int) -> np.ndarray | None:
        """Input `index` in the pinned memory that run() copies it from, flat: what is written there needs no write().
        None if run() returns before that copy is done. Stays valid after close(), then without effect."""
        if self.wait == "do_not_wait":
            return None
        return self.memory.inputs[index].view(NUMPY[self.program.inputs[index].dtype])

    def given(self, index: int) -> np.ndarray:
        """Input `index` as it was written last, flat, until it is written again."""
        return self.inputs.given(index)

    def keep_exact(self, exact: bool) -> None:
        """See abilities.InputRounder."""
        self.inputs.exact = exact

    def run(self, *, wait: bool = True) -> None:
        """See contract.Session; without `wait` it returns at once in any case."""
        with self._lock:
            self._check_usable()
            if self.memory.spoilt or not self._bindings.complete:  # graphs use the staging memory in turn
                self._finish()
            with self.device.context:
                self._run(wait and self.wait != "do_not_wait")

    def call(
        self, arrays: Mapping[int, np.ndarray], outputs: Sequence[int], look: Callable[[list[np.ndarray]], bool]
    ) -> list[np.ndarray] | None:
        """See abilities.Caller."""
        clock = time.perf_counter
        with self._lock:
            self._check_usable()
            self._finish()
            results, inputs, started = self.results, self.inputs, clock()
            if outputs is not results.wanted:
                results.order(outputs)
            with self.device.context:
                try:
                    for index, array in arrays.items():
                        inputs.send(index, array)
                    self._writing += clock() - started
                    self._run(True)
                finally:
                    inputs.over()
                if results.watched and not results.finite(look):
                    return None
                started = clock()
                found = [results.give(i, self._stream, self._settle_copy) for i in outputs]
                self._stats["read"] = clock() - started
        ports = self.program.outputs
        return [array.view(NUMPY[ports[i].dtype]) for i, array in zip(outputs, found, strict=True)]

    def call_plain(
        self, arrays: Sequence[np.ndarray | None], wanted: PlainOutputs
    ) -> list[np.ndarray] | Literal[False] | None:
        """See abilities.PlainCaller."""
        with self._lock:
            if self._closed or self.device.lost:
                self._check_usable()
            plain = self._plain
            if plain is None:
                plain = self._plain = self._new_plain()
                if plain is None:
                    return None
            if plain.waits:
                self._finish()
            found = plain.run(arrays, wanted, self._finish)
            if found is not None:
                self._has_run = True
            return found

    def _new_plain(self) -> PlainCalls | None:
        """None where inferences have to be done another way."""
        library = native.find()
        if library is None or self.wait == "do_not_wait" or not self.launcher.is_plain:
            return None
        if not has_few_ports(self.program):
            return None
        self._finish()
        parts = SessionParts(
            library, self.device, self.program, self.memory, self.recorder, self.results, self._pools.host,
            self.launcher.stream,
        )  # fmt: skip
        return PlainCalls(parts, self.launcher, self._pools.registered, passive=self.wait == "passive")

    def _forget_plain(self) -> None:
        """The native calls are of something that changes."""
        plain = self._plain
        if plain is not None:
            self._finish()
            self._note_times()
            self._plain = None
            with self.device.context:
                plain.close()

    def _note_times(self) -> None:
        """Have those of the last inference in `_stats`."""
        if self._plain is not None:
            self._stats.update(self._plain.take_times())

    def _run(self, wait: bool) -> None:
        """One inference, while the context is current and no other one uses the staging memory."""
        clock, stats, launcher = time.perf_counter, self._stats, self.launcher
        self._note_times()
        started = clock()
        launcher.launch(self._finish)
        if self.results.follows:
            self.results.after(launcher.working)
        submitted = clock()
        if wait:
            self._await()
        self._has_run = True
        stats["submit"], stats["wait"] = submitted - started, clock() - submitted
        stats["write"], stats["read"], self._writing = self._writing, 0.0, 0.0

    def _settle_copy(self) -> None:
        synchronize(self._stream, "copy of an output")

    def read(self, index: int, out: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.outputs, index, "output", out)
        with self._lock:
            self._check_usable()
            check_has_run(self._has_run, index)
            self._finish()
            if index in self._bindings.outputs or index in self.memory.results:
                with self.device.context:
                    self.memory.download(index)
            copy_bytes(out.reshape(-1).view(np.uint8), self.memory.output(index))
            self._note_times()
            self._stats["read"] += time.perf_counter() - started

    def order(self, outputs: Collection[int]) -> None:
        """See abilities.ResultGiver."""
        with self._lock:
            self._check_usable()
            self.results.order(outputs)

    def watch(self, watched: bool) -> None:
        """See abilities.ResultGiver."""
        with self._lock:
            self._check_usable()
            if watched != self.results.watched:
                self._forget_plain()
            self.results.watched = watched

    def give(self, index: int) -> np.ndarray:
        """See abilities.ResultGiver."""
        started = time.perf_counter()
        with self._lock:
            self._check_usable()
            check_has_run(self._has_run, index)
            self._finish()
            with self.device.context:
                found = self.results.give(index, self._stream, self._settle_copy)
            self._note_times()
            self._stats["read"] += time.perf_counter() - started
            return found.view(NUMPY[self.program.outputs[index].dtype])

    def finite(self, look: Callable[[list[np.ndarray]], bool]) -> bool:
        """See abilities.ResultGiver."""
        self.settle()
        with self._lock:
            return self.results.finite(look)

    def settle(self) -> None:
        """See abilities.ResultGiver."""
        with self._lock:
            self._check_usable()
            self._finish()

    def place(self, port: Port) -> int:
        """The address of a port in the arena."""
        return self.memory.place(port)

    def result(self, index: int) -> int:
        """The address of output `index` of the last inference."""
        return self.memory.result(index)

    def enqueue_kernels(self, stream: Any) -> None:
        """Put the kernels alone on a stream."""
        for launch in self.recorder.launches:
            launch.enqueue(stream)

    def reset_variables(self) -> None:
        with self._lock, self.device.context:
            self._check_usable()
            self._finish()
            self.memory.clear_variables()
            synchronize(self._stream)

    def _forked(self) -> None:
        self._lock = fork.Refusal()

    def close(self, *, wait: bool = True) -> None:
        if fork.is_forbidden():
            return
        with self._lock:
            try:
                if wait and not self._closed and not self.device.lost:
                    with self.device.context:
                        for stream in self._streams():
                            await_stream(stream)
            finally:
                self._closed = True
            if self.device.lost:
                return  # the driver has freed everything
            with self.device.context:
                if any(driver.cuStreamQuery(stream)[0] == _NOT_READY for stream in self._streams()):
                    self.device.leave(self)
                else:
                    self._free()
        if wait:
            self.device.free_what_was_left()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_blocking") and not finalizing():
            self.close(wait=False)

    def _streams(self) -> list[Any]:
        working = None if self._launcher is None else self._launcher.working
        return [stream for stream in (self._stream, working) if stream is not None]

    def _free(self) -> None:
        """Let go of everything, whatever is left of it; nothing twice."""
        self._bindings.close()
        self._tensor_calls = None
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.close()
        inputs, self._inputs = self._inputs, None
        if inputs is not None:
            inputs.close()
        results, self._results = self._results, None
        if results is not None:
            results.close()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()
        stream, self._stream = self._stream, None
        if stream is not None:
            driver.cuStreamDestroy(stream)
        if self._memory is not None:
            self._memory.free()

    @property
    def allocations(self) -> int:
        return self.memory.allocations

    @property
    def stats(self) -> Mapping[str, float]:
        self._note_times()
        return dict(self._stats)

    @property
    def memory(self) -> SessionMemory:
        assert self._memory is not None  # but while a session that cannot be built is taken down
        return self._memory

    @property
    def recorder(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    @property
    def inputs(self) -> Inputs:
        assert self._inputs is not None
        return self._inputs

    @property
    def results(self) -> Results:
        assert self._results is not None
        return self._results

    @property
    def launcher(self) -> Launcher:
        assert self._launcher is not None
        return self._launcher

    def _build(self, kernels: Sequence[LoadedKernel], setters: Sequence[LoadedKernel]) -> None:
        """`kernels` of the program, and the helpers; `setters`: what sets conditions, if there are any."""
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = checked(driver.cuStreamCreate(int(flags)), "cuStreamCreate")
        started = time.perf_counter()
        memory = self._memory = SessionMemory(self.device, self.program, self._stream)
        self._stats["upload"] = time.perf_counter() - started
        kernels, helpers = told_apart(self.program, kernels)
        self._results = Results(self.program, memory, self._bindings, self._pools.host, helpers.look)
        setter = next(iter(setters), None)
        device = self.device
        streamed = streamed_bindings(self.program, device.features.cache_bytes, device.access_window_bytes)
        recorder = self._recorder = Recorder(
            self.program, memory, kernels, helpers, self._stream, self.overlap, streamed, setter
        )
        inputs = self._inputs = Inputs(
            self.device, self.program, memory, recorder, self._pools.registered, self._stream,
            rounds=self.wait == "do_not_wait",
        )  # fmt: skip
        self._launcher = Launcher(
            self.device, self.program, memory, recorder, self._bindings, inputs, self._stream, self._blocking
        )
        synchronize(self._stream)

    def _finish(self) -> None:
        """Wait for the inference that was launched, or is not known not to be, if any; afterwards nothing is left that
        another method was interrupted in."""
        if self.launcher.running or self.memory.spoilt:
            with self.device.context:
                self._await()
                if self.memory.spoilt:
                    self.memory.restore_variables()

    def _await(self) -> None:
        """Wait for the inference that was launched, if any, while the context is current."""
        if not self.launcher.running:
            return
        self._note_times()
        expected = self._stats["wait"] if self._has_run else 0.0
        spin = self.wait != "passive" or (self._has_run and expected < SHORT_SECONDS)
        self.launcher.wait(spin, expected)

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceError("the session was closed: build a new one")
        if self.device.lost:
            self.device.check()
