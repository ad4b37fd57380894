"""Polynomials, by Horner's rule."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.lang import Kernel, TracedValue


def polynomial(k: Kernel, coefficients: Sequence[float], x: TracedValue) -> TracedValue:
    """The sum of coefficients[i] * x**i, by one fused multiplication and addition for each but the last."""
    *others, last = coefficients
    result = k.const(last, x.type)
    for coefficient in reversed(others):
        result = k.fma(result, x, k.const(coefficient, x.type))
    return result
