"""The largest number of a large window is that of its columns' largest ones."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import RESULT, DType, Graph, GraphBuilder, Node, Pool2D
from litegpu.gpu.kernels.pool import loads

#: Loads saved from which on another kernel pays. (On an H200 16x20x20x256 by 13x13 takes 102 us, by 9x9 50: 1.5 us for
#: four million loads.)
LEAST_SAVED = 8_000_000


def split_windows(graph: Graph) -> Graph:
    """The graph in which maxima of large windows are those of columns, of which maxima of rows are taken then: 26 loads
    instead of 169 for the 13x13 of a detector's spatial pyramid."""
    if not any(_pays(node, graph) for node in graph.nodes):
        return graph
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if _pays(node, graph):
            node = _rows_of_columns(node, builder)
        builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _pays(node: Node, graph: Graph) -> bool:
    op = node.op
    if not isinstance(op, Pool2D) or op.kind != "max" or op.prologue != RESULT or len(node.inputs) != 1:
        return False
    values = graph.values
    down, along = _apart(op)
    saved = (loads(op) - loads(along)) * values[node.output].elements - loads(down) * _between(node, graph)
    return saved >= LEAST_SAVED and values[node.inputs[0]].dtype is DType.FLOAT32 and min(op.window) > 1


def _apart(op: Pool2D) -> tuple[Pool2D, Pool2D]:
    """Of columns, and then of rows."""
    down = dataclasses.replace(op, window=(op.window[0], 1), stride=(op.stride[0], 1), padding=(op.padding[0], 0))
    along = dataclasses.replace(op, window=(1, op.window[1]), stride=(1, op.stride[1]), padding=(0, op.padding[1]))
    return down, along


def _between(node: Node, graph: Graph) -> int:
    """Elements of the maxima of columns."""
    shape = graph.values[node.output].shape
    return shape[0] * shape[1] * graph.values[node.inputs[0]].shape[2] * shape[3]


def _rows_of_columns(node: Node, builder: GraphBuilder) -> Node:
    op, x, shape = node.op, builder.values[node.inputs[0]], builder.values[node.output].shape
    assert isinstance(op, Pool2D)
    down, along = _apart(op)
    columns = builder.value((*shape[:2], x.shape[2], shape[3]), x.dtype)
    builder.node(down, node.inputs, columns, sources=node.sources)
    return dataclasses.replace(node, op=along, inputs=(columns,))
