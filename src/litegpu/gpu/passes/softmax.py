"""Join the five ops that some converters write for a softmax into one node."""

from __future__ import annotations

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Node,
    Reduce,
    Softmax,
    sources_of,
)

_CHANNELS = (3,)


def join_softmax(graph: Graph) -> Graph:
    """The graph with Softmax nodes for exp(x - max) / sum(exp(x - max)) over the channels, while each op is a node."""
    producer, consumers = graph.producer(), graph.consumers()

    def operands(v: int, fn: str) -> tuple[int, ...] | None:
        """What a function is of that computes `v`."""
        node = producer.get(v)
        if node is None or not isinstance(node.op, Elementwise) or not isinstance(node.epilogue, Apply):
            return None
        plain = node.epilogue.fn == fn and all(isinstance(a, Arg) for a in node.epilogue.args)
        return tuple(node.operands[a.index] for a in node.epilogue.args if isinstance(a, Arg)) if plain else None

    def is_reduced(v: int, kind: str, of: int) -> bool:
        node = producer.get(v)
        wanted: tuple[object, Expr, tuple[int, ...]] = (Reduce(kind, _CHANNELS), RESULT, (of,))
        return node is not None and (node.op, node.epilogue, node.inputs) == wanted

    joined: dict[int, Node] = {}
    gone: set[int] = set()
    for node in graph.nodes:
        quotient = operands(node.output, "div")
        if quotient is None or quotient[0] == quotient[1]:
            continue
        powers, total = quotient
        exponent = operands(powers, "exp")
        difference = operands(exponent[0], "sub") if exponent is not None else None
        if exponent is None or difference is None or not is_reduced(total, "sum", powers):
            continue
        x, most = difference
        inner = {powers, total, exponent[0], most}
        own = {node.output, *inner}
        closed = all({n.output for n in consumers[v]} <= own for v in inner)
        value = graph.values[x]
        if not is_reduced(most, "max", x) or not closed or inner & set(graph.outputs):
            continue
        if value.dtype is DType.FLOAT32 and value.shape == graph.values[node.output].shape and not value.is_constant:
            sources = sources_of(*(producer[v] for v in own))
            joined[node.output] = Node(Softmax(), (x,), node.output, sources=sources)
            gone |= inner
    if not joined:
        return graph
    nodes = [joined.get(node.output, node) for node in graph.nodes if node.output not in gone]
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)
