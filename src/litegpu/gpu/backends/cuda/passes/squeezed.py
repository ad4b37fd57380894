"""Join two 1x1 convolutions of one pixel, where the second alone reads the first and kernels overlap."""

from __future__ import annotations

import math

from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.squeezed import takes
from litegpu.gpu.graph import Conv2D, Graph, GraphBuilder, Node, SqueezedConv2D


def join_squeezed(graph: Graph) -> Graph:
    """The graph with SqueezedConv2D nodes. Of one image each of the two takes a microsecond, most of which is waiting;
    of many they are products that fill the device."""
    if not will_overlap(graph):
        return graph
    consumers = graph.consumers()
    joined: dict[int, Node] = {}  # by the first result, which no longer exists
    for node in graph.nodes:
        readers = consumers[node.output]
        alone = node.output not in graph.outputs and len(readers) == 1 and node.inputs and node.inputs[0] not in joined
        if alone and _can_join(node, readers[0], graph):
            joined[node.output] = node
    nodes = []
    for node in graph.nodes:
        before = joined.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        if node.output not in joined:
            nodes.append(node if before is None else _join(before, node))
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)


def _can_join(first: Node, second: Node, graph: Graph) -> bool:
    values = graph.values
    if first.op != Conv2D() or second.op != Conv2D():
        return False
    if second.inputs[0] != first.output or first.output in second.operands or values[first.inputs[0]].is_constant:
        return False
    x, squeeze, excite = values[first.inputs[0]], values[first.inputs[1]].data, values[second.inputs[1]].data
    return (
        squeeze is not None
        and excite is not None
        and math.prod(x.shape[:3]) == 1
        and takes(x.dtype, squeeze, excite)
        and values[first.output].dtype is x.dtype
        and all(values[v].is_constant and math.prod(values[v].shape[:3]) == 1 for v in first.operands)
    )


def _join(first: Node, second: Node) -> Node:
    return Node(
        SqueezedConv2D(first.epilogue),
        (*first.inputs, second.inputs[1], *first.operands),
        second.output,
        second.epilogue,
        second.operands,
        tuple(sorted({*first.sources, *second.sources})),
    )
