"""The float view of quantized tensors: what stored numbers stand for, and which values of the graph hold them.

A value holds real numbers, or, where all its readers can do with those, quanta: stored numbers less the zero point.
Quanta are small whole numbers, so that float16 stores them exactly, and sums of their products are exact in float32 up
to 2**24: there convolutions give what the CPU's integer kernels give.

In whole numbers (`narrow`) a value holds what the tensor has in memory, one byte each, and readers make of it what they
need.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Expr,
    Gather,
    GraphBuilder,
    Literal,
    Node,
    Pad,
    Pool2D,
    Reduce,
    Reshape,
    Resize2D,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.model.ops import find
from litegpu.model.ops.record import Gpu, Halves
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

#: The types of quantized tensors that the model computes, and how they cross the border of the graph.
STORED = {TensorType.INT8: DType.INT8, TensorType.UINT8: DType.UINT8, TensorType.INT16: DType.INT16}


@dataclass(frozen=True)
class Grid:
    """The real numbers scale * (q - zero) for stored numbers q from `low` to `high`."""

    scale: float
    zero: int
    low: int
    high: int

    def rounded(self, quanta: Expr, halves: Halves = "even") -> Expr:
        """The nearest quanta that can be stored; halves go to even numbers, up, or away from a stored zero."""
        if halves == "up" or (halves == "away" and self.low == 0):
            nearest = fn("floor", fn("add", quanta, 0.5))
        elif halves == "away":
            stored = fn("add", quanta, self.zero)
            magnitude = fn("floor", fn("add", fn("abs", stored), 0.5))
            nearest = fn("sub", fn("mul", fn("sign", stored), magnitude), self.zero)
        else:
            nearest = fn("round", quanta)
        return fn("min", fn("max", nearest, self.low - self.zero), self.high - self.zero)

    def limits(self, low: float | None, high: float | None, *, by_xnnpack: bool = False) -> tuple[int, int]:
        """The quanta between which real numbers from `low` to `high` are stored, as the runtime's own kernels have it
        (CalculateActivationRangeQuantized): halves away from zero; or as XNNPACK's: what is stored, zero point
        included, is rounded to even numbers."""

        def nearest(bound: float) -> int:
            steps = np.float32(bound) / np.float32(self.scale)
            if by_xnnpack:
                number = float(np.rint(steps + np.float32(self.zero)))
            else:
                number = float(np.copysign(np.floor(abs(np.float64(steps)) + 0.5), steps)) + self.zero
            return int(min(max(number, self.low), self.high)) - self.zero

        bottom, top = self.low - self.zero, self.high - self.zero
        return bottom if low is None else nearest(low), top if high is None else nearest(high)

    @property
    def bits(self) -> int:
        return (self.high - self.low).bit_length()


def grid_of(tensor: Tensor) -> Grid | None:
    """The grid of a tensor that is no constant, None if it is not quantized. Raises Unsupported if it has several."""
    if tensor.is_constant or tensor.type not in STORED:
        return None
    q = tensor.quantization
    if q is None or not q.scales.size:
        return None
    if q.scales.size > 1:
        raise Unsupported(f"tensor '{tensor.name}' has {q.scales.size} scales: only constants may be so quantized")
    scale, zero = float(q.scales[0]), int(q.zero_points[0]) if q.zero_points.size else 0
    if not (math.isfinite(scale) and scale > 0):
        raise Unsupported(f"tensor '{tensor.name}' has the scale {scale}")
    limits = np.iinfo(STORED[tensor.type].value)
    return Grid(scale, zero, int(limits.min), int(limits.max))


def stored(builder: GraphBuilder, tensor: Tensor, expr: Expr, value: int) -> int:
    """A value of the numbers that a tensor of a narrow type has in memory: `expr`, int32, of `value`."""
    v = builder.values[flat(builder, value)]
    result = builder.value(v.shape, STORED[tensor.type], name=tensor.name, tensor=tensor.index)
    return builder.node(Elementwise(), (), result, expr, [v.id])


def flat(builder: GraphBuilder, value: int) -> int:
    """A value that may leave the graph in a narrow type: all elements in one row unless pixels are whole words, since
    no thread may write a part of a word."""
    v = builder.values[value]
    if v.shape[3] % 4 == 0 or math.prod(v.shape[:3]) == 1:
        return value
    row = builder.value((1, 1, 1, v.elements), v.dtype, name=v.name, tensor=v.tensor)
    return builder.node(Copy((Reshape(v.shape, (1, 1, 1, v.elements)),)), [value], row)


class QuantizedValues:
    """The values of a graph under construction that stand for quantized tensors, by the tensors' numbers."""

    def __init__(self, subgraph: Subgraph, builder: GraphBuilder, narrow: bool = False) -> None:
        self.subgraph, self.builder, self.narrow = subgraph, builder, narrow
        self.stored: dict[int, int] = {}
        self.quanta: dict[int, int] = {}
        self.real: dict[int, int] = {}
        self.numbers_of: dict[int, int] = {}  # a tensor of floats -> the quantized one whose real numbers it has
        self._grids: dict[int, Grid] = {}  # values whose elements lie on a grid, as quanta or as real numbers
        self._seen = 0  # nodes of which it was decided whether their results lie on one

    def __contains__(self, tensor: int) -> bool:
        return tensor in self.stored or tensor in self.quanta or tensor in self.real

    def keeps_stored(self, grid: Grid | None) -> bool:
        """Whether values hold what tensors of such a grid have in memory."""
        return self.narrow and grid is not None and grid.bits <= 8

    def enter(self, tensor: int, value: int, grid: Grid) -> None:
        """The tensor comes from outside as `value`, which holds stored numbers."""
        if not self.keeps_stored(grid):
            self._put(tensor, value, fn("sub", fn("to_float32", Arg(0)), grid.zero), grid)
        elif self.builder.values[value].dtype.is_narrow:
            self.stored[tensor] = value
        else:
            self._store(tensor, Arg(0), value)

    def leave(self, tensor: int, grid: Grid) -> int:
        """A value of stored numbers, for a tensor that goes outside."""
        if tensor in self.stored:
            return flat(self.builder, self.stored[tensor])
        if tensor in self.quanta:
            value, whole = self.quanta[tensor], fn("nearest", fn("small", fn("add", Arg(0), grid.zero)))
        else:
            quanta = fn("round", fn("mul", Arg(0), _ratio(1.0, grid.scale)))
            value, whole = self.real.get(tensor, -1), fn("to_int32", fn("add", quanta, grid.zero))
        return stored(self.builder, self.subgraph.tensors[tensor], whole, value)

    def real_view(self, tensor: int) -> int:
        """A value of the tensor's real numbers, made anew for each reader so that it becomes part of its kernel."""
        if tensor in self.real:
            return self.real[tensor]
        grid = grid_of(self.subgraph.tensors[tensor])
        assert grid is not None
        if tensor in self.stored:
            real = fn("mul", fn("sub", fn("to_float32", Arg(0)), grid.zero), grid.scale)
            return self._mapped(real, self.stored[tensor], grid)
        return self._mapped(fn("mul", Arg(0), grid.scale), self.quanta[tensor], grid)

    def quanta_view(self, tensor: int) -> int:
        """A value of the tensor's quanta as floats, of a tensor that is not kept as real numbers; as for real_view."""
        if tensor in self.quanta:
            return self.quanta[tensor]
        grid = grid_of(self.subgraph.tensors[tensor])
        assert grid is not None
        return self._mapped(fn("sub", fn("to_float32", Arg(0)), grid.zero), self.stored[tensor], grid)

    def whole(self, tensor: int) -> tuple[int, Expr]:
        """A value of the tensor, and the expression that makes its quanta of it, int32."""
        grid = grid_of(self.subgraph.tensors[tensor])
        assert grid is not None
        if tensor in self.stored:
            return self.stored[tensor], fn("sub", Arg(0), Literal(grid.zero, DType.INT32))
        if tensor in self.quanta:
            return self.quanta[tensor], fn("nearest", fn("small", Arg(0)))
        return self.real[tensor], fn("to_int32", fn("round", fn("mul", Arg(0), _ratio(1.0, grid.scale))))

    def unit(self, operands: Sequence[int]) -> float | None:
        """What 1.0 stands for in the values that `operator` is to be given for `operands`, its real tensors: their
        common quantum if it can work with that, None for real numbers."""
        if not operands or not all(t in self.quanta or t in self.stored for t in operands):
            return None
        scales = {grid.scale for t in operands if (grid := grid_of(self.subgraph.tensors[t])) is not None}
        return scales.pop() if len(scales) == 1 else None

    def settle(self, tensor: int, value: int, grid: Grid, unit: float | None, how: Gpu, operator: int) -> None:
        """The operator of this number computed the tensor as `value`, where 1.0 stands for `unit` (None: real numbers):
        round that to what the tensor can hold. Nothing need be done if it only chose among elements of that grid."""
        on_grid = self.is_on(value, grid)
        narrow = self.keeps_stored(grid)
        if on_grid and not narrow and (unit is not None) == self._is_read_as_quanta(tensor, grid):
            (self.real if unit is None else self.quanta)[tensor] = value
            return
        quanta: Expr = Arg(0)
        if unit != grid.scale:
            quanta = fn("mul", quanta, _ratio(1.0 if unit is None else unit, grid.scale))
        if not on_grid:
            quanta = fn("small", quanta) if how.largest < 2.0**20 * grid.scale else quanta
            quanta = grid.rounded(quanta, how.halves)
        elif unit is None:
            quanta = fn("round", quanta)
        if narrow:
            self._store(tensor, fn("add", fn("nearest", quanta), Literal(grid.zero, DType.INT32)), value, (operator,))
        else:
            self._put(tensor, value, quanta, grid, (operator,))

    def is_on(self, value: int, grid: Grid) -> bool:
        """Whether all elements of `value` are known to lie on the grid, as chosen or computed in whole numbers."""
        self._follow()
        return self._grids.get(value) == grid

    def mark(self, value: int, grid: Grid) -> None:
        """All elements of `value` lie on the grid."""
        self._grids[value] = grid

    # ----------------------------------------------------------------------------------------------------

    def _put(self, tensor: int, value: int, quanta: Expr, grid: Grid, sources: tuple[int, ...] = ()) -> None:
        """The tensor is `quanta` of `value`: keep that, or the real numbers that it stands for."""
        if self._is_read_as_quanta(tensor, grid):
            self.quanta[tensor] = self._mapped(quanta, value, grid, sources)
        else:
            self.real[tensor] = self._mapped(fn("mul", quanta, grid.scale), value, grid, sources)

    def _store(self, tensor: int, expr: Expr, value: int, sources: tuple[int, ...] = ()) -> None:
        """The tensor has in memory what `expr`, int32, makes of a value."""
        t, v = self.subgraph.tensors[tensor], self.builder.values[value]
        result = self.builder.value(v.shape, STORED[t.type], name=t.name, tensor=tensor)
        self.stored[tensor] = self.builder.node(Elementwise(), (), result, expr, [value], sources)

    def _mapped(self, expr: Expr, value: int, grid: Grid, sources: tuple[int, ...] = ()) -> int:
        """A new value of elements of `grid`: `expr` of a value."""
        v = self.builder.values[value]
        result = self.builder.value(v.shape, DType.FLOAT32, name=v.name, tensor=v.tensor)
        self._grids[result] = grid
        return self.builder.node(Elementwise(), (), result, expr, [value], sources)

    def _is_read_as_quanta(self, tensor: int, grid: Grid) -> bool:
        """Whether no reader needs a kernel of its own to make real numbers of quanta (one reader alone never does: its
        real numbers are made where the quanta are computed)."""
        readers = _readers(self.subgraph).get(tensor, [])
        return grid.bits <= 8 and (len(readers) < 2 or all(_reads_quanta(o) for o in readers))

    def _follow(self) -> None:
        """Decide for the nodes added since the last time whether their results lie on a grid."""
        for node in self.builder.nodes[self._seen :]:
            grid = _grid_after(node, self._grids)
            if grid is not None:
                self._grids[node.output] = grid
        self._seen = len(self.builder.nodes)


def _ratio(unit: float, quantum: float) -> float:
    return float(np.float32(unit) / np.float32(quantum))


def _grid_after(node: Node, grids: Mapping[int, Grid]) -> Grid | None:
    """The grid on which the node's results lie because it only chooses among elements that do, or zeros."""
    match node.op:
        case Copy() | Concat() | Pool2D("max") | Resize2D("nearest"):
            chosen = node.inputs
        case Reduce("max" | "min", _, prologue) if prologue == RESULT:
            chosen = node.inputs
        case Gather():
            chosen = node.inputs[:1]
        case _:
            return None
    found = {grids.get(v) for v in chosen}
    grid = found.pop()
    zeros = not isinstance(node.op, Copy) or all(s.fill == 0 for s in node.op.steps if isinstance(s, Pad))
    return grid if grid is not None and not found and zeros and node.epilogue == RESULT else None


_READERS: weakref.WeakKeyDictionary[Subgraph, dict[int, list[Operator]]] = weakref.WeakKeyDictionary()


def _readers(subgraph: Subgraph) -> dict[int, list[Operator]]:
    """tensor -> the operators that read it."""
    if subgraph not in _READERS:
        readers: dict[int, list[Operator]] = {}
        for operator in subgraph.operators:
            for tensor in dict.fromkeys(operator.inputs):
                readers.setdefault(tensor, []).append(operator)
        _READERS[subgraph] = readers
    return _READERS[subgraph]


def _reads_quanta(operator: Operator) -> bool:
    """Whether the operator reads quanta at no cost, or not on the GPU."""
    known = find(operator)
    return not operator.is_custom and (known is None or known.gpu is None or known.gpu.quanta != "")
