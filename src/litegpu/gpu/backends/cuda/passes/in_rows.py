"""Which values kernels find, and store, in rows of channels side by side."""

from __future__ import annotations

from collections.abc import Collection

from litegpu.gpu.graph import Concat, Copy, DType, Graph, is_reshaping
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.gpu.view import follow, padded

#: Channels that are copied, or stored, at once.
TOGETHER = 8


class InRows:
    """Of a graph in float16."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._consumers, self._producer = graph, graph.consumers(), graph.producer()
        self._decided: Collection[int] = values_decided_on(graph)

    def lies(self, v: int) -> bool:
        """Whether a kernel can read, or write, a value by eight channels: one that is kept in halves, and no part of
        another."""
        source = self._producer.get(v)
        if source is None or not self.is_kept(v):
            return False
        apart = False  # whether it may be a view of something else
        if isinstance(source.op, Copy):
            before = self._graph.values[source.inputs[0]].shape
            view = follow(padded(0, before, DType.FLOAT16), source.op.steps)
            apart = view is not None and not source.op.keeps_order
        return not apart and not self.is_moved(v)

    def is_kept(self, v: int) -> bool:
        """Whether a value that a node computes is kept in halves, eight channels after the other."""
        value = self._graph.values[v]
        several = value.shape[1] * value.shape[2] > 1  # single pixels stay in float32
        inner = several and v not in self._graph.outputs and v not in self._decided
        return inner and value.dtype is DType.FLOAT32 and value.shape[3] % TOGETHER == 0

    def is_moved(self, v: int) -> bool:
        """Whether a value may be written right to other places, as a part of another or with its axes exchanged."""
        for node in self._consumers[v]:
            if self._goes_elsewhere(node.op, node.output):
                return True
            if isinstance(node.op, Copy) and (not is_reshaping(node) or self.is_moved(node.output)):
                return True
        return False

    def is_joined(self, v: int) -> bool:
        """Whether a value is written to other places where that can be: as a part of another or as a result."""
        return any(self._goes_elsewhere(node.op, node.output) for node in self._consumers[v])

    def _goes_elsewhere(self, op: object, output: int) -> bool:
        return isinstance(op, Concat) or (output in self._graph.outputs and isinstance(op, Copy))
