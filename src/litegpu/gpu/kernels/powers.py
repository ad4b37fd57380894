"""Powers of two beside a number."""

from __future__ import annotations


def power_above(n: int) -> int:
    """The least power of two that is not below `n`, of at least 1."""
    return int(1 << (n - 1).bit_length())


def power_below(n: int) -> int:
    """The largest power of two that is not above `n`, of at least 1."""
    return int(1 << (n.bit_length() - 1))
