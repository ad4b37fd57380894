"""Operators on tensors of five and six axes, as operators on tensors of four.

A value of the graph has four axes; those of a tensor of more are joined, row-major, the leading ones into the first.
Most lowering functions need know nothing of that: they work along the last axis, element by element, or by steps that
see the tensor's own shape. The others say in their entry what they do with axes (`Gpu.joins`); here their axes are
joined as that allows, and what does not fit into four is moved or repeated first.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.lower.constants import Unsupported
from litegpu.model.ops import Gpu
from litegpu.model.ops.shape_node import Shape
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

#: The axes of a value of the graph.
AXES = 4
#: Of what BATCH_MATMUL multiplies, the matrices' own axes, and those left for the rest.
MATRIX, LEADING = 2, 2


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
    """`operators` of `subgraph`, which has the tensors between them too, do what one operator did."""

    subgraph: Subgraph
    operators: tuple[Operator, ...]


def rewritten(subgraph: Subgraph, operator: Operator, gpu: Gpu) -> Rewritten | None:
    """The operator as others on at most four axes; None if it can be lowered as it is. Raises Unsupported."""
    given = [subgraph.tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0]
    if not gpu.joins or max((len(t.shape) for t in given), default=0) <= AXES:
        return None
    draft = Draft(subgraph, operator)
    match gpu.joins:
        case "broadcast":
            changed = _broadcast(draft)
        case "rows":
            changed = _rows(draft)
        case "matrices":
            changed = _matrices(draft)
        case "axes":
            changed = _along_axes(draft)
    return draft.finished() if changed else None


class Draft:
    """The operators that stand for one, so far, and the tensors that were added."""

    def __init__(self, subgraph: Subgraph, operator: Operator) -> None:
        self.subgraph, self.operator = subgraph, operator
        self.tensors = list(subgraph.tensors)
        self.before: list[Operator] = []
        self.inputs, self.outputs = list(operator.inputs), list(operator.outputs)
        self.after: list[Operator] = []

    def shape(self, i: int) -> Shape:
        return tuple(self.tensors[self.inputs[i]].shape)

    @property
    def output(self) -> Shape:
        return tuple(self.tensors[self.operator.outputs[0]].shape)

    def reshape_input(self, i: int, shape: Shape) -> None:
        tensor = self.tensors[self.inputs[i]]
        if tuple(tensor.shape) == shape:
            return
        if tensor.data is not None and tensor.sparsity is None and tensor.data.shape == tensor.shape:
            self.inputs[i] = self.stand_in(tensor, shape, tensor.data.reshape(shape))
        else:
            self.inputs[i] = self.moved("RESHAPE", self.inputs[i], shape)

    def reshape_output(self, shape: Shape) -> None:
        """The operator makes a result of `shape`, which then becomes the output's."""
        final = self.tensors[self.operator.outputs[0]]
        if tuple(final.shape) != shape:
            narrow = final if final.type is not TensorType.INT64 else dataclasses.replace(final, type=TensorType.INT32)
            self.outputs[0] = self.stand_in(narrow, shape)
            shaped = final.index if narrow is final else self.stand_in(narrow, tuple(final.shape))
            self.after.append(self.made("RESHAPE", (self.outputs[0],), shaped))
            if narrow is not final:
                self.after.append(self.made("CAST", (shaped,), final.index))

    def expand_input(self, i: int, shape: Shape) -> None:
        self.inputs[i] = self.moved("BROADCAST_TO", self.inputs[i], shape, shape)

    def transpose_input(self, i: int, order: Sequence[int]) -> None:
        shape = self.shape(i)
        self.inputs[i] = self.moved("TRANSPOSE", self.inputs[i], tuple(shape[a] for a in order), order)

    def integers(self, i: int, values: Sequence[int]) -> None:
        """Give input i these values."""
        self.inputs[i] = self.numbers(values)

    def reverse(self, tensor: int, output: int, axis: int) -> None:
        self.before.append(self.made("REVERSE_V2", (tensor, self.numbers([axis])), output))

    def join(self, tensors: Sequence[int], output: int, axis: int) -> None:
        self.before.append(self.made("CONCATENATION", tuple(tensors), output, {"axis": axis}))

    def parts(self) -> Rewritten:
        """The operators that were added, in place of the operator."""
        subgraph = dataclasses.replace(self.subgraph, tensors=tuple(self.tensors))
        return Rewritten(subgraph, tuple(self.before))

    def finished(self) -> Rewritten:
        made = dataclasses.replace(self.operator, inputs=tuple(self.inputs), outputs=tuple(self.outputs))
        subgraph = dataclasses.replace(self.subgraph, tensors=tuple(self.tensors))
        return Rewritten(subgraph, (*self.before, made, *self.after))

    # ----------------------------------------------------------------------------------------------------

    def moved(self, name: str, tensor: int, shape: Shape, values: Sequence[int] | None = None) -> int:
        """A tensor of `shape` that the operator `name`, to which `values` say how, makes of `tensor`."""
        result = self.stand_in(self.tensors[tensor], shape)
        inputs = (tensor,) if values is None else (tensor, self.numbers(values))
        self.before.append(self.made(name, inputs, result))
        return result

    def made(
        self, name: str, inputs: tuple[int, ...], output: int, options: Mapping[str, Any] | None = None
    ) -> Operator:
        return Operator(self.operator.index, name, 0, 1, inputs, (output,), {} if options is None else options)

    def stand_in(self, tensor: Tensor, shape: Shape, data: np.ndarray | None = None) -> int:
        q = tensor.quantization
        if q is not None and (q.scales.size > 1 or q.block_size):
            raise Unsupported(f"tensor '{tensor.name}' of shape {list(tensor.shape)} has several scales")
        self.tensors.append(
            dataclasses.replace(
                tensor, index=len(self.tensors), shape=shape, shape_signature=shape, data=data, is_variable=False
            )
        )
        return len(self.tensors) - 1

    def numbers(self, values: Sequence[int]) -> int:
        data = np.asarray(values, np.int32)
        tensor = Tensor(len(self.tensors), "", TensorType.INT32, data.shape, data.shape, 0, data)
        self.tensors.append(tensor)
        return tensor.index


# ------------------------------------------------------------------------------------------- joining axes


def _runs(kinds: Sequence[object], sizes: Shape, most: int) -> list[list[int]] | None:
    """The axes of `sizes` as at most `most` runs of one kind; axes of size 1 are of any. The last axis is left alone if
    there is room, as channels are. None if there are more kinds in turn."""
    runs: list[list[int]] = []
    kind: object = None
    for axis, (own, size) in enumerate(zip(kinds, sizes, strict=True)):
        if runs and (size == 1 or kind is None or own == kind):
            runs[-1].append(axis)
        else:
            runs.append([axis])
        if size != 1:
            kind = own
    if len(runs) > most:
        return None
    while len(runs) < most and (long := next((r for r in reversed(runs) if len(r) > 1), None)) is not None:
        at = runs.index(long)
        runs[at : at + 1] = [long[:-1], long[-1:]]
    return runs


def _joined(shape: Shape, runs: list[list[int]]) -> Shape:
    return tuple(math.prod(shape[a] for a in run) for run in runs)


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


def _kinds(shapes: Sequence[Shape], sizes: Shape) -> list[tuple[bool, ...]]:
    """For each axis, which of the shapes have it repeated."""
    return [tuple(s[axis] != n for s in shapes) for axis, n in enumerate(sizes)]


def _broadcast(draft: Draft) -> bool:
    """Elementwise: axes along which the same operands are repeated join."""
    sizes, operands = draft.output, [draft.shape(i) for i in range(len(draft.inputs))]
    if any(len(s) > len(sizes) for s in operands):
        return False  # refused by the shape that the operator would give
    return _repeating(draft, sizes, AXES, 0)


def _matrices(draft: Draft) -> bool:
    """The same of the axes in front of matrices."""
    if min(len(draft.shape(0)), len(draft.shape(1))) < MATRIX:
        return False
    return _repeating(draft, draft.output[:-MATRIX], LEADING, MATRIX)


def _repeating(draft: Draft, sizes: Shape, most: int, own: int) -> bool:
    """Join the axes `sizes` of the result, which are followed by `own` others, into at most `most`."""
    count = len(draft.inputs)
    whole = [draft.shape(i) for i in range(count)]
    heads = [_padded(s[: len(s) - own], len(sizes)) for s in whole]
    if any(n not in (1, m) for head in heads for n, m in zip(head, sizes, strict=True)):
        return False
    lead = len(sizes) - most + 1
    kinds = _kinds(heads, sizes)
    if lead > 0 and len({k for k, n in zip(kinds[:lead], sizes[:lead], strict=True) if n != 1}) <= 1:
        return False  # as all values join them
    for spread in (some for n in range(count + 1) for some in itertools.combinations(range(count), n)):
        runs = _runs(_kinds([sizes if i in spread else h for i, h in enumerate(heads)], sizes), sizes, most)
        if runs is not None:
            break
    assert runs is not None  # at last all are spread
    for i, (head, shape) in enumerate(zip(heads, whole, strict=True)):
        tail = shape[len(shape) - own :]
        if i in spread and head != sizes:
            draft.expand_input(i, (*sizes, *tail))
            head = sizes
        draft.reshape_input(i, (*_joined(head, runs), *tail))
    draft.reshape_output((*_joined(sizes, runs), *draft.output[len(sizes) :]))
    return True


def _rows(draft: Draft) -> bool:
    """SELECT, whose condition may choose along the first axis."""
    condition, sizes = draft.shape(0), draft.output
    if len(condition) != 1 or math.prod(condition) == 1 or len(sizes) <= AXES:
        return False
    joined = (sizes[0], math.prod(sizes[1:-2]), *sizes[-2:])
    for i in (1, 2):
        if draft.shape(i) != sizes:
            return False
        draft.reshape_input(i, joined)
    draft.reshape_output(joined)
    return True


def _along_axes(draft: Draft) -> bool:
    """A reduction along the axes in input 1: those that stay join, and those that go."""
    sizes, given = draft.shape(0), draft.tensors[draft.inputs[1]].data
    rank = len(sizes)
    if given is None or any(not -rank <= int(a) < rank for a in given.reshape(-1)):
        return False
    axes = {int(a) % rank for a in given.reshape(-1)}
    if not axes:
        return False
    kept = tuple(1 if i in axes else n for i, n in enumerate(sizes))
    keeps = bool(draft.operator.options.get("keep_dims", False))
    if draft.output != (kept if keeps else tuple(n for i, n in enumerate(sizes) if i not in axes)):
        return False
    order: Sequence[int] = range(rank)
    distinct = (AXES,) * rank  # an axis of size 1 is reduced, or not, as any other
    runs = _runs([i in axes for i in order], distinct, AXES)
    if runs is None:
        order = [*(i for i in range(rank) if i not in axes), *sorted(axes)]
        draft.transpose_input(0, order)
        sizes = tuple(sizes[a] for a in order)
        runs = _runs([i in axes for i in order], distinct, AXES)
    assert runs is not None
    gone = [i for i, run in enumerate(runs) if any(order[a] in axes for a in run)]
    draft.reshape_input(0, _joined(sizes, runs))
    draft.integers(1, gone)
    result = _joined(sizes, runs)
    draft.reshape_output(tuple(1 if i in gone else n for i, n in enumerate(result) if keeps or i not in gone))
    return True
