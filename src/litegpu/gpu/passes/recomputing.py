"""Small elementwise work that a later node waits for is done again there: in the body of a loop waiting costs more."""

from __future__ import annotations

from litegpu.gpu.graph import Elementwise, Graph, GraphBuilder, Node
from litegpu.gpu.passes.fuse import inlined

#: Elements up to which work is repeated, and the functions of an expression that is.
MOST_ELEMENTS, MOST_FUNCTIONS = 1 << 16, 32


def recompute(graph: Graph, max_buffers: int) -> Graph:
    """The graph in which an elementwise node computes by itself what it reads of others of its shape, which somebody
    else reads as well, so that neither waits for the other."""
    made: dict[int, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.op, Elementwise):
            for v in node.operands:
                known = made.get(v)
                if known is not None and graph.values[v].elements == graph.values[node.output].elements:
                    node = inlined(graph, node, v, known, max_buffers, MOST_FUNCTIONS) or node
            if graph.values[node.output].elements <= MOST_ELEMENTS:
                made[node.output] = node
        nodes.append(node)
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)
