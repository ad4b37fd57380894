"""Batches that a device cannot hold at once: a partition that keeps its rows apart runs on slices of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.errors import TensorError
from litegpu.gpu.delegate import fitting
from litegpu.model.batch import rebatched
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Operator, Subgraph

if TYPE_CHECKING:
    from litegpu.gpu.delegate.kernel import GpuKernel


@dataclasses.dataclass(frozen=True, eq=False)
class RowSlice:
    """A partition for `rows` of the `batch` rows that the inputs at the places `carriers` have."""

    partition: Partition
    batch: int
    rows: int
    carriers: frozenset[int]


def fits_sliced(model: Model, subgraph: Subgraph, operator: Operator, half: bool, most: int) -> bool:
    """Whether the tensors of one operator take at most so many bytes each for a single row of their batch."""
    inputs = tuple(t for t in dict.fromkeys(operator.inputs) if t >= 0 and not subgraph.tensors[t].is_constant)
    partition = Partition(model, subgraph, (operator,), inputs, tuple(operator.outputs))
    return next(slices(partition, half, most), None) is not None


def slices(partition: Partition, half: bool, most: int) -> Iterator[RowSlice]:
    """The partition for ever fewer rows, from the most on whose tensors take at most so many bytes each; nothing if it
    fits as it is, or does not keep its rows apart."""
    size, tensor = max((fitting.largest(partition.subgraph, o, half) for o in partition.nodes), key=lambda s: s[0])
    if size <= most or tensor is None or tensor.is_constant or not tensor.shape:
        return
    tensors = partition.subgraph.tensors
    if any(t >= 0 and tensors[t].is_variable for o in partition.nodes for t in o.inputs):
        return
    batch = tensor.shape[0]
    carried = [t for t in partition.inputs if tensors[t].shape[:1] == (batch,)]
    graph = dataclasses.replace(
        partition.subgraph, operators=partition.nodes, inputs=partition.inputs, outputs=partition.outputs
    )
    if not carried:
        return
    for rows in _divisors(batch):
        if rows == batch or size * rows > most * batch:
            continue
        try:
            smaller = rebatched(graph, carried, batch, rows)
        except TensorError:
            return
        if any(smaller.tensors[t].shape[:1] != (rows,) for t in partition.outputs):
            return  # an output that has no row for each
        part = dataclasses.replace(partition, subgraph=smaller, nodes=smaller.operators)
        if all(fitting.largest(smaller, o, half)[0] <= most for o in part.nodes):
            places = frozenset(i for i, t in enumerate(partition.inputs) if t in carried)
            yield RowSlice(part, batch, rows, places)


def _divisors(number: int) -> list[int]:
    """The largest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)


class SlicedKernel:
    """Runs a kernel for a few rows on all of them in turn; satisfies delegates.protocol.DelegateKernel."""

    uses_gpu = True

    def __init__(self, kernel: GpuKernel, made: RowSlice, partition: Partition) -> None:
        """`partition`: the whole one, whose results it gives."""
        self._kernel, self._slice = kernel, made
        tensors = [partition.subgraph.tensors[t] for t in partition.outputs]
        self._results = [np.empty(t.shape, DTYPES[t.type]) for t in tensors]

    @property
    def notes(self) -> tuple[str, ...]:
        """For the delegation report."""
        cut = self._slice
        return (f"a partition runs on {cut.rows} of {cut.batch} rows at a time, as the device cannot bind more",
                *self._kernel.notes)  # fmt: skip

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        rows, carriers = self._slice.rows, self._slice.carriers
        for start in range(0, self._slice.batch, rows):
            part = slice(start, start + rows)
            found = self._kernel.invoke([a[part] if i in carriers else a for i, a in enumerate(inputs)])
            self._kernel.finish()
            for result, piece in zip(self._results, found, strict=True):
                result[part] = piece
        return self._results

    def abandon(self) -> None:
        self._kernel.abandon()

    def close(self) -> None:
        self._kernel.close()
