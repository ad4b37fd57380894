"""Functions whose results are kept as float16: a few instructions each, with errors far below its rounding.

A sigmoid by the functions of the language takes some twenty instructions an element, which is more than a kernel has
time for while its bytes move (an H200: 25), and GELU twice as many. These take five and ten. Exponentials and
reciprocals take the time of eight: one of them is in GELU, two are in a sigmoid.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from litegpu.gpu.graph import Apply, Expr, walk
from litegpu.gpu.kernels.polynomial import polynomial
from litegpu.gpu.lang import Kernel, TracedValue

LOG2_E = math.log2(math.e)
#: log(1 + erf(v)) - log(1 - erf(v)) is about v times this polynomial in v**2, fitted here: v * (1 + erf(v)) is within
#: 1.1e-5. The last coefficient is positive, so that it grows beyond where it was fitted (|v| < 4.6).
ERF = (2.256395101547241, 0.20708782970905304, -0.0022156897466629744, -0.00041392381535843, 2.150689579138998e-05)
#: The base-2 logarithm of the part of x = -a that is left, erfc(a / sqrt(2)) / 2, is about this polynomial in a: GELU
#: is within 6.1e-6. The same of its usual approximation by tanh: 4.6e-6. Beyond FAR, where nothing is left, they are
#: not needed; the first one would grow again.
LEFT_OF_GELU = {
    "erf": (-1.00048, -1.14737, -0.4680187, -0.04407655, 0.00386565),
    "tanh": (-1.000363, -1.148297, -0.4653586, -0.04739727, 0.00872791, -0.001978522),
}
FAR = 8.0
#: Where two gates are compared, and by how much the results of one may differ from the other's.
_COMPARED, _SAME = [i / 8 for i in range(-40, 41)], 2e-6
#: |x| below which tanh(x) is x - x**3 / 3: a relative error of 3e-6.
SMALL = 0.06
#: Functions of which a last bit may make a whole number more or less.
_STEPS = {"floor", "ceil", "round", "nearest", "to_int32", "to_bool", "floor_div", "floor_mod", "sign"}

#: What gates of GELU are functions of, and what that is written with.
_ARGUMENTS: dict[str, Callable[[float], float]] = {
    "erf": lambda x: x * math.sqrt(0.5),
    "tanh": lambda x: math.sqrt(2 / math.pi) * (x + 0.044715 * x**3),
}
_PLAIN: dict[str, Callable[..., float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg,
    "pow": math.pow,
}  # fmt: skip


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
            left = _left_of_gelu(x, b, visit)
            if left:
                return _gelu(k, visit(x), left)
            gate = _gate(k, b, visit)
            return None if gate is None else visit(x) * gate
    return None


def _gelu(k: Kernel, x: TracedValue, left: Sequence[float]) -> TracedValue:
    """x where it is positive, less what is left of -|x|; x + |x| keeps a NaN, and makes one of an infinity below zero
    as its product with the gate, 0, would be."""
    a = k.min(FAR, k.abs(x))
    return k.fma(x + k.abs(x), k.const(0.5, x.type), -(a * k.rough_exp2(polynomial(k, left, a))))


def _left_of_gelu(x: Expr, twice: Expr, visit: Callable[[Expr], TracedValue]) -> Sequence[float] | None:
    """The polynomial for x * `twice` / 2 if that is GELU, by erf or by tanh, in whatever words."""
    match twice:
        case Apply("add", (Apply("tanh" | "erf" as fn, (v,)), one) | (one, Apply("tanh" | "erf" as fn, (v,)))):
            if not visit(one).is_constant(1.0):
                return None
            of_gate = {"tanh": math.tanh, "erf": math.erf}[fn]
            for at in _COMPARED:
                argument = _at(v, x, at, visit)
                if argument is None or abs(of_gate(argument) - of_gate(_ARGUMENTS[fn](at))) * abs(at) > 2 * _SAME:
                    return None
            return LEFT_OF_GELU[fn]
    return None


def _at(v: Expr, x: Expr, number: float, visit: Callable[[Expr], TracedValue]) -> float | None:
    """The value of `v` where `x` is a number; None if it needs more than that, or other functions than these."""
    if v == x:
        return number
    if not isinstance(v, Apply):
        return _number(visit(v))
    if v.fn not in _PLAIN:
        return None
    numbers = [_at(a, x, number, visit) for a in v.args]
    known = [n for n in numbers if n is not None]
    try:
        return _PLAIN[v.fn](*known) if len(known) == len(numbers) else None
    except ArithmeticError:
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
    tail = polynomial(k, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429), t)
    far = 1.0 - tail * t * k.rough_exp2(x * x * -LOG2_E)
    return k.select(x < 0.0, -far, far)


def _erf_gate(k: Kernel, v: Expr, visit: Callable[[Expr], TracedValue]) -> TracedValue:
    """(1 + erf(v)) / 2: the sigmoid of a polynomial, whose coefficients have the factor of v and the base of the power
    in them."""
    x, scale = _factored(v, visit)
    power = polynomial(k, [c * scale ** (2 * i + 1) * -LOG2_E for i, c in enumerate(ERF)], x * x)
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
