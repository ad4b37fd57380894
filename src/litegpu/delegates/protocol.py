"""What an accelerator implements to take parts of a graph, and what it is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from litegpu.model.types import Model, Operator, Subgraph


@dataclass(frozen=True, eq=False)
class Partition:
    """Nodes of one subgraph that run together. `inputs` and `outputs` are the runtime tensors that cross its border
    (tensor indices; constants excluded), in ascending order of first use and of production; a tensor that is a graph
    output or is read outside the partition is an output even if it is also consumed inside. `xnnpack`: whether the CPU
    would run it with XNNPACK's kernels, which round integers in other ways than the official runtime's own."""

    model: Model
    subgraph: Subgraph
    nodes: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    xnnpack: bool = True


class DelegateKernel(Protocol):
    """A prepared partition."""

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Required. One inference. `inputs` follow Partition.inputs, with the shapes and dtypes of the tensors, and may
        be reused by the caller afterwards; the results follow Partition.outputs, in the tensors' dtypes and shapes, and
        belong to the caller until the next invoke of this kernel."""

    def close(self) -> None:
        """Required. Free everything; may be called twice.

        A kernel of a delegate with `keeps_variables` must have `reset_variables() -> None`, which sets them to zero.

        A kernel may also have `input_memory(i: int) -> np.ndarray | None`: an array of input i's shape and type, zeros
        at first, that invoke() takes without copying if it is given that very array. set_tensor then writes there.

        It may have `notes: tuple[str, ...]`, lines for the delegation report.

        It may have `finish() -> None`: the results of invoke() need be ready only when that returns, and the next
        invoke() begins with it. A finish() that Ctrl-C has interrupted is called again.

        And it may have `abandon() -> None`: close() without waiting for a device, for callers who were interrupted."""


@runtime_checkable
class Delegate(Protocol):
    """An accelerator. One object may serve several interpreters.

    Operators that read variables (tensors that keep their value from one inference to the next, zero at first) are
    offered only to a delegate that has an attribute `keeps_variables` that is true. Variables are no inputs or outputs
    of a partition: its kernel keeps them."""

    name: str  # "GPU", for the report
    max_delegated_partitions: int  # the largest so many are kept; 0 means all
    min_nodes_per_partition: int
    first_delegate_node_index: int  # nodes outside first..last are left alone (to bisect a wrong op)
    last_delegate_node_index: int

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        """Required. None if the delegate runs this node, else the reason why not, as a sentence for the user. Must be
        complete: prepare() of any set of accepted nodes is expected to succeed."""

    def prepare(self, partition: Partition) -> DelegateKernel:
        """Required. Build the partition for the tensors' present shapes (those of partition.subgraph); called again
        after a resize. An exception means fallback to the CPU with a warning, or an error under strict: of all nodes,
        or only of those whose numbers it has in a tuple `nodes`; prepare() is then called for what is left.

        A delegate may also have `rehearse(partition) -> None`, which raises what prepare() would, so far as that can be
        told at once and without a device: previews ask it."""
