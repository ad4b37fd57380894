"""Fewer functions for the limits of quantized values."""

from __future__ import annotations

import math

from litegpu.gpu.graph import Apply, Expr, Literal
from litegpu.gpu.graph import apply as fn


def join_clamps(expr: Expr) -> Expr:
    """min(max(round(x), l), h), where x itself is limited to numbers, without those limits: rounding keeps the order,
    so l and h can do both. (An activation and what a quantized tensor can hold give this.) At the top of `expr` alone.
    """
    match expr:
        case Apply("min", (Apply("max", (Apply("round", (inner,)), Literal(low))), Literal(high))):
            even = True
        case Apply("min", (Apply("max", (Apply("floor", (Apply("add", (inner, Literal(0.5))),)), Literal(low))),
                           Literal(high))):  # fmt: skip
            even = False
        case _:
            return expr

    def after(number: float) -> int:
        return round(number) if even else math.floor(number + 0.5)

    lowest, highest = float(low), float(high)
    while isinstance(inner, Apply) and inner.fn in ("max", "min") and isinstance(inner.args[1], Literal):
        limit = float(inner.args[1].value)
        if not math.isfinite(limit):
            break
        if inner.fn == "max":
            lowest = max(lowest, after(limit))
        elif after(limit) < lowest:
            break
        else:
            highest = min(highest, after(limit))
        inner = inner.args[0]
    rounded = fn("round", inner) if even else fn("floor", fn("add", inner, 0.5))
    return fn("min", fn("max", rounded, lowest), highest)
