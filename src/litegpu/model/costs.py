"""What an inference takes op by op: operations on numbers, and bytes read and written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from litegpu.model.ops import find
from litegpu.model.shapes import Shape, followed_shapes
from litegpu.model.types import Operator, Subgraph, Tensor


@dataclass(frozen=True)
class OpCost:
    """What one operator takes at the least, run by itself: nothing fused, nothing kept in a cache from the one before.

    flops: operations on numbers. A multiplication with its addition counts two; elsewhere each element of the result,
        or of the data where that is larger, counts one, however hard it is; what only moves elements has none.
        Bias and fused activation are not counted.
    read, written: bytes, of constants as they lie in the file, of other tensors as they lie in memory. Each operand
        is read once, and what chooses among elements reads as many as it writes.
    """

    flops: int
    read: int
    written: int

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.read + self.written


def op_costs(subgraph: Subgraph, inputs: Mapping[int, Shape] | None = None) -> tuple[OpCost, ...]:
    """The costs of the operators of a subgraph, in their order, with `inputs` (tensor -> shape) instead of the shapes
    in the file. What an operator calls (IF, WHILE) is not counted; sizes that the file leaves open count as 1."""
    shapes = followed_shapes(subgraph, inputs) if inputs else {}
    return tuple(_cost(subgraph, operator, shapes) for operator in subgraph.operators)


def stated_work(operator: Operator, given: Sequence[Shape], results: int) -> int | None:
    """Elementary operations by the operator's rule for these shapes of its inputs and so many elements of results; None
    if it has no rule, or that does not fit."""
    known = find(operator)
    return None if known is None or known.work is None else known.work(operator.options, given, results)


def _cost(subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> OpCost:
    known = find(operator)
    moves = known.moves if known is not None else ""
    if moves == "shape":
        return OpCost(0, 0, 0)
    operands = [subgraph.tensors[i] for i in operator.inputs if i >= 0]
    results = [subgraph.tensors[i] for i in operator.outputs if i >= 0]
    given = [shapes.get(tensor.index, tensor.shape) for tensor in operands]
    made = [shapes.get(tensor.index, tensor.shape) for tensor in results]
    written = sum(_bytes(tensor, shape) for tensor, shape in zip(results, made, strict=True))
    read = {tensor.index: _bytes(tensor, shape) for tensor, shape in zip(operands, given, strict=True)}
    if moves:
        return OpCost(0, sum(min(size, written) for size in read.values()), written)
    elements = sum(map(math.prod, made))
    work = stated_work(operator, given, elements)
    if work is None:
        data = [math.prod(shape) for tensor, shape in zip(operands, given, strict=True) if not tensor.is_constant]
        work = max((elements, *data))
    elif known is not None and known.multiplies:
        work *= 2
    return OpCost(work, sum(read.values()), written)


def _bytes(tensor: Tensor, shape: Shape) -> int:
    return tensor.data.nbytes if tensor.data is not None else math.prod(shape) * tensor.type.nbytes
