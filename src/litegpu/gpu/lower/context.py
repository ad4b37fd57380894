"""What a lowering function sees of one operator, and the graph that it adds to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.graph import RESULT, Copy, DType, Elementwise, Expr, Literal, Op, Reshape, Shape, Step, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.activation import BOUNDS, activate, clamp
from litegpu.gpu.lower.constants import QUANTIZED, Array, Unsupported
from litegpu.gpu.lower.quantization import STORED, grid_of
from litegpu.gpu.lower.values import Values, check_rank, dtype_of, value_shape
from litegpu.model.ops import Gpu
from litegpu.model.ops.record import ANY, STATIC, Types
from litegpu.model.types import Operator, Tensor, TensorType

#: Scales that differ by this are the same for the CPU's kernels that want equal ones.
_NEAR = 1e-6


#: Integers without a sign that are words of 32 bits on the GPU.
_WORDS = frozenset({TensorType.UINT32, TensorType.UINT16})

#: Why an operator is left to the CPU in whole numbers.
NOT_KNOWN = "what the CPU computes is not known to the last bit (arithmetic='integer')"


class OpContext:
    """One operator being lowered. Shapes are those of the .tflite tensors unless said otherwise.

    `unit` is what 1.0 stands for in the results, None for 1.0: a lowering function that computes them in units of
    something else sets it before it asks for the activation.
    """

    def __init__(self, lowering: Values, operator: Operator, gpu: Gpu) -> None:
        self.lowering, self.operator, self.gpu = lowering, operator, gpu
        self.builder = lowering.builder
        self.outputs = tuple(lowering.subgraph.tensors[i] for i in operator.outputs)
        self.unit: float | None = None
        self._given_quanta = False
        self.moves_bytes = gpu.grids != "" and self._moves_bytes()
        other = gpu.grids == "moved" and not self._rescales and self._grids_differ()
        self.moves_stored = self.moves_bytes or other
        self.gives_stored = self.moves_stored
        self._real: dict[int, int] = {}  # quantized tensor -> the real numbers of it that this operator reads

    def _grids_differ(self, near: float = 0.0) -> bool:
        """Whether what is moved is quantized otherwise where it comes to, or not at all: the CPU moves the bytes.
        Scales that are so near to each other are the same."""
        data = [i for i in range(len(self.operator.inputs)) if self.has(i) and self.gpu.types(i) is not STATIC]
        moved = [t for t in (*(self.tensor(i) for i in data), *self.outputs) if t.type in STORED]
        grids = {grid_of(t) for t in moved if not t.is_constant}
        known = [g for g in grids if g is not None]
        if near and len(known) == len(grids) and len({(g.zero, g.low) for g in known}) == 1:
            scales = [g.scale for g in known]
            return max(scales) - min(scales) > near
        return len(grids) > 1

    def _moves_bytes(self) -> bool:
        """Whether the operator takes and gives the bytes of quantized tensors, in whole numbers."""
        data = [i for i in range(len(self.operator.inputs)) if self.has(i) and self.gpu.types(i) is not STATIC]
        moved = [t for t in (*(self.tensor(i) for i in data), *self.outputs) if t.type in STORED]
        narrow = bool(moved) and all(t.is_constant or self.lowering.quantized.keeps_stored(grid_of(t)) for t in moved)
        differ = (self.gpu.grids == "alike" or self._rescales) and self._grids_differ()
        return narrow and not differ and len({t.type for t in moved}) == 1

    def _some_unknown(self) -> bool:
        tensors = [*(self.tensor(i) for i in range(len(self.operator.inputs))), self.output]
        return any(not t.is_constant and grid_of(t) is None for t in tensors)

    @property
    def _rescales(self) -> bool:
        """Whether the CPU takes into account that what is joined is quantized otherwise than the result."""
        return self.output.type in self.gpu.rescales

    def _stored(self, i: int) -> int:
        """The value of the numbers that input i has in memory, int32."""
        t, quantized = self.tensor(i), self.lowering.quantized
        if t.is_constant and t.data is not None and self.moves_bytes:
            return self.builder.constant(t.data.reshape(t.shape), name=t.name, narrow=True)
        if t.is_constant and t.data is not None:
            return self.builder.constant(t.data.reshape(t.shape).astype(np.int32), name=t.name)
        self.lowering.ensure(t.index)
        grid = grid_of(t)
        if grid is None:
            return self.lowering.value(t.index)
        if self.moves_bytes:
            return quantized.stored[t.index]
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
        if mixed or (self.gpu.grids == "alike" and self._grids_differ(near=_NEAR)):
            raise Unsupported("inputs and outputs are quantized in different ways, which the CPU's kernel does not see")
        positions = range(len(self.operator.inputs))
        given = [i for i in positions if self.has(i) and not self.tensor(i).is_variable]
        real = [i for i in given if TensorType.FLOAT32 in self.gpu.types(i)]
        for i in real:
            self.lowering.ensure(self.operator.inputs[i])
        operands = [self.operator.inputs[i] for i in real]
        self.unit = self.lowering.quantized.unit(operands) if self.gpu.quanta == "linear" else None
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

    @property
    def zero(self) -> float:
        """What stands for 0 in the elements that the operator moves."""
        grid = grid_of(self.output)
        return 0.0 if grid is None or not self.moves_bytes else float(grid.zero)

    def option(self, name: str, default: Any = 0) -> Any:
        return self.operator.options.get(name, default)

    def value(self, i: int) -> int:
        """The graph's value for input i."""
        tensor = self.operator.inputs[i]
        if self.moves_stored and self.tensor(i).type in STORED:
            return self._stored(i)
        value = self._real.get(tensor)
        if value is None:
            given = self._given_quanta and tensor in self.lowering.quantized
            value = self.lowering.quantized.quanta_view(tensor) if given else self.lowering.value(tensor)
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
        if t.type not in _COUNTS:
            raise Unsupported(f"{what} (input {i}) have type {t.type.name}: INT8, INT16, INT32 or INT64 are taken")
        return tuple(int(n) for n in t.data.reshape(-1))

    # ------------------------------------------------------------------------------------------- checks

    def check_input(self, i: int) -> None:
        t, types = self.tensor(i), self.gpu.types(i)
        check_rank(t)
        if types is STATIC:
            return
        check_not_empty(t)
        constant = self.lowering.constant_tensor(self.operator.inputs[i])
        found = self._computed(t, f"input {i}", types) if constant is None else _constant_type(constant)
        if found not in types:
            raise Unsupported(f"input {i} is {_type_reason(t.type, types)}")

    def check_output(self, t: Tensor) -> None:
        check_rank(t)
        check_not_empty(t)
        if self._computed(t, "the output", self.gpu.results) not in self.gpu.results:
            raise Unsupported(f"the output is {_type_reason(t.type, self.gpu.results)}")

    def _computed(self, t: Tensor, what: str, types: Types) -> TensorType:
        """What kind of tensor it is for the operator: one that stands for real numbers is FLOAT32, other bytes are
        INT32 where the operator takes whatever there is."""
        if grid_of(t) is None and (t.type in self.gpu.small or (t.type in _WORDS and types >= ANY)):
            return TensorType.INT32
        if t.type not in STORED:
            if t.type is TensorType.INT64 and self.gpu.span_rule is not None:
                return TensorType.INT32
            half = t.type is TensorType.FLOAT16 and TensorType.FLOAT32 in types
            return TensorType.FLOAT32 if half else t.type
        if not self.lowering.quantization:
            raise Unsupported(f"{what} is {t.type.name}: quantization_enabled is False")
        if grid_of(t) is not None and not self.gpu.quantized:
            raise Unsupported(f"{what} is {t.type.name} with quantization parameters, which are not taken")
        if grid_of(t) is not None:
            return TensorType.FLOAT32
        return TensorType.INT32 if types >= ANY else t.type

    def require(self, condition: bool, reason: str) -> None:
        if not condition:
            raise Unsupported(reason)

    def require_reals(self) -> None:
        """Refuse the operator in whole numbers, where what is known of it is not enough to be equal to the CPU."""
        whole = any(self.lowering.quantized.keeps_stored(grid_of(t)) for t in self.outputs)
        self.require(not whole, NOT_KNOWN)

    def check_shape(self, shape: Iterable[int], tensor: Tensor | None = None) -> None:
        """The output must have the shape that the operator gives."""
        t, wanted = tensor or self.output, tuple(shape)
        if self.lowering.checking and not t.has_rank:
            return  # the file leaves it to the operator
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
        dtype = self.output_type(t)
        v = self.builder.value(value_shape(t), dtype, name=t.name, tensor=t.index)
        self.lowering.values[t.index] = v
        return v

    def rounds_to_half(self, t: Tensor) -> bool:
        """Whether a result of the operator is FLOAT16 that it computes, rather than moves."""
        return t.type is TensorType.FLOAT16 and (self.gpu.widens or not self.gpu.results >= ANY)

    def keeps_bits(self, t: Tensor) -> bool:
        """Whether a result of the operator is integers of fewer bits than it computes with, rather than moves."""
        return t.type in self.gpu.small and self.gpu.grids != "moved"

    def output_type(self, t: Tensor) -> DType:
        """Of the value for an output."""
        if t.type not in STORED or not self.gives_stored:
            return dtype_of(t)
        return STORED[t.type] if self.lowering.quantized.keeps_stored(grid_of(t)) else DType.INT32

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
               operands: Iterable[int] = (), dtype: DType | None = None) -> None:  # fmt: skip
        """Add `op` with a result of `shape` (rank 0 to 4) and reinterpret that as the operator's output."""
        if bhwc(shape) == bhwc(self.output.shape):
            self.add(op, inputs, self.output_value(), epilogue, operands)
            return
        dtype = dtype or self.output_type(self.output)
        result = self.add(op, inputs, self.intermediate(shape, dtype), epilogue, operands)
        self.copy(result, [Reshape(bhwc(shape), bhwc(self.output.shape))], self.output_value())

    def activation(self, expr: Expr, dtype: DType = DType.FLOAT32, *, by_xnnpack: bool = False) -> Expr:
        """`expr` followed by the operator's fused activation; of a quantized result the limits are those that XNNPACK's
        kernels, or the others, store."""
        code, grid = int(self.option("fused_activation_function")), grid_of(self.output)
        if grid is None or dtype is not DType.FLOAT32 or code not in BOUNDS:
            return activate(expr, code, dtype, self.unit or 1.0)
        low, high = BOUNDS[code]
        bottom, top = (q * grid.scale / (self.unit or 1.0) for q in grid.limits(low, high, by_xnnpack=by_xnnpack))
        return clamp(expr, None if low is None else bottom, None if high is None else top)


#: Types of constants that say where, or how many.
_COUNTS = (TensorType.INT8, TensorType.INT16, TensorType.INT32, TensorType.INT64)


def _constant_type(t: Tensor) -> TensorType:
    """What kind of tensor a constant is for an operator."""
    q = t.quantization
    if t.type in STORED and not (q is not None and (q.scales.size or q.block_size)):
        return TensorType.INT32
    if t.type in (TensorType.FLOAT16, TensorType.BFLOAT16, TensorType.FLOAT64) or t.type in QUANTIZED:
        return TensorType.FLOAT32
    return TensorType.INT32 if t.type is TensorType.INT64 or t.type in _WORDS else t.type


def check_not_empty(t: Tensor) -> None:
    """Raises Unsupported."""
    if 0 in t.shape:
        raise Unsupported(f"tensor '{t.name}' of shape {list(t.shape)} is empty: there is nothing for the GPU to do")


def _type_reason(found: TensorType, wanted: Types) -> str:
    names = " or ".join(t.name for t in sorted(wanted))
    without = " without quantization parameters" if found in STORED and TensorType.FLOAT32 in wanted else ""
    return f"{found.name}{without} where {names} is taken"
