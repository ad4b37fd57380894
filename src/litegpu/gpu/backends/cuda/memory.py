"""The memory of a CUDA session: the arena, constants that sessions share, and pinned memory for ports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.constants import ProgramConstants, allocated
from litegpu.gpu.backends.cuda.copy import Pinned
from litegpu.gpu.backends.cuda.driver import checked, synchronize
from litegpu.gpu.backends.cuda.result_pool import LARGE_RESULT
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Port, Program

#: Of ports in the staging memory, and what is left behind the arena.
_ALIGNMENT = 256
#: Of what stands for an input, at most; then they come again.
_RANDOM_BYTES = 4 << 20


class SessionMemory:
    """Of one program. The device's context must be current in every method. `inputs` are the ports' pinned memory, as
    bytes; `results`: the outputs that are copied to the host by themselves, where they are wanted, as they are large;
    `not_finite`: one word, for the kernel that looks at those; `ended`: one in which the device says which inference it
    has done."""

    def __init__(self, device: CudaDeviceBase, program: Program, stream: Any) -> None:
        """The arena is zero and the constants are there when what is on `stream` is done. Raises DeviceError if the
        device has no room."""
        self._device = device
        self._program = program
        self._stream = stream
        self._arena = 0
        self._kept: list[np.ndarray] | None = None  # values of the variables that are to be restored
        self.allocations = 0
        self.inputs: list[np.ndarray] = []
        self.results = frozenset(i for i, port in enumerate(program.outputs) if port.nbytes >= LARGE_RESULT)
        self._outputs: dict[int, np.ndarray] = {}
        self._elsewhere: Mapping[int, int] = {}
        self._owners: Sequence[object] = ()  # of what is there
        self._halves: dict[int, np.ndarray] = {}
        self._room: dict[int, int] = {}  # on the device, for halves on their way
        self._stand_ins: dict[int, int] = {}
        self._constants: ProgramConstants | None = None
        try:
            size = _aligned(program.arena_size) + _ALIGNMENT
            self._arena = allocated(device, size)
            checked(driver.cuMemsetD8Async(self._arena, 0, size, stream), "cuMemsetD8Async")
            self._constants = ProgramConstants(device, program, stream)
            self.allocations += 2
            self.bases = {"arena": self._arena, "constants": self._constants.base}
            self._stage()
        except BaseException:
            self.free()
            raise

    def address(self, binding: Binding) -> int:
        """Where what a dispatch binds is."""
        if binding.space == "constants":
            assert self._constants is not None
            return self._constants.address(binding.offset)
        return self.bases[binding.space] + binding.offset

    def place(self, port: Port) -> int:
        """The address of a port in the arena."""
        return self._arena + port.offset

    def result(self, index: int) -> int:
        """The address of output `index` of the last inference: in the arena, or of the array that was bound to it."""
        return self._elsewhere.get(index) or self.place(self._program.outputs[index])

    def results_are(self, elsewhere: Mapping[int, int], owners: Sequence[object] = ()) -> None:
        """An inference is launched that writes these outputs to these addresses; `owners` keep the memory alive until
        the next one."""
        self._elsewhere, self._owners = elsewhere, owners

    def output(self, index: int) -> np.ndarray:
        """The pinned memory of an output, as bytes; that of a large one is made when it is first asked for."""
        found = self._outputs.get(index)
        if found is None:
            found = self._outputs[index] = np.asarray(Pinned(self._device, self._program.outputs[index].nbytes))
            self.allocations += 1
        return found

    def halves(self, index: int) -> np.ndarray:
        """Pinned memory for input `index` as halves, as bytes."""
        found = self._halves.get(index)
        if found is None:
            size = self._program.inputs[index].nbytes // 2
            found = self._halves[index] = np.asarray(Pinned(self._device, _aligned(size)))[:size]
            self.allocations += 1
        return found

    def room_for_halves(self, index: int) -> int:
        """The address of memory on the device for these, or 0 if there is none."""
        found = self._room.get(index)
        if found is None:
            try:
                found = allocated(self._device, _aligned(self._program.inputs[index].nbytes // 2))
                self.allocations += 1
            except DeviceError:
                found = 0
            self._room[index] = found
        return found

    def stand_in(self, index: int) -> int:
        """The address of random numbers on the device that stand for input `index` where kernels are timed, or 0 if
        there is no room: what an inference reads is gone as soon as later kernels have written there. Numbers about
        one as floats, all values of bytes, zeros of other types, which may be places in a table."""
        found = self._stand_ins.get(index)
        if found is None:
            port = self._program.inputs[index]
            try:
                found = allocated(self._device, _aligned(port.nbytes))
            except DeviceError:
                found = 0
            self._stand_ins[index] = found
            if found:
                numbers = _stand_in_of(port)
                answer = driver.cuMemcpyHtoDAsync(found, numbers.ctypes.data, numbers.nbytes, self._stream)
                checked(answer, "cuMemcpyHtoDAsync")
                synchronize(self._stream)
        return found

    def put_stand_ins(self) -> None:
        """Put on the stream that they are what an inference is to read."""
        for index, port in enumerate(self._program.inputs):
            if numbers := self.stand_in(index):
                answer = driver.cuMemcpyDtoDAsync(self.place(port), numbers, port.nbytes, self._stream)
                checked(answer, "cuMemcpyDtoDAsync")

    def clear_variables(self) -> None:
        """Put on the stream that the variables become zero."""
        for port in self._program.variables:
            checked(driver.cuMemsetD8Async(self.place(port), 0, port.nbytes, self._stream), "cuMemsetD8Async")

    def download(self, index: int) -> None:
        """Copy output `index` to its pinned memory, and wait for that."""
        self.send(index, self.output(index), self._stream)
        synchronize(self._stream, f"copy of output {self._program.outputs[index].name!r}")

    def send(self, index: int, target: np.ndarray, stream: Any) -> None:
        """Put on `stream` that output `index` is copied to pinned memory."""
        port = self._program.outputs[index]
        answer = driver.cuMemcpyDtoHAsync(target.ctypes.data, self.result(index), port.nbytes, stream)
        checked(answer, f"copy of output {port.name!r}")

    @contextlib.contextmanager
    def same_variables(self) -> Iterator[None]:
        """Restore the variables afterwards, also if something raises meanwhile."""
        variables = self._program.variables
        kept = [np.asarray(Pinned(self._device, port.nbytes)) for port in variables]
        for port, memory in zip(variables, kept, strict=True):
            what = f"copy of variable {port.name!r}"
            checked(driver.cuMemcpyDtoHAsync(memory.ctypes.data, self.place(port), port.nbytes, self._stream), what)
        synchronize(self._stream)
        self._kept = kept
        try:
            yield
        finally:
            self.restore_variables()

    @property
    def spoilt(self) -> bool:
        """Whether the variables are still to be restored."""
        return self._kept is not None

    def restore_variables(self) -> None:
        """What same_variables() does in the end, if it was broken off before."""
        for port, memory in zip(self._program.variables, self._kept or (), strict=False):
            what = f"copy of variable {port.name!r}"
            checked(driver.cuMemcpyHtoDAsync(self.place(port), memory.ctypes.data, port.nbytes, self._stream), what)
        synchronize(self._stream)
        self._kept = None

    def free(self) -> None:
        arena, self._arena = self._arena, 0  # freed once, whatever comes between
        rooms, self._room = [*self._room.values(), *self._stand_ins.values()], {}
        self._stand_ins = {}
        for place in (arena, *rooms):
            if place:
                driver.cuMemFree(place)
        self._halves.clear()
        self._elsewhere, self._owners = {}, ()
        self.inputs, self._constants = [], None
        self._outputs.clear()

    def _stage(self) -> None:
        small = {i: port for i, port in enumerate(self._program.outputs) if i not in self.results}
        ports = (*self._program.inputs, *small.values())
        offsets, size = [], 0
        for port in ports:
            offsets.append(size)
            size += _aligned(port.nbytes)
        memory = np.asarray(Pinned(self._device, size + _ALIGNMENT))
        self.not_finite = memory[size : size + 4].view(np.uint32)
        self.ended = memory[size + 64 : size + 68].view(np.uint32)
        self.allocations += 1
        memory[...] = 0
        views = [memory[at : at + port.nbytes] for at, port in zip(offsets, ports, strict=True)]
        count = len(self._program.inputs)
        self.inputs = views[:count]
        self._outputs.update(zip(small, views[count:], strict=True))


def _stand_in_of(port: Port) -> np.ndarray:
    rng, some = np.random.default_rng(0), min(port.nbytes, _RANDOM_BYTES)
    if port.dtype is DType.FLOAT32:
        numbers = rng.standard_normal(-(-some // 4), np.float32)
    elif port.dtype in (DType.INT8, DType.UINT8):
        numbers = rng.integers(0, 256, some, np.uint8)
    else:
        numbers = np.zeros(some, np.uint8)
    return np.resize(numbers.view(np.uint8), port.nbytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
