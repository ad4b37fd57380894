"""Finding WebGPU adapters, choosing one, and saying what to install when there is none."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from litegpu import fork
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.backends.in_threads import in_threads
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.units import multiprocessors
from litegpu.gpu.lang.features import Features

BACKENDS = ("vulkan", "metal", "d3d12", "gl")
#: Kinds of adapter, best first.
KINDS = ("discrete", "integrated", "unknown", "software")
#: Part of the name of the adapter to take when the caller names none.
ADAPTER_VARIABLE = "LITEGPU_WEBGPU_ADAPTER"
#: Fewer and nothing else are no name: a number is meant as of CUDA's devices, and is in many a driver's version.
_DIGITS = 3

#: Mesa's software driver ends all loops of a thread after so many rounds, without a word (lp_bld_limits.h).
_LLVMPIPE_ROUNDS = 65534
_BACKEND_OF = {"Vulkan": "vulkan", "Metal": "metal", "D3D12": "d3d12", "OpenGL": "gl", "OpenGLES": "gl"}
_KIND_OF = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "software"}


@dataclass(frozen=True)
class AdapterInfo:
    """A device that wgpu can open through one graphics API; a GPU with two APIs is listed twice."""

    name: str
    backend: str  # one of BACKENDS
    kind: str  # one of KINDS
    vendor: str
    driver: str
    features: Features
    handle: Any = field(repr=False, compare=False)  # wgpu's GPUAdapter

    @property
    def is_software(self) -> bool:
        return self.kind == "software"

    def __str__(self) -> str:
        return f"{self.name} ({self.backend}, {self.kind})"


def list_adapters(backend: str = "auto") -> list[AdapterInfo]:
    """The adapters of one backend, best first; `auto` means all backends but OpenGL. May be empty; raises DeviceError
    only if wgpu itself does not work."""
    if backend != "auto" and backend not in BACKENDS:
        raise OptionError(f"unknown WebGPU backend {backend!r}: use auto, {', '.join(BACKENDS)}")
    fork.check()
    try:
        found = [_describe(adapter) for adapter in in_threads(native.enumerate_adapters, [backend == "gl"])[0]]
    except Exception as error:
        raise DeviceError(f"wgpu could not list devices: {error}") from error
    if any(not adapter.is_software for adapter in found):
        fork.gpu_is_used()  # its driver's library has begun to work
    if backend != "auto":
        found = [adapter for adapter in found if adapter.backend == backend]
    return sorted(found, key=lambda adapter: KINDS.index(adapter.kind))  # stable: wgpu's order within a kind


def choose_adapter(backend: str = "auto", name: str | None = None) -> AdapterInfo:
    """The best adapter whose name contains `name` (any case; by default the variable LITEGPU_WEBGPU_ADAPTER, then any);
    one or two digits are no name.

    `auto` falls back to OpenGL for a real GPU without Vulkan, Metal and Direct3D 12, never for a software renderer.
    Raises DeviceError that says what was found and what to install.
    """
    wanted = name if name is not None else os.environ.get(ADAPTER_VARIABLE, "")
    found = list_adapters(backend)
    if backend == "auto" and not _named(found, wanted):
        found += [adapter for adapter in list_adapters("gl") if not adapter.is_software]
    matching = _named(found, wanted)
    if found and wanted.isdecimal() and len(wanted) < _DIGITS:
        raise DeviceError(
            f"{wanted!r} does not name a {_api_name(backend)} device: a number counts those of CUDA alone, as in "
            f"'cuda:1'; give a part of the name. Found: {'; '.join(map(str, found))}"
        )
    if matching:
        return matching[0]
    if found:
        raise DeviceError(
            f"no {_api_name(backend)} device has {wanted!r} in its name; found: {'; '.join(map(str, found))}"
        )
    raise DeviceError(f"no {_api_name(backend)} device was found. {install_advice()} `litegpu doctor` says more.")


def install_advice(system: str | None = None) -> str:
    """What to install so that a WebGPU device appears on `system` (sys.platform of this machine by default)."""
    system = system or sys.platform
    if system.startswith("linux"):
        return f"Install a Vulkan driver: {_linux_driver_command()}."
    if system == "darwin":
        return "macOS needs 10.15 or later and a GPU that Metal supports; virtual machines often have none."
    if system == "win32":
        return "Install the graphics driver of the GPU's maker (Windows 10 or later has Direct3D 12)."
    return "litegpu's GPU path needs Vulkan, Metal or Direct3D 12."


# ----------------------------------------------------------------------------------------------


def _linux_driver_command() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if family & {"debian", "ubuntu"}:
        return "apt-get install libvulkan1 mesa-vulkan-drivers (NVIDIA: the driver's own package has Vulkan)"
    if family & {"fedora", "rhel"}:
        return "dnf install vulkan-loader mesa-vulkan-drivers (NVIDIA: the driver's own package has Vulkan)"
    if "arch" in family:
        return "pacman -S vulkan-icd-loader and vulkan-radeon, vulkan-intel, nvidia-utils or vulkan-swrast"
    if "alpine" in family:
        return "apk add vulkan-loader and mesa-vulkan-ati, mesa-vulkan-intel or mesa-vulkan-swrast"
    return "the Vulkan loader (libvulkan.so.1) and Mesa's or the GPU maker's Vulkan driver"


def _named(adapters: Sequence[AdapterInfo], name: str) -> list[AdapterInfo]:
    return [adapter for adapter in adapters if name.lower() in adapter.name.lower()]


def _api_name(backend: str) -> str:
    return "WebGPU" if backend == "auto" else f"WebGPU ({backend})"


def _describe(adapter: Any) -> AdapterInfo:
    info = adapter.info
    return AdapterInfo(
        name=info["device"] or info["vendor"] or "unnamed device",
        backend=_BACKEND_OF.get(info["backend_type"], info["backend_type"].lower()),
        kind=_KIND_OF.get(info["adapter_type"], "unknown"),
        vendor=info["vendor"],
        driver=info["description"],
        features=_features(adapter),
        handle=adapter,
    )


#: The APIs that have products of four bytes at once, as all desktops' GPUs of the last years do; Metal and OpenGL spell
#: them out.
_WITH_BYTE_PRODUCTS = ("Vulkan", "D3D12")


def _units(info: Any) -> int:
    return os.cpu_count() or 1 if info["adapter_type"] == "CPU" else multiprocessors(info["device"] or "")


#: Of NVIDIA's compiler, on an H200; others were not measured.
_LOADS_TOGETHER = 48


def _features(adapter: Any) -> Features:
    limits, names = adapter.limits, adapter.features
    smallest, largest = native.subgroup_sizes(adapter)
    return Features(
        float16="shader-f16" in names,
        subgroups="subgroup" in names,
        subgroup_size=smallest if "subgroup" in names and smallest == largest else 0,
        timestamps=native.can_read_timestamps(adapter),
        max_threads=min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]),
        max_shared_bytes=limits["max-compute-workgroup-storage-size"],
        max_buffers=min(limits["max-storage-buffers-per-shader-stage"], limits["max-bindings-per-bind-group"]),
        max_groups=limits["max-compute-workgroups-per-dimension"],
        max_binding_bytes=min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"]),
        max_buffer_bytes=limits["max-buffer-size"],
        storage_alignment=limits["min-storage-buffer-offset-alignment"],
        max_rounds=_LLVMPIPE_ROUNDS if "llvmpipe" in str(adapter.info["device"]).lower() else 0,
        byte_products=adapter.info["backend_type"] in _WITH_BYTE_PRODUCTS,
        compute_units=_units(adapter.info),
        loads_together=_LOADS_TOGETHER if multiprocessors(adapter.info["device"] or "") else 0,
    )
