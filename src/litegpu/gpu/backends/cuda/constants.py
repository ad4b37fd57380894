"""A program's constants on a device: once for all sessions that have the same, whichever models they are of."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import CudaError, checked, synchronize

#: Bytes that are looked at to find constants that may be the same.
_SAMPLE = 64 << 10
_LEAST_BYTES = 256
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

    def __del__(self) -> None:
        if self.address and not self._device.lost and not sys.is_finalizing():
            with self._device.context:
                driver.cuMemFree(self.address)


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
