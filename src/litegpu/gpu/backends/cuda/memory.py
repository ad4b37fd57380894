"""The memory of a CUDA session: arena and constants in one allocation on the device, and pinned memory for ports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.copy import Pinned
from litegpu.gpu.backends.cuda.driver import CudaError, checked, synchronize
from litegpu.gpu.backends.cuda.result_pool import LARGE_RESULT
from litegpu.gpu.program import Port, Program

#: Of the constants behind the arena, and of ports in the staging memory.
_ALIGNMENT = 256
_OUT_OF_MEMORY = int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)


class SessionMemory:
    """Of one program. The device's context must be current in every method. `inputs` are the ports' pinned memory, as
    bytes; `results`: the outputs that are copied to the host by themselves, where they are wanted, as they are large;
    `not_finite`: one word, for the kernel that looks at those."""

    def __init__(self, device: CudaDeviceBase, program: Program, stream: Any) -> None:
        """The arena is zero and the constants are there when what is on `stream` is done. Raises DeviceError if the
        device has no room."""
        self._device = device
        self._program = program
        self._stream = stream
        self._arena = 0
        self._kept: list[np.ndarray] | None = None  # values of the variables that are to be restored
        self.allocations = 0
        constants = _aligned(program.arena_size)
        self.inputs: list[np.ndarray] = []
        self.results = frozenset(i for i, port in enumerate(program.outputs) if port.nbytes >= LARGE_RESULT)
        self._outputs: dict[int, np.ndarray] = {}
        self._allocate(constants + program.constants.nbytes)
        self.bases = {"arena": self._arena, "constants": self._arena + constants}
        try:
            self._upload()
            self._stage()
        except BaseException:
            self.free()
            raise

    def place(self, port: Port) -> int:
        """The address of a port in the arena."""
        return self._arena + port.offset

    def output(self, index: int) -> np.ndarray:
        """The pinned memory of an output, as bytes; that of a large one is made when it is first asked for."""
        found = self._outputs.get(index)
        if found is None:
            found = self._outputs[index] = np.asarray(Pinned(self._device, self._program.outputs[index].nbytes))
            self.allocations += 1
        return found

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
        answer = driver.cuMemcpyDtoHAsync(target.ctypes.data, self.place(port), port.nbytes, stream)
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
        if arena:
            driver.cuMemFree(arena)
        self.inputs = []
        self._outputs.clear()

    def _allocate(self, size: int) -> None:
        """The arena, with zeros, and the constants."""
        try:
            self._arena = int(checked(driver.cuMemAlloc(max(size, _ALIGNMENT)), "cuMemAlloc"))
        except CudaError as error:
            if error.code != _OUT_OF_MEMORY:
                raise
            free, total = checked(driver.cuMemGetInfo(), "cuMemGetInfo")
            raise DeviceError(
                f"this model needs {size >> 20} MiB on {self._device}, where {free >> 20} of {total >> 20} MiB are "
                "free: use a smaller batch or input, or close other programs"
            ) from error
        self.allocations += 1
        checked(driver.cuMemsetD8Async(self._arena, 0, max(size, _ALIGNMENT), self._stream), "cuMemsetD8Async")

    def _upload(self) -> None:
        constants = np.ascontiguousarray(self._program.constants)
        if constants.nbytes:
            what, target = "the upload of the constants", self.bases["constants"]
            checked(driver.cuMemcpyHtoDAsync(target, constants.ctypes.data, constants.nbytes, self._stream), what)
            synchronize(self._stream, what)

    def _stage(self) -> None:
        small = {i: port for i, port in enumerate(self._program.outputs) if i not in self.results}
        ports = (*self._program.inputs, *small.values())
        offsets, size = [], 0
        for port in ports:
            offsets.append(size)
            size += _aligned(port.nbytes)
        memory = np.asarray(Pinned(self._device, size + _ALIGNMENT))
        self.not_finite = memory[size : size + 4].view(np.uint32)
        self.allocations += 1
        memory[...] = 0
        views = [memory[at : at + port.nbytes] for at, port in zip(offsets, ports, strict=True)]
        count = len(self._program.inputs)
        self.inputs = views[:count]
        self._outputs.update(zip(small, views[count:], strict=True))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
