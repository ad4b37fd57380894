"""The shapes of an operator's results, as the official kernels' Prepare() finds them, by its rule in the record.

Only shapes and constant operands are looked at; nothing is allocated, so sizes that the CPU could not hold are no
obstacle. A rule that is given what it does not expect raises Unexpected, and the official runtime decides
(delegates/shapes.py); one whose answer depends on values that the model computes raises Computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litegpu.model.ops import find
from litegpu.model.ops.shape_node import Computed, Shape, ShapeNode, Unexpected
from litegpu.model.types import Operator, Subgraph

__all__ = ["Computed", "Shape", "Unexpected", "estimated_shapes", "followed_shapes", "shapes_of_results"]


def shapes_of_results(subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> Sequence[Shape] | None:
    """The shapes of the outputs, None if there is no rule for the operator. `shapes` has those of the tensors so far,
    where they are not the file's. Raises Unexpected or Computed."""
    known = find(operator)
    if known is None or known.shape is None:
        return None
    found = known.shape(ShapeNode(subgraph, operator, shapes))
    if len(found) != len(operator.outputs) or any(n < 0 for shape in found for n in shape):
        raise Unexpected
    return found


def estimated_shapes(subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> Sequence[Shape]:
    """The same, also of operators that only the official runtime runs, whose own answer may be another; none where
    values decide, or the runtime will have something to say."""
    known = find(operator)
    try:
        if known is not None and known.estimate is not None:
            return [tuple(max(0, extent) for extent in known.estimate(ShapeNode(subgraph, operator, shapes)))]
        return shapes_of_results(subgraph, operator, shapes) or ()
    except (Computed, Unexpected, ArithmeticError, LookupError, ValueError):
        return ()


def followed_shapes(subgraph: Subgraph, inputs: Mapping[int, Shape]) -> dict[int, Shape]:
    """Tensor -> estimated shape, where that is not the file's, if `inputs` have these."""
    shapes = dict(inputs)
    for operator in subgraph.operators:
        shapes.update(zip(operator.outputs, estimated_shapes(subgraph, operator, shapes), strict=False))
    return shapes
