"""Weights with a zero point, as files of old have them, as weights without one and sums of what they are multiplied
with: native kernels multiply signed bytes as they are."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    DType,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    Literal,
    Node,
    Reduce,
    substitute,
)
from litegpu.gpu.graph import apply as fn


def part_zero_points(graph: Graph) -> Graph:
    """The graph with sums of x * (w - z) made of those of x * w, and z times those of x, which all filters share."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if isinstance(node.op, IntegerConv2D) and node.op.weights_zero_point and node.op.groups == 1:
            _put(builder, node, node.op)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if len(builder.nodes) > len(graph.nodes) else graph


def _put(builder: GraphBuilder, node: Node, op: IntegerConv2D) -> None:
    x, weights, y = (builder.values[v] for v in (*node.inputs, node.output))
    total = builder.value((*y.shape[:3], 1), DType.INT32, name=y.name)
    _, *window, depth = weights.shape
    if window == [1, 1] and op.stride == (1, 1) and op.padding == (0, 0):
        number = fn("sub", RESULT, Literal(op.zero_point, DType.INT32))
        builder.node(Reduce("sum", (3,), number), [x.id], total, sources=node.sources)
    else:
        ones = builder.constant(np.ones((1, *window, depth), np.int8), narrow=True)
        builder.node(dataclasses.replace(op, weights_zero_point=0), [x.id, ones], total, sources=node.sources)
    place = Arg(1 + len(node.operands))
    less = fn("sub", RESULT, fn("mul", place, Literal(op.weights_zero_point, DType.INT32)))
    builder.nodes.append(
        dataclasses.replace(
            node,
            op=dataclasses.replace(op, weights_zero_point=0),
            epilogue=substitute(node.epilogue, {0: less, **{i + 1: Arg(i + 1) for i in range(len(node.operands))}}),
            operands=(*node.operands, total),
        )
    )
