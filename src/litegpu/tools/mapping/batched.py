"""A model that is called with many inputs at a time, as many of them in a batch as it allows."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.errors import InvokeError, LiteGpuError, OptionError
from litegpu.interpreter import Interpreter
from litegpu.model.batch import with_batch
from litegpu.model.reader import read_model
from litegpu.model.state import keeps_values
from litegpu.model.types import Model
from litegpu.session import LoadedModel, load

_MOST_BATCH = 64
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class ItemPort:
    """An input or an output, for one item: `shape` is without the batch; `fixed` says whether it is always that.
    `quantization` is scale and zero point, (0.0, 0) without."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    quantization: tuple[float, int]
    fixed: bool = True

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def detail(self) -> dict[str, Any]:
        """The detail dictionary of the input for a batch of one."""
        shape = np.array((1, *self.shape), np.int32)
        return {"name": self.name, "shape": shape, "dtype": self.dtype.type, "quantization": self.quantization}


@dataclass(frozen=True)
class Interface:
    """What one item is: an array per input, without the batch that `lead` inputs share; None if the model has none."""

    inputs: tuple[ItemPort, ...]
    outputs: tuple[ItemPort, ...]
    lead: int | None

    @property
    def bytes(self) -> int:
        """Of one item, inputs and outputs."""
        return sum(port.bytes for port in (*self.inputs, *self.outputs))


def interface_of(path: str | os.PathLike[str] | bytes) -> Interface:
    """What a model takes and gives for one item. Runs nothing; raises ModelError, or OptionError for text inputs."""
    content = path if isinstance(path, bytes) else None
    with LoadedModel(Interpreter(None if content else path, content)) as loaded:
        model = loaded.interpreter.model
        lead = _lead(model)
        with suppress(InvokeError):  # an op that only the GPU has; the shapes in the file must do
            loaded.interpreter.allocate_tensors()
        inputs = tuple(_port(name, detail, lead) for name, detail in loaded.inputs.items())
        outputs = tuple(_port(name, detail, lead) for name, detail in loaded.outputs.items())
    if not inputs:
        raise OptionError("The model has no inputs")
    for port in inputs:
        if port.dtype.kind in "SO":
            raise OptionError(f"Input '{port.name}' is text, which map does not read")
    return Interface(inputs, outputs, lead)


def default_batch(interface: Interface, count: int) -> int:
    """As many of `count` items as make 16 MiB of inputs or of outputs, 64 at most."""
    sizes = (sum(port.bytes for port in ports) for ports in (interface.inputs, interface.outputs))
    return max(1, min(_MOST_BATCH, count, _BATCH_BYTES // max(1, *sizes)))


@dataclass(frozen=True)
class BatchPlan:
    """The model to open: `content` if it is not the one in the file, for `batch` items at a time. `shared` are the
    positions of outputs that the batch does not change; `note` says why the batch is not what was wanted."""

    content: bytes | None
    batch: int
    note: str = ""
    shared: frozenset[int] = frozenset()


def plan_batch(source: str | os.PathLike[str] | bytes, interface: Interface, wanted: int) -> BatchPlan:
    """The model for `wanted` items at a time if its rows stay apart, else for as many as the file says."""
    if wanted < 1:
        raise OptionError(f"batch is {wanted}; it must be at least 1")
    if interface.lead is None:
        note = "its inputs do not begin with a batch" if wanted > 1 else ""
        return BatchPlan(None, 1, note)
    if wanted == interface.lead:
        return BatchPlan(None, wanted)
    model = read_model(source)
    try:
        changed = with_batch(model, wanted)
    except LiteGpuError as refusal:
        return BatchPlan(None, interface.lead, str(refusal))
    shapes = [(model.main.tensors[i].shape, changed.main.tensors[i].shape) for i in model.main.outputs]
    shared = frozenset(i for i, (before, after) in enumerate(shapes) if before == after and before)
    return BatchPlan(bytes(changed.content), wanted, shared=shared)


class BatchedModel:
    """An open model; thread-safe, one inference at a time."""

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        interface: Interface,
        plan: BatchPlan,
        *,
        device: str,
        precision: str,
        arithmetic: str = "auto",
        num_threads: int | None = None,
    ) -> None:
        self._interface = interface
        self._plan = plan
        self._batch = plan.batch
        content = source if plan.content is None else plan.content
        more = {} if arithmetic == "auto" else {"arithmetic": arithmetic}
        self._loaded = load(
            content, device=device, precision=precision, num_threads=num_threads, fallback="silent", **more
        )
        self._interpreter = self._loaded.interpreter
        self._inputs = [d["index"] for d in self._loaded.inputs.values()]
        self._outputs = [d["index"] for d in self._loaded.outputs.values()]
        self._has_variables = keeps_values(self._interpreter.model)
        self._lock = threading.Lock()

    @property
    def device(self) -> str:
        """What it runs on, for people."""
        return self._loaded.hardware

    def __call__(self, items: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
        """For each output one array per item. `items` hold one array per input."""
        rows: list[list[np.ndarray]] = [[] for _ in self._outputs]
        for start in range(0, len(items), self._batch):
            some = items[start : start + self._batch]
            given = [self._stacked([item[i] for item in some]) for i in range(len(self._inputs))]
            for position, array in enumerate(self._infer(given)):
                rows[position] += self._split(position, array, len(some))
        return rows

    def close(self) -> None:
        self._loaded.close()

    def _infer(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with self._lock:
            if self._has_variables:  # an input must not depend on those before it
                self._interpreter.reset_all_variables()
            for index, array in zip(self._inputs, arrays, strict=True):
                self._interpreter.set_tensor(index, array)
            self._interpreter.invoke()
            return [np.asarray(self._interpreter.get_tensor(index)) for index in self._outputs]

    def _stacked(self, arrays: list[np.ndarray]) -> np.ndarray:
        """A whole batch; what is missing repeats the last item."""
        if self._interface.lead is None:
            return arrays[0]
        return np.stack(arrays + [arrays[-1]] * (self._batch - len(arrays)))

    def _split(self, position: int, array: np.ndarray, count: int) -> list[np.ndarray]:
        """The rows of the first `count` items. An output that has no batch belongs to all of them."""
        if self._interface.lead is None:
            return [array]
        if position not in self._plan.shared and array.ndim and len(array) == self._batch:
            return list(array[:count])
        return [array[0] if array.ndim and len(array) == 1 else array] * count


def _lead(model: Model) -> int | None:
    """The leading dimension of all inputs if it is a batch, else None. One that is not 1 is a batch if the model can be
    had for a batch of 1: its rows are independent then."""
    shapes = [model.main.tensors[i].shape for i in model.main.inputs]
    leads = {shape[0] if shape else None for shape in shapes}
    lead = leads.pop() if len(leads) == 1 else None
    if lead in (None, 1):
        return lead
    try:
        with_batch(model, 1)
    except LiteGpuError:
        return None
    return lead


def _port(name: str, detail: Mapping[str, Any], lead: int | None) -> ItemPort:
    shape = tuple(int(n) for n in detail["shape"])
    signature = tuple(int(n) for n in detail["shape_signature"])
    if lead is not None and shape and shape[0] in (lead, 1):
        shape, signature = shape[1:], signature[1:]
    fixed = -1 not in signature and 0 not in shape
    scale, zero_point = detail["quantization"]
    return ItemPort(name, shape, np.dtype(detail["dtype"]), (float(scale), int(zero_point)), fixed)
