"""A Program on a WebGPU device: buffers, pipelines and a replay whose commands are encoded ahead."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import wgpu
import wgpu.classes

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends import heap
from litegpu.gpu.backends.abilities import UserBuffer
from litegpu.gpu.backends.check import check_array, check_program
from litegpu.gpu.backends.contract import SHORT_SECONDS, KernelTime
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.binding import Bindings, Bound, check_size, examine
from litegpu.gpu.backends.webgpu.binding import padded as _padded
from litegpu.gpu.backends.webgpu.record import BufferCopy, RecordedInference, Step, Timer, record, rehearse
from litegpu.gpu.backends.webgpu.replay import Answers, Replay, read_back
from litegpu.gpu.program import Port, Program
from litegpu.host_copy import copy_bytes

if TYPE_CHECKING:
    from litegpu.gpu.backends.webgpu.device import WebGpuDevice

#: Constants go up in pieces, as each piece is copied once more on its way.
_UPLOAD_BYTES = 32 << 20
#: Of the ports within the staging buffers.
_STAGING_ALIGNMENT = 16
#: An active wait spins this long before it sleeps, so that a hung device does not burn a core for ever.
_ACTIVE_SECONDS = 1.0


class WebGpuSession:
    """One Program on one WebGpuDevice; satisfies base.Session.

    Inputs wait in a mapped upload buffer, from which every inference copies them into the arena; so the arena may reuse
    their place, and an inference without a write() before it sees the inputs of the last one. The commands of the next
    inference are encoded while the device works on this one; they are rehearsed through wgpu's checked API when the
    session is built, so that mistakes are found there.

    Whatever raises in the middle of a method, a signal handler between any two bytecodes say, leaves a session that
    gives right results: what is known is unlearnt before it changes and learnt after it has changed, and what is not
    known the next method makes anew.
    """

    def __init__(self, device: WebGpuDevice, program: Program, wait: str, validation: bool = False) -> None:
        self.device = device
        self.program = program
        self.wait = wait
        self.validation = validation
        self._lock: Any = threading.RLock()
        fork.follow(self)
        self._closed = False
        self._has_run = False
        self._awaited = False  # whether any inference was
        self._buffers: list[Any] = []
        self._mapped = False  # whether the staging buffers are; else one of these:
        self._answers: Answers | None = None  # to the request that they be, unless that is not known to be made
        self._input_memory: list[np.ndarray] = []
        self._output_memory: list[np.ndarray] = []
        self._allocations = 0
        self._stats = dict.fromkeys(("write", "encode", "submit", "wait", "read", "compile", "upload"), 0.0)
        self._writing = 0.0  # seconds of write() since the last run
        self._replay: Replay | None = None  # of the inference with what is bound now
        self._encoder: Any = None  # the commands of the next inference ...
        self._command: Any = None  # ... perhaps finished
        self._variables: list[np.ndarray] | None = None  # to be restored
        self._timers: dict[int, Timer] = {}  # by the number of passes
        self._bindings = Bindings(self)
        try:
            check_program(program, device.features, str(device.adapter))
            device.check()
            self._build()
        except wgpu.classes.GPUError as error:
            self.close(wait=False)
            message = native.plain_message(str(error))
            raise DeviceError(f"{device.adapter} refused the program: {message}") from error
        except BaseException:
            self.close(wait=False)
            raise

    def write(self, index: int, array: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.inputs, index, "input", array)
        with self._lock:
            self._finish()
            copy_bytes(self._input_memory[index], array.reshape(-1).view(np.uint8))
            self._writing += time.perf_counter() - started

    def run(self) -> None:
        with self._lock:
            self._finish()
            clock, stats = time.perf_counter, self._stats
            started = clock()
            before, after = self._bindings.around()
            self._submit([*before, self._take_command(), *after])
            submitted = clock()
            self._encode_ahead()
            stats["submit"], stats["encode"] = submitted - started, clock() - submitted
            stats["write"], stats["read"], self._writing = self._writing, 0.0, 0.0
            if self.wait != "do_not_wait":
                self._finish()

    def read(self, index: int, out: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.outputs, index, "output", out)
        with self._lock:
            self._check_open()
            if not self._has_run:
                raise DeviceError(f"output {index} was read before the first run: call run() first")
            self._finish()
            port, source = self.program.outputs[index], self._output_memory[index]
            if index in self._bindings.outputs:  # only the arena and the user's buffer have it
                source = read_back(self.device, self.inference.arena, port.offset, _padded(port.nbytes))
            copy_bytes(out.reshape(-1).view(np.uint8), source[: port.nbytes])
            self._stats["read"] += time.perf_counter() - started

    def examine(self, buffer: Any, what: str, *, output: bool, stream: Any = None) -> UserBuffer:
        if stream is not None:
            raise DeviceError(f"{what}: {self.device.info.name} has one queue, so there is no stream= to give")
        return examine(self.device, buffer, what, output=output)

    def bind(self, kind: str, index: int, resource: Any, what: str, adapter: Program | None = None) -> None:
        """See abilities.Binder. What is bound is neither uploaded nor downloaded, though read() still gives it."""
        if resource is not None:
            program, at = (self.program, index) if adapter is None else (adapter, 0)
            check_size(resource, (program.inputs if kind == "input" else program.outputs)[at].nbytes, what)
        with self._lock:
            self._finish()
            table = self._bindings.inputs if kind == "input" else self._bindings.outputs
            before, bound = table.get(index), None
            if resource is not None:
                between = before.adapter if before is not None else None
                if between is None or between.program is not adapter:
                    between = None if adapter is None else WebGpuSession(self.device, adapter, self.wait)
                bound = Bound(resource, between, what)
            if (before is None) != (bound is None):
                self._forget_replay()
            if bound is None:
                table.pop(index, None)
            else:
                table[index] = bound
            if (
                before is not None
                and before.adapter is not None
                and (bound is None or bound.adapter is not before.adapter)
            ):
                before.adapter.close()

    def is_bound(self, kind: str, index: int) -> bool:
        """Whether something of the user's stands for the port."""
        return index in (self._bindings.inputs if kind == "input" else self._bindings.outputs)

    def fill_bound_output(self, index: int) -> None:
        """Copy the last inference's output, if there was one, to the buffer that was bound to it since."""
        with self._lock:
            self._finish()
            if self._has_run:
                commands = self._bindings.after(index)
                with self._losing_the_device(), self.device.gate:
                    self.device.check()
                    self._current_replay().submit(commands)

    def output_buffer(self, index: int, shape: tuple[int, ...]) -> Any:
        self._check_open()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        port = self.program.outputs[index]
        return self.device.handle.create_buffer(label=port.name, size=_padded(port.nbytes), usage=usage)

    def reset_variables(self) -> None:
        with self._lock:
            self._finish()
            self._set_variables([bytes(_padded(port.nbytes)) for port in self.program.variables])

    def profile(self) -> Sequence[KernelTime]:
        """One inference on what was written last, with each dispatch in a pass of its own between two timestamps. That
        keeps the device from overlapping dispatches, so the sum is more than an inference takes. Raises DeviceError if
        the device has no timestamps."""
        seconds = self._timed(len(self.program.dispatches))
        return [
            KernelTime(dispatch.label, dispatch.sources, duration)
            for dispatch, duration in zip(self.program.dispatches, seconds, strict=True)
        ]

    def time_graph(self, repeats: int = 10) -> float:
        """Seconds of GPU time of all dispatches of an inference in one pass, as they run without profiling and without
        the copies of inputs and outputs: the median of `repeats` inferences. Raises DeviceError as profile() does."""
        return statistics.median(sum(self._timed(1)) for _ in range(repeats))

    def _forked(self) -> None:
        self._lock = fork.Refusal()
        fork.keep(self)  # its commands are freed by raw calls

    def close(self, *, wait: bool = True) -> None:
        if fork.is_forbidden():
            return
        with self._lock:
            first = not self._closed
            try:
                if wait and first:
                    with contextlib.suppress(DeviceError):
                        self._finish()
            finally:
                self._closed = True
                self._free()
        if wait and first:
            heap.trim()

    def __del__(self) -> None:
        if hasattr(self, "_bindings") and not sys.is_finalizing():
            self.close(wait=False)

    def _free(self) -> None:
        """Let go of everything, whatever is left of it; what the device still works with lives until it is done."""
        self._input_memory = self._output_memory = []
        self._bindings.close()
        command, self._command = self._command, None
        replay, self._replay = self._replay, None
        if command is not None and replay is not None:
            self._use_up(replay, command)
        self._encoder = self._answers = None
        self._mapped = False
        while self._timers:
            self._timers.popitem()[1].close()
        while self._buffers:
            self._buffers.pop().destroy()
        for name in ("inference", "_pipelines"):
            self.__dict__.pop(name, None)

    def _use_up(self, replay: Replay, command: Any) -> None:
        """Submit a finished command that nobody needs: it would never be freed otherwise. Its inference is short."""
        with contextlib.suppress(DeviceError), self.device.gate:
            # the garbage collector may have freed the buffers of a cycle before the session that is in it as well
            if not self.device.lost and all(buffer._internal is not None for buffer in self._buffers):
                self._mapped, self._answers = False, None
                replay.unmap_anyhow()
                replay.submit([command])

    @property
    def allocations(self) -> int:
        return self._allocations

    @property
    def stats(self) -> Mapping[str, float]:
        return dict(self._stats)

    def _build(self) -> None:
        program, usage = self.program, wgpu.BufferUsage
        started = time.perf_counter()
        pipelines = self.device.pipelines(program.kernels)
        self._stats["compile"] = time.perf_counter() - started

        arena = self._buffer("arena", program.arena_size, usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)
        spaces = {"arena": arena}
        if program.constants.size:
            started = time.perf_counter()
            spaces["constants"] = self._upload_constants()
            self._stats["upload"] = time.perf_counter() - started

        def bind(dispatch_number: int) -> Step:
            dispatch = program.dispatches[dispatch_number]
            pipeline = pipelines[dispatch.kernel]
            entries = [
                {"binding": i, "resource": {"buffer": spaces[b.space], "offset": b.offset, "size": b.size}}
                for i, b in enumerate(dispatch.bindings)
            ]
            group = self.device.handle.create_bind_group(
                label=dispatch.label, layout=pipeline.bind_group_layout, entries=entries
            )
            return Step(pipeline.handle, group, dispatch.groups)

        self._upload_offsets, upload_size = _staging_layout(program.inputs)
        self._download_offsets, download_size = _staging_layout(program.outputs)
        upload_usage, download_usage = usage.MAP_WRITE | usage.COPY_SRC, usage.MAP_READ | usage.COPY_DST
        self.inference = RecordedInference(
            arena=arena,
            upload=self._buffer("inputs", upload_size, upload_usage, mapped=True) if program.inputs else None,
            download=self._buffer("outputs", download_size, download_usage, mapped=True) if program.outputs else None,
            steps=tuple(bind(i) for i in range(len(program.dispatches))),
            uploads=self._uploads(),
            downloads=self._downloads(),
        )
        self._pipelines = pipelines  # keeps them in the device's table
        rehearsal = rehearse(self.device.handle, self.inference.steps)
        with self.device.gate:
            self.device.check()
            self._current_replay().submit([rehearsal])
            self._see_staging()
        self._mapped = True
        self._encoder = self._current_replay().encode()

    def _uploads(self) -> tuple[BufferCopy, ...]:
        ports = enumerate(zip(self._upload_offsets, self.program.inputs, strict=True))
        return tuple(
            BufferCopy(offset, port.offset, _padded(port.nbytes))
            for i, (offset, port) in ports
            if i not in self._bindings.inputs
        )

    def _downloads(self) -> tuple[BufferCopy, ...]:
        ports = enumerate(zip(self._download_offsets, self.program.outputs, strict=True))
        return tuple(
            BufferCopy(port.offset, offset, _padded(port.nbytes))
            for i, (offset, port) in ports
            if i not in self._bindings.outputs
        )

    def _forget_replay(self) -> None:
        """Other ports are about to be bound: leave the copies of those out of the inference, and only of those."""
        command, self._command = self._command, None
        replay, self._replay, self._encoder = self._replay, None, None
        if command is not None and replay is not None:
            self._use_up(replay, command)

    def _current_replay(self) -> Replay:
        if self._replay is None:
            self.inference = dataclasses.replace(self.inference, uploads=self._uploads(), downloads=self._downloads())
            self._replay = Replay(self.device.handle, self.inference)
        return self._replay

    def _take_command(self) -> Any:
        """The commands of an inference, for one submission. Raises DeviceError if the device is lost."""
        try:
            return self._made_command()
        except (DeviceError, wgpu.classes.GPUError):
            self.device.is_alive()
            self.device.check()
            raise

    def _made_command(self) -> Any:
        replay = self._current_replay()
        if self.validation:
            return record(self.device.handle, self.inference)
        command, self._command = self._command, None
        encoder, self._encoder = self._encoder, None
        return command or replay.finish(encoder or replay.encode())

    def _encode_ahead(self) -> None:
        """Have the next inference's commands, while the device works. They are finished only where inferences are as
        short as that: they have to be submitted then, be it that the session is closed."""
        if self.validation:
            return
        replay = self._current_replay()
        encoder = replay.encode()
        if self._awaited and self._stats["wait"] < SHORT_SECONDS:
            self._command = replay.finish(encoder)
        else:
            self._encoder = encoder

    def _buffer(self, label: str, size: int, usage: int, mapped: bool = False) -> Any:
        size = max(_padded(size), _STAGING_ALIGNMENT)
        if size > self.device.max_buffer_bytes:
            raise DeviceError(
                f"the {label} of this model need {size} bytes in one buffer, and {self.device.adapter} allows "
                f"{self.device.max_buffer_bytes}; use a smaller batch or input"
            )
        buffer = self.device.handle.create_buffer(label=label, size=size, usage=usage, mapped_at_creation=mapped)
        self._buffers.append(buffer)
        self._allocations += 1
        return buffer

    def _upload_constants(self) -> Any:
        constants, queue = self.program.constants, self.device.handle.queue
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        buffer = self._buffer("constants", constants.nbytes, usage)
        for first in range(0, constants.nbytes, _UPLOAD_BYTES):
            piece = constants[first : first + _UPLOAD_BYTES]
            if piece.nbytes % 4:
                piece = np.concatenate([piece, np.zeros(-piece.nbytes % 4, np.uint8)])
            queue.write_buffer(buffer, first, np.ascontiguousarray(piece))
            read_back(self.device, buffer, first, 4)  # waits, so that there is one such copy at a time
        return buffer

    def _submit(self, commands: Sequence[Any]) -> None:
        """Start an inference."""
        replay = self._current_replay()
        with self._losing_the_device(), self.device.gate:
            self.device.check()
            self._mapped, self._answers = False, None
            replay.unmap()
            replay.submit(commands)
            self._has_run = True
            self._ask_for_staging(replay)

    def _ask_for_staging(self, replay: Replay) -> None:
        answers = Answers()
        replay.map(answers)
        self._answers = answers

    def _finish(self) -> None:
        """Wait for what was started, if anything: afterwards the staging buffers are mapped, and nothing is left that
        another method was interrupted in. Raises DeviceError if the session cannot be used."""
        self._check_open()
        if not self._mapped:
            self._wait()
        if self._variables is not None:
            self._restore_variables()

    def _wait(self) -> None:
        started = time.perf_counter()
        replay = self._current_replay()
        with self._losing_the_device():
            if self._answers is None:  # interrupted on the way to it
                with self.device.gate:
                    self.device.check()
                    replay.unmap_anyhow()
                    self._ask_for_staging(replay)
            if self._answers is not None:
                replay.wait(self._answers, self._spin_seconds(), self._stats["wait"])
            with self.device.gate:
                self.device.check()
                self._see_staging()
        self._mapped, self._awaited = True, True
        self._stats["wait"] = time.perf_counter() - started

    @contextlib.contextmanager
    def _losing_the_device(self) -> Iterator[None]:
        try:
            yield
        except DeviceError as error:
            if self.device.lost:
                raise
            self.device.lost = True
            raise self.device.loss() from error

    def _spin_seconds(self) -> float:
        """How long to ask before sleeping. A software device needs the cores itself."""
        if self.wait == "active":
            return _ACTIVE_SECONDS
        short = self._awaited and self._stats["wait"] < SHORT_SECONDS and not self.device.info.is_software
        return SHORT_SECONDS if short else 0.0

    def _timed(self, passes: int) -> Sequence[float]:
        """Seconds of each of the passes of an inference that leaves the variables as they are."""
        with self._lock:
            self._check_open()
            if not self.device.features.timestamps:
                raise DeviceError(f"{self.device.adapter} has no timestamp queries, so its kernels cannot be timed")
            self._finish()
            timer = self._timers.get(passes)
            if timer is None:
                timer = self._timers[passes] = Timer(self.device, passes)
                self._allocations += 1
            arena, variables = self.inference.arena, self.program.variables
            self._variables = [read_back(self.device, arena, p.offset, _padded(p.nbytes)) for p in variables]
            self._submit([record(self.device.handle, self.inference, timer)])
            self._finish()
            return timer.seconds()

    def _restore_variables(self) -> None:
        self._set_variables(self._variables or ())
        self._variables = None

    def _set_variables(self, contents: Sequence[Any]) -> None:
        with self.device.gate:
            self.device.check()
            for port, content in zip(self.program.variables, contents, strict=True):
                self.device.handle.queue.write_buffer(self.inference.arena, port.offset, content)

    def _see_staging(self) -> None:
        """Views of the ports in the staging buffers, whose addresses may change with every mapping."""
        replay = self._current_replay()
        self._input_memory = self._output_memory = []
        if self.program.inputs:
            memory = replay.upload_memory()
            self._input_memory = [
                memory[at : at + port.nbytes]
                for at, port in zip(self._upload_offsets, self.program.inputs, strict=True)
            ]
        if self.program.outputs:
            memory = replay.download_memory()
            self._output_memory = [
                memory[at : at + port.nbytes]
                for at, port in zip(self._download_offsets, self.program.outputs, strict=True)
            ]

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the session was closed: build a new one")
        self.device.check()


# ----------------------------------------------------------------------------------------------


def _staging_layout(ports: Sequence[Port]) -> tuple[list[int], int]:
    """Each port's offset in a staging buffer, and the buffer's size."""
    offsets, size = [], 0
    for port in ports:
        offsets.append(size)
        size += -(-port.nbytes // _STAGING_ALIGNMENT) * _STAGING_ALIGNMENT
    return offsets, size
