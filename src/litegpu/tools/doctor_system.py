"""What the operating system shows of GPUs: the PCI bus, device files and their permissions, containers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from litegpu.gpu.backends.diagnosis import RenderNode, SystemReport

#: Other display controllers on the bus are emulated, or the console of a server.
_GPU_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


def inspect_system(
    makers: Sequence[str] = (), variables: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> SystemReport:
    """Look, without changing or raising anything. `makers`: of GPUs that backends found; `variables`: theirs."""
    return SystemReport(
        system=sys.platform,
        container=_in_container(environment),
        pci_gpus=tuple(_pci_gpus()),
        render_nodes=tuple(_render_nodes()),
        makers=tuple(makers),
        variables={name: environment[name] for name in variables if name in environment},
    )


def system_lines(report: SystemReport) -> list[str]:
    """For people, one fact each."""
    lines = []
    if report.system.startswith("linux"):
        lines.append(f"GPUs on the PCI bus: {', '.join(report.pci_gpus) or 'none visible'}")
        for node in report.render_nodes:
            access = "accessible" if node.accessible else f"NOT accessible (group {node.group})"
            lines.append(f"device file: {node.path} {access}")
        if not report.render_nodes:
            lines.append("device files: no /dev/dri/renderD*")
    if report.container:
        lines.append("this is a container")
    return lines + [f"{name}={value}" for name, value in report.variables.items()]


def permission_advice(system: SystemReport) -> list[str]:
    """What to do about device files that may not be opened."""
    blocked = [node for node in system.render_nodes if not node.accessible]
    if not blocked:
        return []
    paths, groups = ", ".join(n.path for n in blocked), " ".join(sorted({n.group for n in blocked}))
    return [
        f"Your user may not open {paths}: sudo usermod -aG {groups.replace(' ', ',')} $USER, then log in again"
        + (" (in a container: start it with --group-add of that group)." if system.container else ".")
    ]


def missing_file_advice(system: SystemReport, devices: Sequence[str]) -> list[str]:
    """What to do about GPUs without a device file, where none of `devices` (names of working real GPUs) works."""
    if not system.pci_gpus or system.render_nodes or system.makers or devices:
        return []
    how = (
        "give the container the device: docker run --device /dev/dri"
        if system.container
        else "its kernel driver is not loaded (see dmesg)"
    )
    return [f"A GPU is on the PCI bus but there is no /dev/dri/renderD*: {how}."]


# ----------------------------------------------------------------------------------------------


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


def _in_container(environment: Mapping[str, str]) -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or bool({"container", "KUBERNETES_SERVICE_HOST"} & environment.keys())
