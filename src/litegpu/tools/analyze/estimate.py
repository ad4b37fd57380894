"""How long each op is expected to take, from what it computes and moves and from the rates of a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from litegpu.choosing.predict import on_one_core
from litegpu.delegates.report import CPU as ON_CPU
from litegpu.delegates.report import DelegationReport, PartitionReport
from litegpu.gpu.delegate.fused import FusedNode, FusedPartition
from litegpu.model.costs import OpCost
from litegpu.model.types import Subgraph
from litegpu.tools.analyze.rates import DeviceRates


@dataclass(frozen=True)
class OpTime:
    """Seconds that an op is expected to take (`estimated`), and the least that the device can do it in (`limit`; 0 on
    the CPU, of which no limit is known) because of `bound`, "arithmetic" or "memory". `shared` are the other nodes of
    its kernels, by whose costs their time is divided."""

    estimated: float
    limit: float
    bound: str
    shared: tuple[int, ...] = ()


@dataclass(frozen=True)
class Crossing:
    """What a delegate's partition costs beside its kernels: bytes to it and back from it, and the wait for it."""

    partition: int
    bytes: int
    seconds: float


def op_times(
    report: DelegationReport,
    graph: Subgraph,
    costs: Sequence[OpCost],
    fused: Mapping[int, FusedPartition],
    rates: DeviceRates,
    half: bool = False,
) -> list[OpTime]:
    """Of each node of a report about `graph`. `fused`: partition -> its kernels. Nodes of other partitions are
    estimated one by one: on the CPU as on one core, on other delegates as if nothing were fused."""
    found: dict[int, OpTime] = {}
    for partition in report.partitions:
        if partition.index in fused:
            _shared_times(fused[partition.index].nodes, costs, rates, half, found)
    times = []
    for node in report.nodes:
        cost = costs[node.index]
        if node.partition in fused:
            times.append(found.get(node.index, OpTime(0.0, 0.0, "")))
            continue
        if node.owner == ON_CPU:
            times.append(OpTime(on_one_core(graph, node.index, cost), 0.0, ""))
            continue
        limit = rates.limit(cost.flops, cost.bytes, half)
        times.append(OpTime(limit + rates.launch, limit, rates.bound(cost.flops, cost.bytes, half)))
    return times


def divided(seconds: float, nodes: Sequence[int], costs: Sequence[OpCost]) -> dict[int, float]:
    """A time divided among nodes by what each of them takes by itself."""
    weights = {n: costs[n].flops + costs[n].bytes for n in nodes}
    whole = sum(weights.values())
    return {n: seconds * (weights[n] / whole if whole else 1 / len(nodes)) for n in nodes}


def crossings(report: DelegationReport, subgraph: Subgraph, rates: DeviceRates) -> list[Crossing]:
    """Of every partition of a delegate."""
    return [crossing(p, subgraph, rates) for p in report.partitions if p.owner != ON_CPU]


def crossing(partition: PartitionReport, subgraph: Subgraph, rates: DeviceRates) -> Crossing:
    """What goes in and out is copied between host and device, since the CPU, or the caller, has it."""
    nbytes = tensor_bytes(subgraph, (*partition.inputs, *partition.outputs))
    return Crossing(partition.index, nbytes, nbytes / rates.link + rates.wait)


def tensor_bytes(subgraph: Subgraph, tensors: Iterable[int]) -> int:
    """Of tensors in memory."""
    found = [subgraph.tensors[t] for t in tensors if t >= 0]
    return sum(math.prod(tensor.shape) * tensor.type.nbytes for tensor in found)


def _shared_times(
    nodes: Sequence[FusedNode], costs: Sequence[OpCost], rates: DeviceRates, half: bool, found: dict[int, OpTime]
) -> None:
    for node in nodes:
        if not node.sources:
            continue
        limit = rates.limit(node.flops, node.bytes, half)
        bound = rates.bound(node.flops, node.bytes, half)
        shares = divided(1.0, node.sources, costs)
        for n in node.sources:
            before = found.get(n, OpTime(0.0, 0.0, ""))
            others = tuple(sorted({*before.shared, *node.sources} - {n}))
            estimated = before.estimated + shares[n] * (limit + rates.launch)
            found[n] = OpTime(estimated, before.limit + shares[n] * limit, bound or before.bound, others)
