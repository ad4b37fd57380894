"""Join two 1x1 convolutions of which the second one alone reads the first: a transformer's feed-forward layers."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels.biased import activation
from litegpu.gpu.backends.cuda.kernels.pair import MOST_DEPTH, WIDTHS, cost, ranked, sizes_of
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.graph import (
    Conv2D,
    DType,
    Graph,
    GraphBuilder,
    Node,
    PairConv2D,
    PointwiseConv2D,
    fits_half,
    sources_of,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.decisions import values_decided_on

#: A joint kernel has to be so much quicker, by the estimates, than two.
GAIN = 0.9
#: What one convolution takes, in microseconds: at least, for each byte that it reads or writes, for each number of what
#: is between the two, and of rows that are normalised. (An H200, ViT tiny at batch 64: 20 us and 10.8 us.)
START, EACH, INNER, NORM = 2.0, 1 / 3.0e6, 0.65e-6, 1.1e-6
#: Pixels from which on there is enough for all multiprocessors.
LEAST_PIXELS = 4096


def join_pairs(graph: Graph, features: Features) -> Graph:
    """The graph with PairConv2D nodes where these are quicker."""
    if features.capability != WARPGROUP_CAPABILITY:
        return graph
    consumers, producer = graph.consumers(), graph.producer()
    pairs: dict[int, tuple[Node, Node]] = {}  # by the output of the second one
    for node in graph.nodes:
        first = producer.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        if first is None or consumers[first.output] != [node] or first.output in graph.outputs:
            continue
        if first.output in pairs:
            continue
        if _widens(first, graph) and _projects(node, graph) and _pays(first, node, graph, features):
            pairs[node.output] = first, node
    decided = values_decided_on(graph) if pairs else {}
    pairs = {v: (first, last) for v, (first, last) in pairs.items() if first.inputs[0] not in decided}
    gone = {first.output for first, _ in pairs.values()}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in pairs:
            builder.nodes.append(_joined(*pairs[node.output], graph, builder))
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if pairs else graph


def _is_pointwise(node: Node, graph: Graph) -> bool:
    data = graph.values[node.inputs[1]].data
    shapes = [graph.values[v].shape[:3] for v in (node.inputs[0], node.output)]
    return (
        data is not None
        and data.shape[1:3] == (1, 1)
        and shapes[0] == shapes[1]
        and fits_half(data)
        and all(graph.values[v].dtype is DType.FLOAT32 for v in (node.inputs[0], node.output))
    )


def _widens(node: Node, graph: Graph) -> bool:
    normalises = isinstance(node.op, PointwiseConv2D) and node.op.norm is not None
    return (
        (node.op == Conv2D() or normalises)
        and _is_pointwise(node, graph)
        and not graph.values[node.inputs[0]].is_constant
        and graph.values[node.inputs[0]].shape[3] <= MOST_DEPTH
        and graph.values[node.output].shape[3] >= 2 * graph.values[node.inputs[0]].shape[3]
        and activation(node, graph) is not None
    )


def _projects(node: Node, graph: Graph) -> bool:
    result = graph.values[node.output].shape[3]
    return (
        node.op == Conv2D()
        and _is_pointwise(node, graph)
        and result <= WIDTHS[-1]
        and node.inputs[0] not in node.operands
    )


def _pays(first: Node, last: Node, graph: Graph, features: Features) -> bool:
    values = graph.values
    pair = _op(first, graph)
    shape, weights = values[last.output].shape, values[first.inputs[1]].shape
    residuals = sum(not values[v].is_constant and values[v].shape == shape for v in last.operands)
    sizes = sizes_of(pair, shape, weights, residuals)
    if sizes.pixels < LEAST_PIXELS:
        return False
    tiles = ranked(sizes, features.compute_units)
    moved = sizes.inputs + 2 * sizes.inner + sizes.outputs * (1 + residuals)
    norm = 0.0 if pair.norm is None else sizes.inputs * NORM
    apart = 2 * START + sizes.pixels * (2 * moved * EACH + norm + sizes.inner * INNER * min(1.0, sizes.effort / 13))
    return bool(tiles) and cost(sizes, tiles[0], features.compute_units) < GAIN * apart


def _op(first: Node, graph: Graph) -> PairConv2D:
    done = activation(first, graph)
    assert done is not None
    return PairConv2D(done.expr, first.op.norm if isinstance(first.op, PointwiseConv2D) else None)


def _joined(first: Node, last: Node, graph: Graph, builder: GraphBuilder) -> Node:
    done = activation(first, graph)
    assert done is not None
    channels = graph.values[first.output].shape[3]
    bias = done.bias
    if bias is None or graph.values[bias].shape[3] != channels:
        data = None if bias is None else graph.values[bias].data
        filled = np.zeros((1, 1, 1, channels), np.float32) + (0.0 if data is None else data)
        bias = builder.constant(filled.astype(np.float32))
    inputs = (first.inputs[0], first.inputs[1], bias, last.inputs[1])
    sources = sources_of(first, last)
    return Node(_op(first, graph), inputs, last.output, last.epilogue, last.operands, sources)
