"""The power of NVIDIA GPUs, whichever backend drives them: from the driver's library NVML, called through ctypes."""

from __future__ import annotations

import ctypes
import sys

from litegpu.errors import DeviceError
from litegpu.gpu.backends.abilities import PowerMeter
from litegpu.gpu.backends.contract import Device

_NVIDIA = ("nvidia", "geforce", "quadro", "tesla", "rtx")


def power_meter(device: Device) -> PowerMeter:
    """See abilities.PowerReader."""
    name, uuid = device.info.name, device.info.uuid
    if uuid is None and not any(word in name.lower() for word in _NVIDIA):
        raise DeviceError(f"{name} does not report power: only NVIDIA's driver is asked")
    try:
        return NvmlMeter(uuid, name)
    except (OSError, LookupError, AttributeError) as error:
        raise DeviceError(f"the driver does not tell the power of {name}: {error}") from error


class NvmlMeter:
    """One GPU, found by its UUID, else by its name if no other has the same. Raises OSError where there is no NVML, and
    LookupError where it does not know the GPU."""

    source = "NVML"

    def __init__(self, uuid: str | None, name: str) -> None:
        library = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
        self._nvml = ctypes.CDLL(library)
        if self._nvml.nvmlInit_v2():
            raise OSError("NVML does not start")
        self._handle = ctypes.c_void_p()
        if uuid is not None:
            if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle)):
                raise LookupError(f"NVML does not know {uuid}")
            return
        count = ctypes.c_uint()
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for i in range(count.value):
            handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)):
                continue
            self._nvml.nvmlDeviceGetName(handle, text, len(text))
            if text.value.decode(errors="replace") in name or name in text.value.decode(errors="replace"):
                found.append(handle)
        if len(found) != 1:
            raise LookupError(f"NVML knows {len(found)} devices named {name}")
        self._handle = found[0]

    def millijoules(self) -> int | None:
        value = ctypes.c_ulonglong()
        failed = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value))
        return None if failed else int(value.value)

    def milliwatts(self) -> int | None:
        value = ctypes.c_uint()
        failed = self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(value))
        return None if failed else int(value.value)
