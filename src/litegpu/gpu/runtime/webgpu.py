"""The WebGPU runtime: opens a device through wgpu and replays Programs on it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import wgpu

from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode, Port, Program
from litegpu.gpu.runtime import webgpu_native as native
from litegpu.gpu.runtime.base import SHORT_SECONDS, DeviceInfo, KernelTime
from litegpu.gpu.runtime.check import check_array, check_program
from litegpu.gpu.runtime.host_copy import copy_bytes
from litegpu.gpu.runtime.webgpu_adapters import ADAPTER_VARIABLE, AdapterInfo, choose_adapter, list_adapters
from litegpu.gpu.runtime.webgpu_binding import Bindings, Bound
from litegpu.gpu.runtime.webgpu_binding import padded as _padded
from litegpu.gpu.runtime.webgpu_record import Copy, Inference, Step, Timer, record

__all__ = ["AdapterInfo", "WebGpuDevice", "WebGpuSession", "list_adapters", "open_device"]

#: Constants go up in pieces, as each piece is copied once more on its way.
_UPLOAD_BYTES = 32 << 20
#: Of the ports within the staging buffers.
_STAGING_ALIGNMENT = 16
_WAITS = ("passive", "active", "do_not_wait")
#: An active wait spins this long before it sleeps, so that a hung device does not burn a core for ever.
_ACTIVE_SECONDS = 1.0


def open_device(backend: str = "auto", name: str | None = None) -> WebGpuDevice:
    """The device of the adapter that choose_adapter() picks, opened once per process and shared; thread-safe.

    Raises DeviceError if there is none (it says what to install) or it cannot be opened, OptionError for an unknown
    backend.
    """
    name = name if name is not None else os.environ.get(ADAPTER_VARIABLE)
    with _open_lock:
        device = _open_by_request.get((backend, name))
        if device is not None and not device.lost:
            return device
        adapter = choose_adapter(backend, name)
        key = (adapter.backend, adapter.name, adapter.driver)
        device = _open_by_adapter.get(key)
        if device is None or device.lost:
            device = WebGpuDevice(adapter)
        _open_by_request[backend, name] = _open_by_adapter[key] = device
        return device


_open_lock = threading.Lock()
_open_by_request: dict[tuple[str, str | None], WebGpuDevice] = {}
_open_by_adapter: dict[tuple[str, str, str], WebGpuDevice] = {}


class WebGpuDevice:
    """An opened WebGPU device; satisfies base.Device. Sessions with equal kernels share the compiled pipelines."""

    target = "wgsl"

    def __init__(self, adapter: AdapterInfo) -> None:
        self.adapter = adapter
        self.features: Features = adapter.features
        self.info = DeviceInfo(adapter.name, adapter.backend, adapter.driver, adapter.is_software)
        self.lost = False
        wanted = [name for name in ("shader-f16", "subgroup", "timestamp-query") if name in adapter.handle.features]
        try:
            self.handle: Any = adapter.handle.request_device_sync(
                label="litegpu", required_features=wanted, required_limits=adapter.handle.limits
            )
        except Exception as error:
            raise DeviceError(f"{adapter} was found but could not be opened: {error}") from error
        self.max_buffer_bytes: int = self.handle.limits["max-buffer-size"]
        self._pipelines: weakref.WeakValueDictionary[KernelCode, _Pipeline] = weakref.WeakValueDictionary()
        self._layouts: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._nudged: Any = None
        self._lock = threading.Lock()

    def tuner(self, level: str) -> None:
        """There is one kernel for each op."""

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> WebGpuSession:
        """A session of `program`. `wait`: "passive" sleeps in run() until the device is done, except where that takes
        less than 2 ms; "active" spins, which answers sooner and occupies a core; "do_not_wait" returns at once, and
        read() or the next write() waits. The default is passive, which means active on Metal, where wgpu's sleep has a
        granularity of a millisecond. `validation`: every inference is recorded anew through wgpu's checked API.
        Raises DeviceError naming the kernel that the device refused."""
        if wait in (None, "passive"):
            wait = "active" if self.info.backend == "metal" else "passive"
        if wait not in _WAITS:
            raise OptionError(f"unknown wait {wait!r}: use {' or '.join(_WAITS)}")
        return WebGpuSession(self, program, wait, validation)

    def nudge(self) -> None:
        """Give the device something tiny to do."""
        with self._lock:
            if self._nudged is None:
                self._nudged = self.handle.create_buffer(label="nudge", size=16, usage=wgpu.BufferUsage.COPY_DST)
            self.handle.queue.write_buffer(self._nudged, 0, bytes(16))
            self.handle.queue.submit([])

    def images(self, program: Program) -> list[bytes]:
        """None: WebGPU gives no compiled code. (Drivers keep a cache of their own.)"""
        return []

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """Nothing to adopt."""

    def pipelines(self, kernels: Sequence[KernelCode]) -> list[_Pipeline]:
        """The kernels compiled, in order; in threads where they are not compiled yet."""
        with self._lock:
            ready = {kernel: self._pipelines.get(kernel) for kernel in kernels}
            for kernel in kernels:
                self._layout(kernel.access)
        missing = [kernel for kernel, pipeline in ready.items() if pipeline is None]
        if len(missing) > 1:
            with ThreadPoolExecutor(min(8, len(missing), os.cpu_count() or 1)) as pool:
                built = list(pool.map(self._compile, missing))
        else:
            built = [self._compile(kernel) for kernel in missing]
        compiled = {kernel: pipeline for kernel, pipeline in ready.items() if pipeline is not None}
        compiled.update(zip(missing, built, strict=True))
        with self._lock:
            self._pipelines.update(compiled)
        return [compiled[kernel] for kernel in kernels]

    def _compile(self, kernel: KernelCode) -> _Pipeline:
        bind_group_layout, pipeline_layout = self._layouts[kernel.access]
        try:
            module = native.create_shader_module(self.handle, kernel.name, kernel.source)
            stage = {"module": module, "entry_point": kernel.name}
            pipeline = self.handle.create_compute_pipeline(label=kernel.name, layout=pipeline_layout, compute=stage)
        except Exception as error:
            message = native.plain_message(str(error))
            raise DeviceError(f"kernel {kernel.name!r} did not compile on {self.adapter}: {message}") from error
        return _Pipeline(bind_group_layout, pipeline)

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


class _Pipeline:
    """A compiled kernel, alive as long as some session uses it."""

    def __init__(self, bind_group_layout: Any, handle: Any) -> None:
        self.bind_group_layout = bind_group_layout
        self.handle = handle


class WebGpuSession:
    """One Program on one WebGpuDevice; satisfies base.Session.

    Inputs wait in a mapped upload buffer, from which every inference copies them into the arena; so the arena may reuse
    their place, and an inference without a write() before it sees the inputs of the last one. The commands of the next
    inference are encoded while the device works on this one; those of the first are recorded through wgpu's checked API
    when the session is built, so that mistakes are found there.
    """

    def __init__(self, device: WebGpuDevice, program: Program, wait: str, validation: bool = False) -> None:
        self.device = device
        self.program = program
        self.wait = wait
        self.validation = validation
        self._running = False  # started and not awaited
        self._awaited = False  # whether any was
        self._lock = threading.RLock()
        self._closed = False
        self._has_run = False
        self._buffers: list[Any] = []
        self._input_memory: list[np.ndarray] = []
        self._output_memory: list[np.ndarray] = []
        self._allocations = 0
        self._stats = dict.fromkeys(("write", "encode", "submit", "wait", "read", "compile", "upload"), 0.0)
        self._writing = 0.0  # seconds of write() since the last run
        self._command: Any = None  # of the next inference
        self._timers: dict[int, Timer] = {}  # by the number of passes
        self._bindings = Bindings(self)
        try:
            check_program(program, device.features, str(device.adapter))
            self._build()
        except DeviceError:
            self.close()
            raise
        except Exception as error:
            self.close()
            message = native.plain_message(str(error))
            raise DeviceError(f"{device.adapter} refused the program: {message}") from error

    def write(self, index: int, array: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.inputs, index, "input", array)
        with self._lock:
            self._check_usable()
            self._finish()
            copy_bytes(self._input_memory[index], array.reshape(-1).view(np.uint8))
            self._writing += time.perf_counter() - started

    def run(self) -> None:
        with self._lock:
            self._check_usable()
            self._finish()
            bindings, queue = self._bindings, self.device.handle.queue
            before = bindings.before() if bindings.inputs else None
            after = bindings.after() if bindings.outputs else None
            if before is not None:
                queue.submit([before])
            command, self._command = self._command, None
            self._start(command, encode_next=True)
            if after is not None:
                queue.submit([after])
            if self.wait != "do_not_wait":
                self._finish()

    def read(self, index: int, out: np.ndarray) -> None:
        started = time.perf_counter()
        check_array(self.program.outputs, index, "output", out)
        with self._lock:
            self._check_usable()
            if not self._has_run:
                raise DeviceError(f"output {index} was read before the first run: call run() first")
            self._finish()
            port, source = self.program.outputs[index], self._output_memory[index]
            if index in self._bindings.outputs:  # only the arena and the user's buffer have it
                read = self.device.handle.queue.read_buffer
                source = np.frombuffer(read(self.inference.arena, port.offset, _padded(port.nbytes)), np.uint8)
            copy_bytes(out.reshape(-1).view(np.uint8), source[: port.nbytes])
            self._stats["read"] += time.perf_counter() - started

    def bind(self, kind: str, index: int, resource: Any, what: str, adapter: Program | None = None) -> None:
        """Let the user's buffer or texture stand for a port (`kind` "input" or "output") in every inference from the
        next on; None ends that. `adapter`: a program with one input and one output, between the resource's format and
        the port's. What is bound is neither uploaded nor downloaded, though read() still gives it. The resource must
        have been checked."""
        with self._lock:
            self._check_usable()
            self._finish()
            table = self._bindings.inputs if kind == "input" else self._bindings.outputs
            before = table.pop(index, None)
            if before is not None and before.adapter is not None:
                before.adapter.close()
            if resource is not None:
                between = None if adapter is None else WebGpuSession(self.device, adapter, self.wait)
                table[index] = Bound(resource, between, what)
            if (before is None) != (resource is None):
                self._record_anew()

    def fill_bound_output(self, index: int) -> None:
        """Copy the last inference's output, if there was one, to the buffer that was bound to it since."""
        with self._lock:
            self._check_usable()
            self._finish()
            if self._has_run:
                self.device.handle.queue.submit([self._bindings.after(index)])

    def output_buffer(self, index: int) -> Any:
        """A new wgpu buffer for output `index`; it belongs to the caller."""
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        port = self.program.outputs[index]
        return self.device.handle.create_buffer(label=port.name, size=_padded(port.nbytes), usage=usage)

    def reset_variables(self) -> None:
        with self._lock:
            self._check_usable()
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

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(DeviceError):
                self._finish()
            self._input_memory = self._output_memory = []
            self._bindings.close()
            if self._command is not None:
                self.replay.discard(self._command)
                self._command = None
            for timer in self._timers.values():
                timer.close()
            for buffer in self._buffers:
                buffer.destroy()
            self._buffers.clear()

    def __del__(self) -> None:
        if hasattr(self, "_timers") and not sys.is_finalizing():
            self.close()

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
        self.inference = Inference(
            arena=arena,
            upload=self._buffer("inputs", upload_size, upload_usage, mapped=True) if program.inputs else None,
            download=self._buffer("outputs", download_size, download_usage, mapped=True) if program.outputs else None,
            steps=tuple(bind(i) for i in range(len(program.dispatches))),
            uploads=self._uploads(),
            downloads=self._downloads(),
        )
        self._pipelines = pipelines  # keeps them in the device's table
        self.replay = native.Replay(self.device.handle, self.inference)
        self._map_staging()
        self._command = self.replay.adopt(record(self.device.handle, self.inference))

    def _uploads(self) -> tuple[Copy, ...]:
        ports = enumerate(zip(self._upload_offsets, self.program.inputs, strict=True))
        return tuple(
            Copy(offset, port.offset, _padded(port.nbytes))
            for i, (offset, port) in ports
            if i not in self._bindings.inputs
        )

    def _downloads(self) -> tuple[Copy, ...]:
        ports = enumerate(zip(self._download_offsets, self.program.outputs, strict=True))
        return tuple(
            Copy(port.offset, offset, _padded(port.nbytes))
            for i, (offset, port) in ports
            if i not in self._bindings.outputs
        )

    def _record_anew(self) -> None:
        """Leave the copies of bound ports out of the inference."""
        if self._command is not None:
            self.replay.discard(self._command)
            self._command = None
        self.inference = dataclasses.replace(self.inference, uploads=self._uploads(), downloads=self._downloads())
        self.replay = native.Replay(self.device.handle, self.inference)
        self._command = self.replay.adopt(record(self.device.handle, self.inference))

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
        buffer = self._buffer("constants", constants.nbytes, wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST)
        for first in range(0, constants.nbytes, _UPLOAD_BYTES):
            piece = constants[first : first + _UPLOAD_BYTES]
            if piece.nbytes % 4:
                piece = np.concatenate([piece, np.zeros(-piece.nbytes % 4, np.uint8)])
            queue.write_buffer(buffer, first, np.ascontiguousarray(piece))
            queue.submit([])
            native.finish(self.device.handle)
        return buffer

    def _start(self, command: Any, encode_next: bool) -> None:
        clock, stats = time.perf_counter, self._stats
        started = clock()
        with self._losing_the_device():
            self.replay.start(command)
            self._running = True
            submitted = clock()
            if encode_next and self.validation:
                self._command = self.replay.adopt(record(self.device.handle, self.inference))
            elif encode_next:
                self._command = self.replay.encode()
        self._has_run = True
        stats["submit"], stats["encode"] = submitted - started, clock() - submitted
        stats["write"], stats["read"], self._writing = self._writing, 0.0, 0.0

    def _finish(self) -> None:
        """Wait for the inference that was started, if any."""
        if not self._running:
            return
        self._running = False
        started = time.perf_counter()
        with self._losing_the_device():
            self.replay.wait(self._spin_seconds())
            self._map_staging()
        self._awaited = True
        self._stats["wait"] = time.perf_counter() - started

    @contextlib.contextmanager
    def _losing_the_device(self) -> Iterator[None]:
        try:
            yield
        except DeviceError as error:
            self.device.lost = True
            raise DeviceError(f"{self.device.adapter}: {error}") from error

    def _spin_seconds(self) -> float:
        """How long to ask before sleeping. A software device needs the cores itself."""
        if self.wait == "active":
            return _ACTIVE_SECONDS
        short = self._awaited and self._stats["wait"] < SHORT_SECONDS and not self.device.info.is_software
        return SHORT_SECONDS if short else 0.0

    def _timed(self, passes: int) -> Sequence[float]:
        """Seconds of each of the passes of an inference that leaves the variables as they are."""
        with self._lock:
            self._check_usable()
            if not self.device.features.timestamps:
                raise DeviceError(f"{self.device.adapter} has no timestamp queries, so its kernels cannot be timed")
            self._finish()
            timer = self._timers.get(passes)
            if timer is None:
                timer = self._timers[passes] = Timer(self.device.handle, passes)
                self._allocations += 1
            queue, arena = self.device.handle.queue, self.inference.arena
            kept = [queue.read_buffer(arena, p.offset, _padded(p.nbytes)) for p in self.program.variables]
            command = self.replay.adopt(record(self.device.handle, self.inference, timer))
            self._start(command, encode_next=False)
            self._finish()
            self._set_variables(kept)
            return timer.seconds()

    def _set_variables(self, contents: Sequence[Any]) -> None:
        for port, content in zip(self.program.variables, contents, strict=True):
            self.device.handle.queue.write_buffer(self.inference.arena, port.offset, content)

    def _map_staging(self) -> None:
        """Views of the ports in the staging buffers, whose addresses may change with every mapping."""
        self._input_memory = self._output_memory = []
        if self.program.inputs:
            memory = self.replay.upload_memory()
            self._input_memory = [
                memory[at : at + port.nbytes]
                for at, port in zip(self._upload_offsets, self.program.inputs, strict=True)
            ]
        if self.program.outputs:
            memory = self.replay.download_memory()
            self._output_memory = [
                memory[at : at + port.nbytes]
                for at, port in zip(self._download_offsets, self.program.outputs, strict=True)
            ]

    def _check_usable(self) -> None:
        if self._closed:
            raise DeviceError("the session was closed: build a new one")
        if self.device.lost:
            raise DeviceError(f"{self.device.adapter} was lost: open the device again and build a new session")


# ----------------------------------------------------------------------------------------------


def _staging_layout(ports: Sequence[Port]) -> tuple[list[int], int]:
    """Each port's offset in a staging buffer, and the buffer's size."""
    offsets, size = [], 0
    for port in ports:
        offsets.append(size)
        size += -(-port.nbytes // _STAGING_ALIGNMENT) * _STAGING_ALIGNMENT
    return offsets, size
