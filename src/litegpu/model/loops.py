"""Refuses loops whose condition comes to have no value: the official runtime follows a null pointer then."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.errors import ModelError
from litegpu.model.ops import find
from litegpu.model.shapes import Shape, followed_shapes
from litegpu.model.types import Model, Operator, Subgraph

#: After so many rounds the shapes of a loop's state are what they are.
_ROUNDS = 4


def check_loops(model: Model) -> None:
    """Checks that the condition of each loop stays a value as the shapes of the state change.

    Raises:
        ModelError: says of which loop it does not.
    """
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            known = find(operator)
            if known is not None and known.calls == "loop":
                condition, body = (model.subgraphs[index] for index in operator.subgraphs)
                _check_loop(operator, _shapes(subgraph, operator.inputs, ()), condition, body)


def _check_loop(operator: Operator, state: Sequence[Shape], condition: Subgraph, body: Subgraph) -> None:
    for _ in range(_ROUNDS):
        for shape in _shapes(condition, condition.outputs, state):
            if 0 in shape:
                raise ModelError(
                    f"operator {operator.index} {operator.name}: the shapes {[list(s) for s in state]}, which its "
                    f"state comes to have, give its condition the shape {list(shape)}, so that it has no value"
                )
        before, state = state, _shapes(body, body.outputs, state)
        if list(before) == list(state):
            return


def _shapes(subgraph: Subgraph, tensors: Sequence[int], inputs: Sequence[Shape]) -> list[Shape]:
    """The shapes of these tensors, where the subgraph's inputs have others than in the file."""
    found = followed_shapes(subgraph, dict(zip(subgraph.inputs, inputs, strict=False)))
    return [found.get(i, subgraph.tensors[i].shape) for i in tensors]
