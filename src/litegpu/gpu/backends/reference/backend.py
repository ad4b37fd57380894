"""The reference interpreter as one of the backends; satisfies contract.Backend."""

from __future__ import annotations

import threading

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.reference.device import ReferenceDevice
from litegpu.gpu.backends.reference.text import print_tree
from litegpu.gpu.lang import Features, Kernel


class ReferenceBackend:
    def __init__(self) -> None:
        self._device: ReferenceDevice | None = None
        self._lock = threading.Lock()
        fork.follow(self)

    def open_device(self, api: str | None, name: str | None, *, software: bool) -> Device:
        with self._lock:
            device = self._device
            if device is None or device.lost:
                device = self._device = ReferenceDevice()
        if name is not None and name.lower() not in device.info.name.lower():
            raise DeviceError(f"the reference backend has one device, {device.info.name!r}, and none named {name!r}")
        return device

    def is_passed_over(self, error: DeviceError) -> None:
        pass  # "auto" does not try it

    def print_kernel(self, kernel: Kernel, features: Features) -> str:
        return print_tree(kernel)

    def _forked(self) -> None:
        self._lock = threading.Lock()


BACKEND = ReferenceBackend()
