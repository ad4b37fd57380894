"""Squeeze-and-excite of bytes in two kernels: the mean with the first layer, the second one with what multiplies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_excite, byte_squeeze, overlapped
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerExcite,
    IntegerInvertedConv2D,
    IntegerSeparableConv2D,
    IntegerSqueeze,
    Node,
    Pool2D,
    Reduce,
    sources_of,
    substitute,
    tables,
)
from litegpu.gpu.lang.features import Features

#: What computes and reads values that have memory of their own, as they are computed: channels lie side by side.
_KINDS = (
    Elementwise, IntegerConv2D, IntegerDepthwiseConv2D, IntegerExcite, IntegerInvertedConv2D, IntegerSeparableConv2D,
    IntegerSqueeze, Pool2D, Reduce,
)  # fmt: skip


def join_byte_excitations(graph: Graph, features: Features) -> Graph:
    """The graph with IntegerSqueeze nodes for means that a layer alone reads, and IntegerExcite nodes for layers of one
    pixel that elementwise work on many pixels alone reads. Where kernels wait for each other more than they work the
    former are left as they are: many workgroups, and then few, are done sooner. (One H200, EfficientNet B0 at batch 1:
    157.6 us, and 165 of one kernel for both; at batch 64 811 and 787.)"""
    found = _Found(graph, features)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        joined = found.squeezed(node, made) or found.excited(node, made)
        if joined is not None:
            del made[joined.gone]
            node = joined.node
        made[node.output] = node
    return GraphBuilder(dict(graph.values), list(made.values())).graph(graph.inputs, graph.outputs)


@dataclass(frozen=True, eq=False)
class _Joined:
    """A node that does another's work as well, whose output is gone."""

    node: Node
    gone: int


class _Found:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.values, self.features = graph, graph.values, features
        self.consumers: Mapping[int, Sequence[Node]] = graph.consumers()
        self.waits = overlapped.will_overlap(graph)

    def squeezed(self, layer: Node, made: Mapping[int, Node]) -> _Joined | None:
        """A layer with the mean that it reads."""
        mean = made.get(layer.inputs[0]) if layer.inputs and not self.waits else None
        if mean is None or mean.op != Reduce("sum", (1, 2)) or mean.operands or not self._is_for(mean, layer):
            return None
        if mean.output in layer.operands:
            return None
        x, squeezed, op = self.values[mean.inputs[0]], self.values[mean.output], layer.op
        if not self._is_layer(layer) or not isinstance(op, IntegerConv2D) or not self._is_in_rows(x.id, made):
            return None
        results = self.values[layer.output].shape[3]
        units, capability = self.features.compute_units, self.features.capability
        if not byte_squeeze.ranked(x.shape, results, capability, units):
            return None
        joined = IntegerSqueeze(mean.epilogue, squeezed.dtype, op.zero_point)
        inputs = (x.id, layer.inputs[1])
        return _Joined(
            dataclasses.replace(layer, op=joined, inputs=inputs, sources=sources_of(mean, layer)), mean.output
        )

    def excited(self, node: Node, made: Mapping[int, Node]) -> _Joined | None:
        """Elementwise work with the layer that gives a number for each of its channels."""
        if not isinstance(node.op, Elementwise) or not self._is_byte(node.output):
            return None
        for v in dict.fromkeys(node.operands):
            layer = made.get(v)
            if layer is not None and self._is_layer(layer) and self._is_for(layer, node):
                joined = self._with_gates(node, layer, made)
                if joined is not None:
                    return _Joined(joined, v)
        return None

    def _with_gates(self, node: Node, layer: Node, made: Mapping[int, Node]) -> Node | None:
        assert isinstance(layer.op, IntegerConv2D)
        output, gates = self.values[node.output], self.values[layer.output]
        others = tuple(v for v in dict.fromkeys(node.operands) if v != gates.id)
        shape = output.shape
        if gates.shape != (shape[0], 1, 1, shape[3]) or shape[1] * shape[2] < 2 or shape[3] % 4:
            return None
        alike = all(self._is_alike(v, node.output, made) for v in others)
        known = all(self._is_constant(layer, i) for i in range(1, 1 + len(layer.operands)))
        if not alike or not known or not self._is_in_rows(node.output, {node.output: node}):
            return None
        depth = self.values[layer.inputs[0]].shape[3]
        if not byte_excite.ranked(shape, depth, self.features.capability, self.features.compute_units):
            return None
        places: dict[int, Expr] = {
            i: RESULT if v == gates.id else Arg(1 + others.index(v)) for i, v in enumerate(node.operands)
        }
        op = IntegerExcite(layer.epilogue, gates.dtype, layer.op.zero_point)
        inputs, sources = (*layer.inputs, *layer.operands), sources_of(layer, node)
        return Node(op, inputs, node.output, substitute(node.epilogue, places), others, sources)

    def _is_layer(self, node: Node) -> bool:
        """Whether it is a layer of one pixel, of bytes, with weights that are bytes as well."""
        op = node.op
        if (
            not isinstance(op, IntegerConv2D)
            or op.groups > 1
            or op.weights_zero_point
            or not self._is_byte(node.output)
        ):
            return False
        weights = self.values[node.inputs[1]].data
        if weights is None or weights.shape[1:3] != (1, 1) or np.any((weights < -128) | (weights > 127)):
            return False
        places = [self.values[v].shape[1:3] for v in (node.inputs[0], node.output)]
        return self._is_byte(node.inputs[0]) and places == [(1, 1), (1, 1)]

    def _is_for(self, node: Node, reader: Node) -> bool:
        """Whether another node alone reads it."""
        readers = self.consumers[node.output]
        return len(readers) == 1 and readers[0].output == reader.output and node.output not in self.graph.outputs

    def _is_alike(self, v: int, output: int, made: Mapping[int, Node]) -> bool:
        """Whether it is bytes as the output is, in rows, or a constant for each channel or for all."""
        value, shape = self.values[v], self.values[output].shape
        if value.data is not None:
            fits = value.data.size == 1 or value.shape == (1, 1, 1, shape[3])
            return fits and value.data.dtype in (np.int32, np.float32)
        return value.shape == shape and self._is_byte(v) and self._is_in_rows(v, made)

    def _is_constant(self, layer: Node, i: int) -> bool:
        """Whether an operand of the layer's epilogue is known, for each channel or for all, or a table."""
        value = self.values[layer.operands[i - 1]]
        if value.data is None:
            return False
        return i in tables(layer.epilogue) or value.data.size == 1 or value.shape[:3] == (1, 1, 1)

    def _is_byte(self, v: int) -> bool:
        return self.values[v].dtype.is_narrow and self.values[v].dtype.nbytes == 1

    def _is_in_rows(self, v: int, made: Mapping[int, Node]) -> bool:
        """Whether a value has memory of its own, as it is computed."""
        node = made.get(v)
        own = node is not None and isinstance(node.op, _KINDS) and v not in self.graph.outputs
        return own and self._is_byte(v) and all(isinstance(n.op, _KINDS) for n in self.consumers[v])
