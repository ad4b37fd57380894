"""The only code below wgpu-py's public API: raw wgpu-native calls for the replay, and facts that wgpu-py leaves out."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu
from wgpu.backends.wgpu_native import _api as _wgpu_api
from wgpu.backends.wgpu_native import _ffi as _wgpu_ffi
from wgpu.backends.wgpu_native import extras

from litegpu.errors import DeviceError
from litegpu.gpu.runtime.webgpu_types import know_types

if TYPE_CHECKING:
    from litegpu.gpu.runtime.webgpu_record import Inference

ffi: Any = _wgpu_ffi.ffi
lib: Any = _wgpu_ffi.lib
know_types(ffi)
_api: Any = _wgpu_api

# flags of wgpu.h, which cffi cannot read from the library
_INSTANCE_BACKEND_GL = 1 << 1
_INSTANCE_FLAG_DEFAULT = 1 << 24
_RUNTIME_CHECKS_BOUNDS = 1 << 0

#: How long a map callback may be missing after the device said that the work is done.
_CALLBACK_SECONDS = 10.0


class CapturedErrors:
    """Collects what wgpu-native reports in this thread inside a `with`; afterwards `message` is the text, or None.

    Without it errors of raw calls are only logged. A queue submission is different: wgpu-native aborts the process
    when one fails, so whatever can fail must be found before (Replay.start).
    """

    message: str | None = None

    def __enter__(self) -> CapturedErrors:
        _api.error_handler.capture("litegpu")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        found = _api.error_handler.release("litegpu")
        self.message = None if found is None else plain_message(found[1])


def plain_message(text: str) -> str:
    """wgpu's error text without its fixed preamble."""
    lines = [line for line in text.splitlines() if line.strip() not in ("", "Validation Error", "Caused by:")]
    return "\n".join(lines) or text


# ---------------------------------------------------------------------------------------------- adapters


def enumerate_adapters(gl: bool) -> list[Any]:
    """All adapters of Vulkan, Metal and Direct3D 12, or with `gl` those of OpenGL.

    OpenGL gets a wgpu instance of its own: loading it costs time and prints to stderr on machines without a display.
    """
    _follow_wgpu_log()
    with _quiet_display_libraries():
        if gl:
            return _enumerate_gl()
        with suppress(RuntimeError):  # raised if the application made the instance before us
            extras.set_instance_extras(backends=["Primary"])
        adapters = wgpu.gpu.enumerate_adapters_sync()
        return [adapter for adapter in adapters if adapter.info["backend_type"] != "OpenGL"]


def subgroup_sizes(adapter: Any) -> tuple[int, int]:
    """The smallest and largest subgroup; zeros if the adapter does not say."""
    info = ffi.new("WGPUAdapterInfo *")
    if lib.wgpuAdapterGetInfo(adapter._internal, info) != lib.WGPUStatus_Success:
        return 0, 0
    # wgpu before 0.32 has no such members
    sizes = int(getattr(info, "subgroupMinSize", 0)), int(getattr(info, "subgroupMaxSize", 0))
    lib.wgpuAdapterInfoFreeMembers(info[0])
    return sizes


def can_read_timestamps(adapter: Any) -> bool:
    """Whether timestamps can be taken and their unit is known (wgpu before 0.31 does not tell it)."""
    return "timestamp-query" in adapter.features and hasattr(lib, "wgpuQueueGetTimestampPeriod")


def timestamp_period(queue: Any) -> float:
    """Nanoseconds per tick of a timestamp query."""
    return float(lib.wgpuQueueGetTimestampPeriod(queue._internal))


_gl_instance: Any = None


def _enumerate_gl() -> list[Any]:
    global _gl_instance
    if _gl_instance is None:
        wanted = ffi.new("WGPUInstanceExtras *")
        wanted.chain.sType = lib.WGPUSType_InstanceExtras
        wanted.backends = _INSTANCE_BACKEND_GL
        wanted.flags = _INSTANCE_FLAG_DEFAULT
        descriptor = ffi.new("WGPUInstanceDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", wanted)
        _gl_instance = lib.wgpuCreateInstance(descriptor)
    count = lib.wgpuInstanceEnumerateAdapters(_gl_instance, ffi.NULL, ffi.NULL)
    handles = ffi.new("WGPUAdapter[]", count)
    lib.wgpuInstanceEnumerateAdapters(_gl_instance, ffi.NULL, handles)
    return [wgpu.gpu._create_adapter(handles[i]) for i in range(count)]


@contextmanager
def _quiet_display_libraries() -> Iterator[None]:
    """Mesa looks for a Wayland display while devices are listed, and libwayland complains on stderr when
    XDG_RUNTIME_DIR is unset; a folder that does not exist finds the same nothing in silence."""
    quiet = {"XDG_RUNTIME_DIR": "/nonexistent", "EGL_LOG_LEVEL": "fatal"}
    added = [name for name in quiet if os.name == "posix" and name not in os.environ]
    for name in added:
        os.environ[name] = quiet[name]
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class _ToLitegpuLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("litegpu.wgpu").debug("%s", record.getMessage())


def _follow_wgpu_log() -> None:
    """Repeat wgpu's log as debug messages of litegpu's. Having a handler also keeps Python from printing it to stderr;
    what is wrong for us comes as a DeviceError anyway."""
    log = logging.getLogger("wgpu")
    if not any(isinstance(handler, _ToLitegpuLog) for handler in log.handlers):
        log.addHandler(_ToLitegpuLog())


# ---------------------------------------------------------------------------------------------- building


def create_shader_module(device: Any, label: str, source: str) -> Any:
    """A shader module that keeps the bounds checks but not the 64-bit counter that wgpu adds to every loop (litegpu's
    loops all end); raises wgpu's GPUError with the compiler's message."""
    if not hasattr(lib, "wgpuDeviceCreateShaderModuleTrusted"):
        return device.create_shader_module(label=label, code=source)
    text = ffi.new("char []", source.encode())
    name = ffi.new("char []", label.encode())
    wgsl = ffi.new("WGPUShaderSourceWGSL *")
    wgsl.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    wgsl.code.data, wgsl.code.length = text, len(text) - 1
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", wgsl)
    descriptor.label.data, descriptor.label.length = name, len(name) - 1
    handle = _api.libf.wgpuDeviceCreateShaderModuleTrusted(device._internal, descriptor, _RUNTIME_CHECKS_BOUNDS)
    return _api.GPUShaderModule(label, handle, device)


def finish(device: Any) -> None:
    """Block until everything submitted to the device so far is done."""
    lib.wgpuDevicePoll(device._internal, True, ffi.NULL)


# ---------------------------------------------------------------------------------------------- replay


class Replay:
    """Encodes, submits and awaits the same inference again and again, with one raw call per command.

    The upload and the download buffer are mapped, also at first, except between start() and the end of wait(). The
    inference's objects must outlive the replay, which owns none of them. Not thread-safe.
    """

    def __init__(self, device: Any, inference: Inference) -> None:
        self._device = device._internal
        self._queue = device.queue._internal
        upload, download = inference.upload, inference.download
        self._arena = inference.arena._internal
        self._upload = upload and upload._internal
        self._download = download and download._internal
        self._steps = [(step.pipeline._internal, step.bind_group._internal, *step.groups) for step in inference.steps]
        self._uploads = [(copy.source, copy.target, copy.size) for copy in inference.uploads]
        self._downloads = [(copy.source, copy.target, copy.size) for copy in inference.downloads]
        self._staging = [
            (buffer._internal, mode, buffer.size)
            for buffer, mode in ((upload, wgpu.MapMode.WRITE), (download, wgpu.MapMode.READ))
            if buffer is not None
        ]
        self._commands = ffi.new("WGPUCommandBuffer[1]")
        self._submission = ffi.new("WGPUSubmissionIndex *")
        self._mapped: list[int] = []  # the status of each finished map request

        mapped = self._mapped

        def on_mapped(status: int, message: Any, first: Any, second: Any) -> None:
            mapped.append(status)

        self._on_mapped = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", on_mapped)
        self._map_request = ffi.new("WGPUBufferMapCallbackInfo *")
        self._map_request.mode = lib.WGPUCallbackMode_AllowSpontaneous
        self._map_request.callback = self._on_mapped

    def encode(self) -> Any:
        """A command buffer for one inference, for one start()."""
        null = ffi.NULL
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        copy = lib.wgpuCommandEncoderCopyBufferToBuffer
        with CapturedErrors() as errors:
            encoder = lib.wgpuDeviceCreateCommandEncoder(self._device, null)
            for source, target, size in self._uploads:
                copy(encoder, self._upload, source, self._arena, target, size)
            if self._steps:
                compute = lib.wgpuCommandEncoderBeginComputePass(encoder, null)
                current = None
                for pipeline, bind_group, x, y, z in self._steps:
                    if pipeline is not current:
                        set_pipeline(compute, pipeline)
                        current = pipeline
                    set_bind_group(compute, 0, bind_group, 0, null)
                    dispatch(compute, x, y, z)
                lib.wgpuComputePassEncoderEnd(compute)
                lib.wgpuComputePassEncoderRelease(compute)
            for source, target, size in self._downloads:
                copy(encoder, self._arena, source, self._download, target, size)
            command = lib.wgpuCommandEncoderFinish(encoder, null)
            lib.wgpuCommandEncoderRelease(encoder)
        if errors.message is not None:
            self.discard(command)
            raise DeviceError(f"the GPU refused the commands of an inference: {errors.message}")
        return command

    def start(self, command: Any) -> None:
        """Submit `command`, which is used up, and ask for both staging buffers back."""
        with CapturedErrors() as errors:
            for buffer, _, _ in self._staging:
                lib.wgpuBufferUnmap(buffer)
        if errors.message is not None:  # submitting to a lost device would abort the process
            self.discard(command)
            raise DeviceError(f"the GPU was lost: {errors.message}")
        self._mapped.clear()
        with CapturedErrors() as errors:
            self._commands[0] = command
            self._submission[0] = lib.wgpuQueueSubmitForIndex(self._queue, 1, self._commands)
            lib.wgpuCommandBufferRelease(command)
            for buffer, mode, size in self._staging:
                lib.wgpuBufferMapAsync(buffer, mode, 0, size, self._map_request[0])
        if errors.message is not None:
            raise DeviceError(f"the GPU was lost: {errors.message}")

    def wait(self, spin: float) -> None:
        """Return when the staging buffers are mapped again: ask for `spin` seconds, then sleep. The GIL is free
        while the library is at work."""
        poll, device, mapped, count = lib.wgpuDevicePoll, self._device, self._mapped, len(self._staging)
        if spin:
            deadline = time.monotonic() + spin
            while len(mapped) < count and time.monotonic() < deadline:
                poll(device, False, ffi.NULL)
        if len(mapped) < count or not count:
            poll(device, True, self._submission)
        if len(mapped) < count:  # another thread's poll took the callbacks and is about to make them
            deadline = time.monotonic() + _CALLBACK_SECONDS
            while len(mapped) < count:
                if time.monotonic() > deadline:
                    raise DeviceError("the GPU was lost: it finished an inference without giving its results")
                time.sleep(20e-6)
                poll(device, False, ffi.NULL)
        if any(status != lib.WGPUMapAsyncStatus_Success for status in mapped):
            raise DeviceError("the GPU was lost while it ran an inference")

    def upload_memory(self) -> np.ndarray:
        """The mapped upload buffer as uint8; valid until the next start()."""
        buffer, _, size = self._staging[0]
        return self._memory(lib.wgpuBufferGetMappedRange(buffer, 0, size), size)

    def download_memory(self) -> np.ndarray:
        """The mapped download buffer as uint8; valid until the next start()."""
        buffer, _, size = self._staging[-1]
        return self._memory(lib.wgpuBufferGetConstMappedRange(buffer, 0, size), size)

    def adopt(self, command_buffer: Any) -> Any:
        """What encode() would give, of a command buffer recorded through wgpu-py."""
        lib.wgpuCommandBufferAddRef(command_buffer._internal)
        return command_buffer._internal

    def discard(self, command: Any) -> None:
        """Free a command buffer that is not going to be started."""
        if command != ffi.NULL:
            lib.wgpuCommandBufferRelease(command)

    @staticmethod
    def _memory(address: Any, size: int) -> np.ndarray:
        if address == ffi.NULL:
            raise DeviceError("the GPU was lost: its staging memory is not mapped")
        return np.frombuffer(ffi.buffer(address, size), np.uint8)
