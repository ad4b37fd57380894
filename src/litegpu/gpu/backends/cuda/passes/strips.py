"""Convolutions of bytes by windows that lie side by side, as those of a vision transformer's patches: a window's row is
one run of memory, and so the channels of one pixel."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import Copy, Graph, GraphBuilder, IntegerConv2D, Node, Reshape

#: Channels from which on kernels load whole pieces of a pixel as it is, and elements of such a piece.
ENOUGH, PIECE = 16, 16


def join_strips(graph: Graph) -> Graph:
    """The graph in which such convolutions of few channels read rows of windows as pixels of many. (One H200, 64
    pictures of 224x224 by 16x16 windows of three bytes: 161 us by the language's kernel, 12 so.)"""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        builder.nodes += _joined(node, graph, builder) if _is_of_strips(node, graph) else [node]
    return builder.graph(graph.inputs, graph.outputs)


def _is_of_strips(node: Node, graph: Graph) -> bool:
    op = node.op
    if not isinstance(op, IntegerConv2D) or op.groups != 1 or op.dilation != (1, 1) or op.padding[1]:
        return False
    x, weights = (graph.values[v] for v in node.inputs)
    across, channels = weights.shape[2:]
    return (
        weights.data is not None
        and x.id in graph.inputs  # whose pixels lie side by side, whatever their channels
        and across > 1
        and x.shape[2] == across * graph.values[node.output].shape[2]  # then none overlap, and none is left out
        and channels < ENOUGH
        and across * channels % PIECE == 0
    )


def _joined(node: Node, graph: Graph, builder: GraphBuilder) -> list[Node]:
    op = node.op
    assert isinstance(op, IntegerConv2D)
    x, weights = (graph.values[v] for v in node.inputs)
    assert weights.data is not None
    outputs, down, across, channels = weights.shape
    shape = (*x.shape[:2], x.shape[2] // across, across * channels)
    strips = builder.value(shape, x.dtype, name=x.name)
    wide = weights.data.reshape(outputs, down, 1, across * channels)
    made = builder.constant(wide, name=weights.name, narrow=weights.dtype.is_narrow)
    moved = Node(Copy((Reshape(x.shape, shape),)), (x.id,), strips, sources=node.sources)
    op = dataclasses.replace(op, stride=(op.stride[0], 1))
    return [moved, dataclasses.replace(node, op=op, inputs=(strips, made))]
