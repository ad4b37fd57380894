"""Whether the GPU runs an operator that calls subgraphs."""

from __future__ import annotations

from collections.abc import Callable

from litegpu.gpu.control.called import CalledGraph, calls
from litegpu.gpu.control.trips import rounds
from litegpu.gpu.lower import Unsupported
from litegpu.model.calls import MOST_OPERATORS, expanded
from litegpu.model.ops import find
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Operator, Subgraph, TensorType

#: The reason why the GPU cannot run an operator of a subgraph, or None.
Check = Callable[[Subgraph, Operator], str | None]

#: What is not handed to subgraphs.
_OBJECTS = frozenset({TensorType.STRING, TensorType.RESOURCE, TensorType.VARIANT})


def is_control(operator: Operator) -> bool:
    """Whether it is an IF or a WHILE."""
    return calls(operator) in ("branch", "loop")


def check_control(model: Model, subgraph: Subgraph, operator: Operator, check: Check) -> str | None:
    """The reason why the GPU cannot run such an operator, or None. `check`: of any other."""
    if expanded(model, operator) > MOST_OPERATORS:
        return f"it calls subgraphs that come to more than {MOST_OPERATORS} operators"
    try:
        _check(CalledGraph(model, subgraph), operator, check)
    except Unsupported as reason:
        return str(reason)
    return None


def _check(scope: CalledGraph, operator: Operator, check: Check) -> None:
    """Raises Unsupported."""
    if -1 in operator.inputs:
        raise Unsupported("an input is missing")
    for tensor in (scope.subgraph.tensors[i] for i in (*operator.inputs, *operator.outputs)):
        if tensor.type in _OBJECTS or (tensor.type not in DTYPES and not tensor.is_constant):
            raise Unsupported(f"'{tensor.name}' is {tensor.type.name}, which subgraphs do not hand on on the GPU")
        if 0 in tensor.shape:
            raise Unsupported(f"'{tensor.name}' of shape {list(tensor.shape)} is empty")
    if calls(operator) == "loop":
        loop = scope.loop(operator)
        if rounds(loop) is None:
            _check_block(loop.condition, check)
        _check_block(loop.body, check)
        return
    for branch in scope.branches(operator):
        _check_block(branch, check)


def _check_block(scope: CalledGraph, check: Check) -> None:
    graph = scope.subgraph
    for operator in graph.operators:
        if is_control(operator):
            _check(scope, operator, check)
            continue
        if any(t >= 0 and graph.tensors[t].is_variable for t in operator.inputs):
            raise Unsupported(f"{operator.name} in subgraph {graph.index}, which it calls, keeps a variable")
        known = find(operator)
        if known is not None and known.goes_on:
            raise Unsupported(f"{operator.name} in subgraph {graph.index}, which it calls, goes on from call to call")
        reason = check(graph, operator)
        if reason is not None:
            raise Unsupported(f"{operator.name} in subgraph {graph.index}, which it calls: {reason}")
