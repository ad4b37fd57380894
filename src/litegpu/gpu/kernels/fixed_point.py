"""Fixed-point arithmetic of TFLite's integer kernels, in 32 bits: products of two words, rounded, and roots."""

from __future__ import annotations

from litegpu.gpu.evaluate.expressions import HALF_ROOT_OF_TWO, THREE_HALVES
from litegpu.gpu.lang import Kernel, TracedValue, u32, vec


def fixed_mul(k: Kernel, x: TracedValue, multiplier: TracedValue | int, shift: TracedValue | int) -> TracedValue:
    """The product, rounded to a multiple of 2**31, halves up; then what `shift` leaves to the right, halves away from
    zero. Numbers that are known make shorter code."""
    kind = x.type
    if isinstance(shift, int):
        x = x << shift if shift > 0 else x
        found = _high_product(k, x, multiplier)
        if shift >= 0:
            return found
        lower = found + (found >> 31)  # of which what is half-way goes up
        if shift < -31:
            return k.const(0, kind)
        return (lower >> 1) + (lower & 1) if shift == -1 else ((lower >> (-shift - 1)) + 1) >> 1
    zero, one = k.const(0, kind), k.const(1, kind)
    right = k.max(-shift, zero)
    found = _high_product(k, x << k.max(shift, zero), multiplier)
    lower = found + (found >> 31)
    return k.select(right > 0, (lower >> right) + ((lower >> (k.max(right, one) - one)) & 1), found)


def _high_product(k: Kernel, x: TracedValue, multiplier: TracedValue | int) -> TracedValue:
    if isinstance(multiplier, int) and multiplier == 1 << 30:
        return (x >> 1) + (x & 1)
    return k.high_product(x, multiplier)


def one_over_root(k: Kernel, number: TracedValue) -> tuple[TracedValue, TracedValue]:
    """GetInvSqrtQuantizedMultiplierExp: a multiplier, and how far to the right, of whole numbers up to 2**31 - 1, those
    below 1 being taken for it."""
    kind = number.type
    most = 2**31 - 1

    def times(a: TracedValue, b: TracedValue | int) -> TracedValue:
        return fixed_mul(k, a, b, 0)

    def shifted(x: TracedValue, bits: int) -> TracedValue:
        return k.select(x > (1 << (31 - bits)) - 1, k.const(most, kind), x << bits)

    x = k.max(number, k.const(2, kind))
    large = x >= 1 << 29
    x = k.select(large, x >> 2, x)
    right = k.select(large, k.const(12, kind), k.const(11, kind))
    for bits in (16, 8, 4, 2):
        room = x < 1 << (29 - bits)
        x, right = k.select(room, x << bits, x), k.select(room, right - bits // 2, right)
    half = ((x >> 1) + 1) >> 1
    root = k.const(1 << 28, kind)
    for _ in range(5):
        cube = shifted(times(times(root, root), root), 6)
        root = shifted(times(root, THREE_HALVES) - times(half, cube), 3)
    root = times(root, HALF_ROOT_OF_TWO)
    none, unsigned = k.const(0, kind), vec(u32, kind.lanes)
    raised = k.bitcast(k.bitcast(root, unsigned) << k.bitcast(k.max(-right, none), unsigned), kind)
    single = number <= 1
    return k.select(single, k.const(most, kind), raised), k.select(single, none, k.max(right, none))


def fixed_mul_once(k: Kernel, x: TracedValue, multiplier: TracedValue, shift: TracedValue) -> TracedValue:
    """x * multiplier * 2**(shift - 31) rounded once, halves up; the multiplier is not negative, the shift from -31 to
    15."""
    unsigned = vec(u32, x.type.lanes)
    one, none = k.const(1, unsigned), k.const(0, unsigned)
    a, b = (k.bitcast(v, unsigned) for v in (k.abs(x), multiplier))
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    first, second, third = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (first >> 16) + (second & 0xFFFF) + (third & 0xFFFF)
    low = (first & 0xFFFF) | (middle << 16)
    high = a_high * b_high + (second >> 16) + (third >> 16) + (middle >> 16)
    negative = x < 0
    high = k.select(negative, ~high + k.select(low == none, one, none), high)
    low = k.select(negative, none - low, low)
    right = k.bitcast(31 - shift, unsigned)  # 16 to 62
    half = one << ((right - one) & 31)
    far = right > 32
    raised = low + k.select(far, none, half)
    high = high + k.select(far, half, k.select(raised < low, one, none))
    near = k.select(right == 32, high, (raised >> (right & 31)) | (high << ((32 - right) & 31)))
    beyond = k.bitcast(high, x.type) >> (k.bitcast(right, x.type) & 31)
    return k.select(far, beyond, k.bitcast(near, x.type))
