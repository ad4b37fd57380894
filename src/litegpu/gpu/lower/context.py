"""What a lowering function sees of one operator, and the graph that it adds to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

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
from litegpu.gpu.lower.quantization import STORED, QuantizedValues, grid_of, stored
from litegpu.gpu.lower.registered import custom_entry
from litegpu.gpu.lower.registry import ANY, MAX_RANK, REGISTRY, STATIC, Entry, Types
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

DTYPES = {
    TensorType.FLOAT32: DType.FLOAT32,
    TensorType.INT32: DType.INT32,
    TensorType.INT64: DType.INT32,  # of results that leave the GPU
    TensorType.BOOL: DType.BOOL,
}


#: Operators of which the CPU moves or chooses elements without looking at what they stand for.
MOVES = frozenset({
    *("BATCH_TO_SPACE_ND", "BROADCAST_TO", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER"),
    *("GATHER_ND", "MAXIMUM", "MINIMUM", "MIRROR_PAD", "PACK", "RESHAPE", "RESIZE_NEAREST_NEIGHBOR"),
    *("REVERSE_V2", "SLICE", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE"),
    *("TRANSPOSE", "UNPACK"),
})  # fmt: skip
#: Scales that differ by this are the same for the CPU's kernels that want equal ones.
_NEAR = 1e-6
#: Others that take input and output to be quantized alike.
KEEPS = frozenset({"AVERAGE_POOL_2D", "MAX_POOL_2D", "PAD", "PADV2", "REDUCE_MAX", "REDUCE_MIN", "SPACE_TO_BATCH_ND"})


def dtype_of(tensor: Tensor) -> DType:
    """What a tensor holds while it is computed with."""
    if tensor.type in STORED:
        return DType.INT32 if grid_of(tensor) is None else DType.FLOAT32
    return DTYPES.get(tensor.type, DType.FLOAT32)


class Lowering:
    """The graph so far, and which value stands for which tensor.

    `checking`: one operator is lowered alone to learn whether it can be, so constants need not be decoded, and what it
    reads is made up. `quantization`: quantized tensors that the model computes are taken; what an operator computes is
    rounded to what its output can hold. `in_numpy`: the graph is only going to be evaluated, so that what a kernel
    cannot do is no matter. `xnnpack`: integers are rounded as XNNPACK's kernels do, where it has some, else as the
    runtime's own.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        *,
        checking: bool = False,
        quantization: bool = True,
        in_numpy: bool = False,
        xnnpack: bool = True,
    ) -> None:
        self.subgraph, self.checking, self.quantization, self.in_numpy = subgraph, checking, quantization, in_numpy
        self.xnnpack = xnnpack
        self.builder = GraphBuilder()
        self.values: dict[int, int] = {}
        self.quantized = QuantizedValues(subgraph, self.builder)
        self.variables: dict[int, int] = {}  # variable tensor -> its value before the inference
        self.updates: dict[int, int] = {}  # variable tensor -> its value so far
        self._dequantized = _dequantized_constants(subgraph)

    def enter(self, tensor: int) -> int:
        """A value for a tensor that comes from outside (nobody reads it where the constant behind it is known)."""
        t = self.subgraph.tensors[tensor]
        _check_rank(t)
        grid = grid_of(t)
        value = self.builder.value(bhwc(t.shape), STORED.get(t.type, dtype_of(t)), name=t.name, tensor=tensor)
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
        if grid is not None:
            return self.quantized.leave(tensor, grid)
        return stored(self.builder, t, Arg(0), self.value(tensor)) if t.type in STORED else self.value(tensor)

    def value(self, tensor: int) -> int:
        """The value that stands for a tensor; constants enter the graph when first asked for. Of a quantized tensor it
        is one of real numbers."""
        if self.subgraph.tensors[tensor].is_variable:
            name = self.subgraph.tensors[tensor].name
            raise Unsupported(f"'{name}' is a variable, which the operator may not read on the GPU")
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

    def lower(self, operator: Operator) -> None:
        """Add the nodes of one operator, none if nothing reads its results. Raises Unsupported."""
        if not self._is_read(operator):
            return
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
        ctx.choose_unit()
        entry.lower(ctx)
        for tensor in ctx.outputs:
            self._settle(ctx, tensor)

    def _is_read(self, operator: Operator) -> bool:
        """Whether anything reads what the operator computes, or a variable keeps it."""
        if self.subgraph not in _READ:
            _READ[self.subgraph] = {*self.subgraph.outputs, *(t for o in self.subgraph.operators for t in o.inputs)}
        tensors = self.subgraph.tensors
        return not _READ[self.subgraph].isdisjoint(operator.outputs) or any(
            t >= 0 and tensors[t].is_variable for t in operator.inputs
        )

    def _settle(self, ctx: OpContext, t: Tensor) -> None:
        """Turn a result in units of `ctx.unit` into what is kept for the tensor."""
        value, grid = self.values[t.index], grid_of(t)
        if grid is not None and ctx.moves_stored:
            del self.values[t.index]
            self.quantized.enter(t.index, value, grid)
        elif grid is not None:
            del self.values[t.index]
            self.quantized.settle(t.index, value, grid, ctx.unit, ctx.operator)
        elif ctx.unit is not None and t.type is TensorType.FLOAT32:
            result = self.builder.value(bhwc(t.shape), DType.FLOAT32, name=t.name, tensor=t.index)
            self.builder.node(Elementwise(), (), result, fn("mul", Arg(0), ctx.unit), [value], (ctx.operator.index,))
            self.values[t.index] = result


class OpContext:
    """One operator being lowered. Shapes are those of the .tflite tensors unless said otherwise.

    `unit` is what 1.0 stands for in the results, None for 1.0: a lowering function that computes them in units of
    something else sets it before it asks for the activation.
    """

    def __init__(self, lowering: Lowering, operator: Operator, entry: Entry) -> None:
        self.lowering, self.operator, self.entry = lowering, operator, entry
        self.builder = lowering.builder
        self.outputs = tuple(lowering.subgraph.tensors[i] for i in operator.outputs)
        self.unit: float | None = None
        self._given_quanta = False
        self.moves_stored = operator.name in MOVES and not self._rescales and self._grids_differ()
        self._real: dict[int, int] = {}  # quantized tensor -> the real numbers of it that this operator reads

    def _grids_differ(self, near: float = 0.0) -> bool:
        """Whether what is moved is quantized otherwise where it comes to, or not at all: the CPU moves the bytes.
        Scales that are so near to each other are the same."""
        data = [i for i in range(len(self.operator.inputs)) if self.has(i) and self.entry.types(i) is not STATIC]
        moved = [t for t in (*(self.tensor(i) for i in data), *self.outputs) if t.type in STORED]
        grids = {grid_of(t) for t in moved if not t.is_constant}
        known = [g for g in grids if g is not None]
        if near and len(known) == len(grids) and len({(g.zero, g.low) for g in known}) == 1:
            scales = [g.scale for g in known]
            return max(scales) - min(scales) > near
        return len(grids) > 1

    def _some_unknown(self) -> bool:
        tensors = [*(self.tensor(i) for i in range(len(self.operator.inputs))), self.output]
        return any(not t.is_constant and grid_of(t) is None for t in tensors)

    @property
    def _rescales(self) -> bool:
        """Whether the CPU takes into account that what is joined is quantized otherwise than the result."""
        return self.operator.name == "CONCATENATION" and self.output.type is TensorType.UINT8

    def _stored(self, i: int) -> int:
        """The value of the numbers that input i has in memory, int32."""
        t, quantized = self.tensor(i), self.lowering.quantized
        if t.is_constant and t.data is not None:
            return self.builder.constant(t.data.reshape(t.shape).astype(np.int32), name=t.name)
        self.lowering.ensure(t.index)
        grid = grid_of(t)
        if grid is None:
            return self.lowering.value(t.index)
        value, expr = quantized.whole(t.index)
        return self.builder.node(
            Elementwise(), (), self.intermediate(t.shape, DType.INT32),
            fn("add", expr, Literal(grid.zero, DType.INT32)), [value], (self.operator.index,),
        )  # fmt: skip

    def choose_unit(self) -> None:
        """Give the operator quanta where it works on them as on real numbers."""
        if self.moves_stored:
            return
        mixed = self._rescales and self._grids_differ() and self._some_unknown()
        if mixed or (self.operator.name in KEEPS and self._grids_differ(near=_NEAR)):
            raise Unsupported("inputs and outputs are quantized in different ways, which the CPU's kernel does not see")
        positions = range(len(self.operator.inputs))
        given = [i for i in positions if self.has(i) and not self.tensor(i).is_variable]
        real = [i for i in given if TensorType.FLOAT32 in self.entry.types(i)]
        for i in real:
            self.lowering.ensure(self.operator.inputs[i])
        self.unit = self.lowering.quantized.unit(self.operator, [self.operator.inputs[i] for i in real])
        self._given_quanta = self.unit is not None

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

    def variable(self, i: int) -> int:
        """The value that input i, a variable, has before the operator: real numbers, zeros at first."""
        t, lowering = self.tensor(i), self.lowering
        self.require(t.is_variable, f"input {i}, '{t.name}', is no variable")
        grid = grid_of(t)  # a reset sets all bytes of the tensor to zero, or to the zero point if it is INT8
        zero = t.type is TensorType.FLOAT32 or (grid is not None and (t.type is TensorType.INT8 or grid.zero == 0))
        self.require(zero, f"the variable '{t.name}' is {t.type.name} and no zero after a reset")
        if t.index not in lowering.variables:
            value = self.builder.value(bhwc(t.shape), DType.FLOAT32, name=t.name, tensor=t.index)
            lowering.variables[t.index] = lowering.updates[t.index] = value
        return lowering.updates[t.index]

    def update(self, i: int, value: int) -> None:
        """Let input i, a variable, keep `value`."""
        self.lowering.updates[self.tensor(i).index] = value

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
        tensor = self.operator.inputs[i]
        if self.moves_stored and self.tensor(i).type in STORED:
            return self._stored(i)
        if self._given_quanta and tensor in self.lowering.quantized:
            return self.lowering.quantized.quanta[tensor]
        value = self._real.get(tensor)
        if value is None:
            value = self.lowering.value(tensor)
            if tensor in self.lowering.quantized:
                self._real[tensor] = value
        return value

    def quanta(self, i: int) -> int | None:
        """The value of input i in units of its quantum; None where there is none."""
        return self.lowering.quantized.quanta.get(self.operator.inputs[i])

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
            found = constant.type
            if found in (TensorType.FLOAT16, TensorType.FLOAT64) or found in QUANTIZED:
                found = TensorType.FLOAT32
            if found is TensorType.INT64:
                found = TensorType.INT32
        else:
            found = self._computed(t, f"input {i}", types)
        if found not in types:
            raise Unsupported(f"input {i} is {_type_reason(t.type, types)}")

    def check_output(self, t: Tensor) -> None:
        _check_rank(t)
        _check_not_empty(t)
        if self._computed(t, "the output", self.entry.outputs) not in self.entry.outputs:
            raise Unsupported(f"the output is {_type_reason(t.type, self.entry.outputs)}")

    def _computed(self, t: Tensor, what: str, types: Types) -> TensorType:
        """What kind of tensor it is for the operator: one that stands for real numbers is FLOAT32, other bytes are
        INT32 where the operator takes whatever there is."""
        if t.type not in STORED:
            return t.type
        if not self.lowering.quantization:
            raise Unsupported(f"{what} is {t.type.name}: quantization_enabled is False")
        if grid_of(t) is not None:
            return TensorType.FLOAT32 if self.entry.quantized else t.type
        return TensorType.INT32 if types >= ANY else t.type

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
        dtype = DType.INT32 if self.moves_stored and t.type in STORED else dtype_of(t)
        v = self.builder.value(bhwc(t.shape), dtype, name=t.name, tensor=t.index)
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
        return activate(expr, int(self.option("fused_activation_function")), dtype, self.unit or 1.0)


def _entry(operator: Operator) -> Entry | None:
    """How an operator is lowered; what a user registered for a custom code comes first."""
    if operator.is_custom:
        registered = custom.registered(operator.name)
        if registered is not None:
            return custom_entry(registered)
    entry = REGISTRY.get(operator.name)
    return entry if entry is not None and entry.custom == operator.is_custom else None


ACTIVATIONS = {0: "NONE", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
BOUNDS: dict[int, tuple[float | None, float | None]] = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}
_TANH = 4
#: The fused activations that are known.
FUSED = (*BOUNDS, _TANH)


def activate(expr: Expr, code: int, dtype: DType = DType.FLOAT32, unit: float = 1.0) -> Expr:
    """A fused activation of the schema, where 1.0 stands for `unit`. Data come first in min and max, for NaN."""
    if code == _TANH and dtype is DType.FLOAT32:
        return fn("tanh", expr) if unit == 1 else fn("div", fn("tanh", fn("mul", expr, unit)), unit)
    if code not in BOUNDS:
        raise Unsupported(f"the fused activation {ACTIVATIONS.get(code, code)} of a {dtype.value} result is not known")
    low, high = (None if bound is None else bound / unit for bound in BOUNDS[code])
    return clamp(expr, low, high, dtype=dtype)


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


_READ: weakref.WeakKeyDictionary[Subgraph, set[int]] = weakref.WeakKeyDictionary()
_PRODUCED: weakref.WeakKeyDictionary[Subgraph, dict[int, Tensor]] = weakref.WeakKeyDictionary()


def _dequantized_constants(subgraph: Subgraph) -> dict[int, Tensor]:
    """Tensors that a DEQUANTIZE or DENSIFY makes from a constant -> that constant."""
    if subgraph not in _PRODUCED:
        made: dict[int, Tensor] = {}
        for o in subgraph.operators:
            if o.name in ("DEQUANTIZE", "DENSIFY") and o.inputs and o.inputs[0] >= 0:
                source = subgraph.tensors[o.inputs[0]]
                constant = source if source.is_constant else made.get(o.inputs[0])
                if constant is not None:
                    made[o.outputs[0]] = constant
        _PRODUCED[subgraph] = made
    return _PRODUCED[subgraph]
