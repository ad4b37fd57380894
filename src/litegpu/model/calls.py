"""How much an operator comes to that calls subgraphs."""

from __future__ import annotations

from litegpu.model.types import Model, Operator

#: Operators that what calls subgraphs may expand to: files of a few kilobytes can have subgraphs that call each other
#: in more ways than there is memory for, and each way takes some 10 ms to compile.
MOST_OPERATORS = 3_000


def expanded(model: Model, operator: Operator) -> int:
    """How many operators it comes to, where each call counts what it calls."""
    known: dict[int, int] = {}

    def size(index: int) -> int:
        if index not in known:
            operators = model.subgraphs[index].operators
            known[index] = sum(1 + sum(size(i) for i in o.subgraphs) for o in operators)
        return known[index]

    return 1 + sum(size(i) for i in operator.subgraphs)
