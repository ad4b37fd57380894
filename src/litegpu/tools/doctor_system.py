"""What the operating system has for GPUs: Vulkan's loader and drivers, device files and their permissions, NVIDIA."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Other display controllers on the bus are emulated, or the console of a server.
_GPU_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
#: Where NVIDIA's container tools and some clouds put the driver, outside of Vulkan's own search path.
_NVIDIA_EXTRA = (Path("/usr/local/nvidia/share/vulkan/icd.d"), Path("/usr/local/nvidia/vulkan/icd.d"))


@dataclass(frozen=True)
class VulkanDriver:
    """A driver's JSON file, the library that it names, and why that cannot be loaded (None if it can)."""

    file: str
    library: str
    problem: str | None


@dataclass(frozen=True)
class RenderNode:
    """A GPU's device file on Linux."""

    path: str
    accessible: bool
    group: str


@dataclass(frozen=True)
class NvidiaReport:
    """What is there of NVIDIA's driver."""

    gpus: tuple[str, ...]  # lines of nvidia-smi: name, driver version
    libcuda: bool
    unused_driver_files: tuple[str, ...]  # Vulkan driver files that the loader does not look at

    @property
    def present(self) -> bool:
        return bool(self.gpus) or self.libcuda


@dataclass(frozen=True)
class SystemReport:
    system: str  # sys.platform
    container: bool
    pci_gpus: tuple[str, ...]  # makers of the GPUs on the PCI bus (Linux)
    vulkan_loader: str | None  # the library that was loaded; None if absent or not used here
    vulkan_drivers: tuple[VulkanDriver, ...]
    render_nodes: tuple[RenderNode, ...]
    nvidia: NvidiaReport
    variables: dict[str, str]  # set variables that change which device is found

    @property
    def shows_gpu(self) -> bool | None:
        """Whether any sign of a real GPU is visible; None where this is not known (not Linux)."""
        if not self.system.startswith("linux"):
            return None
        return bool(self.pci_gpus or self.render_nodes or self.nvidia.present)

    def lines(self) -> list[str]:
        """For people, one fact each."""
        lines = []
        if self.system != "darwin":
            lines.append(f"Vulkan loader: {self.vulkan_loader or 'missing'}")
        for driver in self.vulkan_drivers:
            lines.append(f"Vulkan driver: {driver.file} -> {driver.library}: {driver.problem or 'loads'}")
        if self.system.startswith("linux"):
            if not self.vulkan_drivers:
                lines.append("Vulkan driver: no driver file found")
            lines.append(f"GPUs on the PCI bus: {', '.join(self.pci_gpus) or 'none visible'}")
            for node in self.render_nodes:
                access = "accessible" if node.accessible else f"NOT accessible (group {node.group})"
                lines.append(f"device file: {node.path} {access}")
            if not self.render_nodes:
                lines.append("device files: no /dev/dri/renderD*")
        lines += [f"nvidia-smi: {gpu}" for gpu in self.nvidia.gpus] or ["nvidia-smi: finds no GPU"]
        lines.append(f"libcuda: {'loads' if self.nvidia.libcuda else 'absent'}")
        if self.container:
            lines.append("this is a container")
        lines += [f"{name}={value}" for name, value in self.variables.items()]
        return lines


def inspect_system(environment: Mapping[str, str] = os.environ) -> SystemReport:
    """Look, without changing or raising anything."""
    linux = sys.platform.startswith("linux")
    files = list(_driver_files(environment)) if linux else []
    unused = [file for folder in _NVIDIA_EXTRA for file in sorted(folder.glob("*nvidia*.json")) if file not in files]
    loader = {"linux": "libvulkan.so.1", "win32": "vulkan-1.dll"}.get("linux" if linux else sys.platform)
    libcuda = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    names = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LITEGPU_WEBGPU_ADAPTER", "WGPU_LIB_PATH", "NVIDIA_VISIBLE_DEVICES",
             "NVIDIA_DRIVER_CAPABILITIES")  # fmt: skip
    return SystemReport(
        system=sys.platform,
        container=_in_container(environment),
        pci_gpus=tuple(_pci_gpus()),
        vulkan_loader=loader if loader and _load_problem(loader) is None else None,
        vulkan_drivers=tuple(_driver(file) for file in files),
        render_nodes=tuple(_render_nodes()),
        nvidia=NvidiaReport(tuple(_nvidia_smi()), _load_problem(libcuda) is None, tuple(map(str, unused))),
        variables={name: environment[name] for name in names if name in environment},
    )


def system_advice(system: SystemReport, devices: Sequence[str]) -> list[str]:
    """What to do so that the GPUs that the machine shows but `devices` (names of working real GPUs) lack appear."""
    if not system.system.startswith("linux"):
        return []
    advice = []
    blocked = [node for node in system.render_nodes if not node.accessible]
    if blocked:
        paths, groups = ", ".join(n.path for n in blocked), " ".join(sorted({n.group for n in blocked}))
        advice.append(
            f"Your user may not open {paths}: sudo usermod -aG {groups.replace(' ', ',')} $USER, then log in again"
            + (" (in a container: start it with --group-add of that group)." if system.container else ".")
        )
    if system.vulkan_loader is None and not devices:
        advice.append("The Vulkan loader is missing: apt-get install libvulkan1 (Fedora: dnf install vulkan-loader).")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if name in system.variables and not any(d.problem is None for d in system.vulkan_drivers):
            advice.append(f"{name} names no driver that loads: unset it, or let it name an existing .json file.")
    if system.nvidia.present and not any("nvidia" in name.lower() for name in devices):
        advice += _nvidia_advice(system)
    elif system.shows_gpu and not devices and not any(_is_hardware(d) for d in system.vulkan_drivers):
        makers = ", ".join(sorted(set(system.pci_gpus))) or "a GPU"
        advice.append(
            f"The machine shows {makers}, but no Vulkan driver for it: apt-get install mesa-vulkan-drivers "
            "(Fedora the same name; Arch: vulkan-radeon or vulkan-intel)."
        )
    if system.pci_gpus and not system.render_nodes and not system.nvidia.present and not devices:
        how = (
            "give the container the device: docker run --device /dev/dri"
            if system.container
            else "its kernel driver is not loaded (see dmesg)"
        )
        advice.append(f"A GPU is on the PCI bus but there is no /dev/dri/renderD*: {how}.")
    return advice


# ----------------------------------------------------------------------------------------------


def _nvidia_advice(system: SystemReport) -> list[str]:
    drivers = [driver for driver in system.vulkan_drivers if "nvidia" in driver.file.lower() + driver.library.lower()]
    broken = [driver for driver in drivers if driver.problem is not None]
    if system.nvidia.unused_driver_files and not drivers:
        file = system.nvidia.unused_driver_files[0]
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
        library = str(json.loads(file.read_text())["ICD"]["library_path"])
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


def _render_nodes() -> Iterator[RenderNode]:
    for path in sorted(Path("/dev/dri").glob("renderD*")):
        yield RenderNode(str(path), os.access(path, os.R_OK | os.W_OK), _group(path))


def _group(path: Path) -> str:
    try:
        return path.group()
    except (OSError, KeyError, NotImplementedError):
        try:
            return str(path.stat().st_gid)  # a container without the host's group names
        except OSError:
            return "unknown"


def _pci_gpus() -> Iterator[str]:
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        try:
            if (device / "class").read_text().startswith("0x03"):
                maker = _GPU_MAKERS.get((device / "vendor").read_text().strip())
                if maker is not None:
                    yield maker
        except OSError:
            continue


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


def _in_container(environment: Mapping[str, str]) -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or bool({"container", "KUBERNETES_SERVICE_HOST"} & environment.keys())
