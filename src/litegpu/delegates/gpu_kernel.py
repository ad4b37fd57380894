"""A partition on a device: arrays in, arrays out, waiting or not."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu import debug
from litegpu.delegates import gpu_binding
from litegpu.delegates.options import WaitType
from litegpu.gpu.program import Program
from litegpu.gpu.runtime.base import Device, KernelTime
from litegpu.gpu.runtime.check import NUMPY
from litegpu.gpu.runtime.keep_awake import KeepAwake
from litegpu.model.reader import DTYPES
from litegpu.model.types import Tensor, TensorType


class GpuKernel:
    """A partition on a device. `types` and `shapes` are those of the outputs. With WaitType.DO_NOT_WAIT the arrays that
    invoke() gives are filled by finish(), which the next invoke() calls as well."""

    def __init__(
        self,
        device: Device,
        program: Program,
        types: Sequence[TensorType],
        shapes: Sequence[tuple[int, ...]],
        input_shapes: Sequence[tuple[int, ...]] = (),
        *,
        wait: WaitType = WaitType.PASSIVE,
        validation: bool = False,
    ) -> None:
        self.device = device
        self.program = program
        self.types, self.shapes, self.input_shapes = types, shapes, input_shapes
        self.wait, self.validation = wait, validation
        self._lock = threading.Lock()
        self._lent: dict[int, np.ndarray] = {}  # inputs in the session's own memory
        self._pending = False
        self._says_timings = debug.level() >= debug.TIMINGS  # asked here, as it takes a microsecond
        self.closed = False
        self.bound: dict[tuple[str, int], Any] = {}  # the user's buffers, by "input" or "output" and place
        self.adapters: dict[Any, Program] = {}  # compiled for buffers in other formats
        self._left: frozenset[int] = frozenset()  # outputs that stay on the GPU if they are bound
        self._stale: set[int] = set()  # those whose arrays are older than the last inference
        ports = program.outputs
        self._staged = [np.empty(s, NUMPY[p.dtype]) for s, p in zip(shapes, ports, strict=True)]
        self._results = [
            a if DTYPES[t] == a.dtype else np.empty(a.shape, DTYPES[t])
            for a, t in zip(self._staged, types, strict=True)
        ]
        session_wait = "active" if wait is WaitType.AGGRESSIVE else wait.value
        self.session = device.session(program, session_wait, validation=validation)
        self._awake = KeepAwake(device.nudge) if wait is WaitType.AGGRESSIVE else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the report is to say about the partition."""
        return tuple(f"'{name}' stays in float32: {reason}" for name, reason in self.program.in_float32)

    def another(self) -> GpuKernel:
        """The same partition with memory of its own, that does not wait."""
        return GpuKernel(
            self.device, self.program, self.types, self.shapes, self.input_shapes,
            wait=WaitType.DO_NOT_WAIT, validation=self.validation,
        )  # fmt: skip

    def input_memory(self, i: int) -> np.ndarray | None:
        """See protocol.DelegateKernel.close."""
        offer = getattr(self.session, "input_memory", None)
        memory = offer(i) if offer is not None else None
        if memory is None or memory.size != math.prod(self.input_shapes[i]):
            return None
        self._lent[i] = memory.reshape(self.input_shapes[i])
        return self._lent[i]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        with self._lock:
            for i, array in enumerate(inputs):
                if array is not self._lent.get(i) and ("input", i) not in self.bound:
                    self.write(i, array)
            self.session.run()
            self._stale.clear()
            if self._awake is not None:
                self._awake.used()
            self._pending = True
            if self.wait is not WaitType.DO_NOT_WAIT:
                self._finish()
            return self._results

    def write(self, i: int, array: np.ndarray) -> None:
        """Copy an array to input `i`, for the next inference."""
        self.session.write(i, np.ascontiguousarray(array, np.int32 if array.dtype == np.bool_ else None))

    def run_bound(self) -> None:
        """One inference whose inputs are all bound, or were written before. Returns at once, and leaves the outputs,
        which are bound, where they are."""
        session: Any = self.session
        with self._lock:
            session.run(wait=False)
            self._stale.update(range(len(self._results)))

    def bind(self, kind: str, i: int, tensor: Tensor, buffer: Any, **how: Any) -> None:
        """Let `buffer` stand for input or output `i` (`kind` says which), that is `tensor`. Raises TensorError or
        DeviceError if it does not fit."""
        with self._lock:
            self._finish()
            gpu_binding.bind(self, kind, i, tensor, buffer, **how)
            self.bound[kind, i] = buffer

    def rebind(self, kind: str, i: int, buffer: Any) -> bool:
        """bind(), but quick, for a buffer as plain as the one that is bound and a kernel that is not waited for; False
        if that does not apply."""
        session: Any = self.session
        with self._lock:
            if self._pending or not session.replace(kind, i, buffer):
                return False
            self.bound[kind, i] = buffer
            return True

    def unbind(self, kind: str, i: int) -> None:
        """Go back to host memory for input or output `i`."""
        with self._lock:
            self._finish()
            if kind == "output" and i in self._stale:
                self._read(i)
            if self.bound.pop((kind, i), None) is not None:
                session: Any = self.session
                session.bind(kind, i, None, "")

    def output_buffer(self, i: int, tensor: Tensor) -> Any:
        """What is bound to output `i`, or else memory of our own, which is bound by this."""
        if ("output", i) not in self.bound:
            buffer = gpu_binding.own_buffer(self, i, tensor)
            self.bind("output", i, tensor, buffer)
            session: Any = self.session
            session.fill_bound_output(i)
        return self.bound["output", i]

    def leave(self, outputs: Iterable[int]) -> None:
        """Of these outputs, those that are bound are copied to the arrays only by ensure_readable()."""
        self._left = frozenset(outputs)

    def ensure_readable(self, i: int) -> None:
        """Have output `i` of the last inference in its array."""
        with self._lock:
            self._finish()
            if i in self._stale:
                self._read(i)

    def finish(self) -> None:
        """Wait for the inference that was started, if any, and fill the arrays that invoke() gave."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        if not self._pending:
            return
        self._pending = False
        for i in range(len(self._results)):
            if i in self._left and ("output", i) in self.bound:
                self._stale.add(i)
            else:
                self._read(i)
        if self._says_timings:
            debug.say(debug.TIMINGS, "%s", dict(self.session.stats))

    def _read(self, i: int) -> None:
        staged, result = self._staged[i], self._results[i]
        self.session.read(i, staged)
        if result is not staged:
            np.copyto(result, staged, casting="unsafe")
        self._stale.discard(i)

    def begin(self, inputs: Mapping[int, np.ndarray]) -> None:
        """Start an inference on these inputs, by place, which may be changed afterwards; collect() gives its results.
        For kernels that do not wait."""
        with self._lock:
            for i, array in inputs.items():
                self.write(i, array)
            self.session.run()
            self._pending = True

    def collect(self) -> list[np.ndarray]:
        """The outputs of the inference that was started, as arrays of the caller's; waits for it."""
        found = []
        with self._lock:
            self._pending = False
            for i, (port, shape, type_) in enumerate(zip(self.program.outputs, self.shapes, self.types, strict=True)):
                array = np.empty(shape, NUMPY[port.dtype])
                self.session.read(i, array)
                found.append(array if array.dtype == DTYPES[type_] else array.astype(DTYPES[type_]))
        return found

    def reset_variables(self) -> None:
        """Set the variables to zero."""
        with self._lock:
            self._finish()
            self.session.reset_variables()

    def profile(self) -> Sequence[KernelTime]:
        """GPU time of each kernel in one inference on the inputs of the last invoke()."""
        with self._lock:
            self._finish()
            return self.session.profile()

    def close(self) -> None:
        self.closed = True
        self.bound.clear()
        if self._awake is not None:
            self._awake.stop()
        self.session.close()
