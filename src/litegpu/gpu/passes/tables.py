"""What is computed from a byte alone, or from it and from what a table has for it, is in a table itself: there are 256
results. And who computes a byte looks it up.

A quantized network's x * sigmoid(x) is such a table: of sigmoids, the product, its rounding and limits. So is a GELU
that is spelt out, of nine operators each of which rounds."""

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
    tables,
    walk,
    whole,
)
from litegpu.gpu.kernels.access import byte_bounds
from litegpu.gpu.passes.fold import drop_unused
from litegpu.gpu.passes.fuse import first_operand

#: Numbers that a byte can be.
_NUMBERS = 256
#: What computes bytes and may look them up, by kernels all of which have epilogues.
_PRODUCERS = (Elementwise, IntegerConv2D, IntegerDepthwiseConv2D, IntegerMatMul, IntegerTransposeConv2D)
#: Functions from which on it takes less to look their result up than to compute it. (One H200, 25 million bytes:
#: a lookup in an epilogue some 8 us, a product with its rounding, of eight functions, 3.)
LEAST_FUNCTIONS = 24
#: Buffers of a kernel besides what its node reads: its output, and what its sums begin with.
_OTHERS = 2


def fold_tables(graph: Graph) -> Graph:
    """The graph with a Lookup for each long function of a byte and constants that are one number, and with the epilogue
    of each Lookup in its table, if it reads nothing else but these and the bytes that are looked up; a table of what
    comes from a table is one of the bytes before."""
    builder = GraphBuilder(dict(graph.values), [])
    graph = dataclasses.replace(graph, values=builder.values)  # with those that are added
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if (x := _argument(graph, node)) is not None:
            node = _tabulated(graph, node, x, builder)
        elif isinstance(node.op, Lookup):
            before = made.get(node.inputs[0])
            node = node if before is None else _behind(node, before, builder)
            node = _folded(graph, node, builder) if _can_fold(graph, node) else node
        if isinstance(node.op, Lookup):
            made[node.output] = node
        builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs)) if made else graph


def _argument(graph: Graph, node: Node) -> int | None:
    """The value of bytes that the node is a long function of, for each element alone, with bytes for a result; None for
    other nodes."""
    if not isinstance(node.op, Elementwise) or byte_bounds(graph.values[node.output].dtype) is None:
        return None
    if sum(isinstance(e, Apply) for e in walk(node.epilogue)) < LEAST_FUNCTIONS or tables(node.epilogue):
        return None
    read = {v for v in node.operands if not ((data := graph.values[v].data) is not None and data.size == 1)}
    x = read.pop() if len(read) == 1 else None
    if x is None or graph.values[x].is_constant or byte_bounds(graph.values[x].dtype) is None:
        return None
    return x if graph.values[x].shape == graph.values[node.output].shape else None


def _tabulated(graph: Graph, node: Node, x: int, builder: GraphBuilder) -> Node:
    bounds = byte_bounds(graph.values[x].dtype)
    assert bounds is not None
    return dataclasses.replace(
        node,
        op=Lookup(bounds[0]),
        inputs=(x, _results(graph, node, x, bounds[0], builder)),
        epilogue=RESULT,
        operands=(),
    )


def _behind(node: Node, before: Node, builder: GraphBuilder) -> Node:
    """The Lookup of what another one, alone, gives, as one of what that looks up."""
    first, second = (builder.values[n.inputs[1]].data for n in (before, node))
    bounds = byte_bounds(builder.values[before.output].dtype)
    if before.epilogue != RESULT or first is None or second is None or bounds is None or first.dtype != np.int32:
        return node
    assert isinstance(node.op, Lookup)
    places = np.clip(first, *bounds) - node.op.lowest  # as they are stored
    if places.min() < 0 or places.max() >= _NUMBERS:
        return node
    table = builder.constant(second.reshape(-1)[places.reshape(-1)].reshape(first.shape))
    return dataclasses.replace(node, op=before.op, inputs=(before.inputs[0], table), sources=sources_of(before, node))


def _can_fold(graph: Graph, node: Node) -> bool:
    values, (x, table) = graph.values, node.inputs
    output = values[node.output]
    if node.epilogue == RESULT or values[table].data is None or output.shape != values[x].shape:
        return False
    known = all(v == x or ((data := values[v].data) is not None and data.size == 1) for v in node.operands)
    return known and output.dtype is not DType.BOOL  # of which there are no tables


def _folded(graph: Graph, node: Node, builder: GraphBuilder) -> Node:
    assert isinstance(node.op, Lookup)
    x = node.inputs[0]
    made = _results(graph, node, x, node.op.lowest, builder)
    return dataclasses.replace(node, inputs=(x, made), epilogue=RESULT, operands=())


def _results(graph: Graph, node: Node, x: int, lowest: int, builder: GraphBuilder) -> int:
    """What the node gives for each number that x, of bytes from `lowest` on, can be, as a constant."""
    shape = (1, 1, 1, _NUMBERS)
    small = {v: dataclasses.replace(graph.values[v], shape=shape) for v in (x, node.output)}
    alone = GraphBuilder({**graph.values, **small}, [node]).graph([x], [node.output])
    (results,) = evaluate_graph(alone, [np.arange(_NUMBERS) + lowest])
    return builder.constant(results.astype(np.float32 if results.dtype.kind == "f" else np.int32))


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
