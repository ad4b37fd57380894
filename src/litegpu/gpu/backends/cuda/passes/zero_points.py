"""Weights with a zero point, as files of old have them, as weights without one: native kernels multiply signed bytes as
they are."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.integer import FEW_ROWS
from litegpu.gpu.graph import RESULT, Arg, DType, Graph, GraphBuilder, IntegerConv2D, Literal, Node, substitute
from litegpu.gpu.graph import apply as fn

#: What two signed bytes add up to at most.
MOST = 254


def part_zero_points(graph: Graph) -> Graph:
    """The graph with weights w - z in two parts, each a byte, that are multiplied with the same pixel one after the
    other: a window of two taps at one place. Of larger windows sums of x * (w - z) are made of those of x * w, and z
    times those of x, which all filters share. (Few rows have a kernel of the language.)"""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        op = node.op
        parts = isinstance(op, IntegerConv2D) and op.weights_zero_point and op.groups == 1
        if not parts or math.prod(graph.values[node.output].shape[:3]) <= FEW_ROWS:
            builder.nodes.append(node)
            continue
        assert isinstance(op, IntegerConv2D)
        data = graph.values[node.inputs[1]].data
        assert data is not None
        quanta = data.astype(np.int32) - op.weights_zero_point
        if data.shape[1:3] == (1, 1) and quanta.max() <= MOST:
            _put_pair(builder, node, op, quanta)
        else:
            _put_sums(builder, node, op)
    return builder.graph(graph.inputs, graph.outputs)


def _put_pair(builder: GraphBuilder, node: Node, op: IntegerConv2D, quanta: np.ndarray) -> None:
    limits = np.iinfo(np.int8)
    first = quanta.clip(limits.min, limits.max)
    taps = builder.constant(np.concatenate([first, quanta - first], axis=2).astype(np.int8), narrow=True)
    same = dataclasses.replace(op, weights_zero_point=0, dilation=(1, 0))
    builder.nodes.append(dataclasses.replace(node, op=same, inputs=(node.inputs[0], taps)))


def _put_sums(builder: GraphBuilder, node: Node, op: IntegerConv2D) -> None:
    weights, y = (builder.values[v] for v in (node.inputs[1], node.output))
    plain = dataclasses.replace(op, weights_zero_point=0)
    ones = builder.constant(np.ones((1, *weights.shape[1:]), np.int8), narrow=True)
    total = builder.value((*y.shape[:3], 1), DType.INT32, name=y.name)
    builder.node(plain, [node.inputs[0], ones], total, sources=node.sources)
    count = len(node.operands)
    less = fn("sub", RESULT, fn("mul", Arg(1 + count), Literal(op.weights_zero_point, DType.INT32)))
    epilogue = substitute(node.epilogue, {0: less, **{i: Arg(i) for i in range(1, 1 + count)}})
    builder.nodes.append(dataclasses.replace(node, op=plain, epilogue=epilogue, operands=(*node.operands, total)))
