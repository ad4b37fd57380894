"""Let convolutions store the largest of each two by two results alone, where a pooling is all that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.pooled import SIDE, gain, layer_of, options
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.graph import (
    Apply,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    Node,
    Pool2D,
    PooledConv2D,
    Reduce,
    Shape,
    arguments,
    fits_half,
    sources_of,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.gpu.passes.layout import place
from litegpu.gpu.view import View, padded

#: Functions that keep the order of numbers, but for the second argument of some, which is a constant then.
_RISING = frozenset(("erf", "exp", "sigmoid", "tanh"))
_RISING_WITH_CONSTANT = frozenset(("add", "sub", "min", "max"))
_POOL = Pool2D("max", (SIDE, SIDE), (SIDE, SIDE))
#: Channels that are copied at once.
_CHUNK = 8


def join_pooled(graph: Graph, features: Features) -> Graph:
    """The graph with PooledConv2D nodes where these are quicker, in float16."""
    if features.capability != WARPGROUP_CAPABILITY:
        return graph
    consumers, producer = graph.consumers(), graph.producer()
    pooled: dict[int, Node] = {}  # output of a pooling -> its convolution
    for node in graph.nodes:
        before = producer.get(node.inputs[0]) if node.op == _POOL else None
        if before is None or consumers[before.output] != [node] or before.output in graph.outputs:
            continue
        if _pools(node, graph) and _can(before, producer, consumers, graph) and _pays(before, node, graph, features):
            pooled[node.output] = before
    decided = values_decided_on(graph) if pooled else {}
    pooled = {v: before for v, before in pooled.items() if before.inputs[0] not in decided}
    if not pooled:
        return graph
    joined = _joined(graph, pooled)
    views = place(joined, True, values_decided_on(joined)).views
    fitting = {
        v: before for v, before in pooled.items() if _fits(before, graph.values[v].shape, views, graph, features)
    }
    return joined if fitting == pooled else _joined(graph, fitting)


def _joined(graph: Graph, pooled: Mapping[int, Node]) -> Graph:
    """`pooled`: output of a pooling -> its convolution."""
    gone = {before.output for before in pooled.values()}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        before = pooled.get(node.output)
        if before is not None:
            assert isinstance(before.op, Conv2D)
            sources = sources_of(before, node)
            op = PooledConv2D(before.op)
            builder.nodes.append(Node(op, before.inputs, node.output, before.epilogue, before.operands, sources))
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _fits(node: Node, result: Shape, views: Mapping[int, View], graph: Graph, features: Features) -> bool:
    """Whether a kernel can read the convolution's input where it lies."""
    weights = graph.values[node.inputs[1]].data
    assert isinstance(node.op, Conv2D) and weights is not None
    layer = layer_of(node.op, views[node.inputs[0]], weights, result, _run(result))
    return bool(options(layer, features.compute_units, overlapping=will_overlap(graph)))


def _pools(node: Node, graph: Graph) -> bool:
    """Whether it does nothing but take the largest, of squares that all lie inside."""
    x, y = graph.values[node.inputs[0]], graph.values[node.output]
    inside = all(SIDE * out <= size for size, out in zip(x.shape[1:3], y.shape[1:3], strict=True))
    return inside and node.epilogue == Arg(0) and x.dtype is y.dtype is DType.FLOAT32


def _can(node: Node, producer: dict[int, Node], consumers: Mapping[int, Sequence[Node]], graph: Graph) -> bool:
    """Whether there is a kernel for the convolution, of an input that lies as it reads it, and an epilogue that keeps
    the order of the sums."""
    op, values = node.op, graph.values
    if not isinstance(op, Conv2D) or op != Conv2D(op.stride, op.dilation, op.padding):
        return False
    x, weights = values[node.inputs[0]], values[node.inputs[1]].data
    source = producer.get(x.id)
    if source is None or isinstance(source.op, (Copy, Reduce)) or x.id in graph.outputs:
        return False
    joins = [source, *consumers[x.id]]  # whose values lie side by side
    joined = [x.id, *(v for n in joins if isinstance(n.op, Concat) for v in n.inputs)]
    return (
        weights is not None
        and fits_half(weights)
        and x.dtype is DType.FLOAT32
        and x.shape[1] * x.shape[2] > 1
        and all(values[v].shape[3] % _CHUNK == 0 for v in joined)
        and all(values[v].is_constant and values[v].shape[:3] == (1, 1, 1) for v in node.operands)
        and arguments(node.epilogue) <= set(range(len(node.operands) + 1))
        and is_rising(node.epilogue)
    )


def is_rising(expr: Expr) -> bool:
    """Whether the largest Arg(0) gives the largest result, for any other arguments."""
    match expr:
        case Arg(0):
            return True
        case Apply(fn, (inner,)) if fn in _RISING:
            return is_rising(inner)
        case Apply(fn, (inner, Arg(_) | Literal(_) as other)) if fn in _RISING_WITH_CONSTANT and other != Arg(0):
            return is_rising(inner)
        case Apply("add" | "min" | "max", (Arg(_) | Literal(_) as other, inner)) if other != Arg(0):
            return is_rising(inner)
        case Apply("mul", (inner, Literal(factor))) | Apply("mul", (Literal(factor), inner)) if float(factor) > 0:
            return is_rising(inner)
    return False


def _pays(node: Node, pool: Node, graph: Graph, features: Features) -> bool:
    assert isinstance(node.op, Conv2D)
    x, weights, result = graph.values[node.inputs[0]], graph.values[node.inputs[1]].data, graph.values[pool.output]
    assert weights is not None
    source = padded(0, x.shape, DType.FLOAT16)
    run = _run(result.shape)
    both, alone = (layer_of(node.op, source, weights, result.shape, run, side) for side in (SIDE, 1))
    return gain(both, alone, features.compute_units) > 0


def _run(result: Shape) -> int:
    """See Layer.run."""
    return _CHUNK if result[3] % _CHUNK == 0 else 0
