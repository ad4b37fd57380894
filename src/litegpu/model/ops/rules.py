"""Rules for shapes and batches that several families share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import Tensors
from litegpu.model.ops.record import BatchRule, Repeating
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator


def filled(node: ShapeNode) -> Shape:
    return node.integers(0)


def same_shape(node: ShapeNode) -> list[Shape]:
    return [node.shape(0)]


def broadcast_shape(node: ShapeNode) -> list[Shape]:
    return [together(node, [node.shape(i) for i in range(node.count)])]


def together(node: ShapeNode, shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcasting."""
    rank = max(len(s) for s in shapes)
    result = []
    for sizes in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        others = set(sizes) - {1}
        node.require(len(others) <= 1)
        result.append(others.pop() if others else 1)
    return tuple(result)


def pointwise(node: BatchNode) -> Place:
    return node.only(0)


def images(node: BatchNode) -> Place:
    return node.lead(0)


def last_axis(node: BatchNode) -> Place:
    place, rank = node.only(0), node.rank(0)
    node.require(rank > 1, "it works along the batch axis, the only one")
    node.off_batch(-1, place, rank, "works along")
    return place


def broadcast_rows(node: BatchNode) -> Place:
    return aligned(node, len(node.output))


def aligned(node: BatchNode, rank: int) -> Place:
    """NumPy broadcasting where all that depends on the batch has it along the same axis of `rank`."""
    found: list[Place] = []
    for i in node.given:
        place = node.place(i)
        if place is None:
            continue
        moved = place.at(place.axis + rank - node.rank(i))
        if found and moved != found[0]:
            node.require(
                moved.axis == found[0].axis,
                f"the batch of its input {i} {list(node.shape(i))} meets another axis of the rest",
            )
            node.refuse("its inputs have different numbers of rows")
        found.append(moved)
    place = found[0]
    for i in node.given:
        axis = place.axis - (rank - node.rank(i))
        if node.place(i) is None and axis >= 0 and node.shape(i)[axis] != 1:
            node.repeat(i, place.at(axis))
    return place


def rows_alike(node: BatchNode) -> Place:
    """Every input has the batch at the same place; what does not depend on it is repeated."""
    place = next(p for i in node.given if (p := node.place(i)) is not None)
    for i in node.given:
        if node.place(i) is None:
            node.repeat(i, place)
        node.require(node.place(i) == place, "its inputs have different numbers of rows")
    return place


def along(verb: str) -> BatchRule:
    """Works along the axes in constant input 1, which stay."""

    def rule(node: BatchNode) -> Place:
        place = node.only(0)
        for axis in node.integers(1):
            node.off_batch(axis, place, node.rank(0), verb)
        return place

    return rule


def weighed(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    """The work of a product of each row of the weights, input 1."""
    return results * math.prod(given[1][1:]) if len(given) > 1 else None


#: All inputs hold values.
EACH = Repeating(None)


def alike_hazard(operator: Operator, tensors: Tensors, given: Sequence[Shape]) -> str | None:
    """The kernel goes through both inputs by the shape of the first."""
    if given[0] == given[1]:
        return None
    return f"its inputs have the shapes {list(given[0])} and {list(given[1])}, which have to be one"
