"""A Program in NumPy: its kernels one after another in the language's interpreter."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu import fork
from litegpu.errors import DeviceError, blame
from litegpu.gpu.backends.check import check_array, check_has_run, check_program
from litegpu.gpu.backends.contract import KernelTime
from litegpu.gpu.backends.reference.base import ReferenceDeviceBase
from litegpu.gpu.backends.reference.effort import seconds
from litegpu.gpu.lang import Kernel, KernelError, interpret, ops
from litegpu.gpu.program import Dispatch, Port, Program, RegionBlock, blocks

log = logging.getLogger("litegpu")

#: Seconds of an inference from which on there is a warning.
_PATIENCE = 10.0


@dataclass(frozen=True)
class _Step:
    """A launch: the kernel, and by the names of its buffers parts of the arena and of the constants."""

    dispatch: Dispatch
    kernel: Kernel
    arrays: Mapping[str, np.ndarray]


class ReferenceSession:
    """One Program on the ReferenceDevice; satisfies contract.Session.

    Inputs and outputs lie beside the arena: it may reuse their places, and an inference without a write() before it
    sees the inputs of the last one. An inference that raises, Ctrl-C included, leaves variables as they were.
    """

    def __init__(self, device: ReferenceDeviceBase, program: Program) -> None:
        self.device = device
        self.program = program
        self._lock = threading.RLock()  # held over a whole inference
        fork.follow(self)
        self._closed = False
        self._has_run = False
        self._stats = dict.fromkeys(("write", "encode", "submit", "wait", "read", "compile", "upload"), 0.0)
        self._writing = 0.0  # seconds of write() since the last run
        check_program(program, device.features, str(device))
        device.check()
        started = time.perf_counter()
        kernels = device.kernels(program.kernels)
        self._stats["compile"] = time.perf_counter() - started
        self._arena = np.zeros(program.arena_size, np.uint8)
        spaces = {"arena": self._arena, "constants": program.constants}
        self._steps = [_step(dispatch, kernels[dispatch.kernel], spaces, device) for dispatch in program.dispatches]
        self._inputs = [np.zeros(port.nbytes, np.uint8) for port in program.inputs]
        self._outputs = [np.zeros(port.nbytes, np.uint8) for port in program.outputs]
        self._warn_of_slowness()

    def write(self, index: int, array: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.inputs, index, "input", array)
        with self._lock:
            self._check_usable()
            self._inputs[index][...] = array.reshape(-1).view(np.uint8)
            self._writing += time.perf_counter() - started

    def run(self) -> None:
        with self._lock:
            started = time.perf_counter()
            self._has_run = False
            self._infer(lambda step: None)
            for port, output in zip(self.program.outputs, self._outputs, strict=True):
                output[...] = self._at(port)
            self._has_run = True
            self._stats["wait"] = time.perf_counter() - started
            self._stats["write"], self._stats["read"], self._writing = self._writing, 0.0, 0.0

    def read(self, index: int, out: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.outputs, index, "output", out)
        with self._lock:
            self._check_usable()
            check_has_run(self._has_run, index)
            out.reshape(-1).view(np.uint8)[...] = self._outputs[index]
            self._stats["read"] += time.perf_counter() - started

    def reset_variables(self) -> None:
        with self._lock:
            self._check_usable()
            for port in self.program.variables:
                self._at(port)[...] = 0

    def profile(self) -> Sequence[KernelTime]:
        """One inference, each kernel in seconds of the host. Outputs of the last run() stay readable."""
        times: list[KernelTime] = []
        with self._lock:
            before = self._variables()
            clock = [time.perf_counter()]

            def note(step: _Step) -> None:
                clock.append(time.perf_counter())
                times.append(KernelTime(step.dispatch.label, step.dispatch.sources, clock[-1] - clock[-2]))

            self._infer(note)
            self._restore(before)
        return times

    def close(self, *, wait: bool = True) -> None:
        """An inference of another thread ends before, or, without `wait`, after its present kernel."""
        if not wait:
            self._closed = True
        if self._lock.acquire(blocking=wait):
            try:
                self._closed = True
                self._free()
            finally:
                self._lock.release()

    @property
    def allocations(self) -> int:
        """Arrays: the arena, and one for each port."""
        return 1 + len(self.program.inputs) + len(self.program.outputs)

    @property
    def stats(self) -> Mapping[str, float]:
        return dict(self._stats)

    def _infer(self, done: Callable[[_Step], None]) -> None:
        """Run all kernels on the inputs; `done` is told of each."""
        self._check_usable()
        before = self._variables()
        try:
            for port, content in zip(self.program.inputs, self._inputs, strict=True):
                self._at(port)[...] = content
            self._run(blocks(self.program), done)
            self._check_usable()
        except BaseException:
            self._restore(before)
            raise
        finally:
            if self._closed:
                self._free()

    def _run(self, order: Sequence[int | RegionBlock], done: Callable[[_Step], None]) -> None:
        for one in order:
            self._check_usable()
            if isinstance(one, RegionBlock):
                while self._is_set(one.region.flag):
                    self._run(one.inside, done)
                    if one.region.kind == "if":
                        break
                continue
            _launch(self._steps[one], self.device)
            done(self._steps[one])

    def _is_set(self, flag: int) -> bool:
        self._check_usable()
        return bool(self._arena[flag : flag + 4].any())

    def _variables(self) -> list[np.ndarray]:
        return [self._at(port).copy() for port in self.program.variables]

    def _restore(self, variables: Sequence[np.ndarray]) -> None:
        for port, content in zip(self.program.variables, variables, strict=True):
            self._at(port)[...] = content

    def _at(self, port: Port) -> np.ndarray:
        return self._arena[port.offset : port.offset + port.nbytes]

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceError("the session was closed: build a new one")
        self.device.check()

    def _free(self) -> None:
        self._steps, self._inputs, self._outputs = [], [], []
        self._arena = np.zeros(self.program.arena_size if self.program.variables else 0, np.uint8)

    def _warn_of_slowness(self) -> None:
        estimate = sum(seconds(step.kernel) for step in self._steps)
        if estimate >= _PATIENCE:
            log.warning(
                "%s interprets each kernel: an inference may take %s. It is for checks on small models; any "
                "other device, the CPU included, is faster by orders of magnitude",
                self.device, f"{estimate:.0f} s" if estimate < 120 else f"{estimate / 60:.0f} minutes",
            )  # fmt: skip

    def _forked(self) -> None:
        self._lock = threading.RLock()


def _step(dispatch: Dispatch, kernel: Kernel, spaces: Mapping[str, np.ndarray], device: ReferenceDeviceBase) -> _Step:
    """Raises DeviceError, naming the kernel, if the kernel wants other buffers or groups than the dispatch gives."""
    problem = None
    if [m.access for m in kernel.buffers] != [{"arena": "read_write"}.get(b.space, "read") for b in dispatch.bindings]:
        problem = f"it has {len(kernel.buffers)} buffers, not these {len(dispatch.bindings)}"
    elif kernel.dispatch != tuple(dispatch.groups):
        problem = f"it is for {kernel.dispatch} workgroups, not {tuple(dispatch.groups)}"
    arrays: dict[str, np.ndarray] = {}
    for memory, binding in zip(kernel.buffers, dispatch.bindings, strict=False):
        if memory.nbytes > binding.size:
            problem = f"buffer {memory.name!r} has {memory.nbytes} bytes, and {binding.size} are bound to it"
        part = spaces[binding.space][binding.offset : binding.offset + memory.nbytes]
        if problem is None:
            arrays[memory.name] = part.view(ops.NUMPY[memory.storage.kind])
    if problem is not None:
        error = DeviceError(f"kernel {kernel.name!r} ({dispatch.label}) does not fit {device}: {problem}")
        raise blame(error, dispatch.sources)
    return _Step(dispatch, kernel, arrays)


def _launch(step: _Step, device: ReferenceDeviceBase) -> None:
    """Raises DeviceError, naming the kernel and its author's line, for what the interpreter objects to."""
    try:
        interpret.run(step.kernel, step.arrays, device.features.subgroup_size)
    except (KernelError, MemoryError) as error:
        what = str(error).removeprefix(f"kernel {step.kernel.name}: ") or "out of memory"
        failure = DeviceError(f"kernel {step.kernel.name!r} ({step.dispatch.label}) failed on {device}: {what}")
        raise blame(failure, step.dispatch.sources) from error
