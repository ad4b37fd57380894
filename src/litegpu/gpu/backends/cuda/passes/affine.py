"""A factor and a sum for each channel, in front of a 1x1 convolution or a product of places, as part of its weights."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    MatMul,
    Node,
    apply,
    fits_half,
    substitute,
)
from litegpu.gpu.passes.fold import drop_unused

#: A factor and a sum, for each channel or for all.
_Line = tuple[np.ndarray, np.ndarray]


def fold_affine(graph: Graph) -> Graph:
    """The graph without elementwise nodes that are lines of each channel, where all that read them can have them in
    their weights (in float16: what is multiplied is rounded otherwise)."""
    consumers = graph.consumers()
    lines: dict[int, tuple[int, _Line]] = {}  # by the output of the node: what it reads, and the line
    for node in graph.nodes:
        found = _line_of(node, graph)
        if found is not None and all(_takes(reader, node.output, graph, found[1]) for reader in consumers[node.output]):
            lines[node.output] = found
    if not lines:
        return graph
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        v = next((v for v in node.inputs if v in lines), None)
        if v is not None:
            x, line = lines[v]
            put = _into_convolution if isinstance(node.op, Conv2D) else _into_product
            node = put(builder, dataclasses.replace(node, inputs=tuple(x if i == v else i for i in node.inputs)), line)
        builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs))


def _line_of(node: Node, graph: Graph) -> tuple[int, _Line] | None:
    """What an elementwise node reads, and which line of it the result is, if it is that."""
    if not isinstance(node.op, Elementwise) or node.output in graph.outputs:
        return None
    values, constants, read = graph.values, dict[int, np.ndarray](), []
    for i, v in enumerate(node.operands):
        data = values[v].data
        if data is not None and data.shape[:3] == (1, 1, 1):
            constants[i] = data.astype(np.float64)
        else:
            read.append(i)
    if len(read) != 1:
        return None
    x, y = values[node.operands[read[0]]], values[node.output]
    if x.is_constant or x.shape != y.shape or {x.dtype, y.dtype} != {DType.FLOAT32}:
        return None
    line = _line(node.epilogue, read[0], constants)
    return None if line is None else (x.id, line)


def _line(expr: Expr, x: int, constants: dict[int, np.ndarray]) -> _Line | None:
    """`expr` as a line of Arg(x)."""
    zero = np.zeros((1, 1, 1, 1))
    match expr:
        case Arg(i):
            return (zero + 1, zero) if i == x else (zero, constants[i])
        case Literal(value):
            return zero, zero + float(value)
        case Apply("add" | "sub" as fn, (a, b)):
            one, two = _line(a, x, constants), _line(b, x, constants)
            sign = 1 if fn == "add" else -1
            return None if one is None or two is None else (one[0] + sign * two[0], one[1] + sign * two[1])
        case Apply("mul", (a, b)):
            one, two = _line(a, x, constants), _line(b, x, constants)
            if one is None or two is None or (one[0].any() and two[0].any()):
                return None
            return one[0] * two[1] + two[0] * one[1], one[1] * two[1]
    return None


def _takes(reader: Node, v: int, graph: Graph, line: _Line) -> bool:
    """Whether a node that reads value `v` can have the line in its weights."""
    if v in reader.operands or reader.inputs.count(v) != 1:
        return False
    if isinstance(reader.op, MatMul):
        return reader.op == MatMul() and graph.values[reader.inputs[0]].is_constant
    if not isinstance(reader.op, Conv2D) or reader.op != Conv2D(reader.op.stride):
        return False
    data = graph.values[reader.inputs[1]].data
    if data is None or data.shape[1:3] != (1, 1):
        return False
    return fits_half(data * line[0])


def _into_convolution(builder: GraphBuilder, node: Node, line: _Line) -> Node:
    weights = builder.values[node.inputs[1]].data
    assert weights is not None
    scaled = builder.constant((weights * line[0]).astype(np.float32))
    inputs = tuple(scaled if i == 1 else v for i, v in enumerate(node.inputs))
    sums = (weights.astype(np.float64) * line[1]).sum(axis=(1, 2, 3)).reshape(1, 1, 1, -1)
    return _adding(builder, dataclasses.replace(node, inputs=inputs), RESULT, sums)


def _into_product(builder: GraphBuilder, node: Node, line: _Line) -> Node:
    """w (x * factor + sum) is factor * (w x) + sum * (the sums of w's rows)."""
    matrix = builder.values[node.inputs[0]].data
    assert matrix is not None
    count = len(node.operands)
    factor = apply("mul", RESULT, Arg(count + 1))
    whole = [np.broadcast_to(part, (1, 1, 1, builder.values[node.output].shape[3])) for part in line]
    rows = matrix.astype(np.float64).sum(axis=3, keepdims=True)
    operands = [builder.constant(np.ascontiguousarray(part, np.float32)) for part in (whole[0], rows)]
    node = dataclasses.replace(node, operands=(*node.operands, *operands))
    return _adding(builder, node, factor, whole[1], Arg(count + 2))


def _adding(builder: GraphBuilder, node: Node, result: Expr, sums: np.ndarray, times: Expr | None = None) -> Node:
    """The node whose sums count as `result` plus a constant, perhaps times something."""
    added = builder.constant(np.ascontiguousarray(sums, np.float32))
    term: Expr = Arg(len(node.operands) + 1)
    whole = apply("add", result, term if times is None else apply("mul", term, times))
    kept: dict[int, Expr] = {i + 1: Arg(i + 1) for i in range(len(node.operands))}
    return dataclasses.replace(
        node, epilogue=substitute(node.epilogue, kept | {0: whole}), operands=(*node.operands, added)
    )
