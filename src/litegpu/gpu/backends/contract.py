"""What a backend has to have: it opens devices and prints kernels; a device makes sessions, each for one Program. What
some of them can do besides is in abilities.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from litegpu.errors import DeviceError

if TYPE_CHECKING:  # what takes a while to import is imported when a device is opened, beside its driver's start
    from litegpu.gpu.kernels.tuner import Tuner
    from litegpu.gpu.lang import Kernel
    from litegpu.gpu.lang.features import Features
    from litegpu.gpu.program import Program

#: A passive wait spins where the last one was shorter than this: to be woken takes 0.05 to 0.4 ms.
SHORT_SECONDS = 2e-3


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is, for people."""

    name: str
    backend: str  # a word of registry.py: the backend, or the part of it that the device is driven by
    driver: str
    is_software: bool
    uuid: str | None = None  # as the maker's own tools know it


@dataclass(frozen=True)
class KernelTime:
    """GPU time of one dispatch in one profiled inference."""

    label: str
    sources: tuple[int, ...]
    seconds: float


class Session(Protocol):
    """One Program on one device: buffers, pipelines and a recorded replay. Thread-safe; close() may be repeated."""

    program: Program

    def write(self, index: int, array: np.ndarray) -> None:
        """Set program input `index`. `array`: C-contiguous, of the port's type (BOOL is int32), as many
        elements as the port; it may be changed by the caller as soon as this returns."""

    def run(self) -> None:
        """Run one inference on what was written last; returns when its outputs can be read, unless the
        session does not wait."""

    def read(self, index: int, out: np.ndarray) -> None:
        """Copy program output `index` of the last run into `out` (C-contiguous, the port's type)."""

    def reset_variables(self) -> None:
        """Set the program's variables to zero, as they are at first."""

    def profile(self) -> Sequence[KernelTime]:
        """One inference with each dispatch timed by the device; raises DeviceError if it cannot. Variables
        keep their values."""

    def close(self, *, wait: bool = True) -> None:
        """Free everything. Without `wait` it returns at once, and what the device still works with is freed
        when that is done."""

    @property
    def allocations(self) -> int:
        """GPU buffers created by this session so far (does not grow after the first inference)."""

    @property
    def stats(self) -> Mapping[str, float]:
        """Seconds of the parts of the last inference: "write", "encode", "wait", "read"; of the build:
        "compile", "upload"."""


class Device(Protocol):
    """An opened device. Shared by sessions; thread-safe."""

    info: DeviceInfo
    features: Features
    target: str  # the language of its kernels, by which registry.py knows its backend
    lost: bool  # of no use any more: whatever its sessions are asked for raises DeviceError

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> Session:
        """Build a session; raises DeviceError naming the kernel that did not compile. `wait`: what run()
        does until the device is done: "passive" (sleep, unless that takes less than 2 ms), "active" (spin), or
        "do_not_wait" (return at once; read() waits). `validation`: check every call."""

    def nudge(self) -> None:
        """Give the device something tiny to do."""

    def tuner(self, level: str) -> Tuner | None:
        """What measures kernels while a program is built, for the option tuning="off", "fast" or "full";
        None where nothing is to be measured."""

    def images(self, program: Program) -> Sequence[bytes]:
        """The compiled kernels of a program, as adopt() takes them; empty where the driver gives none. Raises
        DeviceError naming the kernel that did not compile."""

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """Let sessions of the program use these images, which images() gave for it on such a device."""


class Backend(Protocol):
    """A way to GPUs; registry.py has a line for each. A backend with native kernels registers them when it is loaded
    (kernels/native.py)."""

    def open_device(self, api: str | None, name: str | None, *, software: bool) -> Device:
        """A device, opened once per process and shared; thread-safe. `api`: one of the backend's parts.
        `name`: a part of its name. `software`: whether a device that computes on the CPU will do, though nothing names
        it. Raises DeviceError, which says why there is none and what to do, SoftwareDeviceError if there is only such a
        one."""

    def is_passed_over(self, error: DeviceError) -> None:
        """Another backend is taken, as open_device() raised this: warn where that is a surprise."""

    def print_kernel(self, kernel: Kernel, features: Features) -> str:
        """The kernel in the backend's language."""
