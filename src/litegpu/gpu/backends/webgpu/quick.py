"""An inference encoded and awaited in C (native/webgpu.c), where that is there: a call for all its commands in place of
three for each dispatch, and Python's lock let go of twice, not each time."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu import native
from litegpu.gpu.backends.webgpu.native import ffi, lib

#: Of the WebGPU library, in the order of `struct functions`.
_FUNCTIONS = (
    "wgpuDeviceCreateCommandEncoder",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuComputePassEncoderEnd",
    "wgpuComputePassEncoderRelease",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuDevicePoll",
)
_STEP = np.dtype([("pipeline", np.uint64), ("group", np.uint64), ("groups", np.uint32, 3), ("unused", np.uint32)])
#: Nanoseconds of waiting awake between two looks for signals.
_SLICE = 30_000


class _Inference(ctypes.Structure):
    """`struct inference`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("device", "arena", "upload", "download")),
        *((name, ctypes.c_void_p) for name in ("uploads", "steps", "downloads")),
        *((name, ctypes.c_int64) for name in ("upload_count", "step_count", "download_count")),
    ]


class Quick:
    """The native library's functions for WebGPU."""

    def __init__(self, library: native.NativeLibrary) -> None:
        pointer = ctypes.c_void_p
        self._table = (pointer * len(_FUNCTIONS))(*(_address(getattr(lib, name)) for name in _FUNCTIONS))
        self._asking = (ctypes.c_int32 * 1)()  # of all devices: there is hardly ever more than one
        self._encode = library.function("webgpu_encode", pointer, pointer, pointer)
        self._await = library.function(
            "webgpu_await", None, pointer, pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int64
        )
        #: What a request to map a buffer calls; its first word for the user is the address of two int64: how many such
        #: requests were answered, and how many of them in vain.
        mapped: Any = library.function("webgpu_mapped", None)
        self.mapped = ffi.cast("WGPUBufferMapCallback", ctypes.cast(mapped, pointer).value)

    def encode(self, commands: QuickCommands) -> Any:
        """An encoder with the commands of one inference, of the caller's."""
        return ffi.cast("WGPUCommandEncoder", self._encode(self._table, commands.address))

    def wait(self, device: Any, answers: np.ndarray, count: int, *, awake: bool) -> None:
        """Ask the device, again and again for a moment if `awake`, until so many requests are answered."""
        duration = _SLICE if awake else 0
        self._await(self._table, _address(device), self._asking, answers.ctypes.data, count, duration)


class QuickCommands:
    """The commands of one inference, as webgpu.c takes them; buffers and steps must outlive it. `copies`: source,
    target and size, of uploads and of downloads; `steps`: pipeline, bind group and numbers of workgroups."""

    def __init__(
        self, buffers: Sequence[Any], steps: Sequence[tuple[Any, Any, int, int, int]],
        uploads: Sequence[tuple[int, int, int]], downloads: Sequence[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        """`buffers`: the device, the arena, and the buffers for uploads and downloads or None."""
        rows = [(_address(pipeline), _address(group), (x, y, z), 0) for pipeline, group, x, y, z in steps]
        self._arrays = [np.array(uploads, np.uint64), np.array(rows, _STEP), np.array(downloads, np.uint64)]
        places = [a.ctypes.data for a in self._arrays]
        counts = [len(uploads), len(steps), len(downloads)]
        self._all = _Inference(*(_address(buffer) if buffer else None for buffer in buffers), *places, *counts)
        self.address = ctypes.addressof(self._all)


def find() -> Quick | None:
    """None where there is no native library (yet)."""
    library = native.find()
    return None if library is None else _of(library)


@functools.cache
def _of(library: native.NativeLibrary) -> Quick:
    return Quick(library)


def _address(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle))
