"""Join reductions over the channels, and what is computed of their results for the same pixels, into one node.

A normalisation that rounds between its operators, as in quantized networks, is such a chain, and so is any that no
other pass knows: its rows are read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from litegpu.gpu.graph import (
    Apply,
    Arg,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Lookup,
    Node,
    Reduce,
    RowChain,
    RowStage,
    Shape,
    apply,
    sources_of,
    substitute,
    tree_size,
    walk,
)
from litegpu.gpu.passes.fuse import LARGEST_TREE
from litegpu.gpu.passes.tables import place_of

#: Channels that a workgroup keeps in its registers, as of a LayerNorm, and values of rows that it keeps.
MOST_CHANNELS, MOST_ROWS = 8192, 3
#: Functions in all expressions of a chain, so that registers suffice.
LARGEST = 160
_KINDS = ("sum", "mean", "max", "min", "prod")


def join_rows(graph: Graph, max_buffers: int) -> Graph:
    """The graph with RowChain nodes, each for two or more nodes of which one is a reduction, if nobody else reads what
    they compute for one another. `max_buffers`: what a kernel may read and write."""
    consumers, producer = graph.consumers(), graph.producer()
    gone: set[int] = set()
    joined: dict[int, Node] = {}
    for node in reversed(graph.nodes):
        if node.output in gone or not _ends(graph, node):
            continue
        members = _members(graph, node, producer, consumers, gone)
        chain = _chain(graph, members) if any(isinstance(n.op, Reduce) for n in members) else None
        if chain is not None and _fits(graph, chain, max_buffers):
            joined[node.output] = chain
            gone |= {n.output for n in members}
    if not joined:
        return graph
    nodes = [joined.get(n.output, n) for n in graph.nodes if n.output not in gone or n.output in joined]
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)


def _ends(graph: Graph, node: Node) -> bool:
    """Whether a chain may end in the node."""
    shape = graph.values[node.output].shape
    return isinstance(node.op, Elementwise) and 1 < shape[3] <= MOST_CHANNELS


def _members(
    graph: Graph, last: Node, producer: Mapping[int, Node], consumers: Mapping[int, list[Node]], gone: set[int]
) -> list[Node]:
    """What is computed for `last` alone, row by row, in the order of the graph."""
    shape = graph.values[last.output].shape
    inside, waiting = {last.output: last}, list(last.reads)
    while waiting:
        node = producer.get(waiting.pop())
        if node is None or node.output in inside or node.output in gone or node.output in graph.outputs:
            continue
        if _is_of_rows(graph, node, shape) and all(n.output in inside for n in consumers[node.output]):
            inside[node.output] = node
            waiting += node.reads
    return [n for n in graph.nodes if n.output in inside]


def _is_of_rows(graph: Graph, node: Node, shape: Shape) -> bool:
    """Whether the node computes something for each row of `shape`, or each element, of nothing but that row."""
    values = graph.values
    made = values[node.output].shape
    if made not in (shape, (*shape[:3], 1)):
        return False
    match node.op:
        case Elementwise():
            return True
        case Lookup():
            table = values[node.inputs[1]].data
            return table is not None and table.dtype.kind == "i" and table.min() >= -128 and table.max() <= 255
        case Reduce(kind, axes):
            sizes = [values[v].shape for v in node.inputs]
            domain = tuple(max(n) for n in zip(*sizes, strict=True))
            return kind in _KINDS and axes == (3,) and domain == shape and made[3] == 1
    return False


def _chain(graph: Graph, members: list[Node]) -> Node:
    """All of them as one node."""
    made, last = {n.output for n in members}, members[-1]
    inputs = list(dict.fromkeys(v for n in members for v in n.reads if v not in made))
    stages: list[RowStage] = []
    known: dict[int, Expr] = {v: Arg(i) for i, v in enumerate(inputs)}  # numbers, or bytes if stored as bytes
    for node in members:
        operands = [known[v] for v in node.operands]
        read = [known[v] for v in node.inputs]
        match node.op:
            case Elementwise():
                found = substitute(node.epilogue, dict(enumerate(operands)))
            case Lookup(lowest):
                looked_up = apply("lookup", place_of(read[0], lowest), read[1])
                found = substitute(node.epilogue, dict(enumerate([looked_up, *operands])))
            case Reduce(kind, _, prologue):
                found = Arg(len(inputs) + len(stages))
                epilogue = substitute(node.epilogue, dict(enumerate([found, *operands])))
                stages.append(RowStage(kind, substitute(prologue, dict(enumerate(read))), epilogue))
            case _:
                raise AssertionError(f"{node.op} is not of rows")
        known[node.output] = found
    op = RowChain(tuple(stages), known[last.output])
    return Node(op, tuple(inputs), last.output, sources=sources_of(*members))


def _fits(graph: Graph, chain: Node, max_buffers: int) -> bool:
    """Whether one kernel has room for it."""
    assert isinstance(chain.op, RowChain)
    values, op = graph.values, chain.op
    expressions = [e for s in op.stages for e in (s.prologue, s.epilogue)] + [op.result]
    buffers = [v for v in chain.inputs if values[v].elements > 1 or not values[v].is_constant]
    shape = values[chain.output].shape
    rows = [v for v in chain.inputs if values[v].shape == shape]
    return (
        0 < len(rows) <= MOST_ROWS
        and len(buffers) + 1 <= max_buffers
        and _functions(expressions) <= LARGEST
        and all(tree_size(e) <= LARGEST_TREE for e in expressions)
        and all(values[v].dtype is not DType.BOOL or values[v].is_constant for v in rows)
    )


def _functions(expressions: Iterable[Expr]) -> int:
    return len({id(e) for expr in expressions for e in walk(expr) if isinstance(e, Apply)})
