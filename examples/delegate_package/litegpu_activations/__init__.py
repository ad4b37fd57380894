"""A delegate in a package of its own: computes TANH and LOGISTIC with NumPy, where an accelerator would do it.

litegpu finds it by the entry point in pyproject.toml, and calls it with the options as keyword arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

import litegpu
from litegpu.model.types import TensorType

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"TANH": np.tanh, "LOGISTIC": lambda x: 1 / (1 + np.exp(-x))}


class ActivationsDelegate:
    """Has what litegpu.DelegateProtocol asks for. `ops`: which of the functions, with commas between."""

    name = "Activations"
    max_delegated_partitions = 0
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = sys.maxsize

    def __init__(self, ops: str = ",".join(FUNCTIONS)) -> None:
        self.ops = ops.split(",")
        unknown = sorted(set(self.ops) - set(FUNCTIONS))
        if unknown:
            raise litegpu.OptionError(f"ops has {', '.join(unknown)}; there are {', '.join(FUNCTIONS)}")

    def check(self, model, subgraph, operator):
        """None if the operator runs here, else the reason why not."""
        if operator.name not in self.ops:
            return f"Only {', '.join(self.ops)} can be computed."
        if subgraph.tensors[operator.inputs[0]].type != TensorType.FLOAT32:
            return "Only float32 tensors can be computed."
        return None

    def prepare(self, partition):
        """What runs the partition."""
        return Activations(partition)


class Activations:
    def __init__(self, partition):
        self.partition = partition

    def invoke(self, inputs):
        """One inference: arrays for partition.inputs; gives arrays for partition.outputs, in that order."""
        values = dict(zip(self.partition.inputs, inputs, strict=True))
        for operator in self.partition.nodes:
            result = FUNCTIONS[operator.name](values[operator.inputs[0]])
            values[operator.outputs[0]] = result.astype(np.float32)
        return [values[t] for t in self.partition.outputs]

    def close(self):
        """Nothing is held."""
