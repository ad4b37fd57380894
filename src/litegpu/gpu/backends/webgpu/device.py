"""The WebGPU runtime: opens devices through wgpu, once each, and anew when they are lost."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import wgpu

from litegpu import fork
from litegpu.errors import DeviceError, OptionError, SoftwareDeviceError
from litegpu.gpu.backends.contract import DeviceInfo
from litegpu.gpu.backends.in_threads import in_threads
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.adapters import ADAPTER_VARIABLE, AdapterInfo, choose_adapter, list_adapters
from litegpu.gpu.backends.webgpu.session import WebGpuSession
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode, Program

__all__ = ["AdapterInfo", "WebGpuDevice", "WebGpuSession", "list_adapters", "open_device"]

_WAITS = ("passive", "active", "do_not_wait")
_MOST_COMPILERS = 8


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


class WebGpuDevice:
    """An opened WebGPU device; satisfies base.Device. Sessions with equal kernels share the compiled pipelines.

    `gate`: held between check() and what ends the process on a lost device: submissions, and asking for mapped memory.
    """

    target = "wgsl"

    def __init__(self, adapter: AdapterInfo) -> None:
        self.adapter = adapter
        self.features: Features = adapter.features
        self.info = DeviceInfo(adapter.name, adapter.backend, adapter.driver, adapter.is_software)
        self.gate: threading.RLock | fork.Refusal = threading.RLock()
        self._lock: threading.Lock | fork.Refusal = threading.Lock()
        fork.follow(self)
        fork.gpu_is_used()
        self._lost = False
        self._losses = native.Losses.count  # as far as they were looked into
        wanted = [name for name in ("shader-f16", "subgroup", "timestamp-query") if name in adapter.handle.features]

        def request(limits: Any) -> Any:
            return adapter.handle.request_device_sync(label="litegpu", required_features=wanted, required_limits=limits)

        try:  # wgpu-py is called back with the device, by Python code, where a signal's exception would be lost
            self.handle: Any = in_threads(request, [adapter.handle.limits])[0]
        except Exception as error:
            raise DeviceError(f"{adapter} was found but could not be opened: {error}") from error
        this = weakref.ref(self)
        native.when_destroyed(self.handle, lambda: _note_loss(this()))
        self.max_buffer_bytes: int = self.handle.limits["max-buffer-size"]
        self._pipelines: weakref.WeakValueDictionary[KernelCode, _Pipeline] = weakref.WeakValueDictionary()
        self._layouts: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._nudged: Any = None

    def _forked(self) -> None:
        self._lock = self.gate = fork.Refusal()

    @property
    def lost(self) -> bool:
        """Whether the device is of no use any more, as far as wgpu has said. To set it says that it is."""
        if not self._lost and self._losses != native.Losses.count:
            self.is_alive()
        return self._lost

    @lost.setter
    def lost(self, lost: bool) -> None:
        with self.gate:
            self._lost |= lost

    def is_alive(self) -> bool:
        """Whether the device is not lost, by asking it."""
        losses = native.Losses.count
        if not self._lost and not native.is_alive(self.handle):
            self.lost = True
        self._losses = losses
        return not self._lost

    def check(self) -> None:
        """Raises DeviceError if the device is lost."""
        if self.lost:
            raise self.loss()

    def loss(self) -> DeviceError:
        """What to tell a user about a lost device."""
        return DeviceError(
            f"{self.adapter} was lost (reset by its driver, unplugged or destroyed), with everything that was on it: "
            "load the model again, which opens the device anew"
        )

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

    def nudge(self) -> None:
        """Give the device something tiny to do."""
        with self._lock, self.gate:
            self.check()
            if self._nudged is None:
                self._nudged = self.handle.create_buffer(label="nudge", size=16, usage=wgpu.BufferUsage.COPY_DST)
            self.handle.queue.write_buffer(self._nudged, 0, bytes(16))
            self.handle.queue.submit([])

    def images(self, program: Program) -> list[bytes]:
        """None: WebGPU gives no compiled code. (Drivers keep a cache of their own.)"""
        return []

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """Nothing to adopt."""

    def pipelines(self, kernels: Sequence[KernelCode]) -> list[_Pipeline]:
        """The kernels compiled, in order; in threads where they are not compiled yet."""
        with self._lock:
            ready = {kernel: self._pipelines.get(kernel) for kernel in kernels}
            for kernel in kernels:
                self._layout(kernel.access)
        missing = [kernel for kernel, pipeline in ready.items() if pipeline is None]
        built = in_threads(self._compile, missing, min(_MOST_COMPILERS, os.cpu_count() or 1))
        compiled = {kernel: pipeline for kernel, pipeline in ready.items() if pipeline is not None}
        compiled.update(zip(missing, built, strict=True))
        with self._lock:
            self._pipelines.update(compiled)
        return [compiled[kernel] for kernel in kernels]

    def _compile(self, kernel: KernelCode) -> _Pipeline:
        bind_group_layout, pipeline_layout = self._layouts[kernel.access]
        try:
            module = native.create_shader_module(self.handle, kernel.name, kernel.source)
            stage = {"module": module, "entry_point": kernel.name}
            pipeline = self.handle.create_compute_pipeline(label=kernel.name, layout=pipeline_layout, compute=stage)
        except Exception as error:
            message = native.plain_message(str(error))
            raise DeviceError(f"kernel {kernel.name!r} did not compile on {self.adapter}: {message}") from error
        return _Pipeline(bind_group_layout, pipeline)

    def _layout(self, access: tuple[str, ...]) -> None:
        """Make the bind-group and pipeline layouts of kernels with these accesses, if they are new."""
        if access in self._layouts:
            return
        kinds = {"read": "read-only-storage", "read_write": "storage"}
        entries = [
            {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds[one]}}
            for i, one in enumerate(access)
        ]
        bind_group_layout = self.handle.create_bind_group_layout(label=" ".join(access), entries=entries)
        pipeline_layout = self.handle.create_pipeline_layout(bind_group_layouts=[bind_group_layout])
        self._layouts[access] = bind_group_layout, pipeline_layout


class _Pipeline:
    """A compiled kernel, alive as long as some session uses it."""

    def __init__(self, bind_group_layout: Any, handle: Any) -> None:
        self.bind_group_layout = bind_group_layout
        self.handle = handle


def _note_loss(device: WebGpuDevice | None) -> None:
    if device is not None:
        device.lost = True
