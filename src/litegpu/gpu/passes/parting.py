"""Slices that lie in one part of a concatenation read that part: indices are packed to be taken apart again."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import RESULT, Concat, Copy, Graph, GraphBuilder, Node, Slice
from litegpu.gpu.passes.movement import join_copies


def read_parts(graph: Graph) -> Graph:
    """The graph in which slices are of parts, so that what is joined for them alone is joined no more."""
    producer = graph.producer()
    nodes = [_of_a_part(node, graph, producer) for node in graph.nodes]
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return join_copies(GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs))


def _of_a_part(node: Node, graph: Graph, producer: dict[int, Node]) -> Node:
    if not isinstance(node.op, Copy) or not node.op.steps or not isinstance(node.op.steps[0], Slice):
        return node
    whole, cut = producer.get(node.inputs[0]), node.op.steps[0]
    if whole is None or not isinstance(whole.op, Concat) or whole.epilogue != RESULT:
        return node
    axis = whole.op.axis
    first = cut.begin[axis]
    last = first + cut.stride[axis] * (cut.target[axis] - 1)
    begin = 0
    for part in whole.inputs:
        value = graph.values[part]
        end = begin + value.shape[axis]
        if begin <= min(first, last) and max(first, last) < end:
            if value.dtype != graph.values[whole.output].dtype:
                return node
            start = (*cut.begin[:axis], first - begin, *cut.begin[axis + 1 :])
            steps = (dataclasses.replace(cut, begin=start), *node.op.steps[1:])
            return dataclasses.replace(node, op=Copy(steps), inputs=(part, *node.inputs[1:]))
        begin = end
    return node
