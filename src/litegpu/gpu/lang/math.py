"""Elementary functions in the kernel language itself, for targets whose own are too inaccurate or lose NaN.

Vulkan promises 3 + 2|x| ulp for exp, an absolute 2**-11 for sin and cos, and for tanh and pow whatever follows. These
stay within a few ulp given division to 2.5 ulp, with or without a fused fma. They are straight-line and take any number
of lanes. The polynomials were fitted for this module (least squares, reweighted towards the smallest maximal error);
the schemes are the textbook ones: Cody and Waite's reduction for exp, Payne and Hanek's for sin and cos, the series in
(m - 1) / (m + 1) for log, and Dekker's split products for pow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from litegpu.gpu.lang.functions import Functions
from litegpu.gpu.lang.types import Type, i32, u32, vec
from litegpu.gpu.lang.value import TracedValue

Definition = Callable[..., TracedValue]

LN2_HIGH = 0.693359375  # ten bits, so that its product with a whole number below 2**14 is exact
LN2_LOW = -2.12194440e-4
SMALLEST_NORMAL = 2.0**-126
INF_BITS = 0x7F800000
SQRT_HALF_BITS = 0x3F3504F3
SPLIT = 0xFFFFF000  # keeps 12 bits of a float, so that products of two such are exact

_EXP = (0.5, 0.16666506230831146, 0.041666168719530106, 0.008370321244001389, 0.0013952970039099455)
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.00019839256128761917, 2.7175644845556235e-06)
_COS = (0.04166664555668831, -0.0013887305976822972, 2.4431203200947493e-05)
_LOG = (0.6666666269302368, 0.4000037908554077, 0.28534385561943054, 0.2363998293876648)
_POW = (0.5999999642372131, 0.4285789728164673, 0.3327272832393646, 0.2928415536880493)
_TANH = (-0.3333328366279602, 0.13331490755081177, -0.05374349653720856, 0.020650578662753105, -0.005717036779969931)

# The bits of 2 / pi after 34 zeros.
_TWO_OVER_PI = (0, 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA)


def exp(k: Functions, x: TracedValue) -> TracedValue:
    clamped = k.clamp(x, -104.0, 89.0)
    n = k.round(clamped * (1 / math.log(2)))
    # From an integer again for the low part: Mesa adds the two factors of one n up, and the reduction is lost.
    same_n = k.convert(k.convert(n, _like(n, i32)), n.type)
    r = k.fma(same_n, -LN2_LOW, k.fma(n, -LN2_HIGH, clamped))
    return k.select(k.is_nan(x), x, _scale(k, _exp_reduced(k, r), n))


def log(k: Functions, x: TracedValue) -> TracedValue:
    n, m = _split_power(k, x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = 0.5 * f * f
    r = z * _polynomial(k, z, _LOG)
    y = n * LN2_HIGH - ((half - (s * (half + r) + n * LN2_LOW)) - f)
    bits = k.bitcast(x, _like(x, u32))
    y = k.select((bits == INF_BITS) | k.is_nan(x), x, y)
    y = k.select(x < 0.0, _all(k, math.nan, x), y)
    return k.select(x == 0.0, _all(k, -math.inf, x), y)


def sin(k: Functions, x: TracedValue) -> TracedValue:
    r, quadrant = _reduce_angle(k, x)
    y = _circular(k, r, quadrant)
    negative = (k.bitcast(x, _like(x, u32)) >> 31) == 1
    return k.select(negative, -y, y)


def cos(k: Functions, x: TracedValue) -> TracedValue:
    r, quadrant = _reduce_angle(k, x)
    return _circular(k, r, quadrant + 1)


def tanh(k: Functions, x: TracedValue) -> TracedValue:
    size = k.abs(x)
    z = x * x
    small = k.fma(x * z, _polynomial(k, z, _TANH), x)
    small = k.select(size < 2.0**-13, x, small)  # -0 as well
    large = 1.0 - 2.0 / (k.exp(2.0 * k.min(size, 10.0)) + 1.0)
    return k.select(size < 0.625, small, k.select(k.is_nan(x), x, k.select(x < 0.0, -large, large)))


def pow(k: Functions, x: TracedValue, y: TracedValue) -> TracedValue:
    """As C's: pow(x, 0) and pow(1, y) are 1, negative bases have results for whole exponents."""
    size = k.abs(x)
    r = _power_of_positive(k, size, y)
    x_bits, size_bits, y_bits = (k.bitcast(v, _like(x, u32)) for v in (x, size, k.abs(y)))
    zero, infinite, y_infinite = size == 0.0, size_bits == INF_BITS, y_bits == INF_BITS
    grows = ((y > 0.0) & (size > 1.0)) | ((y < 0.0) & (size < 1.0))
    limit = k.select(grows, _all(k, math.inf, x), _all(k, 0.0, x))
    r = k.select(zero | infinite | y_infinite, limit, r)
    whole = k.trunc(y) == y
    odd = whole & (y_bits < 0x4B800000) & ((k.convert(k.min(k.abs(y), 2.0**24), _like(x, u32)) & 1) == 1)
    negative = (x_bits >> 31) == 1
    r = k.select(negative & odd, -r, r)
    r = k.select(negative & ~(whole | zero | infinite), _all(k, math.nan, x), r)
    r = k.select(k.is_nan(y), y, r)
    r = k.select(k.is_nan(x), x, r)
    return k.select((y == 0.0) | (x == 1.0) | ((size == 1.0) & y_infinite), _all(k, 1.0, x), r)


def to_i32_saturating(k: Functions, x: TracedValue) -> TracedValue:
    """As ops.to_i32_saturating: saturates, NaN gives the largest."""
    inside = k.convert(k.max(k.min(x, 2147483520.0), -2147483648.0), _like(x, i32))
    return k.select((x >= 2147483648.0) | k.is_nan(x), k.const(2**31 - 1, _like(x, i32)), inside)


POLYFILLS: dict[str, Definition] = {
    "exp": exp,
    "log": log,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "pow": pow,
    "to_i32_saturating": to_i32_saturating,
}


def _like(x: TracedValue, scalar: Type) -> Type:
    return vec(scalar, x.type.lanes)


def _all(k: Functions, number: float, like: TracedValue) -> TracedValue:
    return k.const(number, like.type)


def _polynomial(k: Functions, z: TracedValue, coefficients: Sequence[float]) -> TracedValue:
    """c0 + c1 z + c2 z^2 + ..., by Horner's rule."""
    total = _all(k, coefficients[-1], z)
    for c in reversed(coefficients[:-1]):
        total = k.fma(total, z, _all(k, c, z))
    return total


def _exp_reduced(k: Functions, r: TracedValue) -> TracedValue:
    """exp(r) for |r| up to half of ln 2."""
    return k.fma(r * r, _polynomial(k, r, _EXP), r) + 1.0


def _scale(k: Functions, x: TracedValue, n: TracedValue) -> TracedValue:
    """x * 2**n for whole n from -160 to 160, in two steps because 2**n itself may be out of range."""
    whole = k.convert(n, _like(n, i32))
    half = whole >> 1
    for power in (half, whole - half):
        x = x * k.bitcast((power + 127) << 23, x.type)
    return x


def _split_power(k: Functions, x: TracedValue) -> tuple[TracedValue, TracedValue]:
    """n (a float) and m in [sqrt(1/2), sqrt(2)) with x = m * 2**n, for positive x, subnormal ones too."""
    tiny = x < SMALLEST_NORMAL
    bits = k.bitcast(k.select(tiny, x * 2.0**24, x), _like(x, i32))
    n = (bits - SQRT_HALF_BITS) >> 23
    m = k.bitcast(bits - (n << 23), x.type)
    exponent = k.convert(n, x.type)
    return k.select(tiny, exponent - 24.0, exponent), m


def _reduce_angle(k: Functions, x: TracedValue) -> tuple[TracedValue, TracedValue]:
    """r in [-pi/4, pi/4] and the quadrant (u32, modulo 4) with |x| = r + quadrant * pi/2, exact for every float.

    The 24-bit mantissa is multiplied with those 96 bits of 2/pi that matter, modulo 4, in integers. The sign of x is
    left to the caller; infinities and NaN give NaN.
    """
    unsigned = _like(x, u32)
    size = k.abs(x)
    bits = k.bitcast(size, unsigned)
    mantissa = ((bits & 0x7FFFFF) | 0x800000) << 8
    shift = (bits >> 23) - 126
    g0, g1, g2 = _two_over_pi_from(k, shift)
    low1, high1 = _multiply_wide(k, mantissa, g1)
    _, high2 = _multiply_wide(k, mantissa, g2)
    low = low1 + high2
    carry = k.select(low < low1, k.const(1, unsigned), k.const(0, unsigned))
    high = mantissa * g0 + high1 + carry
    quadrant = (high + (1 << 29)) >> 30
    signed = k.bitcast((high << 2) | (low >> 30), _like(x, i32))
    fraction = k.fma(k.convert(low << 2, x.type), 2.0**-32, k.convert(signed, x.type))
    reduced = fraction * (math.pi / 2 * 2.0**-32)
    inside = size < math.pi / 4
    r = k.select(inside, size, k.select(bits >= INF_BITS, _all(k, math.nan, x), reduced))
    return r, k.select(inside, k.const(0, unsigned), quadrant)


def _two_over_pi_from(k: Functions, offset: TracedValue) -> tuple[TracedValue, TracedValue, TracedValue]:
    """Three words of _TWO_OVER_PI from the bit `offset` (0 to 129) on."""
    first, bit = offset >> 5, offset & 31
    words = []
    for j in range(4):
        word = k.const(_TWO_OVER_PI[j + 4], offset.type)
        for i in (3, 2, 1, 0):
            word = k.select(first == i, k.const(_TWO_OVER_PI[j + i], offset.type), word)
        words.append(word)
    g0, g1, g2 = ((a << bit) | ((b >> 1) >> (31 - bit)) for a, b in itertools.pairwise(words))
    return g0, g1, g2


def _multiply_wide(k: Functions, a: TracedValue, b: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The low and the high word of a 32 by 32 bit product."""
    a0, a1, b0, b1 = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    middle = a1 * b0 + ((a0 * b0) >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a * b, a1 * b1 + (middle >> 16) + (other >> 16)


def _circular(k: Functions, r: TracedValue, quadrant: TracedValue) -> TracedValue:
    """sin(r + quadrant * pi/2)."""
    z = r * r
    sine = k.fma(r * z, _polynomial(k, z, _SIN), r)
    cosine = k.fma(z * z, _polynomial(k, z, _COS), k.fma(z, -0.5, _all(k, 1.0, z)))
    y = k.select((quadrant & 1) == 1, cosine, sine)
    return k.select((quadrant & 2) == 2, -y, y)


def _power_of_positive(k: Functions, x: TracedValue, y: TracedValue) -> TracedValue:
    """x**y for finite x > 0 and finite y: 2**(y * log2 x), with log2 and the product in two floats each."""
    log_high, log_low = _log2_two_floats(k, x)
    y = k.clamp(y, -(2.0**33), 2.0**33)
    y_high = _high_bits(k, y)
    high = y_high * log_high
    low = (y - y_high) * log_high + y * log_low
    n = k.round(k.clamp(high + low, -160.0, 160.0))
    fraction = k.clamp((high - n) + low, -1.0, 1.0)
    return _scale(k, _exp_reduced(k, fraction * math.log(2)), n)


def _log2_two_floats(k: Functions, x: TracedValue) -> tuple[TracedValue, TracedValue]:
    """log2(x) as a float of 12 bits and the rest. log m = 2/3 s (3 + s^2 + s^4 P(s^2)) with s = (m - 1) / (m + 1)."""
    n, m = _split_power(k, x)
    above, below = m - 1.0, m + 1.0
    inverse = 1.0 / below
    s = above * inverse
    s_high, below_high = _high_bits(k, s), _high_bits(k, below)
    below_low = m - (below_high - 1.0)
    s_low = inverse * ((above - s_high * below_high) - s_high * below_low)
    z = s * s
    square = s_high * s_high  # exact
    rest = z * z * _polynomial(k, z, _POW) + s_low * (s_high + s)
    t_high = _high_bits(k, square + 3.0 + rest)
    t_low = rest - ((t_high - 3.0) - square)
    product = s_high * t_high  # exact
    product_rest = s_low * t_high + t_low * s
    p_high = _high_bits(k, product + product_rest)
    p_low = product_rest - (p_high - product)
    scale = 2 / (3 * math.log(2))
    scale_high = 0.9619140625  # ten bits
    whole = scale_high * p_high  # exact
    whole_rest = (scale - scale_high) * p_high + p_low * scale
    high = _high_bits(k, whole + whole_rest + n)
    return high, whole_rest - ((high - n) - whole)


def _high_bits(k: Functions, x: TracedValue) -> TracedValue:
    return k.bitcast(k.bitcast(x, _like(x, u32)) & SPLIT, x.type)
