"""The execution plan of a divided model: its prepared partitions in order, and the arrays that pass between them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np

from litegpu.delegates.cpu import CpuPartition, OfficialOptions
from litegpu.delegates.partitioner import ON_CPU, Division
from litegpu.delegates.protocol import Delegate, DelegateKernel
from litegpu.errors import DelegateError, InvokeError, LiteGpuError, TensorError
from litegpu.gpu.runtime.host_copy import LARGE_BYTES, copy_bytes
from litegpu.model.reader import DTYPES
from litegpu.model.types import Subgraph

ALIGNMENT = 64  # bytes; what GPU uploads and SIMD copies like best


class PrepareError(Exception):
    """A delegate's prepare() raised; `position` is the delegate's place in the list."""

    def __init__(self, position: int, nodes: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.position = position
        self.nodes = nodes
        self.cause = cause


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
    ) -> None:
        """`unknown` are the tensors whose shape only the run decides.

        Raises PrepareError for a delegate, InvokeError for a CPU partition; nothing stays open then."""
        self._tensors = subgraph.tensors
        self._inputs = {
            i: _aligned(self._tensors[i].shape, DTYPES[self._tensors[i].type])
            for i in subgraph.inputs
            if i >= 0 and not self._tensors[i].is_constant
        }
        self._values: dict[int, np.ndarray] = dict(self._inputs)
        self._views: WeakSet[_Memory] = WeakSet()
        self._lock = threading.Lock()
        self._steps: list[_Step] = []
        self._on_gpu: dict[int, tuple[Any, int]] = {}  # outputs that a kernel may keep, and its number for them
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
                    kernel = delegates[owner].prepare(partition)
                except Exception as error:
                    raise PrepareError(owner, len(partition.nodes), error) from error
                tensors = [self._tensors[i] for i in partition.outputs]
                results = tuple((t.shape, DTYPES[t.type]) for t in tensors)
                name, inputs, outputs = delegates[owner].name, partition.inputs, partition.outputs
                self._steps.append(_Step(name, kernel, inputs, outputs, results, nodes))
            self._borrow_inputs()
            self._find_outputs(subgraph.outputs)
        except BaseException:
            self.close()
            raise

    def _borrow_inputs(self) -> None:
        """Keep inputs that a single partition reads in that partition's own memory, if it has any for them."""
        for index, own in self._inputs.items():
            readers = [step for step in self._steps if index in step.inputs]
            offer = getattr(readers[0].kernel, "input_memory", None) if len(readers) == 1 else None
            memory = offer(readers[0].inputs.index(index)) if offer is not None else None
            if memory is not None and (memory.shape, memory.dtype) == (own.shape, own.dtype):
                self._inputs[index] = self._values[index] = memory

    def _find_outputs(self, outputs: Sequence[int]) -> None:
        """The graph's outputs that need not leave the GPU: no other partition reads them."""
        read = {i for step in self._steps for i in step.inputs}
        for step in self._steps:
            if hasattr(step.kernel, "ensure_readable"):
                for position, index in enumerate(step.outputs):
                    if index in outputs and index not in read:
                        self._on_gpu[index] = step.kernel, position

    def leave_outputs(self, leave: bool) -> None:
        """Whether outputs that are bound to buffers stay there until they are read."""
        kernels = {id(kernel): kernel for kernel, _ in self._on_gpu.values()}
        for kernel in kernels.values():
            kernel.leave([p for k, p in self._on_gpu.values() if k is kernel] if leave else [])

    def output_kernel(self, index: int) -> tuple[Any, int] | None:
        """The kernel that computes a graph output on the GPU, and its number for it."""
        return self._on_gpu.get(index)

    @property
    def notes(self) -> tuple[str, ...]:
        """What delegates say about their partitions."""
        return tuple(note for step in self._steps for note in getattr(step.kernel, "notes", ()))

    @property
    def viewed(self) -> bool:
        """Whether an array that view() gave, or a slice of one, is alive."""
        return len(self._views) > 0

    def invoke(self) -> None:
        """One inference from the present input values."""
        if not self._lock.acquire(blocking=False):
            raise InvokeError(
                "This interpreter is running in another thread. One interpreter serves one thread at a time: make one "
                "per thread, or guard it with a lock."
            )
        values = self._values
        try:
            self.settle()
            values.clear()  # drops the views of CPU partitions, which could not run again otherwise
            values.update(self._inputs)
            for step in self._steps:
                self.settle()
                results = step.run([values[i] for i in step.inputs])
                self._pending.append(step)
                for index, result in zip(step.outputs, results, strict=True):
                    values[index] = result
        except BaseException:
            self._pending.clear()
            values.clear()
            values.update(self._inputs)
            raise
        finally:
            self._lock.release()

    def set_input(self, index: int, value: Any) -> None:
        """Copy `value`, whose type and shape must be the tensor's own, into an input; raises TensorError."""
        if index not in self._inputs:
            raise TensorError(
                f"Cannot set tensor: tensor {index} ('{self._tensors[index].name}') is not an input. With delegates "
                "only inputs can be set."
            )
        memory = self._inputs[index]
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
        for axis, (got, expected) in enumerate(zip(array.shape, memory.shape, strict=True)):
            if got != expected:
                raise TensorError(
                    f"Cannot set tensor: Dimension mismatch. Got {got} but expected {expected} for dimension {axis} of "
                    f"input {index}."
                )
        if array.flags.c_contiguous and array.nbytes >= LARGE_BYTES:
            copy_bytes(memory.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8))
        else:
            memory[...] = array

    def value(self, index: int) -> np.ndarray:
        """The present value of a tensor, not a copy; raises TensorError if it is not kept."""
        if index not in self._values:
            tensor = self._tensors[index]
            raise TensorError(
                f"Tensor data is null. Run allocate_tensors() first (tensor {index}, '{tensor.name}', has no value to "
                "read: it has not been computed yet, or it exists only inside a partition)"
            )
        self.settle()
        if index in self._on_gpu:
            kernel, position = self._on_gpu[index]
            kernel.ensure_readable(position)
        return self._values[index]

    def settle(self) -> None:
        """Wait for what delegates that do not wait have begun."""
        while self._pending:
            self._pending.pop().finish()

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
        memory = _Memory(array)
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
        with self._lock:
            self.settle()
            for step in self._steps:
                reset = getattr(step.kernel, "reset_variables", None)
                if reset is not None:
                    reset()

    def close(self) -> None:
        """Free what the partitions hold; may be called twice."""
        self._values.clear()
        self._pending.clear()
        self._on_gpu.clear()
        for step in self._steps:
            step.kernel.close()
        self._steps = []


@dataclass(frozen=True, eq=False)
class _Step:
    """A partition in its turn. `results` are the shapes and types that a delegate has to give; () for the CPU."""

    owner: str
    kernel: DelegateKernel | CpuPartition
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    nodes: tuple[int, ...] = ()

    def run(self, arrays: list[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            given = self.kernel.invoke(arrays)
        except LiteGpuError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        if self.results:
            self._check(given)
        return given

    def finish(self) -> None:
        """Have what run() gave ready."""
        finish = getattr(self.kernel, "finish", None)
        if finish is None:
            return
        try:
            finish()
        except LiteGpuError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> LiteGpuError:
        text = str(error) or type(error).__name__
        if self.results:
            return DelegateError(f"Delegate {self.owner} failed to invoke: {text}")
        if "reference to internal data" in text:
            text = "a delegate keeps a reference to an array that it was handed beyond its invoke(); it must copy"
        return InvokeError(f"A CPU partition failed to invoke: {text}")

    def _check(self, given: Sequence[np.ndarray]) -> None:
        if len(given) != len(self.results):
            raise DelegateError(f"Delegate {self.owner} gave {len(given)} results for {len(self.results)} outputs")
        for index, result, (shape, dtype) in zip(self.outputs, given, self.results, strict=True):
            if result.shape != shape or result.dtype != dtype:
                raise DelegateError(
                    f"Delegate {self.owner} gave {result.dtype} {list(result.shape)} for tensor {index}, which is "
                    f"{dtype} {list(shape)}"
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
