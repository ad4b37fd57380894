"""What a worker does: reads the inputs of a chunk, runs the model on them, and gives the outputs as columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from litegpu.device_choice import every_device
from litegpu.errors import DeviceError, OptionError, TensorError
from litegpu.gpu.backends import registry
from litegpu.tools.arrays import read_array
from litegpu.tools.distribute import WorkerContext
from litegpu.tools.images import Normalization, decode_image, image_to_tensor, load_image
from litegpu.tools.mapping.batched import BatchedModel, BatchPlan, Interface, ItemPort
from litegpu.tools.mapping.items import Item, Raw
from litegpu.tools.mapping.sources import Chunk, is_array_file


@dataclass(frozen=True, eq=False)
class ChunkResult:
    """One error, "" for none, per input of a chunk; and for each output one array per input without an error: an array
    whose first dimension counts them, or a list if their shapes differ."""

    errors: tuple[str, ...]
    outputs: tuple[np.ndarray | list[np.ndarray], ...]

    @property
    def bytes(self) -> int:
        return sum(
            a.nbytes for output in self.outputs for a in ([output] if isinstance(output, np.ndarray) else output)
        )

    def good(self) -> Iterator[tuple[int, ChunkResult]]:
        """The inputs without an error: each run of them, with the place of its first in the chunk."""
        at = before = 0  # before: results of earlier runs
        for failed, errors in groupby(self.errors, bool):
            run = tuple(errors)
            if not failed:
                yield at, ChunkResult(run, tuple(output[before : before + len(run)] for output in self.outputs))
                before += len(run)
            at += len(run)


@dataclass(frozen=True, eq=False)
class MapFactory:
    """Everything that a worker needs, to be sent to it: a factory for map_shards(). `model` is a path, or the content
    where the worker may not see the path; the other fields as for map_model()."""

    model: str | bytes
    interface: Interface
    plan: BatchPlan
    device: str = "auto"
    precision: str = "float32"
    num_threads: int | None = None
    normalization: Normalization | None = None
    dequantize: bool = False
    arithmetic: str = "auto"

    def stored(self) -> tuple[ItemPort, ...]:
        """The outputs as they are written."""
        ports = self.interface.outputs
        if not self.dequantize:
            return ports
        real = np.dtype(np.float32)
        return tuple(replace(p, dtype=real, quantization=(0.0, 0)) if p.quantization[0] else p for p in ports)

    def __call__(self, context: WorkerContext) -> _Worker:
        return _Worker(self, context)


class _Worker:
    """Thread-safe: chunks are read at the same time, and take turns at the model."""

    def __init__(self, job: MapFactory, context: WorkerContext) -> None:
        self._job = job
        on_cpu = job.device == "cpu"
        self._model = BatchedModel(
            job.model,
            job.interface,
            job.plan,
            device=_device(job.device, context),
            precision=job.precision,
            arithmetic=job.arithmetic,
            num_threads=(job.num_threads or context.threads) if on_cpu else job.num_threads,
        )
        self.description = self._model.device
        self._readers = ThreadPoolExecutor(context.threads, "reader")

    def __call__(self, chunk: Chunk) -> ChunkResult:
        found = list(self._readers.map(self._read, chunk.items()))
        errors = tuple(item if isinstance(item, str) else "" for item in found)
        rows = self._model([item for item in found if not isinstance(item, str)])
        ports = self._job.interface.outputs
        return ChunkResult(errors, tuple(self._column(port, arrays) for port, arrays in zip(ports, rows, strict=True)))

    def close(self) -> None:
        self._readers.shutdown()
        self._model.close()

    def _read(self, item: Item) -> list[np.ndarray] | str:
        """An array for each input, or what is wrong. Readers of files raise all kinds of exceptions."""
        try:
            return [self._array(port, raw) for port, raw in zip(self._job.interface.inputs, item, strict=True)]
        except Exception as error:
            return " ".join((str(error) or type(error).__name__).split())

    def _array(self, port: ItemPort, raw: Raw) -> np.ndarray:
        if raw is None:
            raise TensorError("the value is null")
        if isinstance(raw, np.ndarray):
            return to_input(raw, port)
        if isinstance(raw, str) and is_array_file(raw):
            return to_input(read_array(raw, "the array"), port)
        pixels = load_image(raw) if isinstance(raw, str) else decode_image(raw)
        tensor, _ = image_to_tensor(pixels, port.detail(), self._job.normalization)
        return np.asarray(tensor[0])

    def _column(self, port: ItemPort, arrays: Sequence[np.ndarray]) -> np.ndarray | list[np.ndarray]:
        scale, zero_point = port.quantization
        if self._job.dequantize and scale:
            arrays = [(a.astype(np.float32) - np.float32(zero_point)) * np.float32(scale) for a in arrays]
        if len({a.shape for a in arrays}) > 1:
            return list(arrays)
        return np.stack(arrays) if arrays else np.zeros((0, *port.shape))


def to_input(array: np.ndarray, port: ItemPort) -> np.ndarray:
    """An array as one item of an input: of its shape (a batch of one, or a row of as many elements, will do), in its
    type if that changes no value. Real numbers are rounded to the input's precision, and quantized for a quantized one.
    """
    if array.dtype.kind not in "biuf" and not (array.dtype.kind == "c" and port.dtype.kind == "c"):
        raise TensorError(f"the array holds {array.dtype}, and input '{port.name}' is {port.dtype}")
    flat = array.ndim == 1 and array.size == int(np.prod(port.shape))
    if array.shape not in (port.shape, (1, *port.shape)) and not flat:
        raise TensorError(f"the array has shape {list(array.shape)}, and input '{port.name}' {list(port.shape)}")
    array = array.reshape(port.shape)
    if array.dtype == port.dtype:
        return np.array(array, order="C")
    scale, zero_point = port.quantization
    if array.dtype.kind == "f" and port.dtype.kind in "iu" and scale:
        if not np.isfinite(array).all():
            raise TensorError(f"the array has values that are not finite, which input '{port.name}' cannot hold")
        limits = np.iinfo(port.dtype)
        return np.asarray(np.clip(np.rint(array / scale) + zero_point, limits.min, limits.max), port.dtype)
    with np.errstate(all="ignore"):
        converted = array.astype(port.dtype)
    # Real numbers are rounded to the model's precision; whole numbers must survive.
    if not (array.dtype.kind == port.dtype.kind == "f") and not np.array_equal(converted, array):
        raise TensorError(f"the array's {array.dtype} values do not fit input '{port.name}', which is {port.dtype}")
    return converted


def _device(wanted: str, context: WorkerContext) -> str:
    """The device of one worker: its own if it has one, of a backend whose devices have numbers, if that works; and one
    of those that "<backend>:all" stands for."""
    devices = every_device(wanted)
    if len(devices) > 1 or wanted != devices[0]:
        return devices[(context.gpu or 0) % len(devices)]
    if context.gpu is None:
        return wanted
    for name in registry.numbered():
        if wanted in ("auto", name):
            with contextlib.suppress(DeviceError, OptionError):
                devices = every_device(f"{name}:all")
                return devices[context.gpu % len(devices)]
    return wanted
