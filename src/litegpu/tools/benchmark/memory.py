"""Memory of the process, and of the device."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from litegpu.gpu.backends.abilities import FreeMemory, SessionSize
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.program import Program

_MB = 2.0**20


def peak_memory() -> float:
    """The largest resident set of this process so far, in MB; 0 where the system does not tell.

    On Linux from /proc rather than getrusage(), whose figure a process takes over from the one that started it.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) / (2**20 if sys.platform == "darwin" else 2**10)


def resident_memory() -> tuple[int, int, int] | None:
    """MB of the resident set, of its anonymous part, and of files and shared memory; None but on Linux."""
    try:
        import resource

        _, resident, shared, *_ = (int(n) for n in Path("/proc/self/statm").read_text().split())
    except (OSError, ImportError, ValueError):
        return None
    page = resource.getpagesize() / _MB
    return int(resident * page), int((resident - shared) * page), int(shared * page)


def allocated_on_device(kernels: Iterable[Any]) -> float:
    """MB that the sessions of prepared partitions hold on the device: activations and constants, and what else the
    backend puts there."""
    return sum(_session_bytes(kernel.device, kernel.program) for kernel in kernels) / _MB


def _session_bytes(device: Device, program: Program) -> int:
    return (
        device.session_bytes(program)
        if isinstance(device, SessionSize)
        else program.arena_size + program.constants.nbytes
    )


class DeviceMemory:
    """Tells how far the free memory of a device has fallen since this was made, if the device tells. Sessions allocate
    when they are built, and free when they are closed, so what is used after the runs is the largest that was."""

    def __init__(self, device: Device | None) -> None:
        self._device = device if isinstance(device, FreeMemory) else None
        self._before = self._free()

    def used(self) -> float | None:
        """MB, other processes included; None if it is not known."""
        now = self._free()
        return None if self._before is None or now is None else (self._before - now) / _MB

    def _free(self) -> int | None:
        return None if self._device is None else self._device.free_bytes()
