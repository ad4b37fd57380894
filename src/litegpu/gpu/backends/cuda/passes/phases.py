"""A transposed convolution along time with few outputs is one convolution, whose channels are the phases of a stride:
else each phase reads the whole input."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.graph import Conv2D, Copy, DType, Graph, GraphBuilder, Node, Reshape, TransposeConv2D, replaced

#: Products for each number that is read, up to which reading it takes longer.
MOST_PRODUCTS = 128


def join_phases(graph: Graph) -> Graph:
    """The graph with an ordinary convolution and a reshape for each such layer."""
    found = {node.output for node in graph.nodes if _suits(node, graph)}
    return replaced(graph, found, _put) if found else graph


def _suits(node: Node, graph: Graph) -> bool:
    if not isinstance(node.op, TransposeConv2D):
        return False
    values, op = graph.values, node.op
    x, weights, y = (values[v] for v in (*node.inputs, node.output))
    if weights.data is None or x.dtype is not DType.FLOAT32 or y.dtype is not DType.FLOAT32:
        return False
    (_, _, columns, _), (outputs, rows, _, _), stride = x.shape, weights.shape, op.stride[1]
    alone = (rows, op.stride[0], op.padding[0]) == (1, 1, 0) and stride > 1
    whole = y.shape[:3] == (*x.shape[:2], columns * stride)
    first, last = _reach(op, weights.shape[2])
    each = all(
        values[v].data is not None and values[v].shape in ((1, 1, 1, 1), (1, 1, 1, outputs)) for v in node.operands
    )
    return alone and whole and each and (last - first + 1) * stride * outputs <= MOST_PRODUCTS


def _reach(op: TransposeConv2D, taps: int) -> tuple[int, int]:
    """Which inputs the outputs of one step of the stride read, relative to that step."""
    stride, padding = op.stride[1], op.padding[1]
    return math.ceil((padding - taps + 1) / stride), (stride - 1 + padding) // stride


def _put(builder: GraphBuilder, node: Node) -> None:
    assert isinstance(node.op, TransposeConv2D)
    values = builder.values
    x, weights, shape = values[node.inputs[0]], values[node.inputs[1]].data, values[node.output].shape
    assert weights is not None
    stride, padding = node.op.stride[1], node.op.padding[1]
    outputs, _, taps, inputs = weights.shape
    first, last = _reach(node.op, taps)
    rows = np.zeros((stride, outputs, 1, last - first + 1, inputs), np.float32)
    for phase in range(stride):
        for tap in range((phase + padding) % stride, taps, stride):
            rows[phase, :, 0, (phase + padding - tap) // stride - first] = weights[:, 0, tap]
    operands = []
    for v in node.operands:
        data = values[v].data
        assert data is not None
        operands.append(v if data.size == 1 else builder.constant(np.tile(data, (1, 1, 1, stride))))
    wide = builder.value((*x.shape[:3], stride * outputs), DType.FLOAT32)
    op = Conv2D(padding=(0, -first))
    joined = rows.reshape(stride * outputs, 1, last - first + 1, inputs)
    inner = dataclasses.replace(
        node, op=op, inputs=(x.id, builder.constant(joined)), output=wide, operands=tuple(operands)
    )
    builder.nodes += [
        inner,
        Node(Copy((Reshape(values[wide].shape, shape),)), (wide,), node.output, sources=node.sources),
    ]
