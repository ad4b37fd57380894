"""Fold nodes whose inputs are all constants, and drop nodes whose results nobody reads."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import Custom, Graph, GraphBuilder, Node


def fold_constants(graph: Graph) -> Graph:
    """Replace every node that reads constants only by its value. A graph output that becomes constant stays a value
    written by a plain Copy, made by the layout pass; one of a narrow type is left to its node, since constants are
    kept in words."""
    values = dict(graph.values)
    nodes: list[Node] = []
    for node in graph.nodes:
        known = {v: data for v in node.reads if (data := values[v].data) is not None}
        foldable = all(v in known for v in node.reads) and not values[node.output].dtype.is_narrow
        if foldable and _is_known(node):
            data = evaluate_node(node, known, graph)
            values[node.output] = dataclasses.replace(values[node.output], data=data.reshape(values[node.output].shape))
        else:
            nodes.append(node)
    return drop_unused(GraphBuilder(values, nodes).graph(graph.inputs, graph.outputs))


def drop_unused(graph: Graph) -> Graph:
    """The graph without nodes whose output is neither read nor an output of the graph."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.output in needed:
            needed.update(node.reads)
            kept.append(node)
    return GraphBuilder(dict(graph.values), kept[::-1]).graph(graph.inputs, graph.outputs)


def _is_known(node: Node) -> bool:
    """Whether NumPy can tell what the node computes."""
    return not isinstance(node.op, Custom) or node.op.definition.has_reference
