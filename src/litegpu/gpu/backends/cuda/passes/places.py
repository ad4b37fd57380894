"""1x1 convolutions of places instead of channels, between two transpositions, as products that leave everything where
it lies: the token mixing of MLP-Mixer and its like."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.backends.cuda.kernels.places import PlacesSizes, can
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    MatMul,
    Node,
    fits_half,
    substitute,
    walk,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.fold import drop_unused
from litegpu.gpu.passes.fuse import LARGEST
from litegpu.gpu.view import follow, padded


def join_places(graph: Graph, features: Features) -> Graph:
    """The graph in which a chain of convolutions, between copies that exchange the channels with the axis in front of
    them and back, multiplies what the first copy reads by constant matrices."""
    search = _Search(graph, features)
    chains = [chain for node in graph.nodes if (chain := search.chain(node)) is not None]
    if not chains:
        return graph
    ends = {chain.end.output: chain for chain in chains}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in ends:
            _put(builder, ends[node.output])
        else:
            builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs))


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Convolutions one behind the other, the copies in front of them and behind, and what the first one reads."""

    first: Node
    convolutions: tuple[Node, ...]
    end: Node


class _Search:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.features = graph, features
        self.producer, self.consumers = graph.producer(), graph.consumers()

    def chain(self, node: Node) -> _Chain | None:
        """The chain that begins with this convolution."""
        first = self.producer.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        if first is None or first.epilogue != RESULT or not self.exchanges(first):
            return None
        found: list[Node] = []
        while self.multiplies(node):
            found.append(node)
            readers = self.consumers[node.output]
            if len(readers) != 1 or node.output in self.graph.outputs or node.output in readers[0].operands:
                return None
            node = readers[0]
        if not found or not self.exchanges(node) or node.inputs[0] != found[-1].output:
            return None
        size = sum(isinstance(e, Apply) for n in (found[-1], node) for e in walk(n.epilogue))
        return _Chain(first, tuple(found), node) if size <= LARGEST else None

    def exchanges(self, node: Node) -> bool:
        """Whether the node is a copy that exchanges the last two axes of whole chunks of channels."""
        if not isinstance(node.op, Copy) or self.graph.values[node.inputs[0]].is_constant:
            return False
        source, target = (self.graph.values[v] for v in (node.inputs[0], node.output))
        *lead, rows, columns = source.shape
        if target.shape != (*lead, columns, rows) or source.dtype is not DType.FLOAT32 or min(rows, columns) < 2:
            return False
        view = follow(padded(0, source.shape, DType.FLOAT16), node.op.steps)
        plain = padded(0, source.shape, DType.FLOAT16).strides
        wanted = (*plain[:2], 1, plain[2])
        return view is not None and all(
            n == 1 or a == b for n, a, b in zip(target.shape, view.strides, wanted, strict=True)
        )

    def multiplies(self, node: Node) -> bool:
        """Whether the node is a 1x1 convolution that the kernel for places can do, with nothing but constants of
        channels in its epilogue."""
        if not isinstance(node.op, Conv2D) or node.op != Conv2D() or node.inputs[0] in node.operands:
            return False
        values, weights = self.graph.values, self.graph.values[node.inputs[1]]
        x, y = values[node.inputs[0]], values[node.output]
        if weights.data is None or weights.shape[1:3] != (1, 1) or x.shape[:3] != y.shape[:3]:
            return False
        if not fits_half(weights.data) or y.dtype is not DType.FLOAT32:
            return False
        sizes = PlacesSizes(x.shape[0] * x.shape[1], y.shape[3], x.shape[3], x.shape[2])
        return can(sizes, self.features.capability) and all(
            values[v].data is not None and values[v].shape[:3] == (1, 1, 1) for v in node.operands
        )


def _put(builder: GraphBuilder, chain: _Chain) -> None:
    """The products of a chain, the last of which does what is done behind it as well."""
    values, x = builder.values, chain.first.inputs[0]
    for node in chain.convolutions:
        weights = values[node.inputs[1]].data
        assert weights is not None
        matrix = builder.constant(np.ascontiguousarray(weights[:, 0, 0])[None, None])
        operands = [_of_rows(builder, v) for v in node.operands]
        epilogue, output, sources = node.epilogue, node.output, set(node.sources)
        if node is chain.convolutions[0]:
            sources |= {*chain.first.sources}
        shape = values[node.output].shape
        if node is chain.convolutions[-1]:
            end = chain.end
            replace: dict[int, Expr] = {0: node.epilogue}
            for i, v in enumerate(end.operands):
                replace[i + 1] = Arg(len(operands) + 1)
                operands.append(v)
            epilogue, output, sources = substitute(end.epilogue, replace), end.output, sources | {*end.sources}
        else:
            output = builder.value((*shape[:2], shape[3], shape[2]), values[node.output].dtype)
        builder.nodes.append(Node(MatMul(), (matrix, x), output, epilogue, tuple(operands), tuple(sorted(sources))))
        x = output


def _of_rows(builder: GraphBuilder, v: int) -> int:
    """A constant of channels, of rows instead."""
    data = builder.values[v].data
    assert data is not None
    return builder.constant(np.ascontiguousarray(data.transpose(0, 1, 3, 2)))
