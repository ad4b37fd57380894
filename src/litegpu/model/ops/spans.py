"""Between which numbers the integers lie that an operator gives, by those of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: The lowest and the highest number.
Span = tuple[int, int]
SpanRule = Callable[[Sequence[Span]], Span]

#: What 32 bits hold.
WORD: Span = (-(2**31), 2**31 - 1)

#: What the GPU computes with two words of a number where one may not be enough (gpu/lower/words.py), beside what moves
#: elements.
IN_WORDS = frozenset({
    *("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER"),
    *("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM"),
    *("GREATER_EQUAL", "NEG", "ABS", "SIGN", "CAST", "SUM", "CUMSUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"),
    *("SCATTER_ND", "TOPK_V2", "UNIQUE", "FLOOR_MOD", "MEAN", "BUCKETIZE", "STABLEHLO_AND"),
})  # fmt: skip


def among(given: Sequence[Span]) -> Span:
    """They are chosen from what is read, or zeros."""
    return min(0, *(low for low, _ in given)), max(0, *(high for _, high in given))


def told(given: Sequence[Span]) -> Span:
    """A comparison's 0 and 1."""
    return 0, 1


def added(given: Sequence[Span]) -> Span:
    return sum(low for low, _ in given), sum(high for _, high in given)


def subtracted(given: Sequence[Span]) -> Span:
    (low, high), (less, most) = given
    return low - most, high - less


def multiplied(given: Sequence[Span]) -> Span:
    first, second = given
    corners = [a * b for a in first for b in second]
    return min(corners), max(corners)


def any_word(given: Sequence[Span]) -> Span:
    """Words give a word."""
    return WORD


def numbered(given: Sequence[Span]) -> Span:
    """They say where something is, or how many there are."""
    return 0, WORD[1]


def left(given: Sequence[Span]) -> Span:
    """What is left of a division lies within the divisor."""
    return among(given[1:])


def mirrored(given: Sequence[Span]) -> Span:
    """Of either sign."""
    most = max(abs(n) for span in given for n in span)
    return -most, most
