"""Join the five ops that some converters write for a softmax into one node, and part one that is not over channels."""

from __future__ import annotations

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
    Node,
    Reduce,
    Softmax,
    Transpose,
    apply,
    sources_of,
)
from litegpu.gpu.view import follow, padded

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


#: Items up to which the sum of their exponentials is far from the largest number of float16.
MOST_ITEMS = 1 << 13


def reduce_softmax(graph: Graph) -> Graph:
    """The graph with reductions over places in front of a function of each element, where a softmax over the channels
    lies between two transpositions: as weights of frames or places, which sum up to one for each channel."""
    producer, consumers = graph.producer(), graph.consumers()
    builder = GraphBuilder(dict(graph.values), [])

    def sole(v: int) -> Node | None:
        return consumers[v][0] if len(consumers[v]) == 1 and v not in graph.outputs else None

    ends: dict[
        int, tuple[int, int, float, tuple[int, ...]]
    ] = {}  # of the last copy: x, the axis, beta and what is gone
    for node in graph.nodes:
        if not isinstance(node.op, Softmax) or node.epilogue != RESULT:
            continue
        before, after = producer.get(node.inputs[0]), sole(node.output)
        if before is None or after is None or sole(before.output) is not node or after.operands:
            continue
        axis = _exchanged(before, graph)
        items = graph.values[node.output].shape[3]
        if axis is not None and axis == _exchanged(after, graph) and items <= MOST_ITEMS:
            ends[after.output] = before.inputs[0], axis, node.op.beta, sources_of(before, node, after)
    gone = {v for end in ends for v in _between(end, producer)}
    for node in graph.nodes:
        if node.output in ends:
            _put_reductions(builder, node, *ends[node.output])
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if ends else graph


def _between(end: int, producer: dict[int, Node]) -> tuple[int, int]:
    """What the softmax, and the copy in front of it, compute."""
    weights = producer[end].inputs[0]
    return weights, producer[weights].inputs[0]


def _exchanged(node: Node, graph: Graph) -> int | None:
    """Which axis the node, a copy, exchanges with the channels of real numbers, if it does no more."""
    if not isinstance(node.op, Copy) or node.epilogue != RESULT:
        return None
    source, target = (graph.values[v] for v in (node.inputs[0], node.output))
    if source.is_constant or source.dtype is not DType.FLOAT32:
        return None
    view = follow(padded(0, source.shape, DType.FLOAT32), node.op.steps)
    for axis in (2, 1):
        order = [axis if i == 3 else 3 if i == axis else i for i in range(4)]
        wanted = follow(padded(0, source.shape, DType.FLOAT32), (Transpose(tuple(order)),))
        if min(source.shape[axis], source.shape[3]) > 1 and view is not None and wanted is not None:
            strides = zip(target.shape, view.strides, wanted.strides, strict=True)
            if target.shape == wanted.shape and view.offset == 0 and all(n == 1 or a == b for n, a, b in strides):
                return axis
    return None


def _put_reductions(builder: GraphBuilder, end: Node, x: int, axis: int, beta: float, sources: tuple[int, ...]) -> None:
    shape = builder.values[x].shape
    reduced = tuple(1 if i == axis else n for i, n in enumerate(shape))
    # of a negative factor the least number gives the largest exponent
    kind = "max" if beta >= 0 else "min"
    most = builder.node(Reduce(kind, (axis,)), [x], builder.value(reduced, DType.FLOAT32), sources=sources)
    left = apply("sub", Arg(0), Arg(1))
    power = apply("exp", left if beta == 1 else apply("mul", left, beta))
    total = builder.value(reduced, DType.FLOAT32)
    builder.node(Reduce("sum", (axis,), power), [x, most], total, sources=sources)
    builder.node(Elementwise(), [], end.output, apply("div", power, Arg(2)), [x, most, total], sources)
