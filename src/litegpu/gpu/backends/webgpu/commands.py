"""The commands of a WebGPU session's inferences: encoded ahead, while the device works, and finished late."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import wgpu.classes

from litegpu.errors import DeviceError
from litegpu.gpu.backends.webgpu.base import Pipeline, WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.binding import Bindings
from litegpu.gpu.backends.webgpu.buffers import SessionBuffers
from litegpu.gpu.backends.webgpu.inference import RecordedInference, Step
from litegpu.gpu.backends.webgpu.look import look_dispatch
from litegpu.gpu.backends.webgpu.record import record, rehearse
from litegpu.gpu.backends.webgpu.replay import Replay
from litegpu.gpu.program import Dispatch, Program


class Commands:
    """Of one session, whose lock is held in every method. `inference`: with what is bound now, as far as it was asked
    for since. `validation`: every inference is recorded anew through wgpu's checked API. `watched`: whether inferences
    look at their results, which may be changed behind forget(). `wasted`: see drain()."""

    def __init__(
        self,
        device: WebGpuDeviceBase,
        program: Program,
        buffers: SessionBuffers,
        pipelines: Sequence[Pipeline],
        bindings: Bindings,
        validation: bool,
    ) -> None:
        self._device = device
        self._buffers = buffers
        self._pipelines = pipelines  # keeps them in the device's table
        self._bindings = bindings
        self._validation = validation
        self.watched = False
        self._replay: Replay | None = None  # of the inference
        self._encoder: Any = None  # the commands of the next inference ...
        self._command: Any = None  # ... perhaps finished
        self.wasted: list[tuple[Replay, Any]] = []  # commands that were finished in vain
        self.inference = RecordedInference(
            arena=buffers.arena,
            upload=buffers.upload,
            download=buffers.download,
            steps=tuple(self._step(dispatch) for dispatch in program.dispatches),
            uploads=(),
            downloads=(),
        )
        self._looks = {
            index: self._step(look_dispatch(program, index, buffers.word_offset)) for index in buffers.looked_at
        }

    def rehearsal(self) -> Any:
        """A command that does nothing, in which mistakes of the program show: see rehearse()."""
        return rehearse(self._device.handle, (*self.inference.steps, *self._looks.values()))

    @property
    def replay(self) -> Replay:
        """Of the inference with what is bound now."""
        if self._replay is None:
            uploads, downloads = (
                self._buffers.uploads(self._bindings.inputs),
                self._buffers.downloads(self._bindings.outputs),
            )
            looks = tuple(self._looks[i] for i in self.looked_at)
            if looks:
                downloads += (self._buffers.word_download,)
            self.inference = dataclasses.replace(self.inference, uploads=uploads, downloads=downloads, looks=looks)
            self._replay = Replay(self._device.handle, self.inference)
        return self._replay

    @property
    def looked_at(self) -> list[int]:
        """The outputs that the next inference looks at."""
        return [i for i in self._looks if self.watched and i not in self._bindings.outputs]

    def take(self) -> Any:
        """Those of an inference, for one submission. Raises DeviceError if the device is lost."""
        try:
            return self._take()
        except (DeviceError, wgpu.classes.GPUError):
            self._device.is_alive()
            self._device.check()
            raise

    def encode_ahead(self, *, finish: bool) -> None:
        """Have those of the next inference. `finish`: for inferences that are as short as that; they have to be
        submitted then, be it in vain."""
        if self._validation:
            return
        replay = self.replay
        encoder = replay.encode()
        if finish:
            self._command = replay.finish(encoder)
        else:
            self._encoder = encoder

    def forget(self) -> None:
        """Other ports are about to be bound, or nothing is to be run any more."""
        command, self._command = self._command, None
        replay, self._replay, self._encoder = self._replay, None, None
        if command is not None and replay is not None:
            self.wasted.append((replay, command))

    def drain(self) -> None:
        """Submit what was finished in vain, as it would never be freed otherwise; the staging buffers are not mapped.
        These inferences are short; they overwrite the results of the last one, and change variables."""
        while self.wasted:
            replay, command = self.wasted.pop()
            replay.submit([command])

    def close(self) -> None:
        """Nothing is to be run any more."""
        self.forget()
        with contextlib.suppress(DeviceError), self._device.gate:
            # the garbage collector may have freed the buffers of a cycle before the session that is in it as well
            if self.wasted and not self._device.lost and self._buffers.alive:
                self.wasted[-1][0].unmap_anyhow()
                self.drain()
        self.wasted.clear()

    def _take(self) -> Any:
        replay = self.replay
        if self._validation:
            return record(self._device.handle, self.inference)
        command, self._command = self._command, None
        encoder, self._encoder = self._encoder, None
        return command or replay.finish(encoder or replay.encode())

    def _step(self, dispatch: Dispatch) -> Step:
        pipeline, spaces = self._pipelines[dispatch.kernel], self._buffers.spaces
        entries = [
            {"binding": i, "resource": {"buffer": spaces[b.space], "offset": b.offset, "size": b.size}}
            for i, b in enumerate(dispatch.bindings)
        ]
        group = self._device.handle.create_bind_group(
            label=dispatch.label, layout=pipeline.bind_group_layout, entries=entries
        )
        return Step(pipeline.handle, group, dispatch.groups)
