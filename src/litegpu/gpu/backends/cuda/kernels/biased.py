"""Epilogues that are an activation of a sum and its bias."""

from __future__ import annotations

from litegpu.gpu.graph import RESULT, Apply, Arg, Expr


def without_bias(expr: Expr) -> Expr:
    """`expr` with RESULT instead of its sum with Arg(1); where RESULT stands apart from that sum, Arg(2)."""
    match expr:
        case Apply("add", (Arg(0), Arg(1)) | (Arg(1), Arg(0))):
            return RESULT
        case Apply(fn, args):
            return Apply(fn, tuple(map(without_bias, args)))
        case Arg(0):
            return Arg(2)
    return expr
