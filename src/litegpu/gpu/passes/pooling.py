"""Average first and multiply then: a pooling behind a 1x1 convolution that does nothing else moves in front of it."""

from __future__ import annotations

import dataclasses
import math

from litegpu.gpu.graph import Apply, Arg, Conv2D, DType, Expr, Graph, GraphBuilder, Literal, Node, Pool2D

#: So many times as many channels may come in as go out: they are what the pooling reads then.
_MOST_WIDER = 3


def average_first(graph: Graph) -> Graph:
    """Averages of sums are sums of averages, and of what is added to all the same: a convolution 1x1 with a bias, as in
    DenseNet's transitions, is of fewer pixels then."""
    producer, consumers = graph.producer(), graph.consumers()
    moved: dict[int, Node] = {}  # output of a pooling -> its convolution
    for node in graph.nodes:
        before = producer.get(node.inputs[0]) if node.op == Pool2D("average", *_sizes(node)) else None
        alone = before is not None and consumers[before.output] == [node] and before.output not in graph.outputs
        if before is not None and alone and _may_follow(before, node, graph):
            moved[node.output] = before
    if not moved:
        return graph
    builder = GraphBuilder(dict(graph.values), [])
    gone = {before.output for before in moved.values()}
    for node in graph.nodes:
        if node.output in gone:
            continue
        if node.output not in moved:
            builder.nodes.append(node)
            continue
        before = moved[node.output]
        x = graph.values[before.inputs[0]]
        pooled = builder.value((*graph.values[node.output].shape[:3], x.shape[3]), x.dtype, name=x.name)
        builder.node(node.op, [x.id], pooled, sources=node.sources)
        sources = tuple(sorted({*before.sources, *node.sources}))
        inputs = (pooled, *before.inputs[1:])
        builder.nodes.append(dataclasses.replace(before, inputs=inputs, output=node.output, sources=sources))
    return builder.graph(graph.inputs, graph.outputs)


def _sizes(node: Node) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    op = node.op
    return (op.window, op.stride, op.padding) if isinstance(op, Pool2D) else ((1, 1), (1, 1), (0, 0))


def _may_follow(before: Node, pool: Node, graph: Graph) -> bool:
    """Whether the convolution may as well come behind the pooling, and is better off there."""
    if before.op != Conv2D() or graph.values[before.inputs[1]].shape[1:3] != (1, 1):
        return False
    x, y, result = (graph.values[v] for v in (before.inputs[0], before.output, pool.output))
    if pool.operands or pool.epilogue != Arg(0) or x.dtype is not DType.FLOAT32 or x.is_constant:
        return False
    fewer = 2 * math.prod(result.shape[:3]) <= math.prod(y.shape[:3])
    same = all(graph.values[v].is_constant and graph.values[v].shape[:3] == (1, 1, 1) for v in before.operands)
    return fewer and same and x.shape[3] <= _MOST_WIDER * y.shape[3] and _is_affine(before.epilogue)


def _is_affine(expr: Expr) -> bool:
    """Whether it adds the same to all of a channel, and multiplies all by the same."""
    match expr:
        case Arg(0):
            return True
        case Apply("add" | "sub" | "mul" | "div", (inner, Arg(_) | Literal(_) as other)) if other != Arg(0):
            return _is_affine(inner)
        case Apply("add" | "mul", (Arg(_) | Literal(_) as other, inner)) if other != Arg(0):
            return _is_affine(inner)
    return False
