"""Slices of one value that are joined in another order, as windows are shifted, are one movement."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import RESULT, Concat, Copy, Graph, GraphBuilder, Node, Slice, Step, Take, step_shape
from litegpu.gpu.passes.movement import join_copies


def join_slices(graph: Graph) -> Graph:
    """The graph with a choice of rows or columns in place of their slices and what joins these, so that it becomes one
    with what moves them before and after."""
    producer, consumers = graph.producer(), graph.consumers()
    nodes: list[Node] = []
    found = False
    for node in graph.nodes:
        chosen = _chosen(node, graph, producer)
        alone = all(consumers[v] == [node] and v not in graph.outputs for v in node.inputs)
        if chosen is not None and alone:
            source, steps = chosen
            sources = tuple(sorted({i for n in (node, *(producer[v] for v in node.inputs)) for i in n.sources}))
            node = dataclasses.replace(node, op=Copy(steps), inputs=(source,), sources=sources)
            found = True
        nodes.append(node)
    if not found:
        return graph
    return join_copies(GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs))


def _chosen(node: Node, graph: Graph, producer: dict[int, Node]) -> tuple[int, tuple[Step, ...]] | None:
    """The value whose rows or columns are joined, and the movement that does it: what the slices are of may be moved
    itself."""
    if not isinstance(node.op, Concat) or node.op.axis not in (1, 2) or node.epilogue != RESULT:
        return None
    axis = node.op.axis
    indices: list[int] = []
    origins: set[tuple[int, tuple[Step, ...]]] = set()
    for v in node.inputs:
        copy = producer.get(v)
        if copy is None or not isinstance(copy.op, Copy) or copy.epilogue != RESULT or not copy.op.steps:
            return None
        *before, step = copy.op.steps
        shape = graph.values[copy.inputs[0]].shape
        if graph.values[copy.inputs[0]].dtype != graph.values[v].dtype or not isinstance(step, Slice):
            return None
        for other in before:
            shape = step_shape(other, shape)
        kept = [i for i in range(4) if i != axis]
        if len(shape) != 4 or any((step.begin[i], step.stride[i], step.target[i]) != (0, 1, shape[i]) for i in kept):
            return None
        indices += [step.begin[axis] + step.stride[axis] * i for i in range(step.target[axis])]
        origins.add((copy.inputs[0], tuple(before)))
    if len(origins) != 1:
        return None
    ((source, before_all),) = origins
    return source, (*before_all, Take(axis, tuple(indices)))
