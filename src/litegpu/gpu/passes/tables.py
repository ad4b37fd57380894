"""What is computed from a byte and from what a table has for it is in a table itself: there are 256 results.

A quantized network's x * sigmoid(x) is one: a table of sigmoids, the product, its rounding and limits."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import RESULT, Graph, GraphBuilder, Lookup, Node

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
    if node.epilogue == RESULT or values[table].data is None or values[node.output].shape != values[x].shape:
        return False
    return all(v == x or ((data := values[v].data) is not None and data.size == 1) for v in node.operands)


def _folded(graph: Graph, node: Node, builder: GraphBuilder) -> Node:
    assert isinstance(node.op, Lookup)
    x, table = node.inputs
    numbers, before = np.arange(_NUMBERS, dtype=np.int32) + np.int32(node.op.lowest), graph.values[table].data
    assert before is not None
    known = [numbers if v == x else np.asarray(graph.values[v].data).reshape(()) for v in node.operands]
    results = evaluate_expr(node.epilogue, [before.reshape(-1), *known])
    made = builder.constant(np.ascontiguousarray(np.broadcast_to(results, _NUMBERS)).reshape(1, 1, 1, _NUMBERS))
    return dataclasses.replace(node, inputs=(x, made), epilogue=RESULT, operands=())
