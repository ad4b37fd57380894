"""Memory of the process, and of the device."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    """MB that the sessions of prepared partitions hold on the device: activations and constants, and with WebGPU the
    buffers that inputs and outputs pass through."""
    total = 0
    for kernel in kernels:
        program = kernel.program
        total += program.arena_size + program.constants.nbytes
        if kernel.device.target != "cuda":  # there they are in host memory
            total += sum(port.nbytes for port in (*program.inputs, *program.outputs))
    return total / _MB


class DeviceMemory:
    """Tells how far the free memory of a CUDA device has fallen since this was made; of other devices nothing is
    known. Sessions allocate when they are built, and free when they are closed, so what is used after the runs is the
    largest that was."""

    def __init__(self, device: Any) -> None:
        self._device = device if device is not None and device.target == "cuda" else None
        self._before = self._free()

    def used(self) -> float | None:
        """MB, other processes included; None if it is not known."""
        now = self._free()
        return None if self._before is None or now is None else (self._before - now) / _MB

    def _free(self) -> int | None:
        if self._device is None:
            return None
        from cuda.bindings import driver

        with self._device.context:
            error, free, _ = driver.cuMemGetInfo()
        return int(free) if error == driver.CUresult.CUDA_SUCCESS else None
