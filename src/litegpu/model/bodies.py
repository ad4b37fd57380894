"""What operators of StableHLO do with two numbers: a subgraph that they call says it, of one operator as a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from litegpu.model.types import Operator, Subgraph

#: The body that gives its second number.
ASSIGNED = "assigned"

_CALLERS = frozenset({"STABLEHLO_SCATTER", "STABLEHLO_REDUCE_WINDOW"})
_FUNCTIONS = {
    "STABLEHLO_ADD": "add",
    "STABLEHLO_MULTIPLY": "mul",
    "STABLEHLO_MAXIMUM": "max",
    "STABLEHLO_MINIMUM": "min",
    "STABLEHLO_AND": "all",
    "ADD": "add",
    "MUL": "mul",
    "MAXIMUM": "max",
    "MINIMUM": "min",
    "LOGICAL_AND": "all",
}


def with_bodies(subgraphs: tuple[Subgraph, ...]) -> tuple[Subgraph, ...]:
    """The subgraphs, in whose operators the bodies are named."""
    if not any(o.name in _CALLERS for graph in subgraphs for o in graph.operators):
        return subgraphs
    return tuple(
        dataclasses.replace(graph, operators=tuple(_with_body(o, subgraphs) for o in graph.operators))
        for graph in subgraphs
    )


def _with_body(operator: Operator, subgraphs: Sequence[Subgraph]) -> Operator:
    if operator.name not in _CALLERS or len(operator.subgraphs) != 1:
        return operator
    (called,) = operator.subgraphs
    return dataclasses.replace(operator, body=_named(subgraphs[called])) if called < len(subgraphs) else operator


def _named(graph: Subgraph) -> str:
    """The function of the one operator of a subgraph of two inputs, ASSIGNED without any, "" if it is not known."""
    if len(graph.inputs) != 2 or len(graph.outputs) != 1:
        return ""
    if not graph.operators:
        return ASSIGNED if graph.outputs[0] == graph.inputs[1] else ""
    only = graph.operators[0]
    alone = len(graph.operators) == 1 and only.outputs == graph.outputs and set(only.inputs) == set(graph.inputs)
    plain = not only.options.get("fused_activation_function")
    return _FUNCTIONS.get(only.name, "") if alone and plain else ""
