"""What is computed from a byte and from what a table has for it is in a table itself: there are 256 results.

A quantized network's x * sigmoid(x) is one: a table of sigmoids, the product, its rounding and limits."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, DType, Graph, GraphBuilder, Lookup, Node

#: Numbers that a byte can be.
_NUMBERS = 256


def fold_tables(graph: Graph) -> Graph:
    """The graph with the epilogue of each Lookup in its table, if it reads nothing but the bytes that are looked up and
    constants that are one number."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if isinstance(node.op, Lookup) and _can_fold(graph, node):
            node = _folded(graph, node, builder)
        builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _can_fold(graph: Graph, node: Node) -> bool:
    values, (x, table) = graph.values, node.inputs
    output = values[node.output]
    if node.epilogue == RESULT or values[table].data is None or output.shape != values[x].shape:
        return False
    known = all(v == x or ((data := values[v].data) is not None and data.size == 1) for v in node.operands)
    return known and output.dtype is not DType.BOOL  # of which there are no tables


def _folded(graph: Graph, node: Node, builder: GraphBuilder) -> Node:
    assert isinstance(node.op, Lookup)
    x, shape = node.inputs[0], (1, 1, 1, _NUMBERS)
    small = {v: dataclasses.replace(graph.values[v], shape=shape) for v in (x, node.output)}
    alone = GraphBuilder({**graph.values, **small}, [node]).graph([x], [node.output])
    (results,) = evaluate_graph(alone, [np.arange(_NUMBERS) + node.op.lowest])
    made = builder.constant(results.astype(np.float32 if results.dtype.kind == "f" else np.int32))
    return dataclasses.replace(node, inputs=(x, made), epilogue=RESULT, operands=())
