"""What is computed from a byte and from what a table has for it is in a table itself: there are 256 results. And who
computes a byte looks it up.

A quantized network's x * sigmoid(x) is such a table: of sigmoids, the product, its rounding and limits."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerMatMul,
    IntegerTransposeConv2D,
    Literal,
    Lookup,
    Node,
    apply,
    sources_of,
    whole,
)
from litegpu.gpu.kernels.access import byte_bounds
from litegpu.gpu.passes.fuse import first_operand

#: Numbers that a byte can be.
_NUMBERS = 256
#: What computes bytes and may look them up, by kernels all of which have epilogues.
_PRODUCERS = (Elementwise, IntegerConv2D, IntegerDepthwiseConv2D, IntegerMatMul, IntegerTransposeConv2D)
#: Buffers of a kernel besides what its node reads: its output, and what its sums begin with.
_OTHERS = 2


def fold_tables(graph: Graph) -> Graph:
    """The graph with the epilogue of each Lookup in its table, if it reads nothing but the bytes that are looked up and
    constants that are one number."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if isinstance(node.op, Lookup) and _can_fold(graph, node):
            node = _folded(graph, node, builder)
        builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _can_fold(graph: Graph, node: Node) -> bool:
    values, (x, table) = graph.values, node.inputs
    output = values[node.output]
    if node.epilogue == RESULT or values[table].data is None or output.shape != values[x].shape:
        return False
    known = all(v == x or ((data := values[v].data) is not None and data.size == 1) for v in node.operands)
    return known and output.dtype is not DType.BOOL  # of which there are no tables


def _folded(graph: Graph, node: Node, builder: GraphBuilder) -> Node:
    assert isinstance(node.op, Lookup)
    x, shape = node.inputs[0], (1, 1, 1, _NUMBERS)
    small = {v: dataclasses.replace(graph.values[v], shape=shape) for v in (x, node.output)}
    alone = GraphBuilder({**graph.values, **small}, [node]).graph([x], [node.output])
    (results,) = evaluate_graph(alone, [np.arange(_NUMBERS) + node.op.lowest])
    made = builder.constant(results.astype(np.float32 if results.dtype.kind == "f" else np.int32))
    return dataclasses.replace(node, inputs=(x, made), epilogue=RESULT, operands=())


def join_tables(graph: Graph, max_buffers: int) -> Graph:
    """The graph in which what computes the bytes of a Lookup, for nobody else, looks them up itself. `max_buffers`:
    what a kernel may read and write."""
    consumers, made = graph.consumers(), dict[int, Node]()
    for node in graph.nodes:
        before = made.get(node.inputs[0]) if isinstance(node.op, Lookup) else None
        if before is not None and len(consumers[before.output]) == 1 and before.output not in graph.outputs:
            joined = _joined(graph, before, node)
            if joined is not None and len({*joined.reads}) + _OTHERS <= max_buffers:
                del made[before.output]
                node = joined
        made[node.output] = node
    return GraphBuilder(dict(graph.values), list(made.values())).graph(graph.inputs, graph.outputs)


def _joined(graph: Graph, before: Node, node: Node) -> Node | None:
    """Both in one, if there is a table of bytes, which nothing follows."""
    table, output = graph.values[node.inputs[1]].data, graph.values[node.output]
    bounds = byte_bounds(output.dtype)
    fits = table is not None and table.dtype == np.int32 and bounds is not None and node.epilogue == RESULT
    if not fits or not isinstance(before.op, _PRODUCERS) or output.shape != graph.values[before.output].shape:
        return None
    assert table is not None and bounds is not None and isinstance(node.op, Lookup)
    if table.min() < bounds[0] or table.max() > bounds[1]:
        return None  # what is beyond would have to be limited
    table_of = Arg(first_operand(before) + len(before.operands))
    return dataclasses.replace(
        before,
        epilogue=apply("lookup", place_of(before.epilogue, node.op.lowest), table_of),
        operands=(*before.operands, node.inputs[1]),
        output=node.output,
        sources=sources_of(before, node),
    )


def place_of(byte: Expr, lowest: int) -> Expr:
    """Where a table has what belongs to a number that would be stored as a byte, the first of which is `lowest`."""
    limits, last = limits_of(byte), lowest + _NUMBERS - 1
    if limits is None or limits[0] < lowest or limits[1] > last:
        byte = apply("min", apply("max", byte, whole(lowest)), whole(last))
    match byte:
        case Apply("add", (x, Literal(zero))):
            return apply("add", x, whole(int(zero) - lowest))
    return apply("sub", byte, whole(lowest))


def limits_of(expr: Expr) -> tuple[float, float] | None:
    """The least and the largest number that an expression can be, where its last steps say so."""
    match expr:
        case Apply("min", (Apply("max", (_, Literal(low))), Literal(high))):
            return low, high
        case Apply("nearest" | "round" | "small", (x,)) if (limits := limits_of(x)) is not None:
            return round(limits[0]), round(limits[1])
        case Apply("add", (x, Literal(zero))) if (limits := limits_of(x)) is not None:
            return limits[0] + zero, limits[1] + zero
    return None
