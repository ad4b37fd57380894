"""Join a depthwise convolution and the 1x1 convolution that alone reads it, where one kernel does both."""

from __future__ import annotations

import math
from collections.abc import Callable

from litegpu.gpu.graph import Conv2D, DepthwiseConv2D, DType, Graph, GraphBuilder, Node, SeparableConv2D, sources_of
from litegpu.gpu.kernels.separable import MOST_TAPS, shared_bytes, tile_of
from litegpu.gpu.lang.features import Features

#: The joint kernel computes the depthwise results anew for each block of outputs: up to this share of the rest.
_MOST_REPEATED = 0.5


def join_pairs_where(graph: Graph, worth_it: Callable[[Node, Node], bool]) -> Graph:
    """The graph with SeparableConv2D nodes for those pairs (depthwise, 1x1) that can be one, and of which `worth_it`
    says that they should."""
    consumers = graph.consumers()
    joined: dict[int, Node] = {}  # by the depthwise result that no longer exists
    for node in graph.nodes:
        first = isinstance(node.op, DepthwiseConv2D) and node.output not in graph.outputs
        readers = consumers[node.output]
        if first and len(readers) == 1 and is_pair(node, readers[0], graph) and worth_it(node, readers[0]):
            joined[node.output] = node
    nodes = []
    for node in graph.nodes:
        if node.output in joined:
            continue
        before = joined.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        nodes.append(node if before is None else joint(before, node))
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)


def join_waiting(graph: Graph, features: Features) -> Graph:
    """The same for devices whose kernels wait for one another, which takes as long as many a kernel."""
    if features.native:
        return graph

    def worth_it(depthwise: Node, pointwise: Node) -> bool:
        node = joint(depthwise, pointwise)
        (_, kh, kw, channels), (outputs, *_) = (graph.values[v].shape for v in node.inputs[1:3])
        tile = tile_of(graph, node, features)
        if kh * kw > MOST_TAPS or shared_bytes(tile, channels) > features.max_shared_bytes:
            return False
        times = -(-outputs // (4 * tile.quads * tile.wide))
        buffers = {v for v in node.reads if not graph.values[v].is_constant or graph.values[v].elements > 1}
        return times * kh * kw <= _MOST_REPEATED * outputs and len(buffers) < features.max_buffers

    return join_pairs_where(graph, worth_it)


def is_pair(depthwise: Node, pointwise: Node, graph: Graph) -> bool:
    """Whether these can be one SeparableConv2D, if the second alone reads the first."""
    values, op = graph.values, depthwise.op
    assert isinstance(op, DepthwiseConv2D)
    plain = pointwise.op == Conv2D() and pointwise.inputs[0] == depthwise.output not in pointwise.operands
    return (
        plain
        and op.multiplier == 1
        and not values[depthwise.inputs[0]].is_constant
        and all(values[node.inputs[1]].data is not None for node in (depthwise, pointwise))
        and values[pointwise.inputs[1]].shape[1:3] == (1, 1)
        and all(values[v].is_constant and math.prod(values[v].shape[:3]) == 1 for v in depthwise.operands)
        and values[depthwise.inputs[0]].dtype is values[depthwise.output].dtype is DType.FLOAT32
    )


def joint(depthwise: Node, pointwise: Node) -> Node:
    """Both in one node."""
    assert isinstance(depthwise.op, DepthwiseConv2D)
    return Node(
        SeparableConv2D(depthwise.op, depthwise.epilogue),
        (*depthwise.inputs, pointwise.inputs[1], *depthwise.operands),
        pointwise.output,
        pointwise.epilogue,
        pointwise.operands,
        sources_of(depthwise, pointwise),
    )
