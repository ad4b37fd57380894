"""Below wgpu-py's public API, with webgpu_replay: raw wgpu-native calls, and facts that wgpu-py leaves out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import _api as _wgpu_api
from wgpu.backends.wgpu_native import _ffi as _wgpu_ffi
from wgpu.backends.wgpu_native import extras

from litegpu.gpu.backends.webgpu.types import know_types

ffi: Any = _wgpu_ffi.ffi
lib: Any = _wgpu_ffi.lib
know_types(ffi)
_api: Any = _wgpu_api

# flags of wgpu.h, which cffi cannot read from the library
_INSTANCE_BACKEND_GL = 1 << 1
_INSTANCE_FLAG_DEFAULT = 1 << 24
_RUNTIME_CHECKS_BOUNDS = 1 << 0

#: How wgpu-py's message begins when a device is lost: it takes the only callback for that, and tells its error handler.
_DEVICE_LOST = "The WGPU device was lost"


class CapturedErrors:
    """Collects what wgpu-native reports in this thread inside a `with`; afterwards `message` is the text, or None.

    Without it errors of raw calls are only logged. A queue submission is different: wgpu-native aborts the process
    when one fails, so whatever can fail must be found before (Replay.submit).
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


def abandon() -> None:
    """Let wgpu-py free nothing any more, as it does itself while Python ends."""
    _api.libf = None


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


# ---------------------------------------------------------------------------------------------- losses


class Losses:
    """How many devices wgpu said were lost. It does not say which: who sees the number change asks is_alive()."""

    count = 0


def _count_losses(log_error: Callable[[str], None]) -> Callable[[str], None]:
    def counting(message: str) -> None:
        if message.startswith(_DEVICE_LOST):
            Losses.count += 1
        log_error(message)

    return counting


_api.error_handler.log_error = _count_losses(_api.error_handler.log_error)


def is_alive(device: Any) -> bool:
    """Whether the device still makes objects."""
    return makes_objects(device._internal)


def makes_objects(device: Any) -> bool:
    """The same for the library's own handle of it."""
    descriptor = ffi.new("WGPUBufferDescriptor *")
    descriptor.size, descriptor.usage = 16, int(wgpu.BufferUsage.COPY_DST)
    with CapturedErrors() as errors:
        buffer = lib.wgpuDeviceCreateBuffer(device, descriptor)
        if buffer != ffi.NULL:
            lib.wgpuBufferRelease(buffer)
    return errors.message is None


def when_destroyed(device: Any, call: Callable[[], object]) -> None:
    """Have `call()` called when the application destroys a device, just before."""
    device._litegpu_destroyed = call


def is_destroyed(resource: Any) -> bool:
    """Whether the application has destroyed a buffer or texture. The library has no way to ask, and ends the process
    when commands with such a thing are submitted."""
    return getattr(resource, "_litegpu_destroyed", False) is True or resource._internal is None


def _noting_destruction(kind: Any) -> None:
    destroy = kind.destroy

    def noting(self: Any) -> None:
        told = getattr(self, "_litegpu_destroyed", None)
        if callable(told):
            told()
        else:
            self._litegpu_destroyed = True
        destroy(self)

    noting.__doc__ = destroy.__doc__
    kind.destroy = noting


for _kind in (_api.GPUDevice, _api.GPUBuffer, _api.GPUTexture):
    _noting_destruction(_kind)


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
