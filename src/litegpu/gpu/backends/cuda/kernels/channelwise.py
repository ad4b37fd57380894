"""What an expression does with each channel of a value, where that is no more than kernels do as they read it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import Apply, Arg, DType, Expr, Value, arguments

#: The bounds of a float that is not bounded.
FREE = (-math.inf, math.inf)


@dataclass(frozen=True, eq=False)
class Channelwise:
    """clamp(x * scale + shift) * gate of each element x. `scale`, `shift`: of each channel, or one for all; both None
    if they are 1 and 0. `gate`: the number of the Arg that is a factor for each image and channel."""

    scale: np.ndarray | None = None
    shift: np.ndarray | None = None
    bounds: tuple[float, float] = FREE
    gate: int | None = None

    @property
    def is_linear(self) -> bool:
        """Whether multiplying the result is multiplying the factors."""
        return self.bounds == FREE


def read_channelwise(expr: Expr, values: Sequence[Value]) -> Channelwise | None:
    """What an expression does with Arg(0), if it is channelwise; Arg(i) is values[i]."""
    channels = values[0].shape[3]

    def fixed(e: Expr) -> np.ndarray | None:
        """A number for each channel, or one for all."""
        used = arguments(e)
        if any(values[i].data is None or values[i].dtype is not DType.FLOAT32 for i in used):
            return None
        found = evaluate_expr(e, [np.zeros(1) if v.data is None else v.data for v in values])
        whole = found.size in (1, channels) and (found.ndim < 4 or found.shape[:3] == (1, 1, 1))
        return found.reshape(-1).astype(np.float32) if whole and bool(np.isfinite(found).all()) else None

    def gated(e: Expr) -> int | None:
        if not isinstance(e, Arg) or e.index == 0 or values[e.index].is_constant:
            return None
        value, (batch, *_) = values[e.index], values[0].shape
        fits = value.dtype is DType.FLOAT32 and value.shape in ((batch, 1, 1, channels), (1, 1, 1, channels))
        return e.index if fits else None

    def visit(e: Expr) -> Channelwise | None:
        match e:
            case Arg(0):
                return Channelwise()
            case Apply("mul" | "add" | "max" | "min" as fn, (left, right)):
                inner, other = (left, right) if 0 in arguments(left) else (right, left)
                done = visit(inner) if 0 not in arguments(other) else None
                if done is None:
                    return None
                gate = gated(other)
                if fn == "mul" and gate is not None and done.gate is None:
                    return dataclasses.replace(done, gate=gate)
                number = fixed(other)
                return None if number is None else _extended(done, fn, number)
            case Apply("sub", (inner, other)) if 0 not in arguments(other):
                done, number = visit(inner), fixed(other)
                return None if done is None or number is None else _extended(done, "add", -number)
        return None

    return visit(expr)


def _extended(done: Channelwise, fn: str, number: np.ndarray) -> Channelwise | None:
    """What is done, and then `fn` with a number for each channel."""
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    scale, shift = (one, zero) if done.scale is None or done.shift is None else (done.scale, done.shift)
    if fn == "mul" and done.is_linear:
        return dataclasses.replace(done, scale=scale * number, shift=shift * number)
    if done.gate is not None:
        return None
    if fn == "add" and done.is_linear:
        return dataclasses.replace(done, scale=scale, shift=shift + number)
    if fn in ("max", "min") and number.size == 1:
        bound, (low, high) = float(number[0]), done.bounds
        bounds = (max(low, bound), high) if fn == "max" else (low, min(high, bound))
        return dataclasses.replace(done, bounds=bounds) if bounds[0] <= bounds[1] else None
    return None
