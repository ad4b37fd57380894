"""What the runtime's context tells of a graph, as plain data."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.errors import DelegateError
from litegpu.external.shared_library import Library, ToldNode, ToldSubset, ToldTensor, numbers
from litegpu.model.types import TensorType

#: Allocation types: constants that lie in the file, and what the runtime plans itself.
READ_ONLY, IN_ARENA = 1, 2

#: The runtime's numbers of element types, which are not the schema's.
_TYPES = {
    1: TensorType.FLOAT32, 2: TensorType.INT32, 3: TensorType.UINT8, 4: TensorType.INT64, 5: TensorType.STRING,
    6: TensorType.BOOL, 7: TensorType.INT16, 8: TensorType.COMPLEX64, 9: TensorType.INT8, 10: TensorType.FLOAT16,
    11: TensorType.FLOAT64, 12: TensorType.COMPLEX128, 13: TensorType.UINT64, 14: TensorType.RESOURCE,
    15: TensorType.VARIANT, 16: TensorType.UINT32, 17: TensorType.UINT16, 18: TensorType.INT4,
    19: TensorType.BFLOAT16, 20: TensorType.INT2, 21: TensorType.UINT4,
}  # fmt: skip


@dataclass(frozen=True)
class TensorFacts:
    """`name` and `data` are addresses, 0 where there is none. `type` is None for one that the schema has not."""

    type: TensorType | None
    shape: tuple[int, ...]
    name: int
    data: int
    bytes: int
    allocation: int
    variable: bool

    @property
    def is_constant(self) -> bool:
        """Whether its value lies in the file, and is not empty: those may lie anywhere, behind the end as well."""
        return self.allocation == READ_ONLY and self.data != 0 and self.bytes > 0


@dataclass(frozen=True)
class NodeFacts:
    """`custom`: the name of a custom operator. `delegated`: the node stands for some that a delegate took."""

    index: int
    code: int
    custom: str | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    delegated: bool


@dataclass(frozen=True)
class Subset:
    """Nodes that the runtime would replace by one, and the tensors that enter and leave."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class HostedGraph:
    """One subgraph, as long as the runtime lends its context."""

    def __init__(self, library: Library, context: int) -> None:
        self._library, self._context = library, context

    @property
    def threads(self) -> int:
        return int(self._library.threads(self._context))

    @property
    def tensors_count(self) -> int:
        return int(self._library.tensors_count(self._context))

    def tensor(self, index: int) -> TensorFacts:
        """Raises DelegateError if there is none of this number."""
        if not 0 <= index < self.tensors_count:
            raise DelegateError(f"the runtime has no tensor {index}")
        told = ToldTensor()
        self._library.tensor(self._context, index, ctypes.byref(told))
        shape = tuple(told.shape[: told.rank])
        return TensorFacts(
            _TYPES.get(told.type),
            shape,
            told.name or 0,
            told.data or 0,
            told.bytes,
            told.allocation,
            bool(told.variable),
        )

    def nodes(self) -> tuple[NodeFacts, ...]:
        """In the order in which they run. Raises DelegateError."""
        count = self._library.plan(self._context, numbers([]), 0)
        plan = numbers([0] * max(count, 0))
        if count < 0 or self._library.plan(self._context, plan, count) != count:
            raise DelegateError("the runtime does not tell its execution plan")
        return tuple(self._node(index) for index in plan)

    def _node(self, index: int) -> NodeFacts:
        told = ToldNode()
        if self._library.node(self._context, index, ctypes.byref(told)) != 0:
            raise DelegateError(f"the runtime does not tell of node {index}")
        custom = told.custom.decode("utf-8", "backslashreplace") if told.custom else None
        inputs, outputs = tuple(told.inputs[: told.inputs_count]), tuple(told.outputs[: told.outputs_count])
        return NodeFacts(index, told.code, custom, inputs, outputs, bool(told.delegated))

    def preview(self, nodes: Sequence[int]) -> tuple[Subset, ...]:
        """How the runtime would group these nodes. Raises DelegateError."""
        room = (ToldSubset * len(nodes))()
        count = self._library.preview(self._context, len(nodes), numbers(nodes), room, len(nodes))
        if not 0 <= count <= len(nodes):
            raise DelegateError("the runtime does not tell how it would divide the graph")
        return tuple(
            Subset(
                tuple(one.nodes[: one.nodes_count]),
                tuple(one.inputs[: one.inputs_count]),
                tuple(one.outputs[: one.outputs_count]),
            )
            for one in room[:count]
        )

    def replace(self, delegate: int, nodes: Sequence[int], kernels: Sequence[int]) -> None:
        """Have these nodes run by these kernels (addresses). Raises DelegateError."""
        made = (ctypes.c_void_p * len(kernels))(*kernels)
        status = self._library.replace(self._context, delegate, len(nodes), numbers(nodes), made, len(kernels))
        if status != 0:
            raise DelegateError(f"the runtime did not replace the nodes (status {status})")

    def resize(self, index: int, shape: Sequence[int]) -> None:
        """Give a tensor another shape. Raises DelegateError."""
        if self._library.resize(self._context, index, len(shape), numbers(shape)) != 0:
            raise DelegateError(f"the runtime does not resize tensor {index} to {list(shape)}")
