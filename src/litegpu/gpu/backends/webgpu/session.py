"""A Program on a WebGPU device, run again and again: what is known of the inference under way."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import wgpu
import wgpu.classes

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends import heap
from litegpu.gpu.backends.abilities import UserBuffer
from litegpu.gpu.backends.check import NUMPY, check_array, check_has_run, check_program
from litegpu.gpu.backends.contract import SHORT_SECONDS, KernelTime
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.binding import Bindings, Bound, check_size, examine
from litegpu.gpu.backends.webgpu.buffers import SessionBuffers
from litegpu.gpu.backends.webgpu.commands import Commands
from litegpu.gpu.backends.webgpu.inference import RecordedInference, padded
from litegpu.gpu.backends.webgpu.look import LOOK
from litegpu.gpu.backends.webgpu.record import Timer, record
from litegpu.gpu.backends.webgpu.regions import run_regions
from litegpu.gpu.backends.webgpu.replay import Answers, Replay
from litegpu.gpu.program import Program
from litegpu.host_copy import copy_bytes

#: An active wait spins this long before it sleeps, so that a hung device does not burn a core for ever.
_ACTIVE_SECONDS = 1.0


class WebGpuSession:
    """One Program on one WebGpuDevice; satisfies contract.Session.

    Inputs wait in a mapped upload buffer, from which every inference copies them into the arena; so the arena may reuse
    their place, and an inference without a write() before it sees the inputs of the last one. The commands of the next
    inference are encoded while the device works on this one; they are rehearsed through wgpu's checked API when the
    session is built, so that mistakes are found there.

    Whatever raises in the middle of a method, a signal handler between any two bytecodes say, leaves a session that
    gives right results: what is known is unlearnt before it changes and learnt after it has changed, and what is not
    known the next method makes anew.
    """

    def __init__(self, device: WebGpuDeviceBase, program: Program, wait: str, validation: bool = False) -> None:
        self.device = device
        self.program = program
        self.wait = wait
        self.validation = validation
        self._lock: Any = threading.RLock()
        fork.follow(self)
        self._closed = False
        self._has_run = False
        self._awaited = False  # whether any inference was
        self._watched = False  # whether the next ones are to look at their results
        self._looked_at: Collection[int] = ()  # the outputs that the last one has looked at
        self._mapped = False  # whether the staging buffers are; else one of these:
        self._answers: Answers | None = None  # to the request that they be, unless that is not known to be made
        self._stats = dict.fromkeys(("write", "encode", "submit", "wait", "read", "compile", "upload"), 0.0)
        self._writing = 0.0  # seconds of write() since the last run
        self._variables: list[np.ndarray] | None = None  # to be restored
        self._timers: dict[int, Timer] = {}  # by the number of passes
        self._timers_made = 0
        self._buffers = SessionBuffers(device, program)
        self._commands: Commands | None = None
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
            copy_bytes(self._buffers.inputs[index], array.reshape(-1).view(np.uint8))
            self._writing += time.perf_counter() - started

    def given(self, index: int) -> np.ndarray:
        """See abilities.InputKeeper. The device reads it, as not all can read what is mapped to be written."""
        with self._lock, self._losing_the_device():
            self._finish()
            with self.device.gate:
                self.device.check()
                self._mapped, self._answers = False, None
                self.commands.replay.unmap()
            found = self._buffers.read_input(index).view(NUMPY[self.program.inputs[index].dtype])
            self._finish()
            return found

    def run(self) -> None:
        with self._lock:
            self._finish()
            clock, stats = time.perf_counter, self._stats
            started = clock()
            before, after = self._bindings.around()
            if self.commands.watched is not self._watched:
                self.commands.forget()
                self.commands.watched = self._watched
            if self.program.regions:
                self._submit_regions(before, after)
            else:
                self._submit([*before, self.commands.take(), *after])
            submitted = clock()
            self._looked_at = self.commands.looked_at
            self.commands.encode_ahead(finish=self._is_short)
            stats["submit"], stats["encode"] = submitted - started, clock() - submitted
            stats["write"], stats["read"], self._writing = self._writing, 0.0, 0.0
            if self.wait != "do_not_wait":
                self._finish()

    def read(self, index: int, out: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.outputs, index, "output", out)
        with self._lock:
            self._check_open()
            check_has_run(self._has_run, index)
            self._finish()
            port, source = self.program.outputs[index], self._buffers.outputs[index]
            if index in self._bindings.outputs:  # only the arena and the user's buffer have it
                source = self._buffers.read(port)
            copy_bytes(out.reshape(-1).view(np.uint8), source[: port.nbytes])
            self._stats["read"] += time.perf_counter() - started

    def order(self, outputs: Collection[int]) -> None:
        """See abilities.ResultGiver. All outputs come in any case."""

    def watch(self, watched: bool) -> None:
        """See abilities.ResultGiver. Small outputs are looked at in mapped memory, whenever that is wanted."""
        self._watched = watched

    def give(self, index: int) -> np.ndarray:
        """See abilities.ResultGiver: a copy of the mapped memory."""
        port = self.program.outputs[index]
        found = np.empty(port.nbytes, np.uint8).view(NUMPY[port.dtype])
        self.read(index, found)
        return found

    def finite(self, look: Callable[[list[np.ndarray]], bool]) -> bool:
        """See abilities.ResultGiver."""
        with self._lock:
            self._finish()
            unbound = [i for i in range(len(self.program.outputs)) if i not in self._bindings.outputs]
            if not self._looked_at:
                return self._look(look, unbound)
            if not self._buffers.word[0]:
                return self._look(look, [i for i in unbound if i not in self._looked_at])
            self._buffers.clear_word()  # which may be of an inference that nobody has asked about
            return self._look(look, unbound)

    def _look(self, look: Callable[[list[np.ndarray]], bool], outputs: Sequence[int]) -> bool:
        ports, memory = self.program.outputs, self._buffers.outputs
        return look([memory[i][: ports[i].nbytes].view(NUMPY[ports[i].dtype]) for i in outputs])

    def settle(self) -> None:
        """See abilities.ResultGiver."""
        with self._lock:
            self._finish()

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
                self.commands.forget()
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
                    self.commands.replay.submit(commands)

    def output_buffer(self, index: int, shape: tuple[int, ...]) -> Any:
        self._check_open()
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        port = self.program.outputs[index]
        return self.device.handle.create_buffer(label=port.name, size=padded(port.nbytes), usage=usage)

    def reset_variables(self) -> None:
        with self._lock:
            self._finish()
            self._buffers.write_variables([bytes(padded(port.nbytes)) for port in self.program.variables])

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

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_bindings") and not finalizing():
            self.close(wait=False)

    def _free(self) -> None:
        """Let go of everything, whatever is left of it; what the device still works with lives until it is done."""
        self._buffers.forget_ports()
        self._bindings.close()
        if self._commands is not None:
            self._commands.close()
        self._mapped, self._answers = False, None
        while self._timers:
            self._timers.popitem()[1].close()
        self._buffers.free()
        self._commands = None

    @property
    def allocations(self) -> int:
        return self._buffers.allocations + self._timers_made

    @property
    def commands(self) -> Commands:
        assert self._commands is not None  # but while a session that cannot be built is taken down
        return self._commands

    @property
    def inference(self) -> RecordedInference:
        """What commands record: with the copies of the ports that nothing of the user's stands for."""
        return self.commands.inference

    @property
    def stats(self) -> Mapping[str, float]:
        return dict(self._stats)

    def _build(self) -> None:
        program = self.program
        started = time.perf_counter()
        looks = (LOOK,) if self._buffers.looked_at else ()
        pipelines = self.device.pipelines((*program.kernels, *looks))
        self._stats["compile"] = time.perf_counter() - started

        self._buffers.make()
        if program.constants.size:
            started = time.perf_counter()
            self._buffers.upload_constants()
            self._stats["upload"] = time.perf_counter() - started
        commands = self._commands = Commands(
            self.device, program, self._buffers, pipelines, self._bindings, self.validation or bool(program.regions)
        )
        rehearsal = commands.rehearsal()
        with self.device.gate:
            self.device.check()
            commands.replay.submit([rehearsal])
            self._buffers.see_ports(commands.replay)
        self._mapped = True
        commands.encode_ahead(finish=False)

    def _submit(self, commands: Sequence[Any]) -> None:
        """Start an inference."""
        replay, to_restore = self.commands.replay, self._variables
        if self.commands.wasted and self._variables is None:
            self._variables = self._variables_now()
        with self._losing_the_device(), self.device.gate:
            self.device.check()
            self._mapped, self._answers, self._looked_at = False, None, ()
            replay.unmap()
            if self.commands.wasted:
                self.commands.drain()
                self._buffers.write_variables(self._variables or ())
                self._variables = to_restore
            replay.submit(commands)
            self._has_run = True
            self._ask_for_staging(replay)

    def _submit_regions(self, before: Sequence[Any], after: Sequence[Any]) -> None:
        """The same of a program with regions, which is there but for the copies of outputs when this returns."""
        replay, inference, handle = self.commands.replay, self.inference, self.device.handle

        def submit(commands: Sequence[Any]) -> None:
            with self.device.gate:
                self.device.check()
                replay.submit(commands)

        with self._losing_the_device():
            with self.device.gate:
                self.device.check()
                self._mapped, self._answers, self._looked_at = False, None, ()
                replay.unmap()
                first = dataclasses.replace(inference, steps=(), looks=(), downloads=())
                replay.submit([*before, record(handle, first)])
            run_regions(self.device, self.program, inference, submit)
            with self.device.gate:
                self.device.check()
                replay.submit([record(handle, dataclasses.replace(inference, steps=(), uploads=())), *after])
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
        replay = self.commands.replay
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
                self._buffers.see_ports(replay)
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
        return SHORT_SECONDS if self._is_short and not self.device.info.is_software else 0.0

    @property
    def _is_short(self) -> bool:
        """Whether inferences take little time, as far as is known."""
        return self._awaited and self._stats["wait"] < SHORT_SECONDS

    def _timed(self, passes: int) -> Sequence[float]:
        """Seconds of each of the passes of an inference that leaves the variables as they are."""
        with self._lock:
            self._check_open()
            if self.program.regions:
                raise DeviceError("how often its kernels run is known only when it runs, so they are not timed")
            if not self.device.features.timestamps:
                raise DeviceError(f"{self.device.adapter} has no timestamp queries, so its kernels cannot be timed")
            self._finish()
            timer = self._timers.get(passes)
            if timer is None:
                timer = self._timers[passes] = Timer(self.device, passes)
                self._timers_made += 1
            self._variables = self._variables_now()
            self._submit([record(self.device.handle, self.inference, timer)])
            self._finish()
            return timer.seconds()

    def _variables_now(self) -> list[np.ndarray]:
        return [self._buffers.read(port) for port in self.program.variables]

    def _restore_variables(self) -> None:
        self._buffers.write_variables(self._variables or ())
        self._variables = None

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the session was closed: build a new one")
        self.device.check()
