"""Many inferences in a row, overlapping: the parts of LoadedModel.stream()."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from litegpu import fork
from litegpu.arguments import count
from litegpu.background import Background
from litegpu.delegates.report import DelegationReport
from litegpu.errors import DeviceError, InvokeError, TensorError
from litegpu.gpu.delegate.array_place import is_on_gpu
from litegpu.model.state import has_resources
from litegpu.replicas import named
from litegpu.slots import Wanted

if TYPE_CHECKING:
    from litegpu.gpu.delegate.delegate import GpuDelegate
    from litegpu.gpu.delegate.kernel import GpuKernel
    from litegpu.interpreter import Interpreter

Shapes = tuple[tuple[int, ...], ...]


class Streamed(Protocol):
    """What a stream uses of a LoadedModel."""

    _lock: threading.RLock
    _inputs: dict[str, int]
    _outputs: dict[str, int]
    interpreter: Interpreter

    @property
    def replicas(self) -> Sequence[Streamed]: ...

    @property
    def _label(self) -> str: ...

    @property
    def delegate(self) -> GpuDelegate | None: ...

    @property
    def report(self) -> DelegationReport: ...

    def __call__(self, *args: Any, **values: Any) -> Any: ...

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]: ...

    def _converted(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]: ...

    def _opened_slots(self, arrays: Mapping[str, np.ndarray]) -> object: ...

    def _infer(self, arrays: Mapping[str, np.ndarray], wanted: Wanted | None = None) -> Any: ...

    def _call_on_gpu(self, values: Mapping[str, Any], wanted: Wanted | None) -> Any: ...

    def _as_result(self, arrays: Sequence[Any], wanted: Wanted | None = None) -> Any: ...

    def _check_open(self) -> None: ...


def stream(model: Streamed, items: Iterable[Any], ahead: int, wanted: Wanted | None = None) -> Iterator[Any]:
    """See LoadedModel.stream()."""
    return _streamed(model, iter(items), count("ahead", ahead), wanted)


def _streamed(model: Streamed, items: Iterator[Any], ahead: int, wanted: Wanted | None) -> Iterator[Any]:
    lane: _Lane | None = None
    try:
        while True:
            try:
                values = _next_values(model, items)
            except Exception:
                if lane is not None:  # the results of the items before come first
                    yield from lane.drain()
                raise
            if values is None:
                break
            shapes = tuple(tuple(value.shape) for value in values.values())
            on_gpu = any(is_on_gpu(value) for value in values.values())
            if lane is not None and (on_gpu or lane.shapes != shapes):
                yield from lane.drain()
                lane.close()
                lane = None
            if on_gpu:  # does not wait for the GPU in any case
                yield model._call_on_gpu(values, wanted)
                continue
            if lane is None:
                lane = _open(model, values, shapes, ahead, wanted)
            done = [lane.next()] if lane.full else []
            try:
                lane.begin(values)
            except Exception:
                yield from done
                yield from lane.drain()
                raise
            yield from done  # while the next inference runs
        if lane is not None:
            yield from lane.drain()
    finally:
        if lane is not None:
            lane.close()
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _next_values(model: Streamed, items: Iterator[Any]) -> dict[str, Any] | None:
    """The next item by name, in the inputs' types unless some of it is on the GPU; None at the end."""
    try:
        item = next(items)
    except StopIteration:
        return None
    values = model._arguments(item if isinstance(item, tuple) else (item,), {})
    return values if any(is_on_gpu(value) for value in values.values()) else model._converted(values)


class _Lane(Protocol):
    """Inferences in flight, for inputs of some shapes."""

    shapes: Shapes

    @property
    def full(self) -> bool:
        """Whether next() has to come before another begin()."""

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Start an inference."""

    def next(self) -> Any:
        """The oldest result."""

    def drain(self) -> Iterator[Any]:
        """All that is in flight."""

    def close(self) -> None:
        """Free what was made for this, without waiting for the device: a caller who stops early, with Ctrl-C say, must
        not wait for what is in flight."""


def _open(
    model: Streamed, arrays: Mapping[str, np.ndarray], shapes: Shapes, ahead: int, wanted: Wanted | None
) -> _Lane:
    lanes: list[_Lane] = []
    try:
        for one in model.replicas:
            lanes.append(_open_one(one, arrays, shapes, ahead, wanted))
    except BaseException:
        for lane in lanes:
            lane.close()
        raise
    return lanes[0] if len(lanes) == 1 else _Rotating(lanes, [one._label for one in model.replicas])


def _open_one(
    model: Streamed, arrays: Mapping[str, np.ndarray], shapes: Shapes, ahead: int, wanted: Wanted | None
) -> _Lane:
    with model._lock:
        model._opened_slots(arrays)
        route = only_kernel(model)
    if route is None or route.kernel.program.variables:
        return _InTurn(model, shapes, wanted)
    return _Overlapping(model, route, shapes, ahead, wanted)


@dataclass(frozen=True, eq=False)
class Route:
    """A kernel that runs a whole model: its number of each input and, in the model's order, each output, by name."""

    kernel: GpuKernel
    inputs: Mapping[str, int]
    places: Mapping[str, int]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The places alone."""
        return tuple(self.places.values())


def only_kernel(model: Streamed) -> Route | None:
    """The kernel that runs the whole model, if one does."""
    from litegpu.gpu.delegate import prepared

    delegate = model.delegate
    if delegate is None or not model.report.fully_delegated or has_resources(model.interpreter.model):
        return None
    content = model.interpreter.model.content
    living = [p for p in delegate.prepared if p.alive and p.partition.model.content is content]
    if len(living) != 1:
        return None
    try:
        inputs = {name: prepared.place(living, index, "input")[1] for name, index in model._inputs.items()}
        outputs = {name: prepared.place(living, index, "output")[1] for name, index in model._outputs.items()}
    except TensorError:  # an input that nothing reads or that is an output too, an output that nothing computes
        return None
    kernel = living[0].kernel()
    return None if kernel is None else Route(kernel, inputs, outputs)


class _Overlapping:
    """Copies of a kernel that runs the whole model, each with memory and a queue of its own."""

    def __init__(self, model: Streamed, route: Route, shapes: Shapes, ahead: int, wanted: Wanted | None = None) -> None:
        self.shapes = shapes
        self._wanted = wanted
        self._places = route.outputs if wanted is None else tuple(route.places[name] for name in wanted.names)
        self._model = model
        self._route = route
        self._ahead = ahead
        self._free: deque[GpuKernel] = deque()
        self._busy: deque[GpuKernel] = deque()

    @property
    def full(self) -> bool:
        return len(self._busy) == self._ahead

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._model._check_open()  # the kernels here are the stream's own, and would go on
        kernel = self._free.popleft() if self._free else self._route.kernel.another()
        try:
            kernel.begin({place: arrays[name] for name, place in self._route.inputs.items()}, self._places)
        except BaseException:
            kernel.close(wait=False)
            raise
        self._busy.append(kernel)

    def next(self) -> Any:
        kernel = self._busy.popleft()
        try:
            results = kernel.collect(self._places)
        except BaseException:
            kernel.close(wait=False)
            raise
        self._free.append(kernel)
        return self._model._as_result(results, self._wanted)

    def drain(self) -> Iterator[Any]:
        while self._busy:
            yield self.next()

    def close(self) -> None:
        for kernels in (self._busy, self._free):
            while kernels:
                kernels[-1].close(wait=False)
                kernels.pop()


class _Rotating:
    """Lanes on several devices: each item goes to the next one in turn, so that results come in order."""

    def __init__(self, lanes: Sequence[_Lane], labels: Sequence[str]) -> None:
        self.shapes = lanes[0].shapes
        self._lanes, self._labels = lanes, labels
        self._begun = self._given = 0

    @property
    def full(self) -> bool:
        return self._lanes[self._begun % len(self._lanes)].full

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        with self._naming(self._begun):
            self._lanes[self._begun % len(self._lanes)].begin(arrays)
        self._begun += 1

    def next(self) -> Any:
        with self._naming(self._given):
            result = self._lanes[self._given % len(self._lanes)].next()
        self._given += 1
        return result

    def drain(self) -> Iterator[Any]:
        while self._given < self._begun:
            yield self.next()

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    @contextlib.contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        try:
            yield
        except (DeviceError, InvokeError) as error:
            raise named(error, self._labels[number % len(self._labels)]) from error


class _InTurn:
    """One inference in a thread, as a call of the model, while the caller's code runs."""

    def __init__(self, model: Streamed, shapes: Shapes, wanted: Wanted | None) -> None:
        self.shapes = shapes
        self._wanted = wanted
        self._model = model
        self._background = Background()
        fork.follow(self)
        self._future: Any = None
        self._result: Any = None

    def _forked(self) -> None:
        self._background.forked()

    @property
    def full(self) -> bool:
        return self._future is not None

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        own = {name: array.copy() for name, array in arrays.items()}  # the caller may change theirs from now on

        def infer() -> None:
            self._result = self._model._infer(own, self._wanted)

        self._future = self._background.start(infer)

    def next(self) -> Any:
        future, self._future = self._future, None
        future.result()
        return self._result

    def drain(self) -> Iterator[Any]:
        if self._future is not None:
            yield self.next()

    def close(self) -> None:
        future, self._future = self._future, None
        self._background.close(wait=future is None)  # else nobody asks for its result any more
