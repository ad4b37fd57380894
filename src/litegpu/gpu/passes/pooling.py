"""Average first and multiply then: a pooling behind a 1x1 convolution that does nothing else moves in front of it. What
is done with each element before an average is taken is done as it is read."""

from __future__ import annotations

import dataclasses
import math

from litegpu.gpu.graph import (
    Apply,
    Arg,
    Conv2D,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    Node,
    Pool2D,
    sources_of,
    substitute,
    walk,
)

#: Functions of what is done as elements are read.
_MOST_FUNCTIONS = 8
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
        sources = sources_of(before, node)
        inputs = (pooled, *before.inputs[1:])
        builder.nodes.append(dataclasses.replace(before, inputs=inputs, output=node.output, sources=sources))
    return builder.graph(graph.inputs, graph.outputs)


def join_averages(graph: Graph, max_buffers: int) -> Graph:
    """The graph without the elementwise nodes in front of averages that read each element once, as of the batch norm
    and RELU in front of DenseNet's transitions: their expression is the pooling's prologue. Kernels bind at most
    `max_buffers` buffers."""
    producer, consumers = graph.producer(), graph.consumers()
    nodes, gone = [], set()
    for node in graph.nodes:
        before = producer.get(node.inputs[0]) if isinstance(node.op, Pool2D) else None
        alone = before is not None and consumers[before.output] == [node] and before.output not in graph.outputs
        joint = _joint(before, node, graph) if before is not None and alone else None
        if before is None or joint is None or len({*joint.reads, joint.output}) > max_buffers:
            nodes.append(node)
        else:
            gone.add(before.output)
            nodes.append(joint)
    left = [node for node in nodes if node.output not in gone]
    return GraphBuilder(dict(graph.values), left).graph(graph.inputs, graph.outputs)


def _joint(before: Node, pool: Node, graph: Graph) -> Node | None:
    """The pooling with the elementwise node before it as its prologue, if it can have one."""
    op, values = pool.op, graph.values
    if not isinstance(before.op, Elementwise) or not isinstance(op, Pool2D) or before.output in pool.operands:
        return None
    once = all(size <= step for size, step in zip(op.window, op.stride, strict=True))
    large = [v for v in before.operands if not values[v].is_constant]
    functions = sum(isinstance(e, Apply) for e in walk(before.epilogue))
    if op.kind != "average" or not once or len(large) != 1 or functions > _MOST_FUNCTIONS:
        return None
    x, y = values[large[0]], values[before.output]
    others = tuple(v for v in before.operands if v != x.id)
    small = all(values[v].shape[:3] == (1, 1, 1) and values[v].dtype is DType.FLOAT32 for v in others)
    floats = x.dtype is y.dtype and y.dtype is DType.FLOAT32
    if not small or not floats or x.shape != y.shape or x.shape[3] % 4 or op.prologue != Arg(0):
        return None
    replace: dict[int, Expr] = {
        i: Arg(0) if v == x.id else Arg(1 + others.index(v)) for i, v in enumerate(before.operands)
    }
    prologue = substitute(before.epilogue, replace)
    sources = sources_of(before, pool)
    return dataclasses.replace(
        pool, op=dataclasses.replace(op, prologue=prologue), inputs=(x.id, *others), sources=sources
    )


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
