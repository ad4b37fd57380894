"""CUDA's part in `litegpu doctor`; satisfies diagnosis.Doctor."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from litegpu import native
from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import opening
from litegpu.gpu.backends.cuda.requirements import summary
from litegpu.gpu.backends.diagnosis import ListedDevice, Listing, SystemPart, SystemReport
from litegpu.gpu.lang.features import Features


@dataclass(frozen=True)
class CudaSystem:
    """What is there of NVIDIA's driver."""

    gpus: tuple[str, ...]  # lines of nvidia-smi: name, driver version
    libcuda: bool
    abilities: tuple[str, ...] = ()  # a line for each, of each kind of device that can be used
    native: str = ""  # whether the library in C is there

    @property
    def makers(self) -> tuple[str, ...]:
        return ("NVIDIA",) if self.gpus or self.libcuda else ()

    def lines(self) -> list[str]:
        found = [f"nvidia-smi: {gpu}" for gpu in self.gpus] or ["nvidia-smi: finds no GPU"]
        if self.native:
            found.append(f"calls in C: {self.native}")
        return [*found, f"libcuda: {'loads' if self.libcuda else 'absent'}", *self.abilities]


class CudaDoctor:
    packages: tuple[str, ...] = ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    variables: tuple[str, ...] = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")

    def list_devices(self) -> Listing:
        try:
            found, versions = opening.list_devices(), opening.versions()
        except DeviceError as error:
            return Listing((), problem=str(error), note=f"CUDA: not used: {error}")
        driver = f"CUDA {versions.driver}, NVRTC {versions.nvrtc}"
        devices = tuple(
            ListedDevice(
                f"{one.name} {one.uuid}", "cuda", f"compute capability {one.capability / 10}", driver, Features(),
                functools.partial(opening.open_device, one.index),
            )
            for one in found
        )  # fmt: skip
        note = f"CUDA: driver for CUDA {versions.driver}, bindings {versions.bindings}, NVRTC {versions.nvrtc}"
        return Listing(devices, 0, note=note)

    def inspect(self, environment: Mapping[str, str]) -> CudaSystem:
        libcuda = opening.driver_is_installed()
        return CudaSystem(tuple(_nvidia_smi()), libcuda, tuple(_abilities()), _native() if libcuda else "")

    def advice(self, listing: Listing, part: SystemPart, system: SystemReport, working: Sequence[str]) -> list[str]:
        if not part.makers or listing.devices:
            return []
        return [f"The NVIDIA GPU is faster through CUDA, which is not used: {listing.problem}."]

    def install_advice(self) -> str:
        return ""


DOCTOR = CudaDoctor()


def _abilities() -> list[str]:
    """What each kind of device and its driver can do, and what is missing where they cannot."""
    try:
        found, versions = opening.list_devices(), opening.versions()
    except DeviceError:
        return []
    return [
        f"compute capability {capability / 10}: {line}"
        for capability in dict.fromkeys(one.capability for one in found)
        for line in summary(versions, capability)
    ]


def _native() -> str:
    found = native.find()
    if found is not None:
        return f"present, {found.path}"
    return f"absent: {native.problem() or 'a C compiler makes the library when a GPU is first used'}"


def _nvidia_smi() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
