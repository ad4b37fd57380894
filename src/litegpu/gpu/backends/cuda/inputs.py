"""The inputs of a CUDA session on their way from arrays of the caller's to the arena."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.gpu.backends.check import NUMPY, check_array
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.copy import MOST_BYTES, is_pinned
from litegpu.gpu.backends.cuda.driver import CudaError, error_text
from litegpu.gpu.backends.cuda.held import held_calls
from litegpu.gpu.backends.cuda.memory import SessionMemory
from litegpu.gpu.backends.cuda.record import Recorder
from litegpu.gpu.backends.cuda.registered import Registered
from litegpu.gpu.program import Program
from litegpu.host_copy import LARGE_BYTES, Onward, can_round, copy_bytes, copy_on, round_bytes

#: Smaller inputs take no longer as they are.
LEAST_ROUNDED = 64 << 10


class Inputs:
    """Of one session, whose lock is held in every method. An input waits in the session's pinned memory, from which the
    graph copies it, unless

    - it lies in pinned memory itself: `in_place`, by index. It is copied in front of the graph.
    - kernels round it to float16 and nobody writes to the session's memory but write(): it waits as float16, which a
      graph of its own brings: `halves`, as such graphs are told apart by.
    - the inference follows at once, and it is large: `sent`. Pieces are copied to pinned memory while those before are
      under way to the arena. Those that kernels round to float16 are rounded meanwhile, and widened on the device.
    """

    def __init__(
        self,
        device: CudaDeviceBase,
        program: Program,
        memory: SessionMemory,
        recorder: Recorder,
        registered: Registered,
        stream: Any,
        rounds: bool,
    ) -> None:
        """`rounds`: nobody is lent the session's memory."""
        self._device, self._program, self._memory, self._recorder = device, program, memory, recorder
        self._registered = registered
        self._stream = int(stream)
        self._copy_in = held_calls().copy_in
        self.in_place: dict[int, np.ndarray] = {}
        self.sent: set[int] = set()
        self.halves: Mapping[tuple[str, int], int | None] = {}
        #: Whether given() is to give every number as it was written.
        self.exact = False
        self._rounds = rounds
        self._infinite: set[int] = set()  # of which some did not fit float16
        self._borrowed: list[int] = []  # of `in_place`, until the inference is over

    def write(self, index: int, array: np.ndarray) -> None:
        """Have `array` for the next inference, when that may come. Nothing copies from the pinned memory any more."""
        check_array(self._program.inputs, index, "input", array)
        if array.nbytes > MOST_BYTES and is_pinned(array, self._device):
            self.in_place[index] = array
        else:
            self.in_place.pop(index, None)
            if self._write_halves(index, array):
                return
            copy_bytes(self._memory.inputs[index], array.reshape(-1).view(np.uint8))
        if self.halves:
            self.halves = {place: at for place, at in self.halves.items() if place != ("halves", index)}

    def _write_halves(self, index: int, array: np.ndarray) -> bool:
        """Have `array` as float16, if that makes no difference."""
        port, memory = self._program.inputs[index], self._memory
        if not self._rounds or self.exact or not port.rounded or port.nbytes < LEAST_ROUNDED or not can_round():
            return False
        if index in self._infinite:
            return False
        if ("halves", index) not in self.halves and port.nbytes // 2 > MOST_BYTES:
            with self._device.context:
                if not memory.room_for_halves(index):
                    return False
        target = memory.halves(index)
        if not round_bytes(target, array.reshape(-1).view(np.uint8)):
            self._infinite.add(index)
            return False
        if ("halves", index) not in self.halves:
            self.halves = {**self.halves, ("halves", index): target.ctypes.data}
        return True

    def send(self, index: int, array: np.ndarray) -> None:
        """The same for an inference that is begun next, and awaited before the caller has the array back; the device's
        context is current."""
        if array.nbytes < LARGE_BYTES or is_pinned(array, self._device):
            self.write(index, array)
            return
        check_array(self._program.inputs, index, "input", array)
        if self._registered.known(array):
            self._borrowed.append(index)
            self.in_place[index] = array
            return
        self.in_place.pop(index, None)
        self.sent.add(index)
        memory, port, source = self._memory, self._program.inputs[index], array.reshape(-1).view(np.uint8)
        room = memory.room_for_halves(index) if port.rounded and can_round() else 0
        target = memory.halves(index) if room else memory.inputs[index]
        onward = Onward(self._copy_in, room or memory.place(port), self._stream)
        error = copy_on(target, source, onward, rounded=bool(room))
        if error:
            raise CudaError(f"copy of input {port.name!r}: {error_text(driver.CUresult(error))}", error)
        if room:
            self._recorder.enqueue_widened(index, room)

    def over(self) -> None:
        """The inference for which arrays were sent is done."""
        self.sent.clear()
        while self._borrowed:
            self.in_place.pop(self._borrowed.pop(), None)

    def given(self, index: int) -> np.ndarray:
        """Input `index` as it was written last, flat."""
        found = self.in_place.get(index)
        port = self._program.inputs[index]
        if found is None and ("halves", index) in self.halves:
            return self._memory.halves(index).view(np.float16).astype(np.float32)
        return self._memory.inputs[index].view(NUMPY[port.dtype]) if found is None else found

    def close(self) -> None:
        self.in_place.clear()
        self.halves = {}
        self.over()
