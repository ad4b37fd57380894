"""Tensors whose elements have two parts: COMPLEX64, INT64 that 32 bits may not hold (spans.py), FLOAT64 and UINT64.

Where such a tensor crosses the border, and where a transform makes or reads it, it is one value with another last axis
of the two parts: real and imaginary, or the low and the high word. In between it is two tensors, one of each part, and
what moves elements moves both. lower/words.py has the arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from litegpu.gpu.graph import (
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Expr,
    GraphBuilder,
    Reshape,
    Slice,
    Step,
    bhwc,
    whole,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.spans import is_beyond, wide
from litegpu.model.ops.spans import IN_WORDS
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

#: What the parts of a tensor are.
PARTS = {
    TensorType.COMPLEX64: TensorType.FLOAT32,
    TensorType.INT64: TensorType.INT32,
    TensorType.FLOAT64: TensorType.INT32,  # which are moved alone
    TensorType.UINT64: TensorType.INT32,
}
#: Types of which no tensor is one value.
_ALWAYS = frozenset({TensorType.COMPLEX64, TensorType.FLOAT64, TensorType.UINT64})
#: What gives or takes complex numbers as one value.
AT_ONCE = frozenset({"RFFT2D", "REAL", "IMAG", "COMPLEX_ABS"})


class Lowered(Protocol):
    """What the parts are part of."""

    subgraph: Subgraph
    builder: GraphBuilder
    values: dict[int, int]
    wide: frozenset[int]

    def extend(self, tensor: Tensor) -> int: ...

    def value(self, tensor: int) -> int: ...

    def ensure(self, tensor: int) -> None: ...

    def plain(self, operator: Operator) -> None: ...


class Parts:
    """The tensors that stand for the parts of others."""

    def __init__(self, lowering: Lowered) -> None:
        self.lowering = lowering
        self._known: dict[int, tuple[int, int]] = {}

    def has(self, tensor: int) -> bool:
        """Whether a tensor has two parts."""
        t = self._tensor(tensor)
        return tensor in self.lowering.wide or (t.type in _ALWAYS and t.data is None)

    def concern(self, operator: Operator) -> bool:
        """Whether the parts of some tensor are to be computed with."""
        if operator.name in AT_ONCE:
            return False
        tensors = [t for t in (*operator.inputs, *operator.outputs) if t >= 0]
        return any(self.has(t) for t in tensors) or (
            operator.name in IN_WORDS and any(is_beyond(self._tensor(t)) for t in operator.inputs if t >= 0)
        )

    def of(self, tensor: int) -> tuple[int, int]:
        """The parts of a tensor of such a type: of one that has one value only, that value, and its sign."""
        if tensor not in self._known:
            self._known[tensor] = self._taken_apart(tensor)
        return self._known[tensor]

    def made(self, tensor: int) -> tuple[int, int]:
        """New tensors for the parts of one that an operator gives."""
        self._known[tensor] = self._pair(self._tensor(tensor))
        return self._known[tensor]

    def together(self, tensor: int) -> int | None:
        """The one value of a tensor whose parts are known; None if they are not."""
        if tensor not in self._known:
            return None
        lowering, shape = self.lowering, (*self._tensor(tensor).shape, 1)
        halves = []
        for part in self._known[tensor]:
            source = lowering.value(part)
            given = lowering.builder.values[source]
            halves.append(self._copied(source, [Reshape(given.shape, bhwc(shape))], bhwc(shape), given.dtype))
        result = lowering.builder.value(bhwc((*shape[:-1], 2)), given.dtype, tensor=tensor)
        lowering.builder.node(Concat(3), halves, result, sources=())
        return result

    def move(self, operator: Operator, data: Sequence[int]) -> None:
        """An operator that moves elements of the inputs `data`, once for each part of its results; without results of
        two parts, such as a shape, and where it only looks something up, the first part is enough."""
        doubled = any(self.has(t) for t in operator.outputs)
        outputs = [self.made(t) if self.has(t) else (t, t) for t in operator.outputs]
        for k in range(2 if doubled else 1):
            inputs = list(operator.inputs)
            for i, t in enumerate(inputs):
                paired = t >= 0 and (self.has(t) or (doubled and i in data and self._tensor(t).type in PARTS))
                inputs[i] = (self.of(t)[k] if i in data else self._place(t)) if paired else t
            given = tuple(pair[k] if pair[0] != pair[1] or k == 0 else self._scratch(pair[0]) for pair in outputs)
            self.lowering.plain(dataclasses.replace(operator, inputs=tuple(inputs), outputs=given))

    def widen(self, operator: Operator) -> None:
        """An operator that knows no parts, on tensors of one: its INT64 results get their signs as second words. Raises
        Unsupported."""
        outputs = []
        for t in operator.outputs:
            if self._tensor(t).type is not TensorType.INT64 and self.has(t):
                raise refusal(self._tensor(t))
            outputs.append(self._scratch(t) if self.has(t) else t)
        self.lowering.plain(dataclasses.replace(operator, outputs=tuple(outputs)))
        for t, narrow in zip(operator.outputs, outputs, strict=True):
            if t != narrow:
                low, high = self.made(t)
                self.compute(low, Arg(0), [narrow], (operator.index,))
                self.compute(high, fn("shift_right", Arg(0), whole(31)), [narrow], (operator.index,))

    # ------------------------------------------------------------------------------------------------------------

    def shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(self._tensor(tensor).shape)

    def computed(
        self, expr: Expr, given: Sequence[int], sources: Sequence[int] = (), type_: TensorType = TensorType.INT32
    ) -> int:
        """A new tensor of an expression of tensors of one shape."""
        tensor = self.blank(self._tensor(given[0]).shape, type_)
        self.compute(tensor, expr, given, sources)
        return tensor

    def blank(self, shape: tuple[int, ...], type_: TensorType, data: np.ndarray | None = None) -> int:
        """A new tensor."""
        return self.lowering.extend(dataclasses.replace(_blank(shape, type_), data=data))

    def compute(self, tensor: int, expr: Expr, given: Sequence[int], sources: Sequence[int] = ()) -> None:
        """Let a tensor have an expression of tensors of its shape."""
        lowering, t = self.lowering, self._tensor(tensor)
        dtype = {TensorType.BOOL: DType.BOOL, TensorType.FLOAT32: DType.FLOAT32}.get(t.type, DType.INT32)
        value = lowering.builder.value(bhwc(t.shape), dtype, name=t.name, tensor=tensor)
        lowering.builder.node(Elementwise(), (), value, expr, [lowering.value(g) for g in given], sources)
        lowering.values[tensor] = value

    def _place(self, tensor: int) -> int:
        """The words as one, for a place or a size: what 32 bits do not hold is out of range."""
        low, high = self.of(tensor)
        same = fn("eq", Arg(1), fn("shift_right", Arg(0), whole(31)))
        return self.computed(fn("select", same, Arg(0), whole(-(2**31))), (low, high))

    def _tensor(self, tensor: int) -> Tensor:
        return self.lowering.subgraph.tensors[tensor]

    def _scratch(self, tensor: int) -> int:
        return self.lowering.extend(self._tensor(tensor))

    def _pair(self, t: Tensor, data: tuple[np.ndarray, np.ndarray] | None = None) -> tuple[int, int]:
        made = []
        for k in range(2):
            part = dataclasses.replace(
                _blank(t.shape, PARTS[t.type]), name=t.name, data=None if data is None else data[k]
            )
            made.append(self.lowering.extend(part))
        return made[0], made[1]

    def _taken_apart(self, tensor: int) -> tuple[int, int]:
        t, lowering = self._tensor(tensor), self.lowering
        if t.data is not None:
            words = (
                np.ascontiguousarray(t.data)
                .reshape(-1)
                .view(np.float32 if t.type is TensorType.COMPLEX64 else np.int32)
            )
            return self._pair(t, (words[::2].reshape(t.shape), words[1::2].reshape(t.shape)))
        if not self.has(tensor):
            lowering.ensure(tensor)
            low = self.blank(t.shape, TensorType.INT32)
            lowering.values[low] = lowering.value(tensor)
            return low, self.computed(fn("shift_right", Arg(0), whole(31)), [low])
        lowering.ensure(tensor)
        source, pair = lowering.values[tensor], self._pair(t)
        given, shape = lowering.builder.values[source], t.shape
        for k, part in enumerate(pair):
            chosen = Slice((*(0 for _ in shape), k), (1,) * (len(shape) + 1), (*shape, 1))
            steps: list[Step] = [Reshape(given.shape, (*shape, 2)), chosen, Reshape((*shape, 1), bhwc(shape))]
            lowering.values[part] = self._copied(source, steps, bhwc(shape), given.dtype)
        return pair

    def _copied(self, source: int, steps: Sequence[Step], shape: tuple[int, ...], dtype: DType) -> int:
        result = self.lowering.builder.value(shape, dtype)
        self.lowering.builder.node(Copy(tuple(steps)), [source], result, sources=())
        return result


def border_shape(subgraph: Subgraph, tensor: Tensor) -> tuple[int, ...]:
    """That of what crosses the border for a tensor: with another axis if its elements have two parts."""
    paired = tensor.index in wide(subgraph) or (tensor.type in _ALWAYS and tensor.data is None)
    return (*tensor.shape, 2) if paired else tensor.shape


def handed_shape(subgraph: Subgraph, tensor: Tensor) -> tuple[int, ...]:
    """That of what is handed to another subgraph, where constants of two parts have them too."""
    return (*tensor.shape, 2) if tensor.is_constant and tensor.type in PARTS else border_shape(subgraph, tensor)


def _blank(shape: tuple[int, ...], type_: TensorType) -> Tensor:
    return Tensor(-1, "", type_, tuple(shape), tuple(shape), 0)


def refusal(tensor: Tensor) -> Unsupported:
    """Why an operator that has no form for parts is not taken."""
    if tensor.type in _ALWAYS:
        return Unsupported(f"'{tensor.name}' is {tensor.type.name}, which the GPU only moves")
    return Unsupported(f"'{tensor.name}' is INT64 that 32 bits may not hold, of which it has no form of two words")
