"""A model as it would be divided and fused: what all of the analysis is made from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.cached import cached_property
from litegpu.delegates.protocol import Partition
from litegpu.delegates.report import DelegationReport, PartitionReport
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.fused import USUAL, FusedPartition, fused
from litegpu.interpreter import Interpreter
from litegpu.model.costs import OpCost, op_costs
from litegpu.model.types import Model, Operator, Subgraph, Tensor
from litegpu.tools.analyze.estimate import Crossing, OpTime, crossings, op_times
from litegpu.tools.analyze.rates import DeviceRates


@dataclass(frozen=True, eq=False)
class Examined:
    """`graph`: the main subgraph with its true shapes; `report`: who would run what of it; `costs` and `times` by node;
    `fused`: partition of the GPU -> its kernels."""

    model: Model
    graph: Subgraph
    report: DelegationReport
    fused: dict[int, FusedPartition]
    costs: tuple[OpCost, ...]
    times: tuple[OpTime, ...]
    crossings: tuple[Crossing, ...]
    rates: DeviceRates
    half: bool = False

    @property
    def operators(self) -> Sequence[Operator]:
        """The nodes, in the order of the file."""
        return self.graph.operators

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Tensor -> the nodes that read it."""
        found: dict[int, list[int]] = {}
        for operator in self.operators:
            for t in dict.fromkeys(operator.inputs):
                found.setdefault(t, []).append(operator.index)
        return found

    @cached_property
    def producers(self) -> dict[int, int]:
        """Tensor -> the node that makes it."""
        return {t: operator.index for operator in self.operators for t in operator.outputs if t >= 0}

    @property
    def total(self) -> float:
        """Seconds that an inference is expected to take: all nodes, and what goes to the delegates and back."""
        return sum(t.estimated for t in self.times) + sum(c.seconds for c in self.crossings)

    def owner(self, node: int) -> str:
        """Who would run a node."""
        return self.report.nodes[node].owner

    def tensors(self, indices: Sequence[int]) -> list[Tensor]:
        """Those that are there."""
        return [self.graph.tensors[t] for t in indices if t >= 0]


def examine(
    model: str | os.PathLike[str] | bytes, delegate: GpuDelegate, device: Device | None, rates: DeviceRates
) -> Examined:
    """Ask the partitioner, by Interpreter.preview_delegation(), and fuse what it gives the GPU for `device`, or for a
    usual one. Nothing is run. Raises ModelError, or InvokeError for shapes that the official runtime refuses."""
    content = model if isinstance(model, bytes) else None
    path = None if content is not None else os.fspath(model)
    half = delegate.options.half
    with Interpreter(path, content, experimental_delegates=[delegate], fallback="silent") as interpreter:
        report = interpreter.preview_delegation()
        graph, read = interpreter.graph, interpreter.model
    features = device.features if device is not None else USUAL
    parts = {
        p.index: fused(_partition(read, graph, p), features, half=half)
        for p in report.partitions
        if p.owner == delegate.name
    }
    costs = op_costs(graph)
    times = op_times(report, graph, costs, parts, rates, half)
    return Examined(
        read, graph, report, parts, costs, tuple(times), tuple(crossings(report, graph, rates)), rates, half
    )  # fmt: skip


def _partition(model: Model, graph: Subgraph, told: PartitionReport) -> Partition:
    nodes = tuple(graph.operators[n] for n in told.nodes)
    return Partition(model, graph, nodes, told.inputs, told.outputs)
