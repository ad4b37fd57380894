"""A program's constants on a device: once for all sessions that have the same, whichever models they are of."""

from __future__ import annotations

import bisect
import itertools
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import CudaError, checked, synchronize
from litegpu.gpu.program import Program

#: Bytes that are looked at to find constants that may be the same.
_SAMPLE = 64 << 10
_LEAST_BYTES = 256
#: Constants from so many bytes on are shared by themselves.
LARGE = 1 << 20
#: Of the places of constants.
_ALIGNMENT = 256
_OUT_OF_MEMORY = int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)


class DeviceConstants:
    """In memory of their own, which is freed when no session refers to them any more. `values`: the same on the host,
    of a session's program."""

    def __init__(self, device: CudaDeviceBase, values: np.ndarray, stream: Any) -> None:
        self.address = 0
        self.values = values
        self._device = device
        self.address = allocated(device, values.nbytes)
        if values.nbytes:
            what = "the upload of the constants"
            checked(driver.cuMemcpyHtoDAsync(self.address, values.ctypes.data, values.nbytes, stream), what)
            synchronize(stream, what)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.address and not self._device.lost and not finalizing():
            with self._device.context:
                driver.cuMemFree(self.address)


class ProgramConstants:
    """Those of one program: large ones are shared each by itself, since the signatures of a model have many in common,
    the others together. The device's context must be current; all are there when this returns."""

    def __init__(self, device: CudaDeviceBase, program: Program, stream: Any) -> None:
        """Raises DeviceError if there is no room."""
        values = program.constants
        bound = {(b.offset, b.size) for d in program.dispatches for b in d.bindings if b.space == "constants"}
        large = sorted(place for place in bound if place[1] >= LARGE)
        self._large = {at: shared_constants(device, values[at : at + size], stream) for at, size in large}
        ends = [-(-(at + size) // _ALIGNMENT) * _ALIGNMENT for at, size in large]
        starts = [at for at, _ in large]
        kept = [values[a:b] for a, b in zip([0, *ends], [*starts, len(values)], strict=True)]
        self._rest = shared_constants(device, np.concatenate(kept) if large else values, stream)
        self._starts = starts
        self._left_out = [0, *itertools.accumulate(b - a for a, b in zip(starts, ends, strict=True))]

    @property
    def base(self) -> int:
        """Where those that are not large are."""
        return self._rest.address

    def address(self, offset: int) -> int:
        """Where what begins at an offset of the program's constants is."""
        alone = self._large.get(offset)
        if alone is not None:
            return alone.address
        return self._rest.address + offset - self._left_out[bisect.bisect(self._starts, offset)]


def shared_constants(device: CudaDeviceBase, values: np.ndarray, stream: Any) -> DeviceConstants:
    """These constants on the device, there when this returns; the device's context is current. Raises DeviceError if
    there is no room."""
    values = np.ascontiguousarray(values)
    sample = zlib.crc32(values[-_SAMPLE:].data, zlib.crc32(values[:_SAMPLE].data))
    with device.constants_lock:
        key = values.nbytes, sample
        found: DeviceConstants | None = device.constants.get(key)
        if found is not None and (found.values is values or np.array_equal(found.values, values)):
            return found
        made = DeviceConstants(device, values, stream)
        device.constants[key] = made
        return made


def allocated(device: CudaDeviceBase, size: int) -> int:
    """The address of so much memory of the device. Raises DeviceError if there is no room."""
    try:
        return int(checked(driver.cuMemAlloc(max(size, _LEAST_BYTES)), "cuMemAlloc"))
    except CudaError as error:
        if error.code != _OUT_OF_MEMORY:
            raise
        free, total = checked(driver.cuMemGetInfo(), "cuMemGetInfo")
        raise DeviceError(
            f"this model needs {size >> 20} MiB on {device}, where {free >> 20} of {total >> 20} MiB are free: use a "
            "smaller batch or input, or close other programs"
        ) from error
