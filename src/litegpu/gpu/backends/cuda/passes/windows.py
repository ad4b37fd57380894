"""A 1x1 convolution beside one of a larger window of the same value is done by that: zeros around its weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from litegpu.gpu.backends.cuda.kernels import overlapped
from litegpu.gpu.backends.cuda.kernels.biased import activation, bias_of
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    Node,
    apply,
    sources_of,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.by_channel import constants_of

#: Multiplications by zeros that take less than the launch that they save, about a microsecond. (SqueezeNet has 22 to 25
#: million of them in each of eight blocks.)
MOST_PRODUCTS = 4e7


def join_windows(graph: Graph, features: Features) -> Graph:
    """The graph with one convolution in place of two neighbours in a concatenation, in float16 and of bytes, where
    kernels overlap: there, each launch less counts. An infinite input makes of what a zero is multiplied with a NaN."""
    if features.capability != WARPGROUP_CAPABILITY or not overlapped.will_overlap(graph):
        return graph
    producer, consumers = graph.producer(), graph.consumers()
    pairs: dict[int, tuple[int, int]] = {}  # both values, by either
    for node in graph.nodes:
        if not isinstance(node.op, Concat) or node.op.axis != 3 or len(set(node.inputs)) < len(node.inputs):
            continue
        for a, b in pairwise(node.inputs):
            if a not in pairs and all(v in producer and consumers[v] == [node] for v in (a, b)):
                small, large = sorted((producer[a], producer[b]), key=lambda n: _taps(n, graph))
                if _belongs(small, large, graph) and not {a, b} & set(graph.outputs):
                    pairs[a] = pairs[b] = (a, b)
    return _joined(graph, pairs, producer) if pairs else graph


def _taps(node: Node, graph: Graph) -> int:
    return math.prod(graph.values[node.inputs[1]].shape[1:3]) if isinstance(node.op, Conv2D | IntegerConv2D) else 0


def _belongs(small: Node, large: Node, graph: Graph) -> bool:
    """Whether the larger one can do the other one's work."""
    values = graph.values
    ops = small.op, large.op
    if not all(isinstance(op, Conv2D | IntegerConv2D) for op in ops) or small.inputs[0] != large.inputs[0]:
        return False
    weights = [values[n.inputs[1]] for n in (small, large)]
    shapes = [values[n.output].shape for n in (small, large)]
    zeros = math.prod(shapes[0]) * weights[0].shape[3] * (_taps(large, graph) - 1)
    return (
        all(w.data is not None for w in weights)
        and weights[0].shape[1:3] == (1, 1)
        and weights[1].shape[1:3] != (1, 1)
        and shapes[0][:3] == shapes[1][:3]
        and (_are_floats(small, large, graph) or _are_bytes(small, large, graph))
        and _tap(large, graph) is not None
        and zeros <= MOST_PRODUCTS
    )


def _are_floats(small: Node, large: Node, graph: Graph) -> bool:
    """Whether they are float convolutions that differ in their windows, weights and biases alone."""
    if not isinstance(small.op, Conv2D) or not isinstance(large.op, Conv2D):
        return False
    plain = Conv2D(large.op.stride, large.op.dilation, large.op.padding)
    first, second = activation(small, graph), activation(large, graph)
    if large.op != plain or small.op != Conv2D(large.op.stride) or first is None or second is None:
        return False
    return first.expr == second.expr and all(graph.values[n.output].dtype is DType.FLOAT32 for n in (small, large))


def _are_bytes(small: Node, large: Node, graph: Graph) -> bool:
    """Whether they are convolutions of bytes that differ in their windows, weights and constants of channels alone."""
    op = large.op
    if not isinstance(small.op, IntegerConv2D) or not isinstance(op, IntegerConv2D):
        return False
    plain = IntegerConv2D(op.stride, op.dilation, op.padding, zero_point=op.zero_point)
    if op != plain or small.op != IntegerConv2D(op.stride, zero_point=op.zero_point):
        return False
    types = {graph.values[n.output].dtype for n in (small, large)}
    known = [constants_of(n, graph.values) for n in (small, large)]
    kinds = [None if found is None else [operand.dtype.kind for operand in found] for found in known]
    return small.epilogue == large.epilogue and len(types) == 1 and None not in kinds and kinds[0] == kinds[1]


def _tap(large: Node, graph: Graph) -> tuple[int, int] | None:
    """The row and column of the window that lie on the pixel of a 1x1 convolution."""
    assert isinstance(large.op, Conv2D | IntegerConv2D)
    op, window = large.op, graph.values[large.inputs[1]].shape[1:3]
    at = [p // d for p, d in zip(op.padding, op.dilation, strict=True)]
    whole = all(p % d == 0 and p // d < n for p, d, n in zip(op.padding, op.dilation, window, strict=True))
    return (at[0], at[1]) if whole else None


def _joined(graph: Graph, pairs: Mapping[int, tuple[int, int]], producer: Mapping[int, Node]) -> Graph:
    builder = GraphBuilder(dict(graph.values), [])
    made: dict[tuple[int, int], int] = {}
    whole = {tuple(n.inputs): n.output for n in graph.nodes if isinstance(n.op, Concat)}
    for node in graph.nodes:
        pair = pairs.get(node.output)
        if pair is not None:
            if pair not in made:
                nodes = [producer[v] for v in pair]
                made[pair] = _put(builder, nodes, whole.get(pair))
        elif isinstance(node.op, Concat) and node.output not in made.values():
            first = [v for v in node.inputs if v not in pairs or v == pairs[v][0]]
            inputs = tuple(made[pairs[v]] if v in pairs else v for v in first)
            builder.nodes.append(dataclasses.replace(node, inputs=inputs))
        elif not isinstance(node.op, Concat):
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _put(builder: GraphBuilder, nodes: Sequence[Node], output: int | None) -> int:
    """One convolution for both, in their order."""
    graph = Graph(builder.values, (), (), ())
    large = max(nodes, key=lambda n: _taps(n, graph))
    tap = _tap(large, graph)
    assert tap is not None
    weights = []
    for node in nodes:
        data = builder.values[node.inputs[1]].data
        assert data is not None
        if node is not large:
            window = builder.values[large.inputs[1]].shape[1:3]
            spread = np.zeros((data.shape[0], *window, data.shape[3]), data.dtype)
            spread[:, tap[0], tap[1]] = data[:, 0, 0]
            data = spread
        weights.append(data)
    if output is None:
        value = builder.values[large.output]
        output = builder.value((*value.shape[:3], sum(map(len, weights))), value.dtype)
    narrow = isinstance(large.op, IntegerConv2D)
    inputs = [large.inputs[0], builder.constant(np.concatenate(weights), narrow=narrow)]
    expr, operands = _joint_of_bytes(builder, nodes) if narrow else _joint_of_floats(builder, nodes, graph)
    return builder.node(large.op, inputs, output, expr, operands, sources_of(*nodes))


def _joint_of_floats(builder: GraphBuilder, nodes: Sequence[Node], graph: Graph) -> tuple[Expr, list[int]]:
    """Their bias and activation."""
    found = [(activation(node, graph), graph.values[node.output].shape[3]) for node in nodes]
    biases = [bias_of(one, graph, channels) for one, channels in found if one is not None]
    (first, _), *_ = found
    assert first is not None
    return substitute(first.expr, {0: apply("add", RESULT, Arg(1))}), [builder.constant(np.concatenate(biases, axis=3))]


def _joint_of_bytes(builder: GraphBuilder, nodes: Sequence[Node]) -> tuple[Expr, list[int]]:
    """Their epilogue, and its constants of the channels of both."""
    known = [constants_of(node, builder.values) for node in nodes]
    together = zip(*(found for found in known if found is not None), strict=True)
    return nodes[0].epilogue, [builder.constant(np.concatenate(each)) for each in together]
