"""Squeeze-and-excite of bytes in one kernel, or in two: mean and first layer, second layer and what multiplies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_depthwise, byte_excite, byte_squeeze, overlapped
from litegpu.gpu.backends.cuda.kernels.byte_excite import InnerLayer
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DType,
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
    Literal,
    Node,
    Pool2D,
    Reduce,
    SqueezedSums,
    Value,
    sources_of,
    substitute,
    tables,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

#: Pixels of an image for each copy of its sums, and of a channel's sums all copies. (One H200, EfficientNet B0 at batch
#: 1: 128.5 us, and 129.1 with one copy of each.)
PIXELS_OF_A_COPY, MOST_COPIES = 784, 8
#: Pixels for each result of the first layer from which on it pays in large batches that each workgroup computes all of
#: these, rather than that each image is read once more. (EfficientNet v2 B0 at batch 64, one H200: 637 us where all do,
#: 608 where none does.)
PIXELS_OF_A_RESULT = 8
#: What computes and reads values that have memory of their own, as they are computed: channels lie side by side.
_KINDS = (
    Elementwise, IntegerConv2D, IntegerDepthwiseConv2D, IntegerExcite, IntegerInvertedConv2D, IntegerSeparableConv2D,
    IntegerSqueeze, Pool2D, Reduce,
)  # fmt: skip


def join_byte_excitations(graph: Graph, features: Features) -> Graph:
    """The graph with one IntegerExcite node for a whole squeeze-and-excite of what a depthwise convolution computes,
    whose kernel adds its results up. Of others with IntegerSqueeze nodes for means that a layer alone reads, and
    IntegerExcite nodes for layers of one pixel that elementwise work on many pixels alone reads. Where kernels wait for
    each other more than they work the former are left as they are: many workgroups, and then few, are done sooner. (One
    H200, EfficientNet B0 at batch 1: 157.6 us, and 165 of one kernel for both; at batch 64 811 and 787.)"""
    found = _Found(graph, features)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        joined = found.squeezed(node, made)
        if joined is None and (ended := found.excited(node, made)) is not None:
            joined = found.whole(ended, made) or ended
        if joined is not None:
            for v in joined.gone:
                del made[v]
            node = joined.node
        made[node.output] = node
    builder = GraphBuilder({**graph.values, **found.sums}, list(made.values()))
    for v in found.sums:  # zeros, before all else
        builder.nodes.insert(0, Node(Elementwise(), (), v, Literal(0, DType.INT32)))
    return builder.graph(graph.inputs, graph.outputs)


@dataclass(frozen=True, eq=False)
class _Joined:
    """A node that does others' work as well, whose outputs are gone."""

    node: Node
    gone: tuple[int, ...]


class _Found:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.values, self.features = graph, graph.values, features
        self.consumers: Mapping[int, Sequence[Node]] = graph.consumers()
        self.waits = overlapped.will_overlap(graph)
        self.sums: dict[int, Value] = {}  # the memory of all sums, if there are some
        self.summed: set[int] = set()  # values whose sums are there

    def whole(self, ended: _Joined, made: Mapping[int, Node]) -> _Joined | None:
        """What is `excited`, with the layer in front of it as well and the mean that this begins with, of what a
        depthwise convolution computes."""
        layer = made.get(ended.node.inputs[0])
        if layer is None or not self._is_for(layer, made[ended.gone[0]]):
            return None
        found = self._squeeze(layer, made)
        if found is None:
            return None
        squeeze, x, gone = found
        known = all(self._is_constant(layer, i) for i in range(1, 1 + len(layer.operands)))
        if not known or x not in ended.node.operands or x in self.summed or not self._adds_up(x, made):
            return None
        depth, shape = self.values[layer.output].shape[3], self.values[ended.node.output].shape
        if not self.waits and shape[1] * shape[2] < PIXELS_OF_A_RESULT * depth:
            return None
        inner = InnerLayer(shape[3], depth, self._copies(x))
        if not byte_excite.can(shape, depth, self.features.capability, inner=inner):
            return None
        self.summed.add(x)  # once: who computes it has one place for them
        sources = sources_of(ended.node, layer, *(made[v] for v in gone))
        joined = self._with_sums(ended.node, layer, x, squeeze, inner.copies)
        return _Joined(dataclasses.replace(joined, sources=sources), (ended.gone[0], layer.output, *gone))

    def _squeeze(self, layer: Node, made: Mapping[int, Node]) -> tuple[IntegerSqueeze, int, tuple[int, ...]] | None:
        """A layer of means as such, the value whose means they are, and what is gone with it."""
        if isinstance(layer.op, IntegerSqueeze):
            return layer.op, layer.inputs[0], ()
        mean = self._mean(layer, made)
        if mean is None or not isinstance(layer.op, IntegerConv2D):
            return None
        squeeze = IntegerSqueeze(mean.epilogue, self.values[mean.output].dtype, layer.op.zero_point)
        return squeeze, mean.inputs[0], (mean.output,)

    def _mean(self, layer: Node, made: Mapping[int, Node]) -> Node | None:
        """What a layer of one pixel alone reads, if that is a mean of all pixels."""
        mean = made.get(layer.inputs[0]) if layer.inputs else None
        if mean is None or mean.op != Reduce("sum", (1, 2)) or mean.operands or mean.output in layer.operands:
            return None
        return mean if self._is_layer(layer) and self._is_for(mean, layer) else None

    def _with_sums(self, last: Node, layer: Node, x: int, squeeze: IntegerSqueeze, copies: int) -> Node:
        """The IntegerExcite `last` with what is in front of it, of sums of value x."""
        assert isinstance(last.op, IntegerExcite)
        if not self.sums:
            number = max(self.values) + 1
            self.sums[number] = Value(number, (1, 1, 1, 0), DType.INT32)
        ((number, sums),) = self.sums.items()
        begin, shape = sums.shape[3], self.values[x].shape
        size = shape[0] * copies * -(-shape[3] // 4) * 4
        self.sums[number] = dataclasses.replace(sums, shape=(1, 1, 1, begin + size))
        kind = self.values[layer.output].dtype
        squeezed = SqueezedSums(squeeze, layer.epilogue, kind, len(layer.operands), copies, begin)
        others = (x, *(v for v in last.operands if v != x))
        places: dict[int, Expr] = {1 + i: Arg(1 + others.index(v)) for i, v in enumerate(last.operands)}
        return dataclasses.replace(
            last,
            op=dataclasses.replace(last.op, squeezed=squeezed),
            inputs=(number, last.inputs[1], layer.inputs[1], *layer.operands, *last.inputs[2:]),
            epilogue=substitute(last.epilogue, {0: RESULT, **places}),
            operands=others,
        )

    def _adds_up(self, v: int, made: Mapping[int, Node]) -> bool:
        """Whether what computes it adds up its results as well."""
        node = made.get(v)
        if node is None or not isinstance(node.op, IntegerDepthwiseConv2D) or node.op.multiplier > 1:
            return False
        weights, x = self.values[node.inputs[1]].data, self.values[node.inputs[0]]
        if weights is None or x.is_constant or x.dtype.nbytes != 1 or not self._is_in_rows(x.id, made):
            return False
        alike = all(self._is_constant(node, i) for i in range(1, 1 + len(node.operands)))
        op, shape = node.op, self.values[v].shape
        plain = Conv2D(op.stride, op.dilation, op.padding, zero_point=op.zero_point)
        layer = Layer(plain, padded(0, x.shape, x.dtype), weights, shape, False, whole_numbers=True, run=4)
        return (
            alike
            and shape[3] % 4 == 0
            and bool(byte_depthwise.ranked(layer, self.features.capability, self.features.compute_units))
        )

    def _copies(self, v: int) -> int:
        """Of sums, so that few workgroups add to the same."""
        batch, height, width, _ = self.values[v].shape
        counts = (n for n in (8, 4, 2) if n * batch <= MOST_COPIES and height * width >= n * PIXELS_OF_A_COPY)
        return next(counts, 1)

    def squeezed(self, layer: Node, made: Mapping[int, Node]) -> _Joined | None:
        """A layer with the mean that it reads."""
        mean = None if self.waits else self._mean(layer, made)
        if mean is None or not self._is_in_rows(mean.inputs[0], made):
            return None
        found = self._squeeze(layer, made)
        assert found is not None
        squeeze, x, gone = found
        shape, results = self.values[x].shape, self.values[layer.output].shape[3]
        if not byte_squeeze.can(shape, results, self.features.capability):
            return None
        joined = dataclasses.replace(layer, op=squeeze, inputs=(x, layer.inputs[1]), sources=sources_of(mean, layer))
        return _Joined(joined, gone)

    def excited(self, node: Node, made: Mapping[int, Node]) -> _Joined | None:
        """Elementwise work with the layer that gives a number for each of its channels."""
        if not isinstance(node.op, Elementwise) or not self._is_byte(node.output):
            return None
        for v in dict.fromkeys(node.operands):
            layer = made.get(v)
            if layer is not None and self._is_layer(layer) and self._is_for(layer, node):
                joined = self._with_gates(node, layer, made)
                if joined is not None:
                    return _Joined(joined, (v,))
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
        if not byte_excite.can(shape, depth, self.features.capability):
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
