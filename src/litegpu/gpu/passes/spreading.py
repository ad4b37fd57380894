"""A convolution whose channels become pixels (depth to space) writes them where they belong."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Concat,
    Copy,
    Graph,
    GraphBuilder,
    Node,
    Reshape,
    Shape,
    Transpose,
    Value,
    sources_of,
)
from litegpu.gpu.passes.by_channel import GROUP, can_be_divided, with_channels

#: Rows of pixels that a row becomes, at most: each is a convolution of its own.
_MOST_ROWS = 3


def spread_pixels(graph: Graph) -> Graph:
    """The graph with a convolution for each row of pixels that come from the channels of one, with its share of these:
    their results, side by side in memory, are the rows, and nothing is copied."""
    producer, consumers = graph.producer(), graph.consumers()
    builder = GraphBuilder(dict(graph.values), [])
    spread: dict[int, Node] = {}
    for node in graph.nodes:
        conv = producer.get(node.inputs[0]) if isinstance(node.op, Copy) and node.epilogue == RESULT else None
        alone = conv is not None and consumers[conv.output] == [node] and conv.output not in graph.outputs
        if conv is not None and alone and may_spread(conv, node, graph.values):
            spread[conv.output] = node
    if not spread:
        return graph
    for node in graph.nodes:
        if node.output in spread:
            continue  # its place is where the copy was
        if node.inputs and spread.get(node.inputs[0]) is node:
            _put(builder, producer[node.inputs[0]], node)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def may_spread(conv: Node, copy: Node, values: Mapping[int, Value]) -> bool:
    """Whether the copy makes pixels of the channels of `conv`, which may write them there if it is not read else."""
    return _order(copy, values) is not None and can_be_divided(conv, values)


def _order(copy: Node, values: Mapping[int, Value]) -> np.ndarray | None:
    """[rows, columns, channels]: which channel of the source each channel of the pixels is, that one becomes; None if
    the copy does something else."""
    assert isinstance(copy.op, Copy)
    source, target = (values[v] for v in (copy.inputs[0], copy.output))
    match copy.op.steps:
        case (Reshape(_, apart), Transpose((0, 1, i, 2, j, k)), Reshape(_, _)) if len(apart) == 6:
            pass
        case _:
            return None
    b, h, w, _ = source.shape
    rows, columns, channels = apart[i], apart[j], apart[k]
    fits = apart[:3] == (b, h, w) and target.shape == (b, h * rows, w * columns, channels)
    if not fits or source.dtype != target.dtype or not 1 < rows <= _MOST_ROWS:
        return None
    if channels % 4 or columns * channels % GROUP:
        return None
    return np.arange(source.shape[3]).reshape(apart[3:]).transpose(i - 3, j - 3, k - 3)


def _put(builder: GraphBuilder, conv: Node, copy: Node) -> None:
    values = builder.values
    source, target = values[conv.output], values[copy.output]
    found = _order(copy, values)
    weights = values[conv.inputs[1]].data
    assert found is not None and weights is not None
    b, h, w, _ = source.shape
    rows, columns, channels = found.shape
    wide: Shape = (b * h, 1, w * columns, channels)
    sources = sources_of(conv, copy)
    parts = []
    for row in found.reshape(rows, -1):
        part = builder.value((b, h, w, columns * channels), source.dtype, name=source.name)
        builder.nodes.append(with_channels(builder, conv, row, part, sources))
        line = builder.value(wide, source.dtype)
        parts.append(builder.node(Copy((Reshape(values[part].shape, wide),)), [part], line, sources=sources))
    whole = (b * h, rows, *wide[2:])
    joined = builder.node(Concat(1), parts, builder.value(whole, source.dtype), sources=sources)
    builder.node(Copy((Reshape(whole, target.shape),)), [joined], copy.output, sources=sources)
