"""What a smaller share of a model on the GPU would take: each partition is a call, with copies and a wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.choosing.called import Called
from litegpu.choosing.predict import BORDER, CPU_CALL, NOTHING_CALLED, on_one_core, rates_of, seconds_on
from litegpu.delegates.report import CPU, DelegationReport, PartitionReport
from litegpu.gpu.backends.abilities import CallRates
from litegpu.model.costs import OpCost, op_costs
from litegpu.model.types import Subgraph


@dataclass(frozen=True)
class Share:
    """The `partitions` that have the most `nodes` on a device, the rest on one core of the CPU: `seconds` of a call, as
    expected."""

    partitions: int
    nodes: int
    seconds: float


def shares(
    graph: Subgraph, report: DelegationReport, device: str, called: Called = NOTHING_CALLED
) -> tuple[Share, ...]:
    """What is to be expected of max_delegated_partitions of 0 (nothing on the device), 1, 2 and so on, up to all of the
    report's; () for a device that nothing is known of. `graph`: the main subgraph with its shapes; `called`: what its
    operators call."""
    rates = rates_of(device)
    if rates is None:
        return ()
    costs = op_costs(graph)
    there = sorted((p for p in report.partitions if p.owner != CPU), key=lambda p: len(p.nodes), reverse=True)
    return tuple(
        _share(graph, costs, report.partitions, there[:count], rates, called) for count in range(len(there) + 1)
    )


def quickest(found: Sequence[Share]) -> Share | None:
    """Of several the one that is expected to take least; the smallest of equals."""
    return min(found, key=lambda share: (share.seconds, share.partitions), default=None)


def _share(
    graph: Subgraph,
    costs: Sequence[OpCost],
    partitions: Sequence[PartitionReport],
    kept: Sequence[PartitionReport],
    rates: CallRates,
    called: Called,
) -> Share:
    seconds, before = 0.0, None
    for partition in partitions:
        here = partition not in kept
        if here:
            seconds += sum(on_one_core(graph, n, costs[n], called) for n in partition.nodes)
            seconds += 0.0 if before is True else CPU_CALL  # neighbours on the CPU are one call
        else:
            ports = (graph.tensors[t] for t in (*partition.inputs, *partition.outputs))
            moved = sum(math.prod(tensor.shape) * tensor.type.nbytes for tensor in ports)
            seconds += rates.call + rates.port_byte * moved
            seconds += sum(seconds_on(rates, graph, n, costs[n], called) for n in partition.nodes)
        if before is not None and before is not here:
            seconds += BORDER
        before = here
    return Share(len(kept), sum(len(p.nodes) for p in kept), seconds)
