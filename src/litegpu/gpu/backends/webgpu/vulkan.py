"""What the system has for Vulkan: its loader and drivers, and what is missing."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.gpu.backends.diagnosis import SystemReport

#: What decides which drivers the loader looks at.
VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
#: Where NVIDIA's container tools and some clouds put the driver, outside of Vulkan's own search path.
_NVIDIA_EXTRA = (Path("/usr/local/nvidia/share/vulkan/icd.d"), Path("/usr/local/nvidia/vulkan/icd.d"))


@dataclass(frozen=True)
class VulkanDriver:
    """A driver's JSON file, the library that it names, and why that cannot be loaded (None if it can)."""

    file: str
    library: str
    problem: str | None


@dataclass(frozen=True)
class VulkanSystem:
    """`loader`: the library that was loaded; None if absent or not used here."""

    system: str  # sys.platform
    loader: str | None
    drivers: tuple[VulkanDriver, ...]
    unused_driver_files: tuple[str, ...]  # NVIDIA's, which the loader does not look at

    @property
    def makers(self) -> tuple[str, ...]:
        """None: a driver may be there without a GPU."""
        return ()

    def lines(self) -> list[str]:
        """For people, one fact each."""
        lines = []
        if self.system != "darwin":
            lines.append(f"Vulkan loader: {self.loader or 'missing'}")
        for driver in self.drivers:
            lines.append(f"Vulkan driver: {driver.file} -> {driver.library}: {driver.problem or 'loads'}")
        if self.system.startswith("linux") and not self.drivers:
            lines.append("Vulkan driver: no driver file found")
        return lines


def inspect(environment: Mapping[str, str] = os.environ) -> VulkanSystem:
    """Look, without changing or raising anything."""
    linux = sys.platform.startswith("linux")
    files = list(_driver_files(environment)) if linux else []
    unused = [file for folder in _NVIDIA_EXTRA for file in sorted(folder.glob("*nvidia*.json")) if file not in files]
    loader = {"linux": "libvulkan.so.1", "win32": "vulkan-1.dll"}.get("linux" if linux else sys.platform)
    return VulkanSystem(
        sys.platform,
        loader if loader and _load_problem(loader) is None else None,
        tuple(_driver(file) for file in files),
        tuple(map(str, unused)),
    )


def advice(vulkan: VulkanSystem, system: SystemReport, devices: Sequence[str]) -> list[str]:
    """What to do so that the GPUs that the machine shows but `devices` (names of working real GPUs) lack appear."""
    if not system.system.startswith("linux"):
        return []
    advice = []
    if vulkan.loader is None and not devices:
        advice.append("The Vulkan loader is missing: apt-get install libvulkan1 (Fedora: dnf install vulkan-loader).")
    for name in VARIABLES:
        if name in system.variables and not any(d.problem is None for d in vulkan.drivers):
            advice.append(f"{name} names no driver that loads: unset it, or let it name an existing .json file.")
    if "NVIDIA" in system.makers and not any("nvidia" in name.lower() for name in devices):
        advice += _nvidia_advice(vulkan, system)
    elif system.shows_gpu and not devices and not any(_is_hardware(d) for d in vulkan.drivers):
        makers = ", ".join(sorted(set(system.pci_gpus))) or "a GPU"
        advice.append(
            f"The machine shows {makers}, but no Vulkan driver for it: apt-get install mesa-vulkan-drivers "
            "(Fedora the same name; Arch: vulkan-radeon or vulkan-intel)."
        )
    return advice


# ----------------------------------------------------------------------------------------------


def _nvidia_advice(vulkan: VulkanSystem, system: SystemReport) -> list[str]:
    drivers = [driver for driver in vulkan.drivers if "nvidia" in driver.file.lower() + driver.library.lower()]
    broken = [driver for driver in drivers if driver.problem is not None]
    if vulkan.unused_driver_files and not drivers:
        file = vulkan.unused_driver_files[0]
        return [f"NVIDIA's Vulkan driver is in a place that the loader does not search: export VK_DRIVER_FILES={file}"]
    if broken:
        return [
            f"NVIDIA's Vulkan driver {broken[0].file} cannot be loaded ({broken[0].problem}): install the library that "
            "is missing (Debian: apt-get install libglvnd0 libgl1 libegl1 libx11-6 libxext6)."
        ]
    if drivers:
        return ["NVIDIA's Vulkan driver loads but offers no device: its version must match the kernel module's."]
    if system.container:
        return [
            "NVIDIA's driver works but this container has no Vulkan driver: start it with --gpus all and "
            "NVIDIA_DRIVER_CAPABILITIES=all (or one that includes graphics), and apt-get install libvulkan1 libegl1."
        ]
    return [
        "NVIDIA's driver works but its Vulkan part is not installed: apt-get install nvidia-vulkan-icd (Debian), or "
        "apt-get install libnvidia-gl-<version of the driver> (Ubuntu; headless driver packages leave it out)."
    ]


def _is_hardware(driver: VulkanDriver) -> bool:
    return driver.problem is None and not any(word in driver.library for word in ("lvp", "swrast", "swiftshader"))


def _driver_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """The driver files that the Vulkan loader looks at on Linux (its documentation, "Driver Discovery")."""
    override = environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES")
    if override:
        places = [Path(place) for place in override.split(os.pathsep)]
    else:
        home = Path(environment.get("HOME", "/nonexistent"))
        bases = [
            Path(environment.get("XDG_CONFIG_HOME") or home / ".config"),
            *map(Path, (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)),
            Path("/etc"),
            Path(environment.get("XDG_DATA_HOME") or home / ".local/share"),
            *map(Path, (environment.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(os.pathsep)),
        ]
        places = [base / "vulkan/icd.d" for base in bases]
        places += [Path(place) for place in environment.get("VK_ADD_DRIVER_FILES", "").split(os.pathsep) if place]
    for place in places:
        yield from sorted(place.glob("*.json")) if place.is_dir() else [place] if place.is_file() else []


def _driver(file: Path) -> VulkanDriver:
    try:
        library = str(json.loads(file.read_text(encoding="utf-8"))["ICD"]["library_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return VulkanDriver(str(file), "", f"not a driver file ({type(error).__name__}: {error})")
    path = str(file.parent / library) if "/" in library and not library.startswith("/") else library
    return VulkanDriver(str(file), library, _load_problem(path))


def _load_problem(library: str) -> str | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None
