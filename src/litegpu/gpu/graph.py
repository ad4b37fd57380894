"""The GPU graph: fixed-shape B,H,W,C values and few, general ops, each with an elementwise epilogue."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from litegpu.gpu.custom.definition import Definition

Shape = tuple[int, ...]


class DType(enum.Enum):
    """What a value holds: arithmetic is float32, int32 or bool.

    The others are storage types: FLOAT16 is computed with as float32; INT8, UINT8 and INT16, which only inputs and
    outputs of a graph have, as int32. What is written to those saturates.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT32 = "int32"
    BOOL = "bool"  # stored as int32, 0 or 1
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory."""
        return _BYTES.get(self.value, 4)

    @property
    def is_narrow(self) -> bool:
        """Whether several elements share a 32-bit word, as whole numbers."""
        return self in (DType.INT8, DType.UINT8, DType.INT16)


_BYTES = {"float16": 2, "int16": 2, "int8": 1, "uint8": 1}


# ---------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Arg:
    """An input of an expression. In an epilogue Arg(0) is the op's own result and Arg(i) is operand i-1."""

    index: int


@dataclass(frozen=True)
class Literal:
    """A scalar constant."""

    value: float | int | bool
    dtype: DType = DType.FLOAT32


@dataclass(frozen=True)
class Apply:
    """A function of FUNCTIONS applied to expressions. Equal subtrees are the same value and are computed once."""

    fn: str
    args: tuple[Expr, ...]


Expr = Arg | Literal | Apply

#: name -> number of arguments. Comparisons give BOOL; `select(condition, yes, no)`; `to_*` convert (to_int32
#: truncates toward zero, saturates, and maps NaN to the largest int32, as the TFLite reference CAST does).
#: `shift_right` of an int32 by a Literal rounds down; `fixed_mul(x, m, s)` is x * m * 2**(s - 31) of three int32,
#: m not negative unless it is a Literal, rounded twice as MultiplyByQuantizedMultiplier of TFLite is
#: (lower/fixed_point.py).
#: `sigmoid`, `erf`, `expm1` and `sign` are as in NumPy/SciPy; `round` rounds half to even; `floor_div` and `floor_mod`
#: (which has the sign of the divisor) as in Python; `pow`, `floor`, `atan2` as in C.
#: `min` and `max` give their second argument if either is NaN, as TFLite's MINIMUM and MAXIMUM do; if the second is a
#: Literal (RELU, clamps) a NaN first argument comes back instead, so put the data first and it passes through.
FUNCTIONS: dict[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max", "pow", "lt", "le", "gt", "ge", "eq", "ne"), 2),
    **dict.fromkeys(("logical_and", "logical_or", "floor_div", "floor_mod", "atan2", "shift_right"), 2),
    **dict.fromkeys(("neg", "abs", "exp", "expm1", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf"), 1),
    **dict.fromkeys(("floor", "ceil", "round", "sign", "logical_not", "to_float32", "to_int32", "to_bool"), 1),
    **dict.fromkeys(("select", "fixed_mul"), 3),
}

RESULT = Arg(0)


def apply(fn: str, *args: Expr | float) -> Apply:
    """`fn` of the arguments; plain numbers become float32 literals."""
    if FUNCTIONS[fn] != len(args):
        raise TypeError(f"{fn} takes {FUNCTIONS[fn]} arguments, got {len(args)}")
    return Apply(fn, tuple(a if isinstance(a, (Arg, Literal, Apply)) else Literal(float(a)) for a in args))


def substitute(expr: Expr, replace: dict[int, Expr]) -> Expr:
    """`expr` with every Arg(i) replaced by replace[i]."""
    memo: dict[int, Expr] = {}

    def visit(e: Expr) -> Expr:
        if id(e) not in memo:
            match e:
                case Arg(i):
                    memo[id(e)] = replace[i]
                case Apply(fn, args):
                    memo[id(e)] = Apply(fn, tuple(visit(a) for a in args))
                case _:
                    memo[id(e)] = e
        return memo[id(e)]

    return visit(expr)


def arguments(expr: Expr) -> set[int]:
    """The indices of all Args in `expr`."""
    match expr:
        case Arg(i):
            return {i}
        case Apply(_, args):
            return set().union(*(arguments(a) for a in args))
    return set()


# ------------------------------------------------------------------------------------------- movement steps


@dataclass(frozen=True)
class Reshape:
    """Row-major reinterpretation; `source` and `target` shapes hold the same number of elements, any rank."""

    source: Shape
    target: Shape


@dataclass(frozen=True)
class Transpose:
    """target.shape[i] = source.shape[perm[i]]."""

    perm: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """source index = begin + stride * target index, per axis; strides may be negative; `target` is the shape."""

    begin: tuple[int, ...]
    stride: tuple[int, ...]
    target: Shape


@dataclass(frozen=True)
class Pad:
    """Constant padding: source index = target index - before; outside the source the result is `fill`, converted to
    the value's type. Negative amounts cut off."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: float = 0.0


@dataclass(frozen=True)
class Mirror:
    """Mirror padding; `symmetric` repeats the edge element, otherwise (REFLECT) it does not."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    symmetric: bool = False


@dataclass(frozen=True)
class Tile:
    """source index = target index mod source size, per axis."""

    multiples: tuple[int, ...]


@dataclass(frozen=True)
class Take:
    """source index along `axis` = indices[target index]: GATHER with constant indices."""

    axis: int
    indices: tuple[int, ...]


Step = Reshape | Transpose | Slice | Pad | Mirror | Tile | Take


def step_shape(step: Step, shape: Shape) -> Shape:
    """The shape that `step` gives to a tensor of `shape`."""
    match step:
        case Reshape(source, target):
            if tuple(shape) != tuple(source) or math.prod(source) != math.prod(target):
                raise ValueError(f"{step} does not apply to a tensor of shape {shape}")
            return target
        case Transpose(perm):
            return tuple(shape[p] for p in perm)
        case Slice(_, _, target):
            return target
        case Pad(before, after) | Mirror(before, after):
            return tuple(b + n + a for b, n, a in zip(before, shape, after, strict=True))
        case Tile(multiples):
            return tuple(n * m for n, m in zip(shape, multiples, strict=True))
        case Take(axis, indices):
            return tuple(len(indices) if i == axis else n for i, n in enumerate(shape))


# ---------------------------------------------------------------------------------------------------- ops
# A node computes op(inputs) and then its epilogue expression; shapes are B,H,W,C unless said otherwise.


@dataclass(frozen=True)
class Elementwise:
    """The epilogue over `operands` only: Arg(i) is operand i (there is no op result). NumPy broadcasting."""


@dataclass(frozen=True)
class Conv2D:
    """inputs: x [B,H,W,G*I], weights [O,KH,KW,I] -> [B,OH,OW,O]. `padding` is what lies before (top, left); what lies
    after follows from the output's shape. Output channel o reads input group o // (O/groups).
    Weights may be a runtime value (groups == 1).
    Each input pixel counts `upsample` times (down, across) before anything else, as after a nearest-neighbour resize;
    `border` says what lies outside then: "zero", or its mirror image, "reflect" or "symmetric" as in Mirror (with
    groups == 1 and a window of more than one tap).
    With a `zero_point` (and groups == 1, constant weights) x is of a narrow type, and stands for x - zero_point."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    upsample: tuple[int, int] = (1, 1)
    border: str = "zero"
    zero_point: int | None = None


@dataclass(frozen=True)
class DepthwiseConv2D:
    """inputs: x [B,H,W,C], weights [1,KH,KW,C*multiplier] -> [B,OH,OW,C*multiplier]; output channel c*multiplier + j
    reads input channel c. Weights may be a runtime value."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    multiplier: int = 1


@dataclass(frozen=True)
class SeparableConv2D:
    """inputs: x, depthwise weights [1,KH,KW,C], weights [O,1,1,C], then the operands of `inner`, constant and of one
    pixel: the depthwise convolution (multiplier 1), `inner` of its result (Arg(0), and Arg(i) for inputs[2 + i]), then
    the 1x1 convolution with the weights. Made by a pass, for devices with a kernel that does both."""

    depthwise: DepthwiseConv2D
    inner: Expr = RESULT


@dataclass(frozen=True)
class TransposeConv2D:
    """inputs: x [B,H,W,I], weights [O,KH,KW,I] -> [B,OH,OW,O]; x[iy,ix] adds to out[iy*stride - padding + ky, ...]."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class MatMul:
    """inputs: a [B,H,M,K], b [B',H',K,N] -> [.., .., M, N]; leading axes broadcast; a transposed flag means that the
    stored value has its last two axes exchanged. Both may be runtime values."""

    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True)
class Attention:
    """inputs: q [B,H,M,D], k [B',H',N,D], v [B',H',N,E] and perhaps a mask that broadcasts to [B,H,M,N] -> [B,H,M,E]:
    the softmax over N of scale * q k^T + beta * mask, times v. B' is B or 1, H' is H or 1. Made by a pass."""

    scale: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True)
class Pool2D:
    """kind "average" (divides by the number of cells inside the input), "squares" (the average of their squares) or
    "max" (starts at the lowest float)."""

    kind: str
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Resize2D:
    """kind "bilinear" or "nearest"; TFLite's coordinate rules (align_corners, half_pixel_centers).

    With `bits`, bilinear of INT32 with weights of so many bits (interpolation.py), numbers of up to 16 bits; halves are
    rounded up with 11 of them, as XNNPACK does, and away from zero with 10, as the runtime's own kernel does."""

    kind: str
    align_corners: bool = False
    half_pixel_centers: bool = False
    bits: int = 0


@dataclass(frozen=True)
class Reduce:
    """kind "sum", "mean", "max", "min" or "prod" over `axes` (of B,H,W,C), keeping size-1 axes. `inputs` are the
    arguments of `prologue`, broadcast against each other; it is evaluated per element before reducing."""

    kind: str
    axes: tuple[int, ...]
    prologue: Expr = RESULT


@dataclass(frozen=True)
class ArgReduce:
    """kind "max" or "min" along `axis`, first extreme wins -> INT32, the axis kept with size 1. A NaN is never chosen
    over a number."""

    kind: str
    axis: int


@dataclass(frozen=True)
class Softmax:
    """exp(beta * (x - max)) / sum over C."""

    beta: float = 1.0


@dataclass(frozen=True)
class Copy:
    """Movement of elements: `steps` applied in order to the input (steps may pass through any rank); the first step
    sees the input's B,H,W,C shape and the last one gives the output's."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Concat:
    """inputs joined along `axis` (of B,H,W,C)."""

    axis: int


@dataclass(frozen=True)
class Gather:
    """inputs: x, indices (INT32, runtime). Views x as [batch, outer, axis, inner] and indices as [batch, count];
    output is [batch, outer, count, inner] reinterpreted row-major as the output's shape. An index out of range
    gives 0."""

    batch: int
    outer: int
    size: int
    inner: int
    count: int


@dataclass(frozen=True)
class Custom:
    """What `definition` says (gpu/custom/definition.py): its evaluate() computes the node in NumPy, its build() makes
    the kernels. For operators of users, and for those of .tflite that share nothing with any other."""

    definition: Definition


Op = (
    Elementwise | Conv2D | DepthwiseConv2D | SeparableConv2D | TransposeConv2D | MatMul | Pool2D | Resize2D | Reduce
    | ArgReduce | Softmax | Attention | Copy | Concat | Gather | Custom
)  # fmt: skip


# -------------------------------------------------------------------------------------------------- the graph


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a fixed B,H,W,C shape (lower ranks are padded with 1 on the left).

    Constants carry `data`, an array of exactly that shape: float32 (widened if need be), int32 or bool.
    `tensor` is the index of the .tflite tensor that it stands for, if any.
    """

    id: int
    shape: Shape
    dtype: DType
    data: np.ndarray | None = None
    name: str = ""
    tensor: int | None = None

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One op, the values it reads and the one it writes, and the expression applied to each element of its result.

    In `epilogue`, Arg(0) is the op's result and Arg(i) is operands[i-1], broadcast to the output's shape. For
    Elementwise, `inputs` is empty and Arg(i) is operands[i].
    `sources` are the .tflite node numbers this node does the work of.
    """

    op: Op
    inputs: tuple[int, ...]
    output: int
    epilogue: Expr = RESULT
    operands: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        return self.inputs + self.operands


@dataclass(frozen=True, eq=False)
class Graph:
    """Values by id, and nodes in an order in which they can run."""

    values: dict[int, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def producer(self) -> dict[int, Node]:
        return {n.output: n for n in self.nodes}

    def consumers(self) -> dict[int, list[Node]]:
        """value id -> the nodes that read it (a node that reads it twice stands there once)."""
        found: dict[int, list[Node]] = {v: [] for v in self.values}
        for n in self.nodes:
            for v in dict.fromkeys(n.reads):
                found[v].append(n)
        return found


@dataclass
class GraphBuilder:
    """Collects values and nodes; lowering and passes make graphs with it."""

    values: dict[int, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> GraphBuilder:
        return cls(dict(graph.values), list(graph.nodes))

    def value(self, shape: Iterable[int], dtype: DType, *, name: str = "", tensor: int | None = None) -> int:
        return self._add(tuple(int(n) for n in shape), dtype, None, name, tensor)

    def constant(self, data: np.ndarray, *, name: str = "") -> int:
        """A constant; `data` of rank 0 to 4 is padded on the left to B,H,W,C; floats become float32, ints int32."""
        a = np.asarray(data)
        if a.dtype.kind == "f":
            a, dtype = a.astype(np.float32, copy=False), DType.FLOAT32
        elif a.dtype.kind == "b":
            dtype = DType.BOOL
        else:
            a, dtype = a.astype(np.int32, copy=False), DType.INT32
        a = a.reshape(bhwc(a.shape))
        return self._add(a.shape, dtype, a, name, None)

    def node(self, op: Op, inputs: Iterable[int], output: int, epilogue: Expr = RESULT, operands: Iterable[int] = (),
             sources: Iterable[int] = ()) -> int:  # fmt: skip
        self.nodes.append(Node(op, tuple(inputs), output, epilogue, tuple(operands), tuple(sources)))
        return output

    def graph(self, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
        inputs, outputs = tuple(inputs), tuple(outputs)
        used = {*inputs, *outputs, *(v for n in self.nodes for v in (*n.reads, n.output))}
        return Graph({i: v for i, v in self.values.items() if i in used}, tuple(self.nodes), inputs, outputs)

    def _add(self, shape: Shape, dtype: DType, data: np.ndarray | None, name: str, tensor: int | None) -> int:
        i = len(self.values) if len(self.values) not in self.values else max(self.values) + 1
        self.values[i] = Value(i, shape, dtype, data, name, tensor)
        return i


def bhwc(shape: Iterable[int]) -> Shape:
    """`shape` of rank 0 to 4 padded on the left with 1 to rank 4."""
    s = tuple(int(n) for n in shape)
    if len(s) > 4:
        raise ValueError(f"rank {len(s)} is above 4")
    return (1,) * (4 - len(s)) + s


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of the expression, arguments first, shared subtrees once."""
    seen: set[int] = set()

    def visit(e: Expr) -> Iterator[Expr]:
        if id(e) in seen:
            return
        seen.add(id(e))
        if isinstance(e, Apply):
            for a in e.args:
                yield from visit(a)
        yield e

    return visit(expr)
