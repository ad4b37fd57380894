"""Fused activations."""

from __future__ import annotations

from litegpu.gpu.graph import DType, Expr, Literal
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported

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
