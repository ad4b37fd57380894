"""Factors and transpositions of what is multiplied become the product's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Copy,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    MatMul,
    Node,
    Step,
    Transpose,
    Value,
    apply,
    substitute,
)
from litegpu.gpu.graph.expression import arguments
from litegpu.gpu.passes.fold import drop_unused
from litegpu.gpu.passes.movement import simplify
from litegpu.gpu.view import follow, padded

_EXCHANGE = Transpose((0, 1, 3, 2))


def simplify_products(graph: Graph) -> Graph:
    """The graph with products of what numbers were multiplied with (the root of an attention's scale, for queries and
    keys each), and of keys as they lie instead of their transpose: the first is left to the epilogue, the second to how
    the product reads them."""
    producer, consumers = graph.producer(), graph.consumers()

    def alone(v: int) -> Node | None:
        return producer.get(v) if len(consumers.get(v, ())) == 1 and v not in graph.outputs else None

    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if isinstance(node.op, MatMul):
            node = _turned(_scaled(node, builder, alone), builder, alone)
        builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs))


_Alone = Callable[[int], Node | None]  # the node that computes a value for one reader


def _scaled(node: Node, builder: GraphBuilder, alone: _Alone) -> Node:
    """The product of what is behind factors, and these in its epilogue."""
    values = builder.values
    inputs, sources, factor = list(node.inputs), set(node.sources), 1.0
    for i, v in enumerate(inputs):
        while (before := alone(v)) is not None and (found := _factor(before, builder)) is not None:
            v, by = found
            factor *= by
            sources |= set(before.sources)
        inputs[i] = v
    if tuple(inputs) == node.inputs or values[node.output].dtype is not DType.FLOAT32:
        return node
    replace: dict[int, Expr] = {i: Arg(i) for i in arguments(node.epilogue)}
    replace[0] = apply("mul", RESULT, factor)
    epilogue = substitute(node.epilogue, replace)
    return dataclasses.replace(node, inputs=tuple(inputs), epilogue=epilogue, sources=tuple(sorted(sources)))


def _factor(node: Node, builder: GraphBuilder) -> tuple[int, float] | None:
    """What the node multiplies, and with which number, if it does no more."""
    if not isinstance(node.op, Elementwise):
        return None

    def number(expr: Expr) -> float | None:
        if isinstance(expr, Literal):
            return float(expr.value)
        data = builder.values[node.operands[expr.index]].data if isinstance(expr, Arg) else None
        return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None

    match node.epilogue:
        case Apply("mul" | "div" as fn, (Arg(i), other)) if (by := number(other)) is not None:
            pass
        case Apply("mul" as fn, (other, Arg(i))) if (by := number(other)) is not None:
            pass
        case _:
            return None
    x = builder.values[node.operands[i]]
    if fn == "div":
        by = 1 / by if by else math.inf
    same = x.shape == builder.values[node.output].shape and x.dtype is DType.FLOAT32 and not x.is_constant
    return (x.id, by) if same and math.isfinite(by) else None


def _turned(node: Node, builder: GraphBuilder, alone: _Alone) -> Node:
    """The product of its second operand untransposed, if the transpose would have to be stored."""
    op, (left, right) = node.op, node.inputs
    copy = alone(right)
    assert isinstance(op, MatMul)
    if copy is None or not isinstance(copy.op, Copy) or copy.epilogue != RESULT or left == right:
        return node
    source, turned = builder.values[copy.inputs[0]], builder.values[right]
    if source.is_constant or source.dtype != turned.dtype or len(copy.op.steps) == 0:
        return node
    steps = simplify((*copy.op.steps, _EXCHANGE), source.shape)
    better = len(steps) < len(copy.op.steps) or _is_read_well(source, steps)
    if _is_read_well(source, copy.op.steps) or not better:
        return node
    b, h, rows, columns = turned.shape
    value = builder.value((b, h, columns, rows), turned.dtype, name=turned.name)
    builder.nodes.append(dataclasses.replace(copy, op=Copy(steps), output=value))
    flipped = dataclasses.replace(op, transpose_b=not op.transpose_b)
    return dataclasses.replace(node, op=flipped, inputs=(left, value))


def _is_read_well(source: Value, steps: tuple[Step, ...]) -> bool:
    """Whether the steps are a view of an intermediate whose rows are read as vectors."""
    view = follow(padded(0, source.shape, source.dtype), steps)
    return view is not None and view.vector and view.whole_quads
