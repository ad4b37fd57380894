"""What operators that call subgraphs come to."""

from __future__ import annotations

import math

from litegpu.gpu.control.called import CalledGraph, calls
from litegpu.gpu.control.checks import is_control
from litegpu.gpu.control.trips import trips
from litegpu.model.costs import op_costs
from litegpu.model.types import Model, Operator, Subgraph


def called_cost(model: Model, subgraph: Subgraph, operator: Operator) -> tuple[int, int]:
    """FLOPs and bytes of all rounds of a WHILE, or of both branches of an IF, and of handing values in and out. Raises
    Unsupported where check_control() has a reason."""
    return _cost(CalledGraph(model, subgraph), operator)


def _cost(scope: CalledGraph, operator: Operator) -> tuple[int, int]:
    tensors = [scope.subgraph.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    handed = sum(math.prod(t.shape) * t.type.nbytes for t in tensors)
    if calls(operator) == "loop":
        loop = scope.loop(operator)
        flops, moved = _block(loop.body)
        count = trips(loop) or 1
        return count * flops, count * moved + handed
    found = [_block(branch) for branch in scope.branches(operator)]
    return sum(flops for flops, _ in found), sum(moved for _, moved in found) + handed


def is_small(branch: CalledGraph) -> bool:
    """Whether computing a branch in vain costs less than asking whether it is to be computed."""
    return not _is_endless(branch) and _block(branch)[0] <= _SMALL


#: FLOPs that take a GPU some microseconds.
_SMALL = 20_000_000


def _is_endless(scope: CalledGraph) -> bool:
    """Whether something in it may run any number of times."""
    for operator in scope.subgraph.operators:
        if calls(operator) == "loop":
            loop = scope.loop(operator)
            if trips(loop) is None or _is_endless(loop.body):
                return True
        elif is_control(operator) and any(_is_endless(branch) for branch in scope.branches(operator)):
            return True
    return False


def _block(scope: CalledGraph) -> tuple[int, int]:
    flops = moved = 0
    for operator, cost in zip(scope.subgraph.operators, op_costs(scope.subgraph), strict=True):
        one = _cost(scope, operator) if is_control(operator) else (cost.flops, cost.bytes)
        flops, moved = flops + one[0], moved + one[1]
    return flops, moved
