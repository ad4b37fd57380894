"""Arithmetic of whole numbers of 64 bits as two words of 32: expressions of words."""

from __future__ import annotations

from litegpu.gpu.graph import Arg, Expr, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.fixed_point import turned, unsigned

#: The low and the high word.
Wide = tuple[Expr, Expr]

_HALF, _MASK = whole(16), whole(0xFFFF)
ZERO, ONE, _LOWEST = whole(0), whole(1), whole(-(2**31))
#: The first and the second operand, as four arguments of an expression.
A: Wide = (Arg(0), Arg(1))
B: Wide = (Arg(2), Arg(3))


def choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return fn("select", condition, yes, no)


def as_number(condition: Expr) -> Expr:
    return choice(condition, ONE, ZERO)


def below(a: Expr, b: Expr) -> Expr:
    """Whether a word is less than another, both without signs."""
    return fn("lt", turned(a), turned(b))


def plus(a: Wide, b: Wide) -> Wide:
    low = fn("add", a[0], b[0])
    return low, fn("add", fn("add", a[1], b[1]), as_number(below(low, a[0])))


def minus(a: Wide, b: Wide) -> Wide:
    return fn("sub", a[0], b[0]), fn("sub", fn("sub", a[1], b[1]), as_number(below(a[0], b[0])))


def negative(a: Wide) -> Wide:
    return minus((ZERO, ZERO), a)


def _upper(word: Expr) -> Expr:
    return fn("bit_and", fn("shift_right", word, _HALF), _MASK)


def times(a: Wide, b: Wide) -> Wide:
    """The low 64 bits; the low words are multiplied half by half."""
    a0, a1, b0, b1 = fn("bit_and", a[0], _MASK), _upper(a[0]), fn("bit_and", b[0], _MASK), _upper(b[0])
    middle = fn("add", fn("mul", a1, b0), _upper(fn("mul", a0, b0)))
    other = fn("add", fn("mul", a0, b1), fn("bit_and", middle, _MASK))
    carried = fn("add", fn("add", fn("mul", a1, b1), _upper(middle)), _upper(other))
    crossed = fn("add", fn("mul", a[1], b[0]), fn("mul", a[0], b[1]))
    return fn("mul", a[0], b[0]), fn("add", carried, crossed)


def less(a: Wide, b: Wide) -> Expr:
    return choice(fn("eq", a[1], b[1]), below(a[0], b[0]), fn("lt", a[1], b[1]))


def equal(a: Wide, b: Wide) -> Expr:
    return fn("logical_and", fn("eq", a[0], b[0]), fn("eq", a[1], b[1]))


def either(condition: Expr, a: Wide, b: Wide) -> Wide:
    return choice(condition, a[0], b[0]), choice(condition, a[1], b[1])


def absolute(a: Wide) -> Wide:
    return either(fn("lt", a[1], ZERO), negative(a), a)


def sign(a: Wide) -> Wide:
    high = fn("shift_right", a[1], whole(31))
    return choice(equal(a, (ZERO, ZERO)), ZERO, choice(fn("lt", a[1], ZERO), whole(-1), ONE)), high


def shifted(word: Expr, bits: int) -> Wide:
    """A word that is not negative, times a power of two."""
    return (fn("shift_left", word, whole(bits)), fn("shift_right", word, whole(32 - bits))) if bits else (word, ZERO)


def to_float(a: Wide) -> Expr:
    """By the magnitude, so that small negative numbers stay exact."""
    low, high = absolute(a)
    number = fn("add", fn("mul", unsigned(high), 2.0**32), unsigned(low))
    return choice(fn("lt", a[1], ZERO), fn("neg", number), number)


def of_float(x: Expr) -> Wide:
    """Towards zero, saturating, NaN to the largest number."""
    size = fn("floor", fn("abs", x))
    high = fn("floor", fn("mul", size, 2.0**-32))
    low = fn("sub", size, fn("mul", high, 2.0**32))
    upper = fn("floor", fn("mul", low, 2.0**-16))
    lower = fn("sub", low, fn("mul", upper, 65536.0))
    words = fn("add", fn("shift_left", fn("to_int32", upper), _HALF), fn("to_int32", lower)), fn("to_int32", high)
    fits = fn("lt", size, 2.0**63)
    below_zero = fn("lt", x, 0.0)
    limit = either(below_zero, (ZERO, _LOWEST), (whole(-1), whole(2**31 - 1)))
    return either(fits, either(below_zero, negative(words), words), limit)
