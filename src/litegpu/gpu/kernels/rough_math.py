"""Functions whose results are kept as float16: a few instructions each, with errors far below its rounding.

A sigmoid by the functions of the language takes some twenty instructions an element, which is more than a kernel has
time for while its bytes move (an H200: 25), and GELU twice as many. These take five and nine.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from litegpu.gpu.graph import Apply, Expr, walk
from litegpu.gpu.lang import Kernel, TracedValue

LOG2_E = math.log2(math.e)
#: log(1 + erf(v)) - log(1 - erf(v)) is about v times this polynomial in v**2, fitted here: v * (1 + erf(v)) is within
#: 1.1e-5. The last coefficient is positive, so that it grows beyond where it was fitted (|v| < 4.6).
ERF = (2.256395101547241, 0.20708782970905304, -0.0022156897466629744, -0.00041392381535843, 2.150689579138998e-05)
#: |x| below which tanh(x) is x - x**3 / 3: a relative error of 3e-6.
SMALL = 0.06
#: Functions of which a last bit may make a whole number more or less.
_STEPS = {"floor", "ceil", "round", "nearest", "to_int32", "to_bool", "floor_div", "floor_mod", "sign"}


def is_smooth(expr: Expr) -> bool:
    """Whether small errors within `expr` stay small."""
    return not any(isinstance(e, Apply) and e.fn in _STEPS for e in walk(expr))


def shortcut(k: Kernel, expr: Apply, visit: Callable[[Expr], TracedValue]) -> TracedValue | None:
    """The value of `expr`, whose arguments `visit` evaluates; None if there is none but the usual way."""
    match expr:
        case Apply("sigmoid", (x,)):
            return sigmoid(k, visit(x))
        case Apply("exp", (x,)):
            return k.rough_exp2(visit(x) * LOG2_E)
        case Apply("tanh", (x,)):
            return _tanh(k, visit(x))
        case Apply("erf", (x,)):
            return _erf(k, visit(x))
        case Apply("div", (a, b)) if visit(a).type.is_float:
            return divide(k, visit(a), visit(b))
        case Apply("add", _):
            gate = _gate(k, expr, visit)
            return None if gate is None else 2.0 * gate
        case Apply("mul", (a, b)):
            found = _gated(k, a, b, visit)
            return found if found is not None else _gated(k, b, a, visit)
    return None


def sigmoid(k: Kernel, x: TracedValue) -> TracedValue:
    """1 / (1 + exp(-x)); beyond the range of exp the reciprocal of infinity, 0."""
    return k.rough_reciprocal(k.rough_exp2(x * -LOG2_E) + 1.0)


def divide(k: Kernel, a: TracedValue, b: TracedValue) -> TracedValue:
    number = b.constant
    return a * (1.0 / number if number and math.isfinite(1.0 / number) else k.rough_reciprocal(b))


def _gate(k: Kernel, expr: Expr, visit: Callable[[Expr], TracedValue]) -> TracedValue | None:
    """Half of `expr` if that is 1 + tanh(x) or 1 + erf(x), which cancel where they are small, as a sigmoid does not."""
    match expr:
        case Apply("add", (Apply("tanh" | "erf" as fn, (x,)), one) | (one, Apply("tanh" | "erf" as fn, (x,)))):
            if visit(one).is_constant(1.0):
                return sigmoid(k, 2.0 * visit(x)) if fn == "tanh" else _erf_gate(k, x, visit)
    return None


def _gated(k: Kernel, a: Expr, b: Expr, visit: Callable[[Expr], TracedValue]) -> TracedValue | None:
    """a * b if `a` is half of something and `b` what is twice a sigmoid: GELU."""
    match a:
        case Apply("mul", (x, half)) if visit(half).is_constant(0.5):
            gate = _gate(k, b, visit)
            return None if gate is None else visit(x) * gate
    return None


def _tanh(k: Kernel, x: TracedValue) -> TracedValue:
    """2 * sigmoid(2 * x) - 1, which cancels where x is small: there two terms of the series do."""
    far = 1.0 - 2.0 * k.rough_reciprocal(k.rough_exp2(x * (2.0 * LOG2_E)) + 1.0)
    return k.select(k.abs(x) < SMALL, k.fma(x * x, x * (-1.0 / 3.0), x), far)


def _erf(k: Kernel, x: TracedValue) -> TracedValue:
    """1 - t * polynomial(t) * exp(-x * x) with t = 1 / (1 + p |x|), to an absolute error of about 2e-7 (Abramowitz and
    Stegun 7.1.26)."""
    a = k.abs(x)
    t = k.rough_reciprocal(a * 0.3275911 + 1.0)
    tail = k.const(1.061405429, x.type)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = k.fma(tail, t, k.const(coefficient, x.type))
    far = 1.0 - tail * t * k.rough_exp2(x * x * -LOG2_E)
    return k.select(x < 0.0, -far, far)


def _erf_gate(k: Kernel, v: Expr, visit: Callable[[Expr], TracedValue]) -> TracedValue:
    """(1 + erf(v)) / 2: the sigmoid of a polynomial, whose coefficients have the factor of v and the base of the power
    in them."""
    x, scale = _factored(v, visit)
    square = x * x
    total, *rest = (c * scale ** (2 * i + 1) * -LOG2_E for i, c in reversed(list(enumerate(ERF))))
    power = k.const(total, x.type)
    for coefficient in rest:
        power = k.fma(power, square, k.const(coefficient, x.type))
    return k.rough_reciprocal(k.rough_exp2(x * power) + 1.0)


def _factored(v: Expr, visit: Callable[[Expr], TracedValue]) -> tuple[TracedValue, float]:
    """x and a number, whose product `v` is."""
    match v:
        case Apply("mul" | "div" as fn, (a, b)):
            left, right = _number(visit(a)), _number(visit(b))
            if right is not None and (fn == "mul" or right):
                return visit(a), right if fn == "mul" else 1.0 / right
            if left is not None and fn == "mul":
                return visit(b), left
    return visit(v), 1.0


def _number(x: TracedValue) -> float | None:
    """The finite number that a constant is, else None."""
    found = x.constant
    return float(found) if found is not None and math.isfinite(found) else None
