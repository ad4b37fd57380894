"""An example of a delegate: runs ADD, MUL and RELU of float32 tensors with NumPy.

A delegate answers two questions. `check`: can it run this node, and if not, why? `prepare`: here is a partition, a
set of accepted nodes with the tensors that go in and come out; give me something that runs it. Everything else
(dividing the graph, running the rest on the CPU, resizing, reports, fallback) is litegpu's.

    interpreter = litegpu.Interpreter("model.tflite", experimental_delegates=[NumpyDelegate()])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.model.types import Model, Operator, Subgraph, TensorType

OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "RELU": lambda x: np.maximum(x, np.float32(0)),
}
ACTIVATIONS = {0: lambda x: x, 1: lambda x: np.maximum(x, np.float32(0))}  # NONE, RELU (numbers of the schema)


class NumpyDelegate:
    """Implements litegpu.delegates.protocol.Delegate; no base class is needed."""

    name = "NumPy"

    def __init__(
        self,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 0,
        first_delegate_node_index: int = 0,
        last_delegate_node_index: int = sys.maxsize,
        ops: Sequence[str] = ("ADD", "MUL", "RELU"),
    ) -> None:
        self.max_delegated_partitions = max_delegated_partitions
        self.min_nodes_per_partition = min_nodes_per_partition
        self.first_delegate_node_index = first_delegate_node_index
        self.last_delegate_node_index = last_delegate_node_index
        self.ops = tuple(ops)
        self.kernels: list[NumpyKernel] = []

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        if operator.name not in self.ops:
            return "Operation is not supported."
        if any(subgraph.tensors[i].type != TensorType.FLOAT32 for i in (*operator.inputs, *operator.outputs)):
            return "Only float32 tensors are supported."
        if operator.options.get("fused_activation_function", 0) not in ACTIVATIONS:
            return "Only the fused activations NONE and RELU are supported."
        return None

    def prepare(self, partition: Partition) -> NumpyKernel:
        self.kernels.append(NumpyKernel(partition))
        return self.kernels[-1]


class NumpyKernel:
    """Implements litegpu.delegates.protocol.DelegateKernel."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.constants = {t.index: t.data for t in partition.subgraph.tensors if t.data is not None}
        self.invocations = 0
        self.closed = False

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self.invocations += 1
        values = self.constants | dict(zip(self.partition.inputs, inputs, strict=True))
        for node in self.partition.nodes:
            arguments = [values[i] for i in node.inputs]
            result = OPERATIONS[node.name](*arguments)
            values[node.outputs[0]] = np.asarray(ACTIVATIONS[node.options.get("fused_activation_function", 0)](result))
        return [values[i] for i in self.partition.outputs]

    def close(self) -> None:
        self.closed = True
