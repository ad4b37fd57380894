"""What the GPU would run of a partition, kernel by kernel, before anything is compiled and without a device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.delegates.partitioner import borders
from litegpu.delegates.protocol import Partition
from litegpu.gpu.control import called_cost, is_control
from litegpu.gpu.graph import Copy, Elementwise
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.passes import optimise, optimise_late
from litegpu.gpu.passes.costs import node_cost
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.gpu.passes.layout import place
from litegpu.gpu.passes.precision import values_in_float32

#: What most devices can do, where none is at hand.
USUAL = Features(float16=True, subgroups=True, subgroup_size=32)


@dataclass(frozen=True)
class FusedNode:
    """A node of the GPU graph after all passes, which is a kernel in most cases. `sources`: the model's nodes that it
    computes; `kind` names the op; `moves`: it only copies elements; `elementwise`: it is elementwise work that nothing
    else took in. `flops`, `bytes` as in gpu/passes/costs.py."""

    kind: str
    sources: tuple[int, ...]
    flops: int
    bytes: int
    moves: bool
    elementwise: bool


@dataclass(frozen=True)
class FusedPartition:
    """`nodes` in the order in which they run. `risks`: tensors (by number, where the model has them) that float16 would
    spoil, and why; those that decide something among them."""

    nodes: tuple[FusedNode, ...]
    risks: Mapping[int, str]


def fused(partition: Partition, features: Features = USUAL, *, half: bool = False) -> FusedPartition:
    """Lower a partition and run the passes. Without values that keep what they are in float16 for the sake of
    `half`: those are in `risks` in any case. Raises LiteGpuError where an operator cannot be lowered."""
    if any(is_control(o) for o in partition.nodes):
        return _fused_apart(partition, features, half)
    lowered = lower_partition(
        partition.subgraph, partition.nodes, partition.inputs, partition.outputs, xnnpack=partition.xnnpack
    )
    optimised = optimise(lowered.graph, features, half)
    exact = {**values_decided_on(optimised), **values_in_float32(optimised)}
    placed = place(optimise_late(optimised, features), half).graph
    nodes = []
    for node in placed.nodes:
        cost = node_cost(placed, node, half)
        moves = isinstance(node.op, Copy)
        elementwise = isinstance(node.op, Elementwise)
        nodes.append(FusedNode(type(node.op).__name__, node.sources, cost.flops, cost.bytes, moves, elementwise))
    known = range(len(partition.subgraph.tensors))  # lowering has further ones, such as words of INT64
    tensors = {v: optimised.values[v].tensor for v in exact}
    risks = {tensor: reason for v, reason in exact.items() if (tensor := tensors[v]) is not None and tensor in known}
    return FusedPartition(tuple(nodes), risks)


def _fused_apart(partition: Partition, features: Features, half: bool) -> FusedPartition:
    """The same of a partition with control flow: what calls subgraphs is one node each."""
    nodes: list[FusedNode] = []
    risks: dict[int, str] = {}
    for control, group in itertools.groupby(partition.nodes, is_control):
        if control:
            for operator in group:
                flops, moved = called_cost(partition.model, partition.subgraph, operator)
                nodes.append(FusedNode(operator.name.title(), (operator.index,), flops, moved, False, False))
            continue
        operators = tuple(group)
        inputs, outputs = borders(partition.subgraph, operators)
        part = dataclasses.replace(partition, nodes=operators, inputs=inputs, outputs=outputs)
        found = fused(part, features, half=half)
        nodes += found.nodes
        risks |= found.risks
    return FusedPartition(tuple(nodes), risks)
