"""What a lowering function sees of one operator, and the graph that it adds to."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from litegpu.gpu import custom
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Copy,
    DType,
    Elementwise,
    Expr,
    GraphBuilder,
    Literal,
    Op,
    Reshape,
    Shape,
    Step,
    bhwc,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import QUANTIZED, Array, Unsupported, as_array
from litegpu.gpu.lower.quantization import STORED, Grid, grid_after, grid_of
from litegpu.gpu.lower.registered import custom_entry
from litegpu.gpu.lower.registry import MAX_RANK, REGISTRY, STATIC, Entry, Types
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

DTYPES = {
    TensorType.FLOAT32: DType.FLOAT32,
    TensorType.INT32: DType.INT32,
    TensorType.INT64: DType.INT32,  # of results that leave the GPU
    TensorType.BOOL: DType.BOOL,
}


class Lowering:
    """The graph so far, and which value stands for which tensor.

    `checking`: one operator is lowered alone to learn whether it can be, so constants need not be decoded, and what it
    reads is made up. `quantization`: quantized tensors that the model computes are taken. Their values are the real
    numbers that they stand for: what an operator computes is rounded to those that its output can hold. `in_numpy`: the
    graph is only going to be evaluated, so that what a kernel cannot do is no matter.
    """

    def __init__(
        self, subgraph: Subgraph, *, checking: bool = False, quantization: bool = True, in_numpy: bool = False
    ) -> None:
        self.subgraph, self.checking, self.quantization, self.in_numpy = subgraph, checking, quantization, in_numpy
        self.builder = GraphBuilder()
        self.values: dict[int, int] = {}
        self.grids: dict[int, Grid] = {}  # values whose elements lie on a grid
        self._exact: dict[int, int] = {}  # quantized tensor -> its value before it was rounded
        self._dequantized = _dequantized_constants(subgraph)

    def enter(self, tensor: int) -> int:
        """A value for a tensor that comes from outside (nobody reads it where the constant behind it is known)."""
        t = self.subgraph.tensors[tensor]
        _check_rank(t)
        grid = self.grid(t)
        dtype = DTYPES.get(t.type, DType.FLOAT32) if grid is None else STORED[t.type]
        value = self.builder.value(bhwc(t.shape), dtype, name=t.name, tensor=tensor)
        if self.constant_tensor(tensor) is None:
            self.values[tensor] = value if grid is None else self._mapped(grid.real(Arg(0)), value, grid)
        return value

    def leave(self, tensor: int) -> int:
        """The value of a tensor that goes outside, in the type in which it is stored there."""
        t, value = self.subgraph.tensors[tensor], self.value(tensor)
        grid = self.grid(t)
        if grid is None:
            return value
        shape = self.builder.values[value].shape
        if shape[3] % 4 and math.prod(shape[:3]) > 1:  # no thread may write a part of a word
            flat = (1, 1, 1, math.prod(shape))
            moved = self.builder.value(flat, DType.FLOAT32)
            value = self.builder.node(Copy((Reshape(shape, flat),)), [value], moved)
        elif tensor in self._exact and not any(value in n.reads for n in self.builder.nodes):
            value = self._exact[tensor]
        stored = self.builder.value(self.builder.values[value].shape, STORED[t.type], name=t.name, tensor=tensor)
        return self.builder.node(Elementwise(), (), stored, grid.quantized(Arg(0)), [value])

    def value(self, tensor: int) -> int:
        """The value that stands for a tensor; constants enter the graph when first asked for."""
        constant = self.constant_tensor(tensor)
        if constant is not None and tensor not in self.values:
            array = as_array(constant, decode=not self.checking)
            self.values[tensor] = self.builder.constant(array, name=constant.name)
            if (grid := grid_of(constant, constant=True)) is not None:
                self.grids[self.values[tensor]] = grid
        if tensor not in self.values:
            if not self.checking:
                raise ValueError(f"tensor {tensor} is read before it is written")
            self.enter(tensor)
        return self.values[tensor]

    def constant_tensor(self, tensor: int) -> Tensor | None:
        """The constant behind a tensor: itself, or what a DEQUANTIZE reads."""
        t = self.subgraph.tensors[tensor]
        return t if t.is_constant else self._dequantized.get(tensor)

    def lower(self, operator: Operator) -> None:
        """Add the nodes of one operator. Raises Unsupported."""
        entry = _entry(operator)
        if entry is None:
            kind = "custom operator" if operator.is_custom else "operator"
            raise Unsupported(f"the {kind} {operator.name} is not among those that the GPU runs")
        if operator.version > entry.max_version:
            raise Unsupported(f"version {operator.version}: versions up to {entry.max_version} are known")
        ctx = OpContext(self, operator, entry)
        fewest, most = entry.counts
        if not fewest <= len(operator.inputs) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise Unsupported(f"{len(operator.inputs)} inputs where the operator takes {wanted}")
        for i in range(len(operator.inputs)):
            if ctx.has(i):
                ctx.check_input(i)
        rank = len(ctx.shape(entry.data))
        low, high = entry.ranks
        if not low <= rank <= high:
            wanted = f"rank {low}" if low == high else f"ranks {low} to {high}"
            raise Unsupported(f"input {entry.data} has rank {rank}: the operator takes {wanted}")
        for tensor in ctx.outputs:
            ctx.check_output(tensor)
        first = len(self.builder.nodes)
        entry.lower(ctx)
        for node in self.builder.nodes[first:]:
            if (grid := grid_after(node, self.grids)) is not None:
                self.grids[node.output] = grid
        for tensor in ctx.outputs:
            if (grid := self.grid(tensor)) is not None:
                self._round(tensor.index, grid, operator)

    def grid(self, t: Tensor) -> Grid | None:
        """The grid of a quantized tensor that the model computes."""
        return None if t.is_constant else grid_of(t)

    def _round(self, tensor: int, grid: Grid, operator: Operator) -> None:
        """Let the tensor hold only what it can: imitate the quantization of an operator's output."""
        value = self.values[tensor]
        if self.grids.get(value) != grid:
            self._exact[tensor] = value
            self.values[tensor] = self._mapped(grid.rounded(Arg(0)), value, grid, (operator.index,))

    def _mapped(self, expr: Expr, value: int, grid: Grid, sources: tuple[int, ...] = ()) -> int:
        """A new value of numbers of `grid`: `expr` of a value."""
        v = self.builder.values[value]
        result = self.builder.value(v.shape, DType.FLOAT32, name=v.name, tensor=v.tensor)
        self.grids[result] = grid
        return self.builder.node(Elementwise(), (), result, expr, [value], sources)


class OpContext:
    """One operator being lowered. Shapes are those of the .tflite tensors unless said otherwise."""

    def __init__(self, lowering: Lowering, operator: Operator, entry: Entry) -> None:
        self.lowering, self.operator, self.entry = lowering, operator, entry
        self.builder = lowering.builder
        self.outputs = tuple(lowering.subgraph.tensors[i] for i in operator.outputs)

    # ------------------------------------------------------------------------------------- what is there

    def has(self, i: int) -> bool:
        """Whether input i is given (optional ones may be missing)."""
        return i < len(self.operator.inputs) and self.operator.inputs[i] >= 0

    def tensor(self, i: int) -> Tensor:
        if not self.has(i):
            raise Unsupported(f"input {i} is missing")
        return self.lowering.subgraph.tensors[self.operator.inputs[i]]

    def shape(self, i: int) -> Shape:
        return tuple(self.tensor(i).shape)

    def dtype(self, i: int) -> DType:
        """What input i is on the GPU."""
        return self.lowering.builder.values[self.value(i)].dtype

    @property
    def output(self) -> Tensor:
        return self.outputs[0]

    def option(self, name: str, default: Any = 0) -> Any:
        return self.operator.options.get(name, default)

    def value(self, i: int) -> int:
        """The graph's value for input i."""
        return self.lowering.value(self.operator.inputs[i])

    def is_constant(self, i: int) -> bool:
        return self.lowering.constant_tensor(self.operator.inputs[i]) is not None

    def array(self, i: int) -> Array:
        """The constant input i as float32, int32 or bool (float elements are zeros while only checking)."""
        data = self.builder.values[self.value(i)].data
        assert data is not None
        return data.reshape(self.shape(i))

    def integers(self, i: int, what: str) -> tuple[int, ...]:
        """The elements of the constant integer input i, `what` naming it for the reason if it is not constant."""
        t = self.tensor(i)
        if t.data is None:
            raise Unsupported(f"{what} (input {i}, '{t.name}') are computed by the model: the GPU needs constants")
        if t.type not in (TensorType.INT32, TensorType.INT64):
            raise Unsupported(f"{what} (input {i}) have type {t.type.name}: INT32 or INT64 are taken")
        return tuple(int(n) for n in t.data.reshape(-1))

    # ------------------------------------------------------------------------------------------- checks

    def check_input(self, i: int) -> None:
        t, types = self.tensor(i), self.entry.types(i)
        _check_rank(t)
        if types is STATIC:
            return
        _check_not_empty(t)
        constant = self.lowering.constant_tensor(self.operator.inputs[i])
        if constant is not None:
            stored = constant.type
            if stored in (TensorType.FLOAT16, TensorType.FLOAT64) or stored in QUANTIZED:
                stored = TensorType.FLOAT32
            if stored is TensorType.INT64:
                stored = TensorType.INT32
        else:
            stored = self._computed(t, f"input {i}")
        if stored not in types:
            raise Unsupported(f"input {i} is {_type_reason(t.type, types)}")

    def check_output(self, t: Tensor) -> None:
        _check_rank(t)
        _check_not_empty(t)
        if self._computed(t, "the output") not in self.entry.outputs:
            raise Unsupported(f"the output is {_type_reason(t.type, self.entry.outputs)}")

    def _computed(self, t: Tensor, what: str) -> TensorType:
        """What kind of tensor it is for the operator: one that stands for real numbers is FLOAT32."""
        if t.type not in STORED or not self.entry.quantized:
            return t.type
        if not self.lowering.quantization:
            raise Unsupported(f"{what}, '{t.name}', is {t.type.name}: quantization_enabled is False")
        return t.type if self.lowering.grid(t) is None else TensorType.FLOAT32

    def require(self, condition: bool, reason: str) -> None:
        if not condition:
            raise Unsupported(reason)

    def check_shape(self, shape: Iterable[int], tensor: Tensor | None = None) -> None:
        """The output must have the shape that the operator gives."""
        t, wanted = tensor or self.output, tuple(shape)
        if tuple(t.shape) != wanted:
            raise Unsupported(f"output '{t.name}' has shape {list(t.shape)} where the operator gives {list(wanted)}")

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """An axis counted from 0; negative ones count from the end."""
        if not -rank <= value < rank:
            raise Unsupported(f"{what} {value} is outside a tensor of rank {rank}")
        return value % rank

    # -------------------------------------------------------------------------------------- adding nodes

    def intermediate(self, shape: Iterable[int], dtype: DType) -> int:
        """A new value that stands for no tensor, of rank 0 to 4."""
        return self.builder.value(bhwc(shape), dtype)

    def output_value(self, tensor: Tensor | None = None) -> int:
        """A new value for an output."""
        t = tensor or self.output
        v = self.builder.value(bhwc(t.shape), DTYPES.get(t.type, DType.FLOAT32), name=t.name, tensor=t.index)
        self.lowering.values[t.index] = v
        return v

    def add(self, op: Op, inputs: Iterable[int], output: int, epilogue: Expr = RESULT,
            operands: Iterable[int] = ()) -> int:  # fmt: skip
        return self.builder.node(op, inputs, output, epilogue, operands, (self.operator.index,))

    def elementwise(self, expr: Expr, operands: Sequence[int], output: int) -> int:
        """Arg(i) of `expr` is operands[i], broadcast to the output's shape."""
        return self.add(Elementwise(), (), output, expr, operands)

    def copy(self, source: int, steps: Sequence[Step], output: int) -> int:
        return self.add(Copy(tuple(steps)), [source], output)

    def reshaped(self, source: int, shape: Iterable[int]) -> int:
        """`source` as another shape of rank 0 to 4, itself if that is its shape already."""
        value, target = self.builder.values[source], bhwc(shape)
        if value.shape == target:
            return source
        return self.copy(source, [Reshape(value.shape, target)], self.intermediate(target, value.dtype))

    def finish(self, op: Op, inputs: Sequence[int], shape: Iterable[int], epilogue: Expr = RESULT,
               operands: Iterable[int] = (), dtype: DType = DType.FLOAT32) -> None:  # fmt: skip
        """Add `op` with a result of `shape` (rank 0 to 4) and reinterpret that as the operator's output."""
        if bhwc(shape) == bhwc(self.output.shape):
            self.add(op, inputs, self.output_value(), epilogue, operands)
            return
        result = self.add(op, inputs, self.intermediate(shape, dtype), epilogue, operands)
        self.copy(result, [Reshape(bhwc(shape), bhwc(self.output.shape))], self.output_value())

    def activation(self, expr: Expr, dtype: DType = DType.FLOAT32) -> Expr:
        """`expr` followed by the operator's fused activation."""
        return activate(expr, int(self.option("fused_activation_function")), dtype)


def _entry(operator: Operator) -> Entry | None:
    """How an operator is lowered; what a user registered for a custom code comes first."""
    if operator.is_custom:
        registered = custom.registered(operator.name)
        if registered is not None:
            return custom_entry(registered)
    entry = REGISTRY.get(operator.name)
    return entry if entry is not None and entry.custom == operator.is_custom else None


ACTIVATIONS = {0: "NONE", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
_BOUNDS: dict[int, tuple[float | None, float | None]] = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}
_TANH = 4
#: The fused activations that are known.
FUSED = (*_BOUNDS, _TANH)


def activate(expr: Expr, code: int, dtype: DType = DType.FLOAT32) -> Expr:
    """A fused activation of the schema. Data comes first in min and max, so that NaN passes through."""
    if code == _TANH and dtype is DType.FLOAT32:
        return fn("tanh", expr)
    if code not in _BOUNDS:
        raise Unsupported(f"the fused activation {ACTIVATIONS.get(code, code)} of a {dtype.value} result is not known")
    return clamp(expr, *_BOUNDS[code], dtype=dtype)


def clamp(expr: Expr, low: float | None, high: float | None, dtype: DType = DType.FLOAT32) -> Expr:
    kind = float if dtype is DType.FLOAT32 else int
    if low is not None:
        expr = fn("max", expr, Literal(kind(low), dtype))
    if high is not None:
        expr = fn("min", expr, Literal(kind(high), dtype))
    return expr


def _check_rank(t: Tensor) -> None:
    if len(t.shape) > MAX_RANK:
        raise Unsupported(
            f"tensor '{t.name}' has rank {len(t.shape)} (shape {list(t.shape)}): the GPU takes ranks up to {MAX_RANK}"
        )


def _check_not_empty(t: Tensor) -> None:
    if 0 in t.shape:
        raise Unsupported(f"tensor '{t.name}' of shape {list(t.shape)} is empty: there is nothing for the GPU to do")


def _type_reason(found: TensorType, wanted: Types) -> str:
    names = " or ".join(t.name for t in sorted(wanted))
    without = " without quantization parameters" if found in STORED and TensorType.FLOAT32 in wanted else ""
    return f"{found.name}{without} where {names} is taken"


_PRODUCED: weakref.WeakKeyDictionary[Subgraph, dict[int, Tensor]] = weakref.WeakKeyDictionary()


def _dequantized_constants(subgraph: Subgraph) -> dict[int, Tensor]:
    """Tensors that a DEQUANTIZE makes from a constant -> that constant."""
    if subgraph not in _PRODUCED:
        _PRODUCED[subgraph] = {
            o.outputs[0]: subgraph.tensors[o.inputs[0]]
            for o in subgraph.operators
            if o.name == "DEQUANTIZE" and subgraph.tensors[o.inputs[0]].is_constant
        }
    return _PRODUCED[subgraph]
