"""Checks the values of inputs that decide sizes, before the official runtime makes tensors of those sizes.

A size that stands in the file is checked when the model is opened. One that the caller gives, as the shape of a FILL or
the axes of a REVERSE_V2, can only be checked when it is there: then it is as if it stood in the file. Sizes that the
model computes from its inputs are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from litegpu.delegates.demand import check_demand
from litegpu.errors import InvokeError, ModelError
from litegpu.model.hazards import check_operator
from litegpu.model.ops import find
from litegpu.model.types import Operator, Subgraph

#: More elements than any vector of sizes has.
_MOST = 16

#: Bytes that are tried before a model may ask for them.
_MUCH = 1 << 26


class ValueChecks:
    """The checks of one subgraph's inputs; `operators` are those that the official runtime runs."""

    def __init__(self, subgraph: Subgraph, inputs: Sequence[int], operators: Sequence[Operator]) -> None:
        tensors = subgraph.tensors
        read = {i for o in operators for i in o.inputs[_first_size(o) :]}
        self._operators = tuple(operators)
        self._subgraph = subgraph
        self.inputs = tuple(
            i for i in inputs if i in read and not tensors[i].is_constant and tensors[i].type.name in ("INT32", "INT64")
        )
        self._last: tuple[bytes, ...] = ()

    def check(self, value: Callable[[int], Any], shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Raises InvokeError if the present values ask for what an operator cannot do, or for more than the limits."""
        values = {i: array for i in self.inputs if (array := np.array(value(i))).size <= _MOST}
        content = tuple(array.tobytes() for array in values.values())
        if not values or content == self._last:
            return
        tensors = list(self._subgraph.tensors)
        for index, array in values.items():
            shape = array.shape
            tensors[index] = replace(tensors[index], shape=shape, shape_signature=shape, data=array)
        for index, shape in shapes.items():
            if index not in values:
                tensors[index] = replace(tensors[index], shape=shape, shape_signature=shape)
        try:
            for operator in self._operators:
                if not values.keys().isdisjoint(operator.inputs):
                    check_operator(operator, tensors)
            needed = check_demand(replace(self._subgraph, tensors=tuple(tensors), operators=self._operators))
        except ModelError as error:
            raise InvokeError(f"The values of inputs {sorted(values)} cannot be used: {error}") from None
        if needed > _MUCH:  # kernels go on where the runtime gets no memory
            try:
                np.empty(needed, np.uint8)
            except MemoryError:
                raise InvokeError(
                    f"The values of inputs {sorted(values)} ask for {needed:,} bytes, which this process does not get"
                ) from None
        self._last = content


def _first_size(operator: Operator) -> int:
    """The first operand that may be a size."""
    known = find(operator)
    return 1 if known is None else known.sizes_from
