"""What operators that call subgraphs come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from litegpu.gpu.control.called import CalledGraph, calls
from litegpu.gpu.control.checks import is_control
from litegpu.gpu.control.trips import rounds, trips
from litegpu.model.costs import OpCost, op_costs
from litegpu.model.types import Model, Operator, Subgraph


@dataclass(frozen=True)
class CalledWork:
    """An operator of what another calls, run so many `times`: `operator` of `subgraph`, whose shapes are those of the
    call. One that calls others itself costs what is handed in and out, and what it calls comes behind it; `asked`: how
    often the run decides what comes next."""

    subgraph: Subgraph
    operator: Operator
    cost: OpCost
    times: int
    asked: int = 0


def called_work(model: Model, subgraph: Subgraph, operator: Operator, unknown: int = 1) -> Iterator[CalledWork]:
    """The operators of all rounds of a WHILE (`unknown`: how many where only the run knows), or of all branches of an
    IF, and first the operator itself. Raises Unsupported where check_control() has a reason."""
    return _work(CalledGraph(model, subgraph), operator, 1, unknown)


def called_cost(model: Model, subgraph: Subgraph, operator: Operator) -> tuple[int, int]:
    """FLOPs and bytes of all rounds of a WHILE, or of both branches of an IF, and of handing values in and out. Raises
    Unsupported where check_control() has a reason."""
    return _sum(called_work(model, subgraph, operator))


def _work(scope: CalledGraph, operator: Operator, times: int, unknown: int) -> Iterator[CalledWork]:
    tensors = [scope.subgraph.tensors[t] for t in (*operator.inputs, *operator.outputs)]
    handed = sum(math.prod(t.shape) * t.type.nbytes for t in tensors)
    cost = OpCost(0, handed, 0)
    if calls(operator) == "loop":
        loop = scope.loop(operator)
        count = trips(loop)
        each = times * (unknown if count is None else count)
        yield CalledWork(scope.subgraph, operator, cost, times, each if rounds(loop) is None else 0)
        yield from _all_work(loop.body, each, unknown)
    else:
        branches = scope.branches(operator)
        yield CalledWork(scope.subgraph, operator, cost, times, 0 if all(map(is_small, branches)) else times)
        for branch in branches:
            yield from _all_work(branch, times, unknown)


def _all_work(scope: CalledGraph, times: int, unknown: int) -> Iterator[CalledWork]:
    for operator, cost in zip(scope.subgraph.operators, op_costs(scope.subgraph), strict=True):
        if is_control(operator):
            yield from _work(scope, operator, times, unknown)
        else:
            yield CalledWork(scope.subgraph, operator, cost, times)


def _sum(work: Iterable[CalledWork]) -> tuple[int, int]:
    flops = moved = 0
    for one in work:
        flops, moved = flops + one.times * one.cost.flops, moved + one.times * one.cost.bytes
    return flops, moved


def is_small(branch: CalledGraph) -> bool:
    """Whether computing a branch in vain costs less than asking whether it is to be computed."""
    return not _is_endless(branch) and _sum(_all_work(branch, 1, 1))[0] <= _SMALL


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
