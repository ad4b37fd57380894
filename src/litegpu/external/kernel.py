"""A partition that the official runtime runs as one of its nodes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu import fork
from litegpu.blame import described
from litegpu.delegates.cpu import CpuPartition, OfficialOptions
from litegpu.delegates.partitioner import borders, widened_constants
from litegpu.delegates.protocol import Delegate, DelegateKernel, FinishesLater, HasNotes, LendsInputs, Partition
from litegpu.delegates.shapes import infer
from litegpu.errors import DelegateError, InvokeError
from litegpu.external.graph import IN_ARENA, HostedGraph, Subset
from litegpu.external.shared_library import Library, memory_at, numbers
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Subgraph, Tensor

log = logging.getLogger("litegpu")

Shapes = Mapping[int, tuple[int, ...]]

#: Gives a text in place of an error: what the runtime's own functions report.
Told = Callable[..., str | None]


def told(work: Callable[..., None]) -> Told:
    """The function, for host.c: what it raises becomes a text. Ctrl-C and the like go through, and are raised when the
    runtime has returned."""

    def call(*arguments: Any) -> str | None:
        try:
            work(*arguments)
        except Exception as error:
            return described(error)
        return None

    return call


def partition(model: Model, subgraph: Subgraph, subset: Subset) -> Partition:
    """What the runtime would replace by one node. Constants that its nodes widen are computed within, whoever else may
    compute them too; what follows from shapes is constant in `subgraph`, and no input, but an output wherever the
    runtime's own nodes read it. Raises DelegateError."""
    if len(subgraph.tensors) > len(model.main.tensors):  # values that were folded
        model = model.with_main(subgraph)
    widened = widened_constants(subgraph)
    made_by = {t: n for n in widened for t in subgraph.operators[n].outputs}
    read = {t for n in subset.nodes for t in subgraph.operators[n].inputs}
    attached = {made_by[t] for t in read if t in made_by}
    operators = [subgraph.operators[n] for n in sorted(attached.union(subset.nodes))]
    inputs, _ = borders(subgraph, operators)
    outputs = tuple(t for o in operators for t in o.outputs if t in subset.outputs and t not in made_by)
    unknown = set(inputs) - set(subset.inputs)
    if unknown:
        raise DelegateError(f"the runtime does not give the tensors {sorted(unknown)} to nodes {list(subset.nodes)}")
    return Partition(model, subgraph, tuple(operators), inputs, outputs)


class HostKernel:
    """One partition, for one interpreter. Made for the shapes that the tensors have while the graph is divided; when
    the runtime prepares its nodes for others it is made anew, on the CPU if the delegate will not."""

    address = 0
    _is_offered = False
    _kernel: Any = None  # a DelegateKernel or a CpuPartition

    def __init__(
        self, library: Library, delegate: Delegate, model: Model, found: Partition, subset: Subset, shapes: Shapes, *,
        threads: int | None, lends: Collection[int], strict: bool,
    ) -> None:  # fmt: skip
        """`shapes`: of the graph's inputs. `threads`: of the CPU. `lends`: the inputs that the kernel may keep in
        memory of its own. Raises what the delegate's prepare() raises."""
        self._library, self._delegate, self._subset, self._partition = library, delegate, subset, found
        self._model, self._strict = model, strict
        self._shapes, self._threads, self._lends = shapes, threads, lends
        self._inputs = [t for t in subset.inputs if t >= 0 and not model.main.tensors[t].is_constant]
        self._use(delegate.prepare(found))
        self._allocations: dict[int, int] = {}
        self._arrays: list[np.ndarray] = []
        self._results: list[np.ndarray] = []
        self._seen: object = None
        tensors = [*self._inputs, *found.outputs]
        self._called = told(self._prepare), told(self._bind), self._invoke, self._close  # the runtime keeps them later
        self.address = library.kernel_new(
            subset.nodes[0], len(tensors), len(self._inputs), numbers(tensors), *self._called
        )  # fmt: skip
        if not self.address:
            raise MemoryError("no memory for a partition")
        fork.follow(self)

    def _use(self, kernel: DelegateKernel | CpuPartition) -> None:
        self._kernel = kernel
        self._later = kernel if isinstance(kernel, FinishesLater) else None

    def offer(self) -> int:
        """The address, for the runtime, which may take it. discard() has to follow."""
        self._is_offered = True
        return self.address

    def discard(self) -> None:
        """Free it, unless the runtime has taken it, and then will."""
        if self.address and not self._library.taken(self.address):
            address, self.address = self.address, 0
            self._library.kernel_free(address)
            self._close()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():
            return
        if self._kernel is not None:
            self._kernel.close()  # once more, or after an interruption for the first time
        if self.address and not self._is_offered:
            self._library.kernel_free(self.address)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the report is to say about it."""
        return self._kernel.notes if isinstance(self._kernel, HasNotes) else ()

    # --------------------------------------------------------------------------------- what the runtime calls, in order

    def _prepare(self, context: int) -> None:
        """For the shapes that the graph's inputs have now. Raises LiteGpuError."""
        graph = HostedGraph(self._library, context)
        shapes = {t: graph.tensor(t).shape for t in self._shapes}
        self._library.reclaim(self.address)
        self._seen = None
        if shapes != self._shapes:
            self._remake(shapes)
        tensors = self._partition.subgraph.tensors
        for t in self._partition.inputs:
            if graph.tensor(t).shape != tensors[t].shape:
                raise InvokeError(f"'{tensors[t].name}' is {list(graph.tensor(t).shape)}, not {list(tensors[t].shape)}")
        for t in self._partition.outputs:
            if graph.tensor(t).shape != tensors[t].shape:
                graph.resize(t, tensors[t].shape)
        self._allocations = {t: graph.tensor(t).allocation for t in self._inputs}

    def _bind(self) -> None:
        """After the inputs have moved: where they are."""
        memory, lent = self._library.memory(self.address), self._library.lent(self.address)
        lender = self._kernel if isinstance(self._kernel, LendsInputs) else None
        arrays = []
        for place, t in enumerate(self._partition.inputs):
            position, tensor = self._inputs.index(t), self._partition.subgraph.tensors[t]
            array = _view(memory[position] or 0, tensor)
            lent[position] = None
            if lender is not None and t in self._lends and self._allocations.get(t) == IN_ARENA:
                own = lender.input_memory(place)
                if own is not None and (own.shape, own.dtype) == (array.shape, array.dtype):
                    own[...] = array
                    lent[position] = own.__array_interface__["data"][0]
                    array = own
            arrays.append(array)
        self._arrays = arrays

    def _invoke(self) -> str | None:
        try:
            results = self._kernel.invoke(self._arrays)
            if results is not self._seen:
                self._take(results)
            elif self._later is not None:
                self._later.finish()
        except Exception as error:
            return described(error)
        return None

    def _take(self, results: Sequence[np.ndarray]) -> None:
        """Have results in arrays that the runtime knows: those of the kernel's first inference, which it then fills
        again and again, or copies of what a CPU partition lends for a moment."""
        owned = not isinstance(self._kernel, CpuPartition)
        if isinstance(self._kernel, FinishesLater):
            self._kernel.finish()
        if self._seen is not None:
            for known, result in zip(self._results, results, strict=True):
                if known is not result:
                    known[...] = result
            return
        tensors = [self._partition.subgraph.tensors[t] for t in self._partition.outputs]
        found = []
        for result, tensor in zip(results, tensors, strict=True):
            if (result.shape, result.dtype) != (tensor.shape, DTYPES[tensor.type]):
                raise DelegateError(f"'{tensor.name}' came as {result.dtype} {list(result.shape)}")
            found.append(np.require(result, requirements="C") if owned else np.array(result, order="C"))
        self._results = found
        lent = self._library.lent(self.address)
        for place, array in enumerate(found, start=len(self._inputs)):
            lent[place] = array.__array_interface__["data"][0]
        self._seen = results if owned else found

    def _close(self) -> None:
        self.address = 0
        self._arrays, self._results, self._seen = [], [], None
        self._kernel.close()

    # ------------------------------------------------------------------------------------------------------- changes

    def _remake(self, shapes: Shapes) -> None:
        """For other shapes of the graph's inputs. Raises LiteGpuError, under "strict" also if the delegate will not."""
        self._shapes = {}  # an interrupted change is begun anew
        self._kernel.close()
        options = OfficialOptions(num_threads=self._threads)
        inferred = infer(self._model, options, shapes)
        for node in self._subset.nodes:
            if node in inferred.refused:
                raise InvokeError(inferred.refused[node])
        found = partition(self._model, inferred.subgraph, self._subset)
        self._use(self._prepared(found, options))
        self._partition = found
        self._shapes = shapes

    def _prepared(self, found: Partition, options: OfficialOptions) -> DelegateKernel | CpuPartition:
        try:
            for operator in found.nodes:
                reason = self._delegate.check(found.model, found.subgraph, operator)
                if reason is not None:
                    raise DelegateError(f"{operator.name}: {reason}")
            return self._delegate.prepare(found)
        except Exception as error:
            if self._strict:
                raise
            log.warning("In these shapes %d nodes run on the CPU. %s", len(found.nodes), described(error))
            return CpuPartition(found, options)

    def _forked(self) -> None:
        """In the child of a fork the kernel's own memory is perhaps out of reach."""
        if self.address:
            self._library.reclaim(self.address)
            self._seen = None


def _view(address: int, tensor: Tensor) -> np.ndarray:
    """The runtime's memory of a tensor. Raises InvokeError if it has none."""
    if not address and 0 not in tensor.shape:
        raise InvokeError(f"the runtime has no memory for '{tensor.name}'")
    return memory_at(address, DTYPES[tensor.type], tensor.shape)
