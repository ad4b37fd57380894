"""Arithmetic with the bits of numbers: the multipliers of the CPU's integer kernels, and types of fewer bits."""

from __future__ import annotations

import math

from litegpu.gpu.graph import Expr, whole
from litegpu.gpu.graph import apply as fn
from litegpu.model.types import TensorType


def half(x: Expr) -> Expr:
    """The nearest float16, as a float32: thirteen bits are rounded off, halves to even; below the smallest normal
    number steps are equally long, and from 65520 on all is infinite."""
    bits = fn("bits_to_int32", x)
    odd = fn("bit_and", fn("shift_right", bits, whole(13)), whole(1))
    raised = fn("add", fn("add", bits, whole(0xFFF)), odd)
    normal = fn("bits_to_float32", fn("bit_and", raised, whole(~0x1FFF)))
    small = fn("mul", fn("round", fn("mul", x, 2.0**24)), 2.0**-24)
    beyond = fn("mul", fn("mul", x, 1e38), 1e38)  # NaN stays
    magnitude = fn("abs", x)
    finite = fn("select", fn("lt", magnitude, 2.0**-14), small, normal)
    return fn("select", fn("lt", magnitude, 65520.0), finite, beyond)


def lowest_bits(x: Expr, type_: TensorType) -> Expr:
    """What an integer type keeps of a word, as a word."""
    if type_.nbytes == 4:
        return x
    if type_ in (TensorType.UINT8, TensorType.UINT16):
        return fn("bit_and", x, whole((1 << 8 * type_.nbytes) - 1))
    above = whole(32 - 8 * type_.nbytes)
    return fn("shift_right", fn("shift_left", x, above), above)


def turned(word: Expr) -> Expr:
    """A word without a sign as the one with a sign that has the same place in order, or the other way round."""
    return fn("bit_xor", word, whole(-(2**31)))


def unsigned(word: Expr) -> Expr:
    """A word without a sign as a float."""
    upper = fn("bit_and", fn("shift_right", word, whole(16)), whole(0xFFFF))
    high, low = (fn("to_float32", part) for part in (upper, fn("bit_and", word, whole(0xFFFF))))
    return fn("add", fn("mul", high, 65536.0), low)


def multiplier_of(real: float) -> tuple[int, int]:
    """(m, s) such that m * 2**(s - 31) is nearest to `real`: QuantizeMultiplier of TFLite."""
    if real == 0 or not math.isfinite(real):
        return 0, 0
    fraction, exponent = math.frexp(real)
    scaled = math.copysign(math.floor(abs(fraction) * 2**31 + 0.5), fraction)
    if abs(scaled) == 2**31:
        scaled, exponent = scaled / 2, exponent + 1
    if exponent < -31:
        return 0, 0
    return (2**31 - 1, 30) if exponent > 30 else (int(scaled), exponent)


def times(x: Expr, real: float) -> Expr:
    """An int32 `x` times a real number, as MultiplyByQuantizedMultiplier rounds it."""
    multiplier, shift = multiplier_of(float(real))
    if multiplier == 0:
        return fn("mul", x, whole(0))
    return fn("fixed_mul", x, whole(multiplier), whole(shift))


def times_once(x: Expr, left: int, real: float) -> Expr:
    """An int32 `x` of 16 bits times 2**left and a real number from 2**-14 up to 1/2, rounded once, halves up."""
    multiplier, shift = multiplier_of(real)
    right = 31 - left - shift - 16  # behind the product's upper words
    if multiplier == 0 or not 0 <= right < 31:
        raise ValueError(f"a factor of {real} is beyond what is rounded once")
    high, low = fn("mul", x, whole(multiplier >> 16)), fn("mul", x, whole(multiplier & 0xFFFF))
    if right == 0:
        return fn("add", high, fn("shift_right", fn("add", low, whole(1 << 15)), whole(16)))
    total = fn("add", high, fn("shift_right", low, whole(16)))
    return fn("shift_right", fn("add", total, whole(1 << (right - 1))), whole(right))


def shifted_left(x: Expr, bits: int) -> Expr:
    return fn("mul", x, whole(1 << bits))


def shifted_right(x: Expr, bits: int) -> Expr:
    """Half of a unit is rounded up, as XNNPACK's integer kernels do."""
    return fn("shift_right", fn("add", x, whole(1 << (bits - 1))), whole(bits))


def rounded_away(x: Expr, bits: int) -> Expr:
    """RoundingDivideByPOT: half of a unit is rounded away from zero."""
    magnitude = shifted_right(fn("abs", x), bits)
    return fn("select", fn("lt", x, whole(0)), fn("neg", magnitude), magnitude)


def high_product(x: Expr, y: Expr | int) -> Expr:
    """SaturatingRoundingDoublingHighMul of two int16."""
    product = fn("mul", x, whole(y) if isinstance(y, int) else y)
    negative = fn("neg", fn("shift_right", fn("add", fn("neg", product), whole((1 << 14) - 1)), whole(15)))
    positive = fn("shift_right", fn("add", product, whole(1 << 14)), whole(15))
    return fn("min", fn("select", fn("lt", product, whole(0)), negative, positive), whole(32767))


def narrow_multiplier_of(real: float) -> tuple[int, int]:
    """multiplier_of(), the multiplier in 16 bits: DownScaleInt32ToInt16Multiplier."""
    multiplier, shift = multiplier_of(real)
    return min((multiplier + (1 << 15)) >> 16, 32767), shift
