"""WebGPU as one of the backends; satisfies contract.Backend."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.errors import DeviceError
from litegpu.gpu.backends.abilities import CallRates
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.diagnosis import Doctor
from litegpu.gpu.backends.webgpu.printer import print_wgsl
from litegpu.gpu.lang import Features, Kernel


class WebGpuBackend:
    #: The call as on an H200's Vulkan; operations as on a GPU of one TFLOP/s, since most that are met are slower.
    rates = CallRates(190e-6, 2.4e-6, (1e-12, 1e-12), (2e-12, 2e-12), (5e-12, 1e-11), 1e-11, 1.8e-10)

    def open_device(self, api: str | None, name: str | None, *, software: bool) -> Device:
        from litegpu.gpu.backends.webgpu import device  # wgpu takes its time, and prints without it

        which = api or "auto"
        return device.open_device(which, name) if software else device.open_device(which, name, software=False)

    def list_devices(self) -> Sequence[str]:
        from litegpu.gpu.backends.webgpu.adapters import choose_adapter, list_adapters

        found = [adapter.name for adapter in list_adapters() if not adapter.is_software]
        # Two of one name cannot be told apart, and a GPU with two APIs is listed twice.
        return list(dict.fromkeys(found)) or [choose_adapter().name]

    def is_passed_over(self, error: DeviceError) -> None:
        pass  # nothing comes after it

    def doctor(self) -> Doctor:
        from litegpu.gpu.backends.webgpu.doctor import DOCTOR

        return DOCTOR

    def print_kernel(self, kernel: Kernel, features: Features) -> str:
        return print_wgsl(kernel, features)


BACKEND = WebGpuBackend()
