"""The WebGPU runtime: opens devices through wgpu, once each, and anew when they are lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from litegpu import fork
from litegpu.errors import OptionError, SoftwareDeviceError
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.adapters import ADAPTER_VARIABLE, AdapterInfo, choose_adapter, list_adapters
from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.session import WebGpuSession
from litegpu.gpu.program import Program
from litegpu.native import prepare

__all__ = ["AdapterInfo", "WebGpuDevice", "WebGpuSession", "list_adapters", "open_device"]

_WAITS = ("passive", "active", "do_not_wait")


def open_device(backend: str = "auto", name: str | None = None, *, software: bool = True) -> WebGpuDevice:
    """The device of the adapter that choose_adapter() picks, opened once per process, and again when it was lost, and
    shared; thread-safe. `software`: whether to take a software device that LITEGPU_WEBGPU_ADAPTER does not name.

    Raises DeviceError if there is none (it says what to install) or it cannot be opened, OptionError for an unknown
    backend.
    """
    fork.check()
    name = name if name is not None else os.environ.get(ADAPTER_VARIABLE)
    software = software or bool(name)
    with _open_lock:
        device = _open_by_request.get((backend, name))
        if device is not None and (software or not device.adapter.is_software) and device.is_alive():
            return device
        adapter = choose_adapter(backend, name)
        if adapter.is_software and not software:
            raise SoftwareDeviceError(
                f"the only device is {adapter}, a program that computes on the CPU, slower than the CPU path does. "
                'device="webgpu" or GpuDelegate() takes it all the same'
            )
        key = (adapter.backend, adapter.name, adapter.driver)
        device = _open_by_adapter.get(key)
        if device is None or not device.is_alive():
            device = WebGpuDevice(adapter)
            if not adapter.is_software:
                prepare()
        _open_by_request[backend, name] = _open_by_adapter[key] = device
        return device


_open_lock = threading.Lock()


@fork.in_child
def _forked() -> None:
    global _open_lock
    _open_lock = threading.Lock()
    if fork.is_forbidden():
        native.abandon()


_open_by_request: dict[tuple[str, str | None], WebGpuDevice] = {}
_open_by_adapter: dict[tuple[str, str, str], WebGpuDevice] = {}


class WebGpuDevice(WebGpuDeviceBase):
    """What a program runs on; satisfies contract.Device."""

    target = "wgsl"

    def tuner(self, level: str) -> None:
        """There is one kernel for each op."""

    def session_bytes(self, program: Program) -> int:
        """Besides the arena and the constants, the buffers that inputs and outputs pass through."""
        ports = sum(port.nbytes for port in (*program.inputs, *program.outputs))
        return program.arena_size + program.constants.nbytes + ports

    @property
    def buffer_maker(self) -> Any:
        return self.handle

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> WebGpuSession:
        """A session of `program`. `wait`: "passive" sleeps in run() until the device is done, except where that takes
        less than 2 ms; "active" spins, which answers sooner and occupies a core; "do_not_wait" returns at once, and
        read() or the next write() waits. The default is passive, which means active on Metal, where wgpu's sleep has a
        granularity of a millisecond. `validation`: every inference is recorded anew through wgpu's checked API.
        Raises DeviceError naming the kernel that the device refused."""
        fork.check()
        if wait in (None, "passive"):
            wait = "active" if self.info.backend == "metal" else "passive"
        if wait not in _WAITS:
            raise OptionError(f"unknown wait {wait!r}: use {' or '.join(_WAITS)}")
        return WebGpuSession(self, program, wait, validation)

    def images(self, program: Program) -> list[bytes]:
        """None: WebGPU gives no compiled code. (Drivers keep a cache of their own.)"""
        return []

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """Nothing to adopt."""
