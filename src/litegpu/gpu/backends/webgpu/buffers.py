"""The buffers of a WebGPU session: the arena, the constants, and the staging buffers that ports are copied through."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import wgpu

from litegpu.errors import DeviceError
from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.inference import BufferCopy, padded
from litegpu.gpu.backends.webgpu.look import WORD_BYTES, looked_at, word_offset
from litegpu.gpu.backends.webgpu.replay import Replay, read_back
from litegpu.gpu.program import Port, Program

#: Constants go up in pieces, as each piece is copied once more on its way.
_UPLOAD_BYTES = 32 << 20
#: Of the ports within the staging buffers.
_STAGING_ALIGNMENT = 16


class SessionBuffers:
    """Of one program. `spaces`: what its dispatches bind, by name. `upload` and `download`: the staging buffers, None
    where there are no such ports; `inputs` and `outputs`: the ports in them, as bytes, while they are mapped.
    `looked_at`: outputs that a kernel can look at, which says what it found in the arena at `word_offset`; `word` is a
    copy of that, as it was after the last inference that looked."""

    def __init__(self, device: WebGpuDeviceBase, program: Program) -> None:
        self._device = device
        self._program = program
        self._upload_offsets, self._upload_size = _staging_layout(program.inputs)
        self._download_offsets, self._download_size = _staging_layout(program.outputs)
        self.looked_at = looked_at(program, device.features.max_binding_bytes)
        self.word_offset = word_offset(program, device.features.storage_alignment)
        self._made: list[Any] = []
        self.allocations = 0
        self.spaces: dict[str, Any] = {}
        self.upload: Any | None = None
        self.download: Any | None = None
        self.inputs: list[np.ndarray] = []
        self.outputs: list[np.ndarray] = []
        self.word = np.zeros(1, np.uint32)

    def make(self) -> None:
        """All but the constants; the staging buffers are mapped. Raises DeviceError for one that the device does not
        allow."""
        program, usage = self._program, wgpu.BufferUsage
        arena = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        size = self.word_offset + WORD_BYTES if self.looked_at else program.arena_size
        self.spaces["arena"] = self._buffer("arena", size, arena)
        if program.inputs:
            self.upload = self._buffer("inputs", self._upload_size, usage.MAP_WRITE | usage.COPY_SRC, mapped=True)
        if program.outputs:
            size = self._download_size + (WORD_BYTES if self.looked_at else 0)
            self.download = self._buffer("outputs", size, usage.MAP_READ | usage.COPY_DST, mapped=True)

    def upload_constants(self) -> None:
        """Make the buffer of the constants, and wait until they are there."""
        constants, queue = self._program.constants, self._device.handle.queue
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        buffer = self.spaces["constants"] = self._buffer("constants", constants.nbytes, usage)
        for first in range(0, constants.nbytes, _UPLOAD_BYTES):
            piece = constants[first : first + _UPLOAD_BYTES]
            if piece.nbytes % 4:
                piece = np.concatenate([piece, np.zeros(-piece.nbytes % 4, np.uint8)])
            queue.write_buffer(buffer, first, np.ascontiguousarray(piece))
            read_back(self._device, buffer, first, 4)  # waits, so that there is one such copy at a time

    @property
    def arena(self) -> Any:
        return self.spaces["arena"]

    @property
    def alive(self) -> bool:
        """Whether no buffer has been freed."""
        return all(buffer._internal is not None for buffer in self._made)

    def uploads(self, bound: Container[int]) -> tuple[BufferCopy, ...]:
        """The copies into the arena of all inputs but those that are `bound`."""
        places = enumerate(zip(self._upload_offsets, self._program.inputs, strict=True))
        return tuple(
            BufferCopy(offset, port.offset, padded(port.nbytes)) for i, (offset, port) in places if i not in bound
        )

    def downloads(self, bound: Container[int]) -> tuple[BufferCopy, ...]:
        """The copies from the arena of all outputs but those that are `bound`."""
        places = enumerate(zip(self._download_offsets, self._program.outputs, strict=True))
        return tuple(
            BufferCopy(port.offset, offset, padded(port.nbytes)) for i, (offset, port) in places if i not in bound
        )

    @property
    def word_download(self) -> BufferCopy:
        """The copy of the word."""
        return BufferCopy(self.word_offset, self._download_size, 4)

    def see_ports(self, replay: Replay) -> None:
        """Views of the ports in the staging buffers, whose addresses may change with every mapping."""
        self.forget_ports()
        if self._program.inputs:
            self.inputs = _views(replay.upload_memory(), self._upload_offsets, self._program.inputs)
        if self._program.outputs:
            memory = replay.download_memory()
            self.outputs = _views(memory, self._download_offsets, self._program.outputs)
            if self.looked_at:
                self.word = memory[self._download_size :].view(np.uint32)

    def read(self, port: Port) -> np.ndarray:
        """A port in the arena, as bytes, after all that was submitted."""
        return read_back(self._device, self.arena, port.offset, padded(port.nbytes))

    def read_input(self, index: int) -> np.ndarray:
        """An input as it was written last, as bytes; the staging buffers are not mapped."""
        size = self._program.inputs[index].nbytes
        return read_back(self._device, self.upload, self._upload_offsets[index], padded(size))[:size]

    def write_variables(self, contents: Sequence[Any]) -> None:
        """Set the variables to what read() gave. Raises DeviceError if the device is lost."""
        with self._device.gate:
            self._device.check()
            for port, content in zip(self._program.variables, contents, strict=True):
                self._device.handle.queue.write_buffer(self.arena, port.offset, content)

    def clear_word(self) -> None:
        """Have the next inferences tell of themselves alone. Raises DeviceError if the device is lost."""
        with self._device.gate:
            self._device.check()
            self._device.handle.queue.write_buffer(self.arena, self.word_offset, bytes(4))

    def forget_ports(self) -> None:
        """Let go of the views, which are not to outlive the mapping."""
        self.inputs = self.outputs = []
        self.word = np.zeros(1, np.uint32)

    def free(self) -> None:
        """Let go of everything, whatever is left of it; what the device still works with lives until it is done."""
        while self._made:
            self._made.pop().destroy()
        self.spaces.clear()
        self.upload = self.download = None

    def _buffer(self, label: str, size: int, usage: int, mapped: bool = False) -> Any:
        size = max(padded(size), _STAGING_ALIGNMENT)
        if size > self._device.max_buffer_bytes:
            raise DeviceError(
                f"the {label} of this model need {size} bytes in one buffer, and {self._device.adapter} allows "
                f"{self._device.max_buffer_bytes}; use a smaller batch or input"
            )
        buffer = self._device.handle.create_buffer(label=label, size=size, usage=usage, mapped_at_creation=mapped)
        self._made.append(buffer)
        self.allocations += 1
        return buffer


# ----------------------------------------------------------------------------------------------


def _views(memory: np.ndarray, offsets: Sequence[int], ports: Sequence[Port]) -> list[np.ndarray]:
    return [memory[at : at + port.nbytes] for at, port in zip(offsets, ports, strict=True)]


def _staging_layout(ports: Sequence[Port]) -> tuple[list[int], int]:
    """Each port's offset in a staging buffer, and the buffer's size."""
    offsets, size = [], 0
    for port in ports:
        offsets.append(size)
        size += -(-port.nbytes // _STAGING_ALIGNMENT) * _STAGING_ALIGNMENT
    return offsets, size
