"""An opened WebGPU device as its sessions know it: whether it is lost, and the kernels that are compiled on it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import wgpu

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import DeviceInfo
from litegpu.gpu.backends.in_threads import in_threads
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.adapters import AdapterInfo
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode

_MOST_COMPILERS = 8


class WebGpuDeviceBase:
    """An opened WebGPU device. Sessions with equal kernels share the compiled pipelines.

    `gate`: held between check() and what ends the process on a lost device: submissions, and asking for mapped memory.
    """

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
        self._pipelines: weakref.WeakValueDictionary[KernelCode, Pipeline] = weakref.WeakValueDictionary()
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

    def nudge(self) -> None:
        """Give the device something tiny to do."""
        with self._lock, self.gate:
            self.check()
            if self._nudged is None:
                self._nudged = self.handle.create_buffer(label="nudge", size=16, usage=wgpu.BufferUsage.COPY_DST)
            self.handle.queue.write_buffer(self._nudged, 0, bytes(16))
            self.handle.queue.submit([])

    def pipelines(self, kernels: Sequence[KernelCode]) -> list[Pipeline]:
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

    def _compile(self, kernel: KernelCode) -> Pipeline:
        bind_group_layout, pipeline_layout = self._layouts[kernel.access]
        try:
            module = native.create_shader_module(self.handle, kernel.name, kernel.source)
            stage = {"module": module, "entry_point": kernel.name}
            pipeline = self.handle.create_compute_pipeline(label=kernel.name, layout=pipeline_layout, compute=stage)
        except Exception as error:
            message = native.plain_message(str(error))
            raise DeviceError(f"kernel {kernel.name!r} did not compile on {self.adapter}: {message}") from error
        return Pipeline(bind_group_layout, pipeline)

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


class Pipeline:
    """A compiled kernel, alive as long as some session uses it."""

    def __init__(self, bind_group_layout: Any, handle: Any) -> None:
        self.bind_group_layout = bind_group_layout
        self.handle = handle


def _note_loss(device: WebGpuDeviceBase | None) -> None:
    if device is not None:
        device.lost = True
