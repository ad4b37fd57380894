"""A partition on a device: arrays in, arrays out, waiting or not."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import numpy as np

from litegpu import debug
from litegpu.delegates.options import WaitType
from litegpu.gpu.program import Program
from litegpu.gpu.runtime.base import Device, KernelTime
from litegpu.gpu.runtime.check import NUMPY
from litegpu.gpu.runtime.keep_awake import KeepAwake
from litegpu.model.reader import DTYPES
from litegpu.model.types import TensorType


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
                if array is self._lent.get(i):
                    continue
                if array.dtype == np.bool_:
                    array = array.astype(np.int32)
                self.session.write(i, np.ascontiguousarray(array))
            self.session.run()
            if self._awake is not None:
                self._awake.used()
            self._pending = True
            if self.wait is not WaitType.DO_NOT_WAIT:
                self._finish()
            return self._results

    def finish(self) -> None:
        """Wait for the inference that was started, if any, and fill the arrays that invoke() gave."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        if not self._pending:
            return
        self._pending = False
        for i, (staged, result) in enumerate(zip(self._staged, self._results, strict=True)):
            self.session.read(i, staged)
            if result is not staged:
                np.copyto(result, staged, casting="unsafe")
        debug.say(debug.TIMINGS, "%s", dict(self.session.stats))

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
        if self._awake is not None:
            self._awake.stop()
        self.session.close()
