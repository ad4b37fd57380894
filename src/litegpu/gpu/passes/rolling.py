"""Slices of one value that are joined in another order, as windows are shifted, or as the pixels of a square become one
with all their channels, are one movement."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import (
    RESULT,
    Concat,
    Copy,
    Graph,
    GraphBuilder,
    Node,
    Reshape,
    Shape,
    Slice,
    Step,
    Take,
    Transpose,
    sources_of,
    step_shape,
)
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
            sources = sources_of(node, *(producer[v] for v in node.inputs))
            node = dataclasses.replace(node, op=Copy(steps), inputs=(source,), sources=sources)
            found = True
        nodes.append(node)
    if not found:
        return graph
    return join_copies(GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs))


def _chosen(node: Node, graph: Graph, producer: dict[int, Node]) -> tuple[int, tuple[Step, ...]] | None:
    """The value whose rows or columns are joined, or whose every so many become channels, and the movement that does
    it: what the slices are of may be moved itself."""
    if not isinstance(node.op, Concat) or node.op.axis not in (1, 2, 3) or node.epilogue != RESULT:
        return None
    origins: set[tuple[int, tuple[Step, ...]]] = set()
    slices: list[Slice] = []
    for v in node.inputs:
        copy = producer.get(v)
        if copy is None or not isinstance(copy.op, Copy) or copy.epilogue != RESULT or not copy.op.steps:
            return None
        *before, step = copy.op.steps
        if graph.values[copy.inputs[0]].dtype != graph.values[v].dtype or not isinstance(step, Slice):
            return None
        while node.op.axis == 3 and before and isinstance(rows := before[-1], Slice):  # and of columns of these
            before, step = before[:-1], _both(rows, step)
        slices.append(step)
        origins.add((copy.inputs[0], tuple(before)))
    if len(origins) != 1:
        return None
    ((source, before_all),) = origins
    shape = graph.values[source].shape
    for other in before_all:
        shape = step_shape(other, shape)
    if len(shape) != 4:
        return None
    steps = _phases(slices, shape) if node.op.axis == 3 else _taken(slices, shape, node.op.axis)
    return None if steps is None else (source, (*before_all, *steps))


def _both(first: Slice, second: Slice) -> Slice:
    """A slice of a slice."""
    begin = tuple(b + s * c for b, s, c in zip(first.begin, first.stride, second.begin, strict=True))
    stride = tuple(s * t for s, t in zip(first.stride, second.stride, strict=True))
    return Slice(begin, stride, second.target)


def _taken(slices: list[Slice], shape: Shape, axis: int) -> tuple[Step, ...] | None:
    """The rows or columns that are joined."""
    indices: list[int] = []
    for step in slices:
        kept = [i for i in range(4) if i != axis]
        if any((step.begin[i], step.stride[i], step.target[i]) != (0, 1, shape[i]) for i in kept):
            return None
        indices += [step.begin[axis] + step.stride[axis] * i for i in range(step.target[axis])]
    return (Take(axis, tuple(indices)),)


def _phases(slices: list[Slice], shape: Shape) -> tuple[Step, ...] | None:
    """Every so many rows and columns, from each of the first on, become channels: rows outside of columns, or columns
    of rows."""
    batch, height, width, channels = shape
    _, down, across, _ = slices[0].stride
    if min(down, across) < 1 or height % down or width % across or len(slices) != down * across:
        return None
    target = (batch, height // down, width // across, channels)
    if any((step.stride, step.target) != ((1, down, across, 1), target) for step in slices):
        return None
    found = [step.begin for step in slices]
    rows_first = [(0, y, x, 0) for y in range(down) for x in range(across)]
    columns_first = [(0, y, x, 0) for x in range(across) for y in range(down)]
    if found not in (rows_first, columns_first):
        return None
    apart = (batch, height // down, down, width // across, across, channels)
    order = (0, 1, 3, 2, 4, 5) if found == rows_first else (0, 1, 3, 4, 2, 5)
    moved = tuple(apart[i] for i in order)
    together = (*target[:3], down * across * channels)
    return Reshape(shape, apart), Transpose(order), Reshape(moved, together)
