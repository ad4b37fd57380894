"""Quotients of whole numbers of 64 bits, of tensors of two words."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.graph import Arg, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import pairs
from litegpu.gpu.lower.pairs import ONE, ZERO, A, B, Wide
from litegpu.gpu.lower.parts import Parts

#: Each quotient of floats is right to 20 bits and more, so that so many come to 64.
_ROUNDS = 4
_NONE: Wide = (ZERO, ZERO)
#: The third operand, behind pairs.A and B.
_C: Wide = (Arg(4), Arg(5))

#: The tensors of the low and of the high words.
Pair = Sequence[int]


def divided(parts: Parts, pair: Pair, by: Pair, sources: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Quotients, rounded down, and what is left, of the divisor's sign: what a quotient of floats leaves is divided
    again, and what then lacks one at most is corrected. All are of one shape."""

    def computed(words: Wide, *given: Pair) -> tuple[int, ...]:
        tensors = [t for one in given for t in one]
        return tuple(parts.computed(word, tensors, sources) for word in words)

    quotient, rest = None, tuple(pair)
    for number in range(_ROUNDS + 2):
        estimate = pairs.of_float(fn("div", pairs.to_float(A), pairs.to_float(B)))
        step = computed(estimate if number < _ROUNDS else _correction(), rest, by)
        rest = computed(pairs.minus(A, pairs.times(B, _C)), rest, step, by)
        quotient = step if quotient is None else computed(pairs.plus(A, B), quotient, step)
    assert quotient is not None
    return quotient, rest


def toward_zero(parts: Parts, pair: Pair, by: Pair, sources: Sequence[int]) -> tuple[int, ...]:
    """Quotients by numbers above 0, rounded towards zero."""
    quotient, rest = divided(parts, pair, by, sources)
    cut = fn("logical_and", fn("lt", Arg(1), ZERO), fn("logical_not", pairs.equal(_C, _NONE)))
    raised = pairs.plus(B, (pairs.as_number(cut), ZERO))
    return tuple(parts.computed(word, (*pair, *quotient, *rest), sources) for word in raised)


def _correction() -> Wide:
    """Of what is left (A) and the divisor (B): -1 if they differ in sign, 1 if as much is left as that, else 0."""
    differ = fn("lt", fn("bit_xor", A[1], B[1]), ZERO)
    enough = fn("logical_not", pairs.less(pairs.absolute(A), pairs.absolute(B)))
    above = pairs.either(enough, (ONE, ZERO), _NONE)
    return pairs.either(pairs.equal(A, _NONE), _NONE, pairs.either(differ, (whole(-1), whole(-1)), above))
