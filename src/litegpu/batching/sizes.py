"""A model made ready for batches of several sizes, on each of its devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from litegpu.errors import InvokeError, OptionError, TensorError
from litegpu.gpu.backends.abilities import NativeRun, PinnedMemory
from litegpu.model.batch import with_batch
from litegpu.model.state import keeps_values
from litegpu.model.types import Model
from litegpu.stream import Route, Streamed, only_kernel

if TYPE_CHECKING:
    from litegpu.gpu.backends.contract import Device
    from litegpu.gpu.delegate.kernel import GpuKernel


class Sizable(Streamed, Protocol):
    """What a batcher uses of a LoadedModel."""

    @property
    def inputs(self) -> dict[str, dict[str, Any]]: ...

    @property
    def outputs(self) -> dict[str, dict[str, Any]]: ...

    @property
    def replicas(self) -> Sequence[Sizable]: ...

    @property
    def _label(self) -> str: ...

    def _for_batch(self, batch: int) -> Sizable: ...

    def empty_input(self, name: str | None = None, batch: int | None = None) -> np.ndarray: ...

    def _close(self, *, wait: bool) -> None: ...


@dataclass(frozen=True)
class RowForm:
    """What a row is: for each input, by name, its shape without the batch and its type; for each output, in the model's
    order, whether it has the batch, or is the same for all rows."""

    inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    outputs: tuple[bool, ...]

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """Of the inputs."""
        return {name: dtype for name, (_, dtype) in self.inputs.items()}


def rows_of_model(model: Sizable) -> RowForm:
    """Raises TensorError if the model's rows do not stay apart: the reason is with_batch()'s."""
    read = model.interpreter.model
    main = read.main
    if keeps_values(read):
        raise TensorError("the model keeps variables from one inference to the next, so calls cannot share batches")
    batch = main.tensors[main.inputs[0]].shape[0] if main.inputs and main.tensors[main.inputs[0]].shape else 0
    other = with_batch(read, batch + 1)
    inputs = {}
    for name, index in model._inputs.items():
        tensor = main.tensors[index]
        if tensor.shape == other.main.tensors[index].shape:
            raise TensorError(f"input '{name}' of shape {list(tensor.shape)} does not begin with the batch")
        detail = model.inputs[name]
        if np.dtype(detail["dtype"]).kind in "SO":
            raise TensorError(f"input '{name}' is text, which batches cannot hold")
        inputs[name] = tuple(int(n) for n in detail["shape"][1:]), np.dtype(detail["dtype"])
    return RowForm(inputs, tuple(_has_batch(read, other, index) for index in model._outputs.values()))


def _has_batch(model: Model, other: Model, index: int) -> bool:
    return model.main.tensors[index].shape != other.main.tensors[index].shape


def chosen_sizes(most: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    """The sizes to prepare, ascending: powers of two by default, and `most`. Raises OptionError."""
    if sizes is None:
        return (*(2**i for i in range(most.bit_length()) if 2**i < most), most)
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise OptionError(f"sizes is {sizes!r}; it must be a list of numbers of rows")
    sizes = list(sizes)
    wrong = [n for n in sizes if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 or n > most]
    if wrong:
        raise OptionError(f"sizes has {wrong[0]!r}; each must be from 1 to max_batch, {most}")
    return tuple(sorted({*map(int, sizes), most}))


#: Batches under way at a time on a GPU: while one is copied, another is computed. In C more and smaller ones: a call of
#: few rows is over sooner, and who is answered calls again.
AHEAD, AHEAD_IN_C = 2, 4


class Runner(Protocol):
    """Computes batches of one size; for one thread at a time."""

    @property
    def inputs(self) -> Mapping[str, int]:
        """The place of each input in a NativeRun."""

    @property
    def outputs(self) -> Sequence[int]:
        """The place of each output there, in the model's order."""

    @property
    def same(self) -> bool:
        """Whether what native_run() gave last still holds."""

    @property
    def watched(self) -> bool:
        """Whether run() looks for results that are not finite."""

    @property
    def rounded(self) -> Collection[str]:
        """Inputs in float32 that native_run() may be given as float16, without any difference."""

    def native_run(self, types: Mapping[str, np.dtype[Any]], halves: Collection[str] = ()) -> NativeRun | None:
        """How native code computes a batch of inputs of these types, by name, if it can. `halves`: inputs that come as
        float16."""

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs, in the model's order, as arrays of the caller's."""

    def close(self, *, wait: bool) -> None:
        """Free what is the runner's own."""


class _OfKernel:
    """A copy of the kernel that runs the whole model, with memory and a queue of its own."""

    def __init__(self, route: Route) -> None:
        self.inputs, self.outputs = route.inputs, route.outputs
        self._kernel: GpuKernel = route.kernel.another(waits=True)
        self._session: object = None  # that of native_run()

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return self._kernel.call({place: arrays[name] for name, place in self.inputs.items()}, self.outputs)

    @property
    def same(self) -> bool:
        return self._kernel.session is self._session

    @property
    def watched(self) -> bool:
        return self._kernel.watched

    @property
    def rounded(self) -> Collection[str]:
        able = self._kernel.rounded_inputs
        return [name for name, place in self.inputs.items() if place in able]

    def native_run(self, types: Mapping[str, np.dtype[Any]], halves: Collection[str] = ()) -> NativeRun | None:
        self._session = self._kernel.session
        by_place = {place: types[name] for name, place in self.inputs.items()}
        if sorted(by_place) != list(range(len(by_place))):
            return None
        places = [self.inputs[name] for name in halves]
        return self._kernel.native_run([by_place[place] for place in range(len(by_place))], places)

    def close(self, *, wait: bool) -> None:
        self._kernel.close(wait=wait)


class _OfModel:
    """Calls of the model."""

    def __init__(self, model: Sizable) -> None:
        self._model = model
        self.inputs: Mapping[str, int] = {}
        self.outputs: Sequence[int] = ()
        self.same = True
        self.watched = False
        self.rounded: Collection[str] = ()

    def native_run(self, types: Mapping[str, np.dtype[Any]], halves: Collection[str] = ()) -> NativeRun | None:
        return None

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        result = self._model._infer(arrays)
        return list(result.values()) if isinstance(result, dict) else [result]

    def close(self, *, wait: bool) -> None:
        """It is the model's."""


class Replica:
    """A model on one device, for all sizes, with the runners of each of its lanes: size -> runner."""

    def __init__(
        self,
        model: Sizable,
        sizes: Sequence[int],
        ahead: int,
        ahead_in_c: int = 0,
        types: Mapping[str, np.dtype[Any]] | None = None,
    ) -> None:
        """With `ahead` lanes where a GPU runs all of the model, or `ahead_in_c` if native code can compute batches of
        inputs of these types."""
        self.label = model._label
        self._device: Device | None = None
        self.models: list[Sizable] = []
        self.lanes: list[dict[int, Runner]] = []
        try:
            for size in reversed(sizes):  # what does not fit fails at once
                self.models.insert(0, model._for_batch(size))
            routes = [only_kernel(one) for one in self.models]
            self._device = next((route.kernel.device for route in routes if route is not None), None)
            count = ahead if all(route is not None for route in routes) else 1
            while len(self.lanes) < count:
                lane: dict[int, Runner] = {}
                self.lanes.append(lane)
                for size, route, one in zip(sizes, routes, self.models, strict=True):
                    lane[size] = _OfModel(one) if route is None else _OfKernel(route)
                    lane[size].run(self._zeros(one, size))
                if types is not None and all(runner.native_run(types) is not None for runner in lane.values()):
                    count = max(count, ahead_in_c)
        except BaseException:
            self.close(wait=False)
            raise

    def empty_inputs(self) -> dict[str, np.ndarray]:
        """Zeros for the largest size, in memory that the device reads quickest."""
        arrays = {}
        for name in self.models[-1]._inputs:
            arrays[name] = self.models[-1].empty_input(name)
            arrays[name][...] = 0
        return arrays

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Memory that the device writes to quickest; its content is anything."""
        device = self._device
        return device.pinned(shape, dtype) if isinstance(device, PinnedMemory) else np.empty(shape, dtype)

    def output_rows(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Of each output that has the batch, the shape of a row and the type."""
        details = self.models[-1].outputs.values()
        return [(tuple(int(n) for n in detail["shape"][1:]), np.dtype(detail["dtype"])) for detail in details]

    @property
    def is_lost(self) -> bool:
        """Whether its device is of no use any more."""
        return self._device is not None and self._device.lost

    def close(self, *, wait: bool) -> None:
        for lane in self.lanes:
            for runner in lane.values():
                runner.close(wait=wait)
        for model in self.models:
            model._close(wait=wait)

    def _zeros(self, model: Sizable, size: int) -> dict[str, np.ndarray]:
        details = model.inputs
        return {name: np.zeros((size, *detail["shape"][1:]), detail["dtype"]) for name, detail in details.items()}


def padded(sizes: Sequence[int], rows: int) -> int:
    """The least prepared size for so many rows."""
    for size in sizes:
        if size >= rows:
            return size
    raise InvokeError(f"{rows} rows are more than {sizes[-1]}")
