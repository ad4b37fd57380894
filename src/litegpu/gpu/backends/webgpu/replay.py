"""Raw wgpu-native calls that encode, submit and await an inference, and read a buffer back, with one call per command.

wgpu-native ends the process where a submission fails or a buffer that is not mapped is asked for its memory, so all
that can be known is checked before. And it never gives up a command buffer that was finished and not submitted: an
encoder, which it does give up, is finished as late as can be, and what was finished in vain is submitted in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import wgpu

from litegpu.errors import DeviceError
from litegpu.gpu.backends.waiting import wait_until
from litegpu.gpu.backends.webgpu import quick
from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.inference import RecordedInference
from litegpu.gpu.backends.webgpu.native import CapturedErrors, ffi, lib, makes_objects

#: After so many seconds without an answer the device is asked whether it still works, and again after as many.
_PATIENCE = 10.0


class WorkDone:
    """Whether the device has come to the end of what was submitted before this was made. To poll it does not tell:
    there are versions of wgpu-native in which it always has nothing to do."""

    #: The library holds the address of the callback until it has called it.
    _pending: ClassVar[list[WorkDone]] = []

    def __init__(self, device: Any) -> None:
        self._statuses: list[int] = []
        self._callback = ffi.callback("void(uint32_t)", self._statuses.append)  # see Answers
        request = ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        request.mode = lib.WGPUCallbackMode_AllowSpontaneous
        request.callback = ffi.cast("WGPUQueueWorkDoneCallback", self._callback)
        self._pending[:] = [one for one in self._pending if not one.told] + [self]
        queue = ffi.gc(lib.wgpuDeviceGetQueue(device), lib.wgpuQueueRelease)
        lib.wgpuQueueOnSubmittedWorkDone(queue, request[0])

    @property
    def told(self) -> bool:
        return bool(self._statuses)


class Answers:
    """What the library reports of requests to map buffers, as it comes: C counts the answers if it can, else Python
    keeps the statuses.

    It reports them while it is polled by any thread, the main one as well, where a signal handler may raise between two
    bytecodes; what a Python callback raises is swallowed. So the callback is list.append itself, which has none,
    declared with the first of its parameters alone: by the C calling conventions of all 64-bit machines the caller
    takes care of the others."""

    #: The library holds the address of the callback until it has called it.
    _pending: ClassVar[set[Answers]] = set()

    def __init__(self) -> None:
        self._quick = quick.find()
        self._statuses: list[int] = []
        self._counts = np.zeros(2, np.int64)  # of answers, and of those in vain
        self._request = ffi.new("WGPUBufferMapCallbackInfo *")
        self._request.mode = lib.WGPUCallbackMode_AllowSpontaneous
        if self._quick is not None:
            self._request.callback = self._quick.mapped
            self._request.userdata1 = ffi.cast("void *", self._counts.ctypes.data)
        else:
            self._callback = ffi.callback("void(uint32_t)", self._statuses.append)
            self._request.callback = ffi.cast("WGPUBufferMapCallback", self._callback)

    def ask(self, buffers: Iterable[tuple[Any, int, int]]) -> None:
        """Request that (buffer, mode, size) be mapped, as many as wait() is told of."""
        self._pending.add(self)
        for buffer, mode, size in buffers:
            lib.wgpuBufferMapAsync(buffer, mode, 0, size, self._request[0])

    def wait(self, device: Any, count: int, spin: float = 0.0, expected: float = 0.0) -> None:
        """Return when `count` buffers are mapped; see wait_until(). Raises DeviceError if they never will be."""
        due = time.monotonic() + _PATIENCE
        finished: WorkDone | None = None
        told = False

        def done() -> bool:
            nonlocal due, finished, told
            if self._count >= count:
                return True
            self._poll(device, count, awake=spin > 0)
            if self._count >= count or time.monotonic() < due:
                return self._count >= count
            if told or not makes_objects(device):
                raise DeviceError("the GPU was lost: it finished its work without giving the results")
            if finished is None:
                finished = WorkDone(device)
            told = finished.told
            due = time.monotonic() + _PATIENCE
            return False

        wait_until(done, spin, expected)
        self._pending.discard(self)
        if self._counts[1] or any(status != lib.WGPUMapAsyncStatus_Success for status in self._statuses):
            raise DeviceError("the GPU was lost while it worked")

    @property
    def _count(self) -> int:
        return len(self._statuses) if self._quick is None else int(self._counts[0])

    def _poll(self, device: Any, count: int, *, awake: bool) -> None:
        """Have the library call back."""
        if self._quick is not None:
            self._quick.wait(device, self._counts, count, awake=awake)
        else:
            lib.wgpuDevicePoll(device, False, ffi.NULL)


class Replay:
    """The same inference again and again.

    The upload and the download buffer are mapped except between unmap() and the end of a wait for their mapping. The
    inference's objects must outlive the replay, which owns none of them. Not thread-safe.
    """

    def __init__(self, device: Any, inference: RecordedInference) -> None:
        self._device = device._internal
        self._queue = device.queue._internal
        upload, download = inference.upload, inference.download
        self._arena = inference.arena._internal
        self._upload = upload and upload._internal
        self._download = download and download._internal
        steps = (*inference.steps, *inference.looks)
        self._steps = [(step.pipeline._internal, step.bind_group._internal, *step.groups) for step in steps]
        self._uploads = [(copy.source, copy.target, copy.size) for copy in inference.uploads]
        self._downloads = [(copy.source, copy.target, copy.size) for copy in inference.downloads]
        self._quick = quick.find()
        self._quick_commands = quick.QuickCommands(
            (self._device, self._arena, self._upload, self._download), self._steps, self._uploads, self._downloads
        )
        self._staging = [
            (buffer._internal, int(mode), buffer.size)
            for buffer, mode in ((upload, wgpu.MapMode.WRITE), (download, wgpu.MapMode.READ))
            if buffer is not None
        ]

    def encode(self) -> Any:
        """An encoder with the commands of one inference, for one finish()."""
        if self._quick is None:
            return self._encode()
        with CapturedErrors() as errors:
            encoder = ffi.gc(self._quick.encode(self._quick_commands), lib.wgpuCommandEncoderRelease)
        _require(errors, "the GPU refused the commands of an inference")
        return encoder

    def _encode(self) -> Any:
        null = ffi.NULL
        set_pipeline = lib.wgpuComputePassEncoderSetPipeline
        set_bind_group = lib.wgpuComputePassEncoderSetBindGroup
        dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
        copy = lib.wgpuCommandEncoderCopyBufferToBuffer
        with CapturedErrors() as errors:
            encoder = ffi.gc(lib.wgpuDeviceCreateCommandEncoder(self._device, null), lib.wgpuCommandEncoderRelease)
            for source, target, size in self._uploads:
                copy(encoder, self._upload, source, self._arena, target, size)
            if self._steps:
                compute = ffi.gc(
                    lib.wgpuCommandEncoderBeginComputePass(encoder, null), lib.wgpuComputePassEncoderRelease
                )
                current = None
                for pipeline, bind_group, x, y, z in self._steps:
                    if pipeline is not current:
                        set_pipeline(compute, pipeline)
                        current = pipeline
                    set_bind_group(compute, 0, bind_group, 0, null)
                    dispatch(compute, x, y, z)
                lib.wgpuComputePassEncoderEnd(compute)
                ffi.release(compute)
            for source, target, size in self._downloads:
                copy(encoder, self._arena, source, self._download, target, size)
        _require(errors, "the GPU refused the commands of an inference")
        return encoder

    def finish(self, encoder: Any) -> Any:
        """The command buffer of what encode() gave, for one submit()."""
        with CapturedErrors() as errors:
            command = ffi.gc(lib.wgpuCommandEncoderFinish(encoder, ffi.NULL), lib.wgpuCommandBufferRelease)
            ffi.release(encoder)
        _require(errors, "the GPU refused the commands of an inference")
        return command

    def unmap(self) -> None:
        """Hand the staging buffers to the device. Raises DeviceError if it is lost, or they were not mapped."""
        with CapturedErrors() as errors:
            for buffer, _, _ in self._staging:
                lib.wgpuBufferUnmap(buffer)
        _require(errors, "the GPU was lost")

    def submit(self, commands: Sequence[Any]) -> None:
        """Submit command buffers, which are used up: of this replay, after unmap(), or of wgpu-py."""
        with CapturedErrors() as errors:
            handles = [getattr(command, "_internal", command) for command in commands]
            lib.wgpuQueueSubmit(self._queue, len(handles), ffi.new("WGPUCommandBuffer[]", handles))
        _require(errors, "the GPU was lost")

    def map(self, answers: Answers) -> None:
        """Ask for both staging buffers back, which come when the device is done with them."""
        with CapturedErrors() as errors:
            answers.ask(self._staging)
        _require(errors, "the GPU was lost")

    def wait(self, answers: Answers, spin: float = 0.0, expected: float = 0.0) -> None:
        """Return when the staging buffers are mapped again, which map() asked for: ask for `spin` seconds, then sleep,
        by what is `expected`."""
        answers.wait(self._device, len(self._staging), spin, expected)

    def unmap_anyhow(self) -> None:
        """Have the staging buffers unmapped, whether they are mapped, asked for, or neither."""
        for buffer, _, _ in self._staging:
            with CapturedErrors():  # one each: it logs all but the last
                lib.wgpuBufferUnmap(buffer)

    def upload_memory(self) -> np.ndarray:
        """The mapped upload buffer as uint8; valid until the next unmap()."""
        buffer, _, size = self._staging[0]
        return _memory(lib.wgpuBufferGetMappedRange(buffer, 0, size), size)

    def download_memory(self) -> np.ndarray:
        """The mapped download buffer as uint8; valid until the next unmap()."""
        buffer, _, size = self._staging[-1]
        return _memory(lib.wgpuBufferGetConstMappedRange(buffer, 0, size), size)


def read_back(device: WebGpuDeviceBase, buffer: Any, offset: int, size: int) -> np.ndarray:
    """`size` bytes of a buffer on the device, after everything submitted so far. (wgpu-py's read_buffer() polls in a
    thread that keeps the device from everybody else while it waits.)"""
    usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
    answers = Answers()
    with device.gate:
        device.check()
        staging = device.handle.create_buffer(label="read back", size=size, usage=usage)
        encoder = device.handle.create_command_encoder(label="read back")
        encoder.copy_buffer_to_buffer(buffer, offset, staging, 0, size)
        device.handle.queue.submit([encoder.finish()])
        answers.ask([(staging._internal, int(wgpu.MapMode.READ), size)])
    answers.wait(device.handle._internal, 1)
    with device.gate:
        device.check()
        found = _memory(lib.wgpuBufferGetConstMappedRange(staging._internal, 0, size), size).copy()
    staging.destroy()
    return found


def _require(errors: CapturedErrors, otherwise: str) -> None:
    if errors.message is not None:
        raise DeviceError(f"{otherwise}: {errors.message}")


def _memory(address: Any, size: int) -> np.ndarray:
    if address == ffi.NULL:
        raise DeviceError("the GPU was lost: its staging memory is not mapped")
    return np.frombuffer(ffi.buffer(address, size), np.uint8)
