"""Slices that lie side by side in one value, and again in what they are joined to, are one slice."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import RESULT, Concat, Copy, Graph, GraphBuilder, Node, Slice, Step, sources_of, step_shape
from litegpu.gpu.passes.movement import join_copies


def join_neighbours(graph: Graph) -> Graph:
    """The graph with one slice, or the whole value, in place of its parts where a concatenation has them in their
    order: then the value is written where the concatenation lies, as in a block that keeps both halves of a layer and
    what becomes of one of them."""
    producer = graph.producer()
    builder = GraphBuilder(dict(graph.values), [])
    found = False
    for node in graph.nodes:
        if isinstance(node.op, Concat) and node.epilogue == RESULT:
            inputs = _joined(node, builder, producer)
            found |= inputs != node.inputs
            op = Copy(()) if len(inputs) == 1 else node.op
            node = dataclasses.replace(node, op=op, inputs=inputs)
        builder.nodes.append(node)
    return join_copies(builder.graph(graph.inputs, graph.outputs)) if found else graph


def _joined(concat: Node, builder: GraphBuilder, producer: dict[int, Node]) -> tuple[int, ...]:
    """What is to be joined, with copies that are added to the nodes."""
    assert isinstance(concat.op, Concat)
    axis, inputs = concat.op.axis, list(concat.inputs)
    i = 0
    while i + 1 < len(inputs):
        parts = [_slice_of(producer.get(v), builder) for v in inputs[i : i + 2]]
        first, second = parts
        if first is None or second is None or not _follows(first, second, axis):
            i += 1
            continue
        source, before, part = first
        target = tuple(n + (second[2].target[axis] if j == axis else 0) for j, n in enumerate(part.target))
        merged = Slice(part.begin, part.stride, target)
        value = builder.values[source]
        whole = not before and target == value.shape
        v = source if whole else builder.value(target, value.dtype, name=value.name)
        if not whole:
            sources = sources_of(*(producer[w] for w in inputs[i : i + 2]))
            copy = Node(Copy((*before, merged)), (source,), v, sources=sources)
            builder.nodes.append(copy)
            producer[v] = copy
        inputs[i : i + 2] = [v]
    return tuple(inputs)


_Part = tuple[int, tuple[Step, ...], Slice]  # the value, what moves it before, and the slice


def _slice_of(node: Node | None, builder: GraphBuilder) -> _Part | None:
    if node is None or not isinstance(node.op, Copy) or node.epilogue != RESULT or not node.op.steps:
        return None
    *before, last = node.op.steps
    value = builder.values[node.inputs[0]]
    if not isinstance(last, Slice) or len(last.target) != 4 or set(last.stride) != {1}:
        return None
    if value.is_constant or value.dtype != builder.values[node.output].dtype:
        return None
    shape = value.shape
    for step in before:
        shape = step_shape(step, shape)
    inside = all(b >= 0 and b + n <= size for b, n, size in zip(last.begin, last.target, shape, strict=True))
    return (node.inputs[0], tuple(before), last) if inside else None


def _follows(first: _Part, second: _Part, axis: int) -> bool:
    """Whether the second slice begins where the first one ends, along the axis, and is as large otherwise."""
    (source, before, one), (other_source, other_before, other) = first, second
    alike = all((one.begin[i], one.target[i]) == (other.begin[i], other.target[i]) for i in range(4) if i != axis)
    return (
        (source, before) == (other_source, other_before)
        and alike
        and (other.begin[axis] == one.begin[axis] + one.target[axis])
    )
