"""Custom operators on the CPU that the official runtime lacks: computed in NumPy by what defines their GPU kernels."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from litegpu.delegates import cpu
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.protocol import Partition
from litegpu.delegates.report import CPU
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Custom
from litegpu.gpu.graph.parts import as_typed
from litegpu.gpu.lower import LoweredGraph, Unsupported, lower_partition
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Operator, Subgraph

#: These pass on places in a window. The official runtime (XNNPACK) has the bits of an integer in a float32 tensor for
#: them, litegpu and MediaPipe a float: so that both sides of a border understand each other, that runtime gets neither.
OWN_FORMAT = frozenset({"MaxPoolingWithArgmax2D", "MaxUnpooling2D"})


def for_missing_ops(model: Model, options: OfficialOptions, *, alone: bool) -> list[ReferenceDelegate]:
    """A delegate for the model's custom ops that litegpu knows and the official runtime lacks, if there are any.
    `alone`: there is no other delegate."""
    main = model.main
    delegate = ReferenceDelegate()
    known = [o for o in main.operators if delegate.check(model, main, o) is None]
    missing = {name for name, _ in cpu.unresolved_custom_ops(model, main, known, options)}
    if missing or not alone:
        missing |= OWN_FORMAT & {o.name for o in known}
    return [ReferenceDelegate(frozenset(missing))] if missing else []


class ReferenceDelegate:
    """Stands behind all delegates, under the CPU's own name: the report tells no difference. Satisfies
    delegates.protocol.Delegate."""

    name = CPU
    max_delegated_partitions = 0
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = sys.maxsize

    def __init__(self, names: frozenset[str] | None = None) -> None:
        """`names`: the custom codes of what it takes, if not everything that it can."""
        self._names = names

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        if not operator.is_custom or (self._names is not None and operator.name not in self._names):
            return "NumPy runs custom operators only that the official runtime lacks."
        if -1 in operator.outputs:
            return "It lacks an output."
        read = {*subgraph.outputs, *(t for o in subgraph.operators for t in o.inputs)}
        if read.isdisjoint(operator.outputs):
            return "Nothing reads what it computes."
        runtime = [t for t in dict.fromkeys(operator.inputs) if t >= 0 and not subgraph.tensors[t].is_constant]
        try:
            graph = lower_partition(subgraph, [operator], runtime, operator.outputs, in_numpy=True).graph
        except Unsupported as reason:
            return str(reason)
        known = all(not isinstance(n.op, Custom) or n.op.definition.has_reference for n in graph.nodes)
        return None if known else f"{operator.name} was registered without a reference."

    def prepare(self, partition: Partition) -> ReferenceKernel:
        lowered = lower_partition(
            partition.subgraph, partition.nodes, partition.inputs, partition.outputs, in_numpy=True
        )
        return ReferenceKernel(lowered, partition)


class ReferenceKernel:
    """A partition of custom operators; satisfies delegates.protocol.DelegateKernel."""

    def __init__(self, lowered: LoweredGraph, partition: Partition) -> None:
        self._graph = lowered.graph
        tensors = [partition.subgraph.tensors[i] for i in partition.outputs]
        self._results = [(t.shape, DTYPES[t.type]) for t in tensors]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        # copies: a registered reference may keep what it is given, and what the CPU computes next to it could not run
        arrays = evaluate_graph(self._graph, [np.array(x) for x in inputs])
        found = [as_typed(a, shape, dtype) for a, (shape, dtype) in zip(arrays, self._results, strict=True)]
        return [np.ascontiguousarray(a) for a in found]

    def close(self) -> None:
        pass
