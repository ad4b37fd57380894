"""WebGPU's part in `litegpu doctor`; satisfies diagnosis.Doctor."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.diagnosis import ListedDevice, Listing, SystemPart, SystemReport
from litegpu.gpu.backends.webgpu import vulkan
from litegpu.gpu.backends.webgpu.vulkan import VulkanSystem

if TYPE_CHECKING:
    from litegpu.gpu.backends.webgpu.adapters import AdapterInfo


class WebGpuDoctor:
    packages: tuple[str, ...] = ("wgpu",)
    variables: tuple[str, ...] = (*vulkan.VARIABLES, "LITEGPU_WEBGPU_ADAPTER", "WGPU_LIB_PATH")

    def list_devices(self) -> Listing:
        """All adapters, those of OpenGL last."""
        try:
            from litegpu.gpu.backends.webgpu import adapters

            found = adapters.list_adapters("auto")
        except Exception as error:
            problem = f"wgpu does not work: {str(error).strip() or type(error).__name__}"
            repair = f"Reinstall wgpu (pip install --force-reinstall wgpu): {problem}"
            return Listing((), problem=problem, repair=repair)
        with contextlib.suppress(DeviceError):
            found = [*found, *adapters.list_adapters("gl")]
        devices = tuple(
            ListedDevice(a.name, a.backend, a.kind, a.driver, a.features, functools.partial(_open, a)) for a in found
        )
        try:
            chosen = adapters.choose_adapter()
        except DeviceError as error:
            return Listing(devices, problem=str(error))
        return Listing(devices, next((i for i, adapter in enumerate(found) if adapter == chosen), None))

    def inspect(self, environment: Mapping[str, str]) -> VulkanSystem:
        return vulkan.inspect(environment)

    def advice(self, listing: Listing, part: SystemPart, system: SystemReport, working: Sequence[str]) -> list[str]:
        assert isinstance(part, VulkanSystem)
        return vulkan.advice(part, system, working)

    def install_advice(self) -> str:
        from litegpu.gpu.backends.webgpu.adapters import install_advice

        return install_advice()


DOCTOR = WebGpuDoctor()


def _open(adapter: AdapterInfo) -> Device:
    from litegpu.gpu.backends.webgpu.device import WebGpuDevice

    return WebGpuDevice(adapter)
