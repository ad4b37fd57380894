"""Between which numbers results lie."""

from __future__ import annotations

from litegpu.model.ops.spans import added, among, left, mirrored, multiplied, subtracted, told


def test_the_ends_of_results() -> None:
    given = [(-3, 2), (-5, 7)]
    assert added(given) == (-8, 9)
    assert subtracted(given) == (-10, 7)
    assert multiplied(given) == (-21, 15)
    assert among([(3, 4)]) == (0, 4)
    assert left(given) == (-5, 7)
    assert mirrored(given) == (-7, 7)
    assert told(given) == (0, 1)
