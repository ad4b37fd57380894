"""Which value of the graph stands for which tensor, while operators are lowered one after another."""

from __future__ import annotations

import dataclasses
import weakref

from litegpu.gpu.graph import Arg, DType, Elementwise, GraphBuilder, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported, as_array
from litegpu.gpu.lower.parts import PARTS, Parts
from litegpu.gpu.lower.quantization import STORED, QuantizedValues, grid_of, stored
from litegpu.gpu.lower.ranks import Rewritten
from litegpu.gpu.lower.spans import wide
from litegpu.model.ops import find
from litegpu.model.ops.record import MAX_RANK
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

DTYPES = {
    TensorType.FLOAT32: DType.FLOAT32,
    TensorType.INT32: DType.INT32,
    TensorType.INT64: DType.INT32,  # of results that leave the GPU
    TensorType.UINT32: DType.INT32,
    TensorType.UINT16: DType.INT32,
    TensorType.FLOAT64: DType.INT32,  # words
    TensorType.UINT64: DType.INT32,
    TensorType.BOOL: DType.BOOL,
}


def dtype_of(tensor: Tensor) -> DType:
    """What a tensor holds while it is computed with."""
    if tensor.type in STORED:
        return DType.INT32 if grid_of(tensor) is None else DType.FLOAT32
    return DTYPES.get(tensor.type, DType.FLOAT32)


class Values:
    """The graph so far, and which value stands for which tensor.

    `checking`: one operator is lowered alone to learn whether it can be, so constants need not be decoded, and what it
    reads is made up. `quantization`: quantized tensors that the model computes are taken; what an operator computes is
    rounded to what its output can hold. `in_numpy`: the graph is only going to be evaluated, so that what a kernel
    cannot do is no matter. `xnnpack`: integers are rounded as XNNPACK's kernels do, where it has some, else as the
    runtime's own. `integer`: tensors of 8 bits stay bytes, and are computed with in whole numbers.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        *,
        checking: bool = False,
        quantization: bool = True,
        in_numpy: bool = False,
        xnnpack: bool = True,
        integer: bool = False,
    ) -> None:
        self.given = self.subgraph = subgraph  # which goes on to be extended
        self.checking, self.quantization, self.in_numpy = checking, quantization, in_numpy
        self.xnnpack, self.integer = xnnpack, integer
        self.builder = GraphBuilder()
        self.values: dict[int, int] = {}
        self.quantized = QuantizedValues(subgraph, self.builder, integer)
        self.variables: dict[int, int] = {}  # variable tensor -> its value before the inference
        self.updates: dict[int, int] = {}  # variable tensor -> its value so far
        self._dequantized = _dequantized_constants(subgraph)
        self.wide = wide(subgraph)
        self.parts = Parts(self)

    def add_instead(self, others: Rewritten) -> None:
        """Add the nodes of other operators, with whose tensors the lowering goes on."""
        raise NotImplementedError

    def plain(self, operator: Operator) -> None:
        """Add the nodes of an operator none of whose tensors has two parts."""
        raise NotImplementedError

    def extend(self, tensor: Tensor) -> int:
        """The number of a tensor like this one that is new to the subgraph."""
        number = len(self.subgraph.tensors)
        tensors = (*self.subgraph.tensors, dataclasses.replace(tensor, index=number))
        self.subgraph = self.quantized.subgraph = dataclasses.replace(self.subgraph, tensors=tensors)
        return number

    def enter(self, tensor: int) -> int:
        """A value for a tensor that comes from outside (nobody reads it where the constant behind it is known)."""
        t = self.subgraph.tensors[tensor]
        check_rank(t)
        grid = grid_of(t)
        value = self.builder.value(
            value_shape(t, self.parts.has(tensor)), STORED.get(t.type, dtype_of(t)), name=t.name, tensor=tensor
        )
        if grid is not None:
            self.quantized.enter(tensor, value, grid)
        elif t.type in STORED:
            self.values[tensor] = self.builder.value(bhwc(t.shape), DType.INT32, name=t.name, tensor=tensor)
            self.builder.node(Elementwise(), (), self.values[tensor], fn("to_int32", Arg(0)), [value])
        elif self.constant_tensor(tensor) is None:
            self.values[tensor] = value
        return value

    def leave(self, tensor: int) -> int:
        """The value of a tensor that goes outside, in the type in which it is stored there."""
        t = self.subgraph.tensors[tensor]
        grid = grid_of(t)
        if t.is_constant and t.type in PARTS:  # which is handed to another subgraph
            self.parts.of(tensor)
            found = self.parts.together(tensor)
            assert found is not None
            return found
        if grid is not None:
            return self.quantized.leave(tensor, grid)
        return stored(self.builder, t, Arg(0), self.value(tensor)) if t.type in STORED else self.value(tensor)

    def value(self, tensor: int) -> int:
        """The value that stands for a tensor; constants enter the graph when first asked for. Of a quantized tensor it
        is one of real numbers."""
        if self.subgraph.tensors[tensor].is_variable:
            name = self.subgraph.tensors[tensor].name
            raise Unsupported(f"'{name}' is a variable, which the operator may not read on the GPU")
        if tensor not in self.values and (whole := self.parts.together(tensor)) is not None:
            self.values[tensor] = whole
        constant = self.constant_tensor(tensor)
        if constant is not None and tensor not in self.values:
            array = as_array(constant, decode=not self.checking, tensors=self.subgraph.tensors)
            self.values[tensor] = self.builder.constant(array, name=constant.name)
        self.ensure(tensor)
        return self.quantized.real_view(tensor) if tensor in self.quantized else self.values[tensor]

    def ensure(self, tensor: int) -> None:
        """See that a tensor has a value that may be read now."""
        if tensor not in self.values and tensor not in self.quantized and self.constant_tensor(tensor) is None:
            if not self.checking:
                raise ValueError(f"tensor {tensor} is read before it is written")
            self.enter(tensor)

    def constant_tensor(self, tensor: int) -> Tensor | None:
        """The constant behind a tensor: itself, or what a DEQUANTIZE reads."""
        t = self.subgraph.tensors[tensor]
        return t if t.is_constant else self._dequantized.get(tensor)


def value_shape(t: Tensor, has_parts: bool = False) -> tuple[int, ...]:
    """B,H,W,C of a tensor's value; what has two parts, as complex numbers do, has an axis of its own for them."""
    return bhwc((*t.shape, 2) if has_parts or t.type is TensorType.COMPLEX64 else t.shape)


def check_rank(t: Tensor) -> None:
    if len(t.shape) > MAX_RANK:
        raise Unsupported(
            f"tensor '{t.name}' has rank {len(t.shape)} (shape {list(t.shape)}): the GPU takes ranks up to {MAX_RANK}"
        )


_PRODUCED: weakref.WeakKeyDictionary[Subgraph, dict[int, Tensor]] = weakref.WeakKeyDictionary()


def _dequantized_constants(subgraph: Subgraph) -> dict[int, Tensor]:
    """Tensors that a DEQUANTIZE or DENSIFY makes from a constant -> that constant."""
    if subgraph not in _PRODUCED:
        made: dict[int, Tensor] = {}
        for o in subgraph.operators:
            known = find(o)
            if known is not None and known.widens and o.inputs and o.inputs[0] >= 0:
                source = subgraph.tensors[o.inputs[0]]
                constant = source if source.is_constant else made.get(o.inputs[0])
                if constant is not None:
                    made[o.outputs[0]] = constant
        _PRODUCED[subgraph] = made
    return _PRODUCED[subgraph]
