"""Ports of a WebGPU session that are the user's buffers and textures: copied on the device, by its one queue."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import wgpu
import wgpu.classes

from litegpu.errors import DeviceError, TensorError
from litegpu.gpu.backends.abilities import PixelFormat, UserBuffer
from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.inference import RecordedInference, padded
from litegpu.gpu.backends.webgpu.native import is_destroyed, plain_message
from litegpu.gpu.backends.webgpu.record import record_steps
from litegpu.gpu.program import Program

#: WebGPU wants rows of a texture to begin at multiples of 256 bytes in a buffer: 64 RGBA pixels.
ROW_PIXELS = 64
#: Texture format -> whether red and blue are swapped.
FORMATS = {
    wgpu.TextureFormat.rgba8unorm: False,
    wgpu.TextureFormat.rgba8unorm_srgb: False,
    wgpu.TextureFormat.bgra8unorm: True,
    wgpu.TextureFormat.bgra8unorm_srgb: True,
}


class BoundSession(Protocol):
    """What bindings need of a session: of the one that they belong to, and of adapters."""

    device: WebGpuDeviceBase
    program: Program

    @property
    def inference(self) -> RecordedInference:
        """With the copies of the ports that nothing of the user's stands for."""

    def close(self, *, wait: bool = True) -> None:
        """See contract.Session."""


@dataclass(frozen=True, eq=False)
class Bound:
    """A buffer or texture in place of a port; `adapter` runs the program between its format and the port's."""

    resource: Any
    adapter: BoundSession | None
    name: str


class Bindings:
    """What is bound to a session; the session's lock is held in every method."""

    def __init__(self, session: BoundSession) -> None:
        self._session: BoundSession = weakref.proxy(session)  # which is then freed without the garbage collector
        self.inputs: dict[int, Bound] = {}
        self.outputs: dict[int, Bound] = {}

    def around(self) -> tuple[list[Any], list[Any]]:
        """Command buffers with what comes before the program, the inputs, and after it, the outputs."""
        _check_free(self.inputs)
        _check_free(self.outputs)
        return self._before(), self.after()

    def _before(self) -> list[Any]:
        if not self.inputs:
            return []
        encoder = self._session.device.handle.create_command_encoder(label="litegpu bound inputs")
        for index, bound in self.inputs.items():
            port, arena = self._session.program.inputs[index], self._session.inference.arena
            size = padded(port.nbytes)
            if bound.adapter is None:
                encoder.copy_buffer_to_buffer(bound.resource, 0, arena, port.offset, size)
                continue
            adapter = bound.adapter
            source, target = adapter.program.inputs[0], adapter.program.outputs[0]
            scratch = adapter.inference.arena
            if isinstance(bound.resource, wgpu.classes.GPUTexture):
                width, height = bound.resource.width, bound.resource.height
                place = {
                    "buffer": scratch,
                    "offset": source.offset,
                    "bytes_per_row": 4 * row_pixels(width),
                    "rows_per_image": height,
                }
                encoder.copy_texture_to_buffer({"texture": bound.resource}, place, (width, height, 1))
            else:
                encoder.copy_buffer_to_buffer(bound.resource, 0, scratch, source.offset, padded(source.nbytes))
            record_steps(encoder, adapter.inference.steps)
            encoder.copy_buffer_to_buffer(scratch, target.offset, arena, port.offset, size)
        return _finished(encoder, self.inputs)

    def after(self, only: int | None = None) -> list[Any]:
        """Command buffers with what comes after the program: the outputs, or one of them."""
        outputs = self.outputs if only is None else {only: self.outputs[only]}
        if not outputs:
            return []
        _check_free(outputs)
        encoder = self._session.device.handle.create_command_encoder(label="litegpu bound outputs")
        for index, bound in outputs.items():
            port, arena = self._session.program.outputs[index], self._session.inference.arena
            size, adapter = padded(port.nbytes), bound.adapter
            if adapter is None:
                encoder.copy_buffer_to_buffer(arena, port.offset, bound.resource, 0, size)
                continue
            source, target = adapter.program.inputs[0], adapter.program.outputs[0]
            scratch = adapter.inference.arena
            encoder.copy_buffer_to_buffer(arena, port.offset, scratch, source.offset, size)
            record_steps(encoder, adapter.inference.steps)
            encoder.copy_buffer_to_buffer(scratch, target.offset, bound.resource, 0, padded(target.nbytes))
        return _finished(encoder, outputs)

    def close(self) -> None:
        for table in (self.inputs, self.outputs):
            while table:
                _, bound = table.popitem()
                if bound.adapter is not None:
                    bound.adapter.close(wait=False)


def examine(device: WebGpuDeviceBase, resource: Any, what: str, *, output: bool) -> UserBuffer:
    """A buffer or, for inputs, a texture of the same wgpu device that can be copied; raises TensorError or DeviceError
    for everything else."""
    _check_resource(device, resource, what, output=output)
    if isinstance(resource, wgpu.classes.GPUBuffer):
        return UserBuffer(resource, resource.size)
    if resource.dimension != "2d" or resource.depth_or_array_layers != 1 or resource.sample_count != 1:
        raise TensorError(f"{what}: the texture must be 2d, of one layer and one sample")
    width, height, row = resource.width, resource.height, row_pixels(resource.width)
    return UserBuffer(resource, 4 * row * height, pixels=PixelFormat(width, height, row, FORMATS[resource.format]))


def _check_resource(device: WebGpuDeviceBase, resource: Any, what: str, *, output: bool) -> None:
    if not isinstance(
        resource, wgpu.classes.GPUBuffer if output else (wgpu.classes.GPUBuffer, wgpu.classes.GPUTexture)
    ):
        raise TensorError(
            f"{what}: a {type(resource).__name__} object is no wgpu.GPUBuffer{'' if output else ' or wgpu.GPUTexture'}"
            f"; the model runs on {device.adapter} through WebGPU"
        )
    if is_destroyed(resource):
        raise TensorError(f"{what}: the {type(resource).__name__} was destroyed")
    if resource._device is not device.handle:
        raise DeviceError(
            f"{what}: the buffer or texture is of another wgpu device, and WebGPU devices share no memory: create it "
            "with the one that the model runs on, GpuDelegate.wgpu_device"
        )
    usages = wgpu.BufferUsage if isinstance(resource, wgpu.classes.GPUBuffer) else wgpu.TextureUsage
    needed = "COPY_DST" if output else "COPY_SRC"
    if not resource.usage & getattr(usages, needed):
        raise TensorError(f"{what}: the {type(resource).__name__} was created without the usage {needed}")
    if isinstance(resource, wgpu.classes.GPUTexture) and resource.format not in FORMATS:
        raise TensorError(f"{what}: the texture's format is {resource.format}; it must be one of {', '.join(FORMATS)}")


def check_size(resource: Any, nbytes: int, what: str) -> None:
    """Raise TensorError if it is a buffer, and smaller than `nbytes` in whole words."""
    if isinstance(resource, wgpu.classes.GPUBuffer) and resource.size < padded(nbytes):
        raise TensorError(f"{what} has {padded(nbytes)} bytes, in whole words; the buffer has {resource.size}")


def row_pixels(width: int) -> int:
    """Pixels from the beginning of one row of a texture's copy to that of the next."""
    return -(-width // ROW_PIXELS) * ROW_PIXELS


def _check_free(bound: dict[int, Bound]) -> None:
    """Raise TensorError where wgpu-native would end the process."""
    for one in bound.values():
        kind = type(one.resource).__name__
        if is_destroyed(one.resource):
            raise TensorError(f"{one.name}: the bound {kind} was destroyed: bind another, or None")
        if getattr(one.resource, "map_state", "unmapped") != "unmapped":
            raise TensorError(
                f"{one.name}: the bound {kind} is mapped, or about to be, so the GPU cannot use it: unmap() it first"
            )


def _finished(encoder: Any, bound: dict[int, Bound]) -> list[Any]:
    try:
        return [encoder.finish()]
    except wgpu.classes.GPUError as error:  # destroyed before it was bound, say
        names = ", ".join(one.name for one in bound.values())
        raise TensorError(f"{names}: the bound buffers cannot be used: {plain_message(str(error))}") from error
