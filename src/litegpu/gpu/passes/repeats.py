"""Compute once what several nodes compute alike, as networks say a RELU again in front of each layer that reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from litegpu.gpu.graph import Copy, Custom, Graph, GraphBuilder, Node, Reshape, Transpose

#: Elements up to which constants are compared by what they hold.
_SMALL = 4096


def drop_repeats(graph: Graph) -> Graph:
    """The graph with the first of each set of nodes that do the same to the same values. Copies that only reshape and
    transpose cost nothing, and stay with what reads them; operations with a state of their own stay as well."""
    renamed: dict[int, int] = {}
    first: dict[Hashable, int] = {}
    for v, value in graph.values.items():
        if value.data is not None and value.elements <= _SMALL and v not in graph.outputs:
            known = first.setdefault((value.dtype, value.shape, value.data.tobytes()), v)
            renamed |= {v: known} if known != v else {}
    nodes: list[Node] = []
    found = False
    for node in graph.nodes:
        inputs, operands = (tuple(renamed.get(v, v) for v in part) for part in (node.inputs, node.operands))
        node = dataclasses.replace(node, inputs=inputs, operands=operands)
        if not _is_free(node) and not isinstance(node.op, Custom):
            output = graph.values[node.output]
            key = (node.op, inputs, node.epilogue, operands, output.dtype, output.shape)
            known = first.setdefault(key, node.output)
            if known != node.output and node.output not in graph.outputs:
                renamed[node.output] = known
                found = True
                continue
        nodes.append(node)
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs) if found else graph


def _is_free(node: Node) -> bool:
    return isinstance(node.op, Copy) and all(isinstance(step, (Reshape, Transpose)) for step in node.op.steps)
