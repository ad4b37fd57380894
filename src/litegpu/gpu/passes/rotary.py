"""Halves of the channels that change places, one of them negated, are one movement: queries and keys that are turned by
their place (rotary embeddings)."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Node,
    Reshape,
    Slice,
    Step,
    apply,
    step_shape,
)
from litegpu.gpu.passes.movement import join_copies


def turn_halves(graph: Graph) -> Graph:
    """The graph with one movement, and a product with a sign for each channel, in place of the slices, their negations
    and what joins these: it takes in what is done behind it."""
    producer, consumers = graph.producer(), graph.consumers()
    builder = GraphBuilder(dict(graph.values), [])
    found = False

    def alone(v: int) -> Node | None:
        return producer.get(v) if len(consumers[v]) == 1 and v not in graph.outputs else None

    def half(v: int) -> tuple[int, tuple[Step, ...], Slice, float] | None:
        """What a half is of, how that is moved before, the slice, and its sign."""
        node, sign = alone(v), 1.0
        if node is not None and isinstance(node.op, Elementwise) and node.epilogue == Apply("neg", (Arg(0),)):
            node, sign = alone(node.operands[0]), -1.0
        if node is None or not isinstance(node.op, Copy) or node.epilogue != RESULT or not node.op.steps:
            return None
        *before, last = node.op.steps
        source = graph.values[node.inputs[0]]
        if not isinstance(last, Slice) or source.dtype is not DType.FLOAT32 or source.is_constant:
            return None
        return source.id, tuple(before), last, sign

    for node in graph.nodes:
        halves = [half(v) for v in node.inputs] if node.op == Concat(3) and len(node.inputs) == 2 else [None]
        steps = None
        if node.epilogue == RESULT and (one := halves[0]) is not None and (other := halves[-1]) is not None:
            steps = _exchanged(graph, one, other)
        if steps is None:
            builder.nodes.append(node)
            continue
        found = True
        assert one is not None and other is not None
        shape = graph.values[node.output].shape
        signs = np.repeat(np.array([one[3], other[3]], np.float32), shape[3] // 2)
        moved = dataclasses.replace(node, op=Copy(steps), inputs=(one[0],))
        if (signs == 1).all():
            builder.nodes.append(moved)
            continue
        value = builder.value(shape, DType.FLOAT32)
        builder.nodes.append(dataclasses.replace(moved, output=value))
        operands = [value, builder.constant(signs)]
        builder.node(Elementwise(), (), node.output, apply("mul", Arg(0), Arg(1)), operands, node.sources)
    return join_copies(builder.graph(graph.inputs, graph.outputs)) if found else graph


def _exchanged(
    graph: Graph, one: tuple[int, tuple[Step, ...], Slice, float], other: tuple[int, tuple[Step, ...], Slice, float]
) -> tuple[Step, ...] | None:
    """The steps from the value to its second half and then its first one, if these are the halves."""
    source, before, second, _ = one
    shape = graph.values[source].shape
    for step in before:
        shape = step_shape(step, shape)
    if len(shape) != 4 or shape[3] % 8 or other[:2] != (source, before):
        return None
    b, h, w, c = shape
    part = (b, h, w, c // 2)
    if second != Slice((0, 0, 0, c // 2), (1, 1, 1, 1), part) or other[2] != Slice((0, 0, 0, 0), (1, 1, 1, 1), part):
        return None
    apart = (b, h, w, 2, c // 2)
    turned = Slice((0, 0, 0, 1, 0), (1, 1, 1, -1, 1), apart)
    return (*before, Reshape(shape, apart), turned, Reshape(apart, shape))
