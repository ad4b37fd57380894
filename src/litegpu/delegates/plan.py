"""The execution plan of a divided model: its prepared partitions in order, and the arrays that pass between them."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import numpy as np

from litegpu import fork
from litegpu.blame import described
from litegpu.cached import cached_property
from litegpu.delegates.cpu import CpuPartition, OfficialOptions
from litegpu.delegates.partitioner import ON_CPU, Division
from litegpu.delegates.protocol import (
    Abandons,
    Delegate,
    DelegateKernel,
    FinishesLater,
    GivesOutputs,
    HasNotes,
    KeepsOutputs,
    LendsInputs,
    OnGpu,
    Rehearses,
    ResetsVariables,
    SharesMemory,
    TakesInputs,
    lacking,
)
from litegpu.delegates.variables import DeviceValue, Home, Variables, home
from litegpu.errors import DelegateError, InvokeError, LiteGpuError, TensorError
from litegpu.host_copy import copy_bytes
from litegpu.model.reader import DTYPES
from litegpu.model.state import Key, StateTensor
from litegpu.model.types import Subgraph
from litegpu.turns import Turns, alone

log = logging.getLogger("litegpu")

_NONE: frozenset[int] = frozenset()
ALIGNMENT = 64  # bytes; what GPU uploads and SIMD copies like best


class PrepareError(Exception):
    """A delegate's prepare() raised for a partition of `nodes`; `position` is the delegate's place in the list.
    `blamed` are the nodes that the error names, () if it names none."""

    def __init__(self, position: int, nodes: tuple[int, ...], cause: Exception) -> None:
        super().__init__(str(cause))
        self.position = position
        self.nodes = nodes
        self.cause = cause
        named = getattr(cause, "nodes", ())
        self.blamed = tuple(n for n in nodes if isinstance(named, tuple) and n in named)


def rehearsed(division: Division, delegates: Sequence[Delegate]) -> PrepareError | None:
    """What prepare() would raise and blame on nodes, as far as delegates can tell without a device."""
    for owner, partition in division.partitions:
        delegate = delegates[owner] if owner != ON_CPU else None
        if not isinstance(delegate, Rehearses):
            continue
        try:
            delegate.rehearse(partition)
        except Exception as error:
            failure = PrepareError(owner, tuple(o.index for o in partition.nodes), error)
            if failure.blamed:
                return failure
    return None


@dataclass(frozen=True)
class PartTime:
    """One partition in one inference: when it began (time.perf_counter) and how many seconds it took on the host."""

    owner: str
    nodes: tuple[int, ...]
    start: float
    seconds: float


class Plan:
    """Prepared partitions and the values of the tensors that are inputs, outputs, or cross a border."""

    def __init__(
        self,
        subgraph: Subgraph,
        division: Division,
        delegates: Sequence[Delegate],
        options: OfficialOptions,
        unknown: Set[int] = frozenset(),
        states: Sequence[StateTensor] = (),
        variables: Variables | None = None,
    ) -> None:
        """`unknown` are the tensors whose shape only the run decides, `states` those that have the values of
        `variables`.

        Raises PrepareError for a delegate, InvokeError for a CPU partition; nothing stays open then."""
        self._tensors = subgraph.tensors
        #: Their memory, by tensor.
        self.inputs = {
            i: _aligned(self._tensors[i].shape, DTYPES[self._tensors[i].type])
            for i in subgraph.inputs
            if i >= 0 and not self._tensors[i].is_constant
        }
        self._input_bytes: dict[int, np.ndarray] = {}  # the same, flat, once they are written to
        self._values: dict[int, np.ndarray] = dict(self.inputs)
        self._views: WeakSet[_Memory] = WeakSet()
        self.gave_views = False  # `viewed` need not be asked otherwise
        self._turns = Turns()
        self._unreachable = False  # in a process that was forked from the one that uses the GPU
        fork.follow(self)
        self._steps: list[_Step] = []
        self._on_gpu: dict[
            int, tuple[KeepsOutputs, int]
        ] = {}  # outputs that a kernel may keep, and its number for them
        self._states = states
        self._variables = variables or Variables()
        self._homes: dict[Key, Home] = {}  # of variables that stay on a device
        self._given: dict[int, tuple[GivesOutputs, int]] = {}  # outputs that a kernel hands out, likewise
        self._takers: dict[int, tuple[TakesInputs, int]] = {}  # inputs that a kernel can have early, likewise
        self._pending: list[_Step] = []  # whose results are perhaps still being computed
        try:
            for owner, partition in division.partitions:
                if not partition.outputs:  # nothing reads what it computes
                    continue
                nodes = tuple(o.index for o in partition.nodes)
                if owner == ON_CPU:
                    cpu = CpuPartition(partition, options, unknown)
                    self._steps.append(_Step("CPU", cpu, partition.inputs, cpu.outputs, (), nodes))
                    continue
                try:
                    kernel = delegates[owner].prepare(replace(partition, xnnpack=options.uses_xnnpack))
                except Exception as error:
                    raise PrepareError(owner, tuple(o.index for o in partition.nodes), error) from error
                _check_kernel(delegates[owner].name, kernel)
                tensors = [self._tensors[i] for i in partition.outputs]
                results = tuple((None if t.index in unknown else t.shape, DTYPES[t.type]) for t in tensors)
                name, inputs, outputs = delegates[owner].name, partition.inputs, partition.outputs
                self._steps.append(_Step(name, kernel, inputs, outputs, results, nodes))
            self._borrow_inputs()
            self._find_outputs(subgraph.outputs)
            uses = [(step.kernel, step.inputs, step.outputs) for step in self._steps]
            self._homes = {s.key: found for s in self._states if (found := home(s, uses)) is not None}
            made = {i for step in self._steps for i in step.outputs}
            self._untouched = frozenset(
                made - set(unknown)
            )  # what the official runtime gives before the first inference, too
        except BaseException:
            self.close()
            raise

    def _forked(self) -> None:
        self.forked()

    def forked(self) -> bool:
        """In the child of a fork: whether parts of the plan are on a GPU that is out of reach there."""
        self._turns.forked()
        on_gpu = any(isinstance(step.kernel, OnGpu) and step.kernel.uses_gpu for step in self._steps)
        self._unreachable = on_gpu and fork.is_forbidden()
        return self._unreachable

    def _borrow_inputs(self) -> None:
        """Keep inputs that a single partition reads in that partition's own memory, if it has any for them; or else
        have it take them early, if it does that."""
        states = {state.before for state in self._states}
        for index, own in self.inputs.items():
            readers = [step for step in self._steps if index in step.inputs]
            lender = readers[0].kernel if len(readers) == 1 else None
            memory = lender.input_memory(readers[0].inputs.index(index)) if isinstance(lender, LendsInputs) else None
            if memory is not None and not isinstance(memory, np.ndarray):
                raise DelegateError(
                    f"Delegate {readers[0].owner}: input_memory() gave {type(memory).__name__!r}; it must give an "
                    "array of the input's shape and type, or None"
                )
            if memory is not None and (memory.shape, memory.dtype) == (own.shape, own.dtype):
                if not (memory.flags.c_contiguous and memory.flags.writeable):
                    raise DelegateError(
                        f"Delegate {readers[0].owner}: input_memory() gave an array that is read-only or not contiguous"
                        "; it must give one that can be written to in the order of its elements, or None"
                    )
                self.inputs[index] = self._values[index] = np.asarray(memory)
            elif isinstance(lender, TakesInputs) and own.ndim and index not in states:
                self._takers[index] = lender, readers[0].inputs.index(index)

    def _find_outputs(self, outputs: Sequence[int]) -> None:
        """The graph's outputs that no other partition reads: they need not leave the GPU, or not before they are asked
        for."""
        read = {i for step in self._steps for i in step.inputs}
        for step in self._steps:
            own = [(p, i) for p, i in enumerate(step.outputs) if i in outputs and i not in read]
            if isinstance(step.kernel, KeepsOutputs):
                self._on_gpu.update({index: (step.kernel, position) for position, index in own})
            if isinstance(step.kernel, GivesOutputs):
                step.kernel.defer([position for position, _ in own])
                self._given.update({index: (step.kernel, position) for position, index in own})

    def takes(self, shapes: Mapping[int, tuple[int, ...]]) -> bool:
        """Whether it was made for these shapes of the inputs: a resize may have been interrupted after the official
        interpreter's."""
        return all(shapes.get(index, memory.shape) == memory.shape for index, memory in self.inputs.items())

    def leave_outputs(self, leave: bool) -> None:
        """Whether outputs that are bound to buffers stay there until they are read."""
        kernels = {id(kernel): kernel for kernel, _ in self._on_gpu.values()}
        variables = {state.after for state in self._states if state.key in self._homes}
        for kernel in kernels.values():
            mine = {index: p for index, (k, p) in self._on_gpu.items() if k is kernel}
            kernel.leave([p for index, p in mine.items() if leave or index in variables])

    @property
    def kernels(self) -> tuple[Any, ...]:
        """What delegates prepared, in the order in which it runs."""
        return tuple(step.kernel for step in self._steps if step.owner != "CPU")

    def output_kernel(self, index: int) -> tuple[KeepsOutputs, int] | None:
        """The kernel that computes a graph output on the GPU, and its number for it."""
        return self._on_gpu.get(index)

    @property
    def notes(self) -> tuple[str, ...]:
        """What delegates say about their partitions."""
        return tuple(n for step in self._steps if isinstance(step.kernel, HasNotes) for n in step.kernel.notes)

    @property
    def viewed(self) -> bool:
        """Whether an array that view() gave, or a slice of one, is alive. (An interrupt as one is freed may leave its
        weak reference.)"""
        self.gave_views = any(True for _ in self._views)
        return self.gave_views

    def invoke(self) -> None:
        """One inference from the present input values."""
        if self._unreachable:
            fork.refuse()
        alone(self._turns, self._invoke)

    def _invoke(self) -> None:
        values = self._values
        try:
            if self._pending:
                self.settle()
            self._untouched = _NONE  # after an inference that fails there is no value
            values.clear()  # drops the views of CPU partitions, which could not run again otherwise
            values.update(self.inputs)
            if self._states:
                self._take_variables()
            for step in self._steps:
                if self._pending:
                    self.settle()
                results = step.run(list(map(values.__getitem__, step.inputs)))
                if step.finishing is not None:
                    self._pending.append(step)
                values.update(zip(step.outputs, results, strict=True))
            if self._states:
                self._keep_variables()
        except BaseException:
            self._drop_values()
            raise

    def _drop_values(self) -> None:
        """After an inference that has failed."""
        self._pending.clear()
        self._values.clear()
        self._values.update(self.inputs)

    def _take_variables(self) -> None:
        for state in self._states:
            place, tensor = self._homes.get(state.key), self._tensors[state.before]
            there = None if place is None else self._variables.on_device(state.key, place.device)
            if there is not None and place is not None and not place.reads(there, tensor):
                there = None
            if there is None:
                self.inputs[state.before][...] = self._variables.value(state.key, tensor)
            elif there.owner is not self:
                there.settle()
            if place is not None:
                place.take(there, tensor, self._tensors[state.after])

    def _keep_variables(self) -> None:
        changed = [state for state in self._states if state.after >= 0]
        if any(state.key not in self._homes for state in changed):
            self.settle()
        for state in changed:
            place = self._homes.get(state.key)
            if place is None:
                self._variables.assign(state.key, self.value(state.after))
                continue
            assert place.output is not None
            kernel, i = place.output
            tensor = self._tensors[state.after]
            memory, form = kernel.output_buffer(i, tensor), kernel.memory_form("output", i, tensor)
            fetch = functools.partial(self._fetched, kernel, i)
            self._variables.leave(state.key, DeviceValue(memory, form, place.device, self, fetch, self.settle))

    def _fetched(self, kernel: SharesMemory, i: int) -> np.ndarray:
        """A copy of what is on a device."""
        self._check_reach()
        self.settle()
        kernel.ensure_readable(i)
        return np.array(kernel.results[i])  # not our own values, which an inference that fails takes away

    def ran_outside(self) -> None:
        """From now on the only partition may run without invoke(): its outputs are to be asked of its kernel."""
        self._untouched = _NONE
        for index, (kernel, position) in self._given.items():
            self._values.setdefault(index, kernel.results[position])

    def set_input(self, index: int, value: Any) -> None:
        """Copy `value`, whose type and shape must be the tensor's own, into an input; raises TensorError."""
        if self._unreachable:
            fork.refuse()
        memory = self.inputs.get(index)
        if memory is None:
            raise TensorError(
                f"Cannot set tensor: tensor {index} ('{self._tensors[index].name}') is not an input. With delegates "
                "only inputs can be set."
            )
        array = np.asarray(value)
        if array.dtype != memory.dtype:
            raise TensorError(
                f"Cannot set tensor: Got value of type {_type_name(array.dtype)} but expected type "
                f"{self._tensors[index].type.name} for input {index}, name: {self._tensors[index].name} "
            )
        if array.ndim != memory.ndim:
            raise TensorError(
                f"Cannot set tensor: Dimension mismatch. Got {array.ndim} but expected {memory.ndim} for input {index}."
            )
        if array.shape != memory.shape:
            axis, (got, expected) = next(
                (axis, pair)
                for axis, pair in enumerate(zip(array.shape, memory.shape, strict=True))
                if pair[0] != pair[1]
            )
            raise TensorError(
                f"Cannot set tensor: Dimension mismatch. Got {got} but expected {expected} for dimension {axis} of "
                f"input {index}."
            )
        taker = self._takers.get(index)
        if taker is not None:
            kernel, position = taker
            if self.gave_views and self.viewed:
                kernel.return_inputs()  # what it has taken before would stand for what is set now
            elif kernel.take_input(position, np.ascontiguousarray(array), memory):
                return
        if array.flags.c_contiguous and array.ndim:
            copy_bytes(self._bytes_of(index), array.reshape(-1).view(np.uint8))
        else:
            memory[...] = array

    def _bytes_of(self, index: int) -> np.ndarray:
        """The memory of an input."""
        found = self._input_bytes.get(index)
        if found is None:
            found = self._input_bytes[index] = self.inputs[index].reshape(-1).view(np.uint8)
        return found

    def value(self, index: int) -> np.ndarray:
        """The present value of a tensor, not a copy; raises TensorError if it is not kept."""
        self._check_reach()
        if index in self._untouched:
            if index not in self._values:
                self._values[index] = self._blank(index)
            return self._values[index]
        if index not in self._values:
            tensor = self._tensors[index]
            raise TensorError(
                f"Tensor data is null. Run allocate_tensors() first (tensor {index}, '{tensor.name}', has no value to "
                "read: it has not been computed yet, or it exists only inside a partition)"
            )
        self.settle()
        if index in self._takers:
            self._takers[index][0].return_inputs()
        elif index in self._on_gpu:
            kernel, position = self._on_gpu[index]
            kernel.ensure_readable(position)
        elif index in self._given:
            giver, position = self._given[index]
            giver.ensure_readable(position)
        return self._values[index]

    def given(self, index: int) -> np.ndarray | None:
        """The present value of a tensor, as an array of the caller's, if a kernel hands it out."""
        giver = self._given.get(index)
        if giver is None or index not in self._values or index in self._untouched:
            return None
        if self._unreachable:
            fork.refuse()
        if self._pending:
            self.settle()
        return giver[0].give(giver[1])

    def _blank(self, index: int) -> np.ndarray:
        tensor = self._tensors[index]
        return _aligned(tensor.shape, DTYPES[tensor.type])

    def _check_reach(self) -> None:
        if self._unreachable:
            fork.refuse()

    def settle(self) -> None:
        """Wait for what delegates that do not wait have begun."""
        while self._pending:
            try:
                self._pending[-1].finish()
            except Exception:
                self._drop_values()
                raise
            self._pending.pop()  # not before: an interrupted finish() is to be repeated

    def shape(self, index: int) -> tuple[int, ...] | None:
        """The shape of a tensor's present value, if it has one."""
        return self._values[index].shape if index in self._values else None

    def view(self, index: int) -> Any:
        """A writable view of a tensor's present value; a scalar copy for rank 0."""
        array = self.value(index)
        if array.ndim == 0:
            return array[()]
        if not (array.flags.writeable and array.flags.c_contiguous):
            array = self._values[index] = np.array(array, order="C")
        memory, self.gave_views = _Memory(array), True
        self._views.add(memory)
        return np.asarray(memory)

    @contextlib.contextmanager
    def timed(self) -> Iterator[list[PartTime]]:
        """While this is open, every inference adds the time of each partition, in order, to the list."""
        found: list[PartTime] = []
        steps = self._steps
        self._steps = [
            _TimedStep(s.owner, s.kernel, s.inputs, s.outputs, s.results, s.nodes, found.append) for s in steps
        ]
        try:
            yield found
        finally:
            self._steps = steps

    def reset_variables(self) -> None:
        """Set what partitions keep from one inference to the next to zero."""
        alone(self._turns, self._reset_variables)

    def _reset_variables(self) -> None:
        self.settle()
        for step in self._steps:
            if isinstance(step.kernel, ResetsVariables):
                step.guarded(step.kernel.reset_variables)

    def close(self, *, wait: bool = True) -> None:
        """Free what the partitions hold, without `wait` as their kernels abandon() it; may be called twice."""
        if wait and self._steps and not self._unreachable:
            self._variables.bring_from(self)
        self._values.clear()
        self._pending.clear()
        self._on_gpu.clear()
        self._given.clear()
        while self._steps:
            step = self._steps[-1]
            try:
                if not wait and isinstance(step.kernel, Abandons):
                    step.kernel.abandon()
                else:
                    step.kernel.close()
            except Exception as error:  # of one delegate; the others' kernels are to be closed as well
                log.warning("Delegate %s failed to close a kernel: %s", step.owner, described(error))
            self._steps.pop()


def _check_kernel(delegate: str, kernel: object) -> None:
    """Raises DelegateError if a delegate's prepare() gave something else than a kernel."""
    missing = lacking(kernel, DelegateKernel)
    if missing:
        raise DelegateError(
            f"Delegate {delegate}: prepare() gave a {type(kernel).__name__} without {' and '.join(missing)}(); it must "
            "give an object with invoke(inputs) and close()"
        )
    notes = kernel.notes if isinstance(kernel, HasNotes) else ()
    if isinstance(notes, str) or not isinstance(notes, Sequence) or not all(isinstance(n, str) for n in notes):
        raise DelegateError(f"Delegate {delegate}: a kernel's notes are {notes!r}; they must be a tuple of str")


@dataclass(frozen=True, eq=False)
class _Step:
    """A partition in its turn. `results` are the shapes, if they are known, and types that a delegate has to give; ()
    for the CPU."""

    owner: str
    kernel: DelegateKernel | CpuPartition
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    results: tuple[tuple[tuple[int, ...] | None, np.dtype[Any]], ...]
    nodes: tuple[int, ...] = ()

    def run(self, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            given = self.kernel.invoke(arrays)
        except LiteGpuError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        if self.results and not self._is_right(given):
            self._check(given)
        return given

    def _is_right(self, given: Sequence[np.ndarray]) -> bool:
        """As nearly always, and this takes a tenth of the time of _check()."""
        if type(given) is not list or len(given) != len(self.results):
            return False
        for result, (shape, dtype) in zip(given, self.results, strict=True):
            if type(result) is not np.ndarray or result.shape != shape or result.dtype != dtype:
                return False
        return True

    def finish(self) -> None:
        """Have what run() gave ready."""
        if self.finishing is not None:
            self.guarded(self.finishing.finish)

    @cached_property
    def finishing(self) -> FinishesLater | None:
        """What finish() asks."""
        return self.kernel if isinstance(self.kernel, FinishesLater) else None

    def guarded(self, work: Callable[[], object]) -> None:
        """Call a method of the kernel's; raises LiteGpuError."""
        try:
            work()
        except LiteGpuError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> LiteGpuError:
        text = str(error) or type(error).__name__
        if self.results:
            nodes = f"{self.nodes[0]}..{self.nodes[-1]}" if len(self.nodes) > 1 else "".join(map(str, self.nodes))
            return DelegateError(f"Delegate {self.owner} failed to invoke: {described(error)}; nodes {nodes}")
        if "reference to internal data" in text:
            text = "a delegate keeps a reference to an array that it was handed beyond its invoke(); it must copy"
        return InvokeError(f"A CPU partition failed to invoke: {text}")

    def _check(self, given: Sequence[np.ndarray]) -> None:
        if not isinstance(given, Sequence) or not all(isinstance(one, np.ndarray) for one in given):
            inside = f" of {', '.join(type(one).__name__ for one in given)}" if isinstance(given, (list, tuple)) else ""
            raise DelegateError(
                f"Delegate {self.owner}: invoke() gave a {type(given).__name__}{inside}; it must give a list of NumPy "
                f"arrays, one for each of the {len(self.results)} outputs"
            )
        if len(given) != len(self.results):
            raise DelegateError(f"Delegate {self.owner} gave {len(given)} results for {len(self.results)} outputs")
        for index, result, (shape, dtype) in zip(self.outputs, given, self.results, strict=True):
            if shape not in (None, result.shape) or result.dtype != dtype:
                raise DelegateError(
                    f"Delegate {self.owner} gave {result.dtype} {list(result.shape)} for tensor {index}, which is "
                    f"{dtype} {list(shape or ())}"
                )


@dataclass(frozen=True, eq=False)
class _TimedStep(_Step):
    """A partition that also says how long it took, waiting included."""

    report: Callable[[PartTime], None] = lambda _: None

    def run(self, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        start = time.perf_counter()
        given = super().run(arrays)
        self.finish()
        self.report(PartTime(self.owner, self.nodes, start, time.perf_counter() - start))
        return given


class _Memory:
    """Owner of the views of an array: NumPy keeps it alive as long as any of them, or a slice of one, lives."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__: Mapping[str, Any] = array.__array_interface__


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _type_name(dtype: np.dtype[Any]) -> str:
    """The runtime's name of a NumPy type; what has none (objects, text) counts as STRING there."""
    return next((t.name for t, known in DTYPES.items() if known == dtype), "STRING")
