"""CAST of FLOAT64, whose numbers are two words: a sign, 11 bits of an exponent and 52 behind the point.

WGSL has no such numbers, so all of it is arithmetic on integers.
"""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import Arg, Expr, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.parts import Parts
from litegpu.gpu.lower.quantization import STORED, grid_of
from litegpu.model.types import Operator, TensorType

_FLOATS = (TensorType.FLOAT32, TensorType.FLOAT16)
#: Of which a word is the number, as a word is of BOOL.
_WORDS = (TensorType.INT32, TensorType.UINT32, TensorType.UINT16, *STORED)
_SIGN, _INFINITE = whole(-(2**31)), whole(0x7FF00000)
#: Exponents of 1 in both kinds of numbers, and what lies between them.
_BIAS, _BETWEEN = 1023, 896
_LOW, _HIGH = Arg(0), Arg(1)


def cast(parts: Parts, operator: Operator) -> None:
    """CAST to or from FLOAT64. Raises Unsupported."""
    tensors = parts.lowering.subgraph.tensors
    source, target = operator.inputs[0], tensors[operator.outputs[0]]
    sources = (operator.index,)
    if tensors[source].type is TensorType.FLOAT64:
        pair = parts.of(source)
        if target.type is TensorType.FLOAT64:
            _give(parts, operator, (_LOW, _HIGH), pair)
        elif target.type in _FLOATS:
            number = parts.computed(_to_float(), pair, sources, TensorType.FLOAT32)
            parts.lowering.plain(dataclasses.replace(operator, inputs=(number,)))
        elif target.type is TensorType.BOOL:
            magnitude = fn("bit_and", _HIGH, whole(2**31 - 1))
            none = fn("logical_and", fn("eq", _LOW, whole(0)), fn("eq", magnitude, whole(0)))
            parts.compute(target.index, fn("logical_not", none), pair, sources)
        elif target.type in _WORDS and grid_of(target) is None:
            number = parts.computed(_to_word(signed=target.type is not TensorType.UINT32), pair, sources)
            parts.lowering.plain(dataclasses.replace(operator, inputs=(number,)))
        elif target.type is TensorType.INT64 and parts.has(target.index):
            _give(parts, operator, _to_words(), pair)
        else:
            raise Unsupported(f"FLOAT64 to {target.type.name}")
        return
    given = tensors[source].type
    if given in _FLOATS:
        _give(parts, operator, _of_float(Arg(0)), (source,))
    elif given is TensorType.INT64 and parts.has(source):
        _give(parts, operator, _of_words(), parts.of(source))
    elif given in (*_WORDS, TensorType.BOOL, TensorType.INT64) and grid_of(tensors[source]) is None:
        word = parts.blank(tensors[source].shape, TensorType.INT32)
        parts.lowering.plain(dataclasses.replace(operator, outputs=(word,)))
        _give(parts, operator, _of_word(Arg(0), signed=given is not TensorType.UINT32), (word,))
    else:
        raise Unsupported(f"{given.name} to FLOAT64")


def _give(parts: Parts, operator: Operator, expressions: tuple[Expr, Expr], given: tuple[int, ...]) -> None:
    for part, expr in zip(parts.made(operator.outputs[0]), expressions, strict=True):
        parts.compute(part, expr, given, (operator.index,))


def _right(word: Expr, bits: int) -> Expr:
    """A word without a sign, shifted."""
    return fn("bit_and", fn("shift_right", word, whole(bits)), whole((1 << (32 - bits)) - 1))


def _right_by(word: Expr, bits: Expr) -> Expr:
    """The same by 1 to 32 bits."""
    return fn("shift_right", _right(word, 1), fn("sub", bits, whole(1)))


def _exponent() -> Expr:
    return fn("bit_and", fn("shift_right", _HIGH, whole(20)), whole(0x7FF))


def _log2(word: Expr) -> Expr:
    """The place of the highest bit of a number from 1 to 2**24."""
    return fn("sub", fn("shift_right", fn("bits_to_int32", fn("to_float32", word)), whole(23)), whole(127))


def _limited(x: Expr, low: int, high: int) -> Expr:
    return fn("min", fn("max", x, whole(low)), whole(high))


# ------------------------------------------------------------------------------------------------- from FLOAT64


def _to_float() -> Expr:
    """The nearest, halves to even; below the smallest normal number steps are equally long."""
    exponent = fn("sub", _exponent(), whole(_BETWEEN))
    kept = fn("add", fn("shift_left", fn("bit_and", _HIGH, whole(0xFFFFF)), whole(3)), _right(_LOW, 29))
    rest = fn("bit_and", _LOW, whole(2**29 - 1))
    half = whole(2**28)
    odd = fn("eq", fn("bit_and", kept, whole(1)), whole(1))
    up = fn("logical_or", fn("gt", rest, half), fn("logical_and", fn("eq", rest, half), odd))
    normal = fn("add", fn("add", fn("shift_left", exponent, whole(23)), kept), _one_if(up))
    # subnormal: 24 bits are shifted by as many as the exponent lacks, and rounded
    shift = _limited(fn("sub", whole(1), exponent), 1, 26)
    full = fn("add", kept, whole(1 << 23))
    small, gone = fn("shift_right", full, shift), fn("bit_and", full, fn("sub", _power(shift), whole(1)))
    middle = _power(fn("sub", shift, whole(1)))
    odd_small = fn("eq", fn("bit_and", small, whole(1)), whole(1))
    more = fn("logical_or", fn("gt", rest, whole(0)), odd_small)
    up_small = fn("logical_or", fn("gt", gone, middle), fn("logical_and", fn("eq", gone, middle), more))
    subnormal = fn("add", small, _one_if(up_small))
    finite = fn("select", fn("gt", exponent, whole(0)), normal, subnormal)
    fraction = fn("logical_or", fn("ne", fn("bit_and", _HIGH, whole(0xFFFFF)), whole(0)), fn("ne", _LOW, whole(0)))
    special = fn("eq", _exponent(), whole(0x7FF))
    large = fn("select", fn("logical_and", special, fraction), whole(0x7FC00000), whole(0x7F800000))
    bits = fn("select", fn("lt", exponent, whole(255)), finite, large)
    return fn("bits_to_float32", fn("add", bits, fn("bit_and", _HIGH, _SIGN)))


def _one_if(condition: Expr) -> Expr:
    return fn("select", condition, whole(1), whole(0))


def _power(bits: Expr) -> Expr:
    return fn("shift_left", whole(1), bits)


def _to_word(*, signed: bool) -> Expr:
    """Towards zero, saturating, NaN to the largest number; of UINT32 the word."""
    exponent = fn("sub", _exponent(), whole(_BIAS))
    top = fn("add", fn("shift_left", fn("bit_and", _HIGH, whole(0xFFFFF)), whole(11)), _right(_LOW, 21))
    top = fn("add", top, _SIGN)  # the highest bit, which is not stored
    magnitude = _right_by(top, fn("sub", whole(31), _limited(exponent, 0, 30)))
    negative = fn("lt", _HIGH, whole(0))
    small = fn("lt", exponent, whole(0))
    if not signed:
        magnitude = fn("select", fn("eq", exponent, whole(31)), top, magnitude)
        found = fn("select", fn("gt", exponent, whole(31)), whole(-1), magnitude)
        return fn("select", fn("logical_or", small, negative), whole(0), found)
    found = fn("select", negative, fn("neg", magnitude), magnitude)
    most = fn("select", fn("logical_and", negative, fn("lt", _exponent(), whole(0x7FF))), _SIGN, whole(2**31 - 1))
    return fn("select", small, whole(0), fn("select", fn("gt", exponent, whole(30)), most, found))


def _to_words() -> tuple[Expr, Expr]:
    """INT64, in the same way."""
    exponent = fn("sub", _exponent(), whole(_BIAS))
    top = fn("add", fn("bit_and", _HIGH, whole(0xFFFFF)), whole(1 << 20))
    # to the right by 52 - exponent
    right = _limited(fn("sub", whole(52), exponent), 0, 63)
    within = _limited(right, 1, 31)
    low = fn("add", _right_by(_LOW, within), fn("shift_left", top, fn("sub", whole(32), within)))
    far = fn("shift_right", top, _limited(fn("sub", right, whole(32)), 0, 31))
    none = fn("eq", right, whole(0))
    down = (
        fn("select", none, _LOW, fn("select", fn("lt", right, whole(32)), low, far)),
        fn("select", none, top, fn("select", fn("lt", right, whole(32)), fn("shift_right", top, within), whole(0))),
    )
    # or to the left by up to 10
    left = _limited(fn("sub", exponent, whole(52)), 1, 10)
    up = (
        fn("shift_left", _LOW, left),
        fn("add", fn("shift_left", top, left), _right_by(_LOW, fn("sub", whole(32), left))),
    )
    large = fn("gt", exponent, whole(52))
    size = [fn("select", large, a, b) for a, b in zip(up, down, strict=True)]
    negative = fn("lt", _HIGH, whole(0))
    turned = fn("neg", size[0])
    borrow = fn("select", fn("eq", size[0], whole(0)), whole(0), whole(1))
    found = (
        fn("select", negative, turned, size[0]),
        fn("select", negative, fn("sub", fn("neg", size[1]), borrow), size[1]),
    )
    least = fn("logical_and", negative, fn("lt", _exponent(), whole(0x7FF)))
    limit = fn("select", least, whole(0), whole(-1)), fn("select", least, _SIGN, whole(2**31 - 1))
    beyond, small = fn("gt", exponent, whole(62)), fn("lt", exponent, whole(0))
    return tuple(  # type: ignore[return-value]
        fn("select", small, whole(0), fn("select", beyond, a, b)) for a, b in zip(limit, found, strict=True)
    )


# --------------------------------------------------------------------------------------------------- to FLOAT64


def _of_float(x: Expr) -> tuple[Expr, Expr]:
    bits = fn("bits_to_int32", x)
    exponent = fn("bit_and", fn("shift_right", bits, whole(23)), whole(0xFF))
    fraction = fn("bit_and", bits, whole(2**23 - 1))
    # what has no leading 1 gets one
    place = _log2(fn("max", fraction, whole(1)))
    raised = fn("bit_and", fn("shift_left", fraction, fn("sub", whole(23), place)), whole(2**23 - 1))
    subnormal = fn("eq", exponent, whole(0))
    kept = fn("select", subnormal, raised, fraction)
    own = fn("add", fn("select", subnormal, fn("sub", place, whole(22)), exponent), whole(_BETWEEN))
    upper = fn("add", fn("shift_left", own, whole(20)), fn("shift_right", kept, whole(3)))
    infinite = fn("add", _INFINITE, fn("shift_right", fraction, whole(3)))
    upper = fn("select", fn("eq", exponent, whole(0xFF)), infinite, upper)
    zero = fn("logical_and", subnormal, fn("eq", fraction, whole(0)))
    upper = fn("select", zero, whole(0), upper)
    low = fn("select", zero, whole(0), fn("shift_left", fn("bit_and", kept, whole(7)), whole(29)))
    return low, fn("add", upper, fn("bit_and", bits, _SIGN))


def _of_word(word: Expr, *, signed: bool) -> tuple[Expr, Expr]:
    """Of a whole number, which is exact."""
    negative = fn("lt", word, whole(0)) if signed else fn("lt", whole(0), whole(0))
    size = fn("select", negative, fn("neg", word), word)  # without a sign
    place = _highest(size)
    raised = fn("shift_left", size, fn("sub", whole(31), place))  # the highest bit is the first
    upper = fn("bit_and", _right(raised, 11), whole(0xFFFFF))
    upper = fn("add", fn("shift_left", fn("add", place, whole(_BIAS)), whole(20)), upper)
    zero = fn("eq", size, whole(0))
    signs = fn("select", negative, _SIGN, whole(0))
    low = fn("select", zero, whole(0), fn("shift_left", raised, whole(21)))
    return low, fn("select", zero, whole(0), fn("add", upper, signs))


def _of_words() -> tuple[Expr, Expr]:
    """Of INT64: the nearest, halves to even."""
    negative = fn("lt", _HIGH, whole(0))
    borrow = fn("select", fn("eq", _LOW, whole(0)), whole(0), whole(1))
    low = fn("select", negative, fn("neg", _LOW), _LOW)  # the size, without a sign
    high = fn("select", negative, fn("sub", fn("neg", _HIGH), borrow), _HIGH)
    short = fn("eq", high, whole(0))
    first, second = fn("select", short, low, high), fn("select", short, whole(0), low)
    place = _highest(first)
    by = fn("sub", whole(31), place)  # until the highest bit is the first
    top = fn("add", fn("shift_left", first, by), _right_by(second, fn("sub", whole(32), by)))
    rest = fn("shift_left", second, by)
    kept = fn("add", fn("shift_left", top, whole(21)), _right(rest, 11))
    gone, middle = fn("bit_and", rest, whole(0x7FF)), whole(0x400)
    odd = fn("eq", fn("bit_and", kept, whole(1)), whole(1))
    up = fn("logical_or", fn("gt", gone, middle), fn("logical_and", fn("eq", gone, middle), odd))
    rounded = fn("add", kept, _one_if(up))
    exponent = fn("add", place, fn("select", short, whole(_BIAS), whole(_BIAS + 32)))
    upper = fn("add", fn("shift_left", exponent, whole(20)), fn("bit_and", _right(top, 11), whole(0xFFFFF)))
    carried = fn("add", upper, _one_if(fn("logical_and", up, fn("eq", rounded, whole(0)))))
    zero = fn("eq", first, whole(0))
    signs = fn("select", negative, _SIGN, whole(0))
    return (
        fn("select", zero, whole(0), rounded),
        fn("select", zero, whole(0), fn("add", carried, signs)),
    )


def _highest(word: Expr) -> Expr:
    """The place of the highest bit of a word without a sign, 0 of 0."""
    above = _right(word, 16)
    return fn("select", fn("gt", above, whole(0)), fn("add", _log2(fn("max", above, whole(1))), whole(16)),
              _log2(fn("max", fn("bit_and", word, whole(0xFFFF)), whole(1))))  # fmt: skip
