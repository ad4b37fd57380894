"""How an operator's shape rule sees it: the shapes of what it reads, its constants and its options."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from litegpu.model.types import Operator, Subgraph, TensorType

Shape = tuple[int, ...]


class Unexpected(Exception):
    """The operator is not as the rule for its kind wants it."""


class Computed(Exception):
    """Values that the model computes decide the shape."""


class ShapeNode:
    """An operator as its rule sees it. `shapes` has those of the tensors so far, constants left out."""

    def __init__(self, subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> None:
        self.operator, self._tensors, self._shapes = operator, subgraph.tensors, shapes

    def require(self, condition: bool, reason: str = "") -> None:
        if not condition:
            raise Unexpected(reason)

    def has(self, i: int) -> bool:
        return i < len(self.operator.inputs) and self.operator.inputs[i] >= 0

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return len(self.operator.inputs)

    def shape(self, i: int) -> Shape:
        self.require(self.has(i))
        index = self.operator.inputs[i]
        return self._shapes.get(index, self._tensors[index].shape)

    def is_constant(self, i: int) -> bool:
        return self.has(i) and self._tensors[self.operator.inputs[i]].data is not None

    def integers(self, i: int) -> tuple[int, ...]:
        """The values of input i, a constant."""
        self.require(self.has(i))
        tensor = self._tensors[self.operator.inputs[i]]
        if tensor.data is None:
            raise Computed
        values = tensor.data
        known = tensor.type in (TensorType.INT32, TensorType.INT64, TensorType.INT16, TensorType.INT8)
        self.require(known and tensor.sparsity is None and values.size == math.prod(tensor.shape))
        return tuple(int(n) for n in np.ravel(values))

    def number(self, i: int) -> float:
        """The value of input i, a constant of one number."""
        self.require(self.has(i))
        tensor = self._tensors[self.operator.inputs[i]]
        if tensor.data is None:
            raise Computed
        plain = tensor.data.dtype.kind in "if" and tensor.sparsity is None and tensor.data.size == 1
        self.require(plain and math.prod(tensor.shape) == 1)
        return float(tensor.data.reshape(-1)[0])

    def integer(self, i: int) -> int:
        values = self.integers(i)
        self.require(len(values) == 1)
        return values[0]

    def option(self, name: str, default: Any = 0) -> Any:
        value = self.operator.options.get(name, default)
        return default if value is None else value

    def axis(self, axis: int, rank: int) -> int:
        self.require(-rank <= axis < rank)
        return axis % rank

    @property
    def is_of_one_size(self) -> bool:
        """Whether elements of the first input and the first result have as many bytes."""
        source, result = (self._tensors[i[0]].type for i in (self.operator.inputs, self.operator.outputs))
        return source.nbytes == result.nbytes

    def struct(self, count: int) -> tuple[int, ...]:
        """The first int32 fields of the C struct that custom options are the image of."""
        options = self.operator.custom_options
        self.require(len(options) >= 4 * count)
        return struct.unpack_from(f"<{count}i", options)

    @property
    def declared(self) -> Shape:
        """The output's shape in the file, for custom operators which say nowhere else what they make of the inputs as
        they are in the file; only the batch, if it leads both, may differ from it."""
        inputs = [i for i in self.operator.inputs if i >= 0]
        given = [(self._shapes.get(i, self._tensors[i].shape), self._tensors[i].shape) for i in inputs]
        output = self._tensors[self.operator.outputs[0]].shape
        if all(now == then for now, then in given):
            return output
        self.require(all(now[1:] == then[1:] and now and then[:1] == output[:1] for now, then in given))
        leads = {now[0] for now, _ in given}
        self.require(len(leads) == 1)
        return (leads.pop(), *output[1:])
