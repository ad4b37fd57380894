"""The float view of quantized tensors: what stored numbers stand for, and the expressions from and to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import RESULT, Concat, Copy, DType, Expr, Gather, Node, Pad, Pool2D, Reduce, Resize2D
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.model.types import Tensor, TensorType

#: The types of quantized tensors that the model computes, and how they cross the border of the graph.
STORED = {TensorType.INT8: DType.INT8, TensorType.UINT8: DType.UINT8, TensorType.INT16: DType.INT16}


@dataclass(frozen=True)
class Grid:
    """The real numbers scale * (q - zero) for stored numbers q from `low` to `high`."""

    scale: float
    zero: int
    low: int
    high: int

    def quantized(self, x: Expr) -> Expr:
        """The stored number, as int32, nearest to the real number `x`."""
        nearest = fn("add", fn("round", fn("mul", x, self._inverse)), self.zero)
        return fn("to_int32", fn("min", fn("max", nearest, self.low), self.high))

    def rounded(self, x: Expr) -> Expr:
        """The real number of the grid nearest to `x`. Halves go to even numbers of quanta, as in XNNPACK's kernels (the
        reference kernels mostly round them away from zero)."""
        quanta = fn("round", fn("mul", x, self._inverse))
        return fn("mul", fn("min", fn("max", quanta, self.low - self.zero), self.high - self.zero), self.scale)

    def real(self, q: Expr) -> Expr:
        """The real number of the stored number `q`."""
        return fn("mul", fn("sub", fn("to_float32", q), self.zero), self.scale)

    def __contains__(self, x: float) -> bool:
        q = np.float32(x) / np.float32(self.scale)
        return bool(abs(q - np.round(q)) < 1e-3 and self.low <= np.round(q) + self.zero <= self.high)

    @property
    def _inverse(self) -> float:
        return float(np.float32(1) / np.float32(self.scale))


def grid_of(tensor: Tensor, *, constant: bool = False) -> Grid | None:
    """The grid of a quantized tensor, None for any other; raises Unsupported for one that is no constant and has
    several."""
    if tensor.type not in STORED or tensor.quantization is None or not tensor.quantization.scales.size:
        return None
    q = tensor.quantization
    if q.scales.size > 1:
        if constant:
            return None
        raise Unsupported(f"tensor '{tensor.name}' has {q.scales.size} scales: only constants may be so quantized")
    scale, zero = float(q.scales[0]), int(q.zero_points[0]) if q.zero_points.size else 0
    if not (math.isfinite(scale) and scale > 0):
        raise Unsupported(f"tensor '{tensor.name}' has the scale {scale}")
    limits = np.iinfo(STORED[tensor.type].value)
    return Grid(scale, zero, int(limits.min), int(limits.max))


def grid_after(node: Node, grids: Mapping[int, Grid]) -> Grid | None:
    """The grid on which the node's results lie because it only chooses among elements that do (`grids` of values)."""
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
    if grid is None or found or node.epilogue != RESULT:
        return None
    fills = [step.fill for step in node.op.steps if isinstance(step, Pad)] if isinstance(node.op, Copy) else []
    return grid if all(fill in grid for fill in fills) else None
