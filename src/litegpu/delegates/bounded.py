"""Tensors with as many rows as the data decide, computed with as many as there can be, and cut behind that.

An operator such as WHERE or UNIQUE gives, beside that many rows, the number of those that count. What makes a row of
each of its rows alone is computed with all of them, on the same device; a node of ours on the host cuts what leaves
that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.delegates.hindmost import Hindmost
from litegpu.delegates.partitioner import Division
from litegpu.delegates.protocol import Delegate, DelegateKernel, Partition, TakesBounds
from litegpu.delegates.report import DelegationReport, PartitionReport
from litegpu.delegates.shapes import Inferred
from litegpu.model.ops import find
from litegpu.model.ops.rules import broadcast_rows, last_axis, pointwise, rows_alike
from litegpu.model.ops.shape_node import ShapeNode
from litegpu.model.shapes import Computed, Shape, Unexpected, shapes_of_results
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType

#: The operator that cuts: a tensor, and how many of its rows count.
CUT = "litegpu.cut"
#: Elements of a tensor that has all the rows there can be: few enough that copying them all is of no account.
_MOST_ELEMENTS = 1 << 18
_BY_ROWS = (pointwise, broadcast_rows, rows_alike)


@dataclass(frozen=True, eq=False)
class Bounded:
    """`subgraph` with nodes that compute with bounds, `nodes`, and nodes that cut, which are the last; `refused` and
    `late` as Inferred has them. `stands_for`: tensors that are new -> those whose rows they have; `numbers`: those that
    say how many rows count."""

    subgraph: Subgraph
    nodes: frozenset[int]
    refused: dict[int, str]
    late: frozenset[int]
    stands_for: dict[int, int]
    numbers: frozenset[int]

    def taken(self, division: Division, asked: Sequence[Delegate]) -> bool:
        """Whether all of `nodes` are one delegate's that knows of bounds, in one partition."""
        for owner, partition in division.partitions:
            found = self.nodes.intersection(o.index for o in partition.nodes)
            if found:
                taker = asked[owner] if 0 <= owner < len(asked) else None
                return found == self.nodes and isinstance(taker, TakesBounds) and taker.takes_bounds
        return False


def bounded(found: Inferred) -> Bounded | None:
    """The subgraph with bounds where some are known; None if there are none."""
    made = _Bounds(found)
    for operator in found.subgraph.operators:
        if operator.index in found.refused:
            made.visit(operator)
    return made.result() if made.changed else None


class _Bounds:
    """`twins`: tensors whose number of rows the data decide -> (that with all rows, that with their number); `settled`:
    operators behind those whose results have known sizes all the same."""

    def __init__(self, found: Inferred) -> None:
        self.found, self.graph = found, found.subgraph
        self.tensors: list[Tensor] = list(self.graph.tensors)
        self.twins: dict[int, tuple[int, int]] = {}
        self.changed: dict[int, Operator] = {}
        self.settled: set[int] = set()
        self.unknown = {t for node in found.refused for t in self.graph.operators[node].outputs}

    def visit(self, operator: Operator) -> None:
        known = find(operator)
        unknown = [t for t in operator.inputs if t in self.unknown]
        if known is None or -1 in operator.outputs:
            return
        if known.bound is not None and not unknown:
            self._begin(operator, known.bound(ShapeNode(self.graph, operator, {})))
            return
        if not unknown:
            self._settle(operator)
            return
        if len(operator.outputs) != 1:
            return
        numbers = {self.twins[t][1] for t in unknown if t in self.twins}
        if len(numbers) != 1 or not all(t in self.twins for t in unknown):
            return
        by_rows = known.by_rows == "all" or known.batch in _BY_ROWS
        by_rows |= known.batch is last_axis and len(self.tensors[self.twins[unknown[0]][0]].shape) > 1
        second = known.by_rows == "second" and unknown == [operator.inputs[1]] and self._takes_rows(operator)
        if not (by_rows or second):
            return
        rows = self.tensors[self.twins[unknown[0]][0]].shape[0]
        made = self._shape(operator, unknown, 0)
        if made is None or made[:1] != (rows,) or math.prod(made) > _MOST_ELEMENTS:
            return
        if self._shape(operator, unknown, 1) != (rows + 1, *made[1:]):
            return
        inputs = tuple(self.twins[t][0] if t in self.twins else t for t in operator.inputs)
        result = self._twin(operator.outputs[0], made, numbers.pop())
        self.changed[operator.index] = dataclasses.replace(operator, inputs=inputs, outputs=(result,))

    def _begin(self, operator: Operator, shapes: Sequence[Shape]) -> None:
        """An operator whose first result has as many rows as the data decide; the others have these shapes."""
        if len(shapes) != len(operator.outputs) or not all(0 < math.prod(s) <= _MOST_ELEMENTS for s in shapes):
            return
        number = self._tensor("", TensorType.INT32, (1,))
        first, *others = operator.outputs
        self._know(others, shapes[1:])
        twin = self._twin(first, shapes[0], number)
        self.changed[operator.index] = dataclasses.replace(operator, outputs=(twin, *others, number))

    def _settle(self, operator: Operator) -> None:
        """An operator whose inputs have known sizes, though they come from one whose first result has not."""
        shapes = {t: self.tensors[t].shape for t in operator.inputs if t >= 0}
        try:
            found = shapes_of_results(self.graph, operator, shapes)
        except (Computed, Unexpected):
            return
        if found is not None:
            self._know(operator.outputs, found)
            self.settled.add(operator.index)

    def _know(self, tensors: Sequence[int], shapes: Sequence[Shape]) -> None:
        for t, shape in zip(tensors, shapes, strict=True):
            given = tuple(int(n) for n in shape)
            self.tensors[t] = dataclasses.replace(self.tensors[t], shape=given, shape_signature=given)
            self.unknown.discard(t)

    def _takes_rows(self, operator: Operator) -> bool:
        """Whether it takes whole rows of the first input, at places that the second says."""
        options = operator.options
        return int(options.get("axis", 0) or 0) == 0 and int(options.get("batch_dims", 0) or 0) == 0

    def _shape(self, operator: Operator, unknown: Sequence[int], more: int) -> Shape | None:
        """Of the result, with so many rows more than there can be."""
        shapes: dict[int, Shape] = {}
        for t in unknown:
            rows, *rest = self.tensors[self.twins[t][0]].shape
            shapes[t] = (rows + more, *rest)
        try:
            found = shapes_of_results(self.graph, operator, shapes)
        except (Computed, Unexpected):
            return None
        return None if found is None else tuple(found[0])

    def _twin(self, tensor: int, shape: Shape, number: int) -> int:
        t = self.tensors[tensor]
        twin = self._tensor(t.name, t.type, shape, t)
        self.twins[tensor] = twin, number
        return twin

    def _tensor(self, name: str, type_: TensorType, shape: Shape, like: Tensor | None = None) -> int:
        index, given = len(self.tensors), tuple(int(n) for n in shape)
        plain = Tensor(index, name, type_, given, given, 0)
        self.tensors.append(
            plain if like is None else dataclasses.replace(like, index=index, shape=given, shape_signature=given)
        )
        return index

    def result(self) -> Bounded:
        graph, nodes = self.graph, frozenset(self.changed)
        operators = [self.changed.get(o.index, o) for o in graph.operators]
        outside = {t for o in graph.operators if o.index not in nodes for t in o.inputs}.union(graph.outputs)
        known = nodes | self.settled
        refused = {node: why for node, why in self.found.refused.items() if node not in known}
        for tensor in sorted(outside.intersection(self.twins)):
            index = len(operators)
            operators.append(Operator(index, CUT, 0, 1, self.twins[tensor], (tensor,), is_custom=True))
            refused[index] = "The data decide how many rows there are."
        subgraph = dataclasses.replace(graph, tensors=tuple(self.tensors), operators=tuple(operators))
        stands_for = {twin: tensor for tensor, (twin, _) in self.twins.items()}
        numbers = frozenset(number for _, number in self.twins.values())
        return Bounded(subgraph, nodes, refused, self.found.late - known, stands_for, numbers)


class CutDelegate(Hindmost):
    """For the nodes that cut. Satisfies protocol.Delegate."""

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        return None if operator.name == CUT else "It cuts nothing."

    def prepare(self, partition: Partition) -> DelegateKernel:
        return _Cuts(partition)


class _Cuts:
    """Satisfies protocol.DelegateKernel."""

    uses_gpu = False

    def __init__(self, partition: Partition) -> None:
        made = {o.outputs[0]: o.inputs for o in partition.nodes}
        place = {t: i for i, t in enumerate(partition.inputs)}
        self._pairs = [(place[made[t][0]], place[made[t][1]]) for t in partition.outputs]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [inputs[rows][: int(inputs[number].reshape(-1)[0])] for rows, number in self._pairs]

    def close(self) -> None:
        pass


def without_cuts(report: DelegationReport, count: int, bounds: Bounded) -> DelegationReport:
    """The report of the file's own `count` nodes and tensors."""
    kept: dict[int, int] = {}
    partitions: list[PartitionReport] = []
    for partition in report.partitions:
        nodes = tuple(n for n in partition.nodes if n < count)
        if nodes:
            kept[partition.index] = len(partitions)
            borders = [
                tuple(dict.fromkeys(bounds.stands_for.get(t, t) for t in side if t not in bounds.numbers))
                for side in (partition.inputs, partition.outputs)
            ]
            partitions.append(PartitionReport(len(partitions), partition.owner, nodes, borders[0], borders[1]))
    own = tuple(dataclasses.replace(n, partition=kept[n.partition]) for n in report.nodes if n.index < count)
    return dataclasses.replace(report, nodes=own, partitions=tuple(partitions))
