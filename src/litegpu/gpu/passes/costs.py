"""What the nodes of a placed graph take: operations, and bytes read and written, each node being a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.graph import (
    Attention,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Excite,
    Gather,
    Graph,
    InvertedConv2D,
    MatMul,
    MeanConv2D,
    MomentsConv2D,
    Node,
    PairConv2D,
    PointwiseConv2D,
    PooledConv2D,
    RowMoments,
    SeparableConv2D,
    Squeeze,
    TransposeConv2D,
)


@dataclass(frozen=True)
class NodeCost:
    """`flops`: two for each multiplication of a convolution or matrix product, none elsewhere. `bytes`: every input and
    constant read once, the result written once."""

    flops: int
    bytes: int


def node_cost(graph: Graph, node: Node, half: bool) -> NodeCost:
    """Of a node of a graph that passes.layout has placed. `half`: floats have two bytes, else four."""
    return NodeCost(_flops(graph, node), _bytes(graph, node, half))


def _flops(graph: Graph, node: Node) -> int:
    shapes = [graph.values[v].shape for v in node.inputs]
    output = graph.values[node.output].elements
    match node.op:
        case Conv2D() | PointwiseConv2D() | MomentsConv2D():
            return 2 * output * math.prod(shapes[1][1:])
        case PairConv2D():
            pixels = math.prod(graph.values[node.output].shape[:3])
            return 2 * pixels * (math.prod(shapes[1]) + math.prod(shapes[3]))
        case PooledConv2D():
            return 8 * output * math.prod(shapes[1][1:])
        case DepthwiseConv2D():
            return 2 * output * math.prod(shapes[1][1:3])
        case SeparableConv2D():
            pixels = math.prod(graph.values[node.output].shape[:3])
            return 2 * (pixels * math.prod(shapes[1][1:]) + output * shapes[2][3])
        case InvertedConv2D():
            pixels = math.prod(graph.values[node.output].shape[:3])
            projected = output * shapes[5][3] if len(shapes) > 4 else 0
            return 2 * (math.prod(shapes[0]) * shapes[1][0] + pixels * math.prod(shapes[3][1:]) + projected)
        case MeanConv2D():
            return 2 * math.prod(shapes[0]) * shapes[1][0]
        case Squeeze():
            return 2 * shapes[0][0] * math.prod(shapes[1])
        case Excite():
            return 2 * shapes[0][0] * math.prod(shapes[3])
        case TransposeConv2D():
            return 2 * math.prod(shapes[0]) * math.prod(shapes[1][:3])
        case MatMul(transpose_a=transposed):
            return 2 * output * shapes[0][2 if transposed else 3]
        case Attention():
            return 2 * math.prod(shapes[0][:3]) * shapes[1][2] * (shapes[0][3] + shapes[2][3])
    return 0


def _bytes(graph: Graph, node: Node, half: bool) -> int:
    def size(v: int) -> int:
        floating = graph.values[v].dtype in (DType.FLOAT32, DType.FLOAT16)
        return graph.values[v].elements * (2 if half and floating else graph.values[v].dtype.nbytes)

    written = size(node.output)
    if isinstance(node.op, RowMoments):
        return written  # by the kernel that has what they are of
    read = [size(v) for v in dict.fromkeys(node.reads)]
    chooses = isinstance(node.op, (Copy, Gather))
    return written + (sum(min(n, written) for n in read) if chooses else sum(read))
