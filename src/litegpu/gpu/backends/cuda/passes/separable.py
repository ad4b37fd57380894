"""Join a depthwise convolution and the 1x1 convolution that alone reads it, where a kernel does both."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Conv2D, DepthwiseConv2D, DType, Graph, GraphBuilder, Node, SeparableConv2D

#: Each workgroup of the joint kernel computes the depthwise results for all outputs that it has, of which these are the
#: most: with more, several would compute the same.
MOST_OUTPUTS = 128
#: Channels up to which moving the depthwise results through memory costs more than computing them less evenly.
MOST_CHANNELS = 128
#: Output pixels from which on that is so: with fewer, time goes into latency, and two short kernels that overlap have
#: less of it than one with two phases. (On an H200, batch 1: DeepLab v3 119 us apart and 135 joined, pose detection 122
#: and 165; batch 64: MobileNet v1 699 and 659, pose detection 2067 and 1758.)
LEAST_PIXELS = 50_000
#: Taps of a window that a thread can unroll.
MOST_TAPS = 49


def join_separable(graph: Graph) -> Graph:
    """The graph with SeparableConv2D nodes where these are worth it: their kernel is for float16."""
    consumers = graph.consumers()
    joined: dict[int, Node] = {}  # by the depthwise result that no longer exists
    for node in graph.nodes:
        first = isinstance(node.op, DepthwiseConv2D) and node.output not in graph.outputs
        readers = consumers[node.output]
        if first and len(readers) == 1 and can_join(node, readers[0], graph):
            joined[node.output] = node
    nodes = []
    for node in graph.nodes:
        if node.output in joined:
            continue
        before = joined.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        nodes.append(node if before is None else _join(before, node))
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)


def can_join(depthwise: Node, pointwise: Node, graph: Graph) -> bool:
    """Whether the joint kernel can and should compute these, of which the second alone reads the first."""
    values = graph.values
    op = depthwise.op
    assert isinstance(op, DepthwiseConv2D)
    plain = pointwise.op == Conv2D() and pointwise.inputs[0] == depthwise.output not in pointwise.operands
    if not plain or op.multiplier != 1 or values[depthwise.inputs[0]].is_constant:
        return False
    weights = [values[depthwise.inputs[1]].data, values[pointwise.inputs[1]].data]
    inner = [values[v] for v in depthwise.operands]
    outputs, channels = values[pointwise.inputs[1]].shape[0], values[depthwise.output].shape[3]
    return (
        all(w is not None and bool(np.all(np.abs(w) <= np.finfo(np.float16).max)) for w in weights)
        and values[pointwise.inputs[1]].shape[1:3] == (1, 1)
        and all(v.is_constant and math.prod(v.shape[:3]) == 1 for v in inner)
        and values[depthwise.inputs[0]].dtype is values[depthwise.output].dtype is DType.FLOAT32
        and math.prod(values[pointwise.output].shape[:3]) >= LEAST_PIXELS
        and outputs <= MOST_OUTPUTS
        and channels <= MOST_CHANNELS
        and math.prod(values[depthwise.inputs[1]].shape[1:3]) <= MOST_TAPS
    )


def _join(depthwise: Node, pointwise: Node) -> Node:
    assert isinstance(depthwise.op, DepthwiseConv2D)
    return Node(
        SeparableConv2D(depthwise.op, depthwise.epilogue),
        (*depthwise.inputs, pointwise.inputs[1], *depthwise.operands),
        pointwise.output,
        pointwise.epilogue,
        pointwise.operands,
        tuple(sorted({*depthwise.sources, *pointwise.sources})),
    )
