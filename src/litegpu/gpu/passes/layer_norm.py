"""Join the two reductions and the elementwise work of a normalisation over the channels into one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    Literal,
    Node,
    Reduce,
    apply,
    substitute,
)
from litegpu.gpu.passes.normalised import DEVIATION, MEAN, X, normalised, numbered, root

#: Channels that a workgroup keeps in its registers.
MOST_CHANNELS = 8192


def join_layer_norm(graph: Graph) -> Graph:
    """The graph with LayerNorm nodes for (x - mean) / sqrt(variance + epsilon), whatever way it was written in, with
    what is computed of that as their epilogue: both moments in one go over x. So it is with x / sqrt(mean of squares +
    epsilon). A reduction that normalises what it reads reads a LayerNorm's result."""
    producer, consumers = graph.producer(), graph.consumers()
    builder = GraphBuilder(dict(graph.values), [])
    gone: set[int] = set()
    joined: dict[int, list[Node]] = {}
    for node in graph.nodes:
        moments = _moments(node, graph, producer)
        if moments is None:
            continue
        after = {n.output for v in moments.values for n in consumers[v]} - set(moments.values)
        last = producer[after.pop()] if len(after) == 1 else None
        if last is None or any(v in graph.outputs for v in moments.values):
            continue
        first, *others = _parted(last, moments, graph, builder)
        found = _normalised(first, moments, graph)
        if found is not None:
            joined[last.output] = [found, *others]
            gone |= set(moments.values)
    nodes = [new for node in graph.nodes if node.output not in gone for new in joined.get(node.output, [node])]
    return GraphBuilder(builder.values, nodes).graph(graph.inputs, graph.outputs) if gone else graph


def _parted(last: Node, moments: _Moments, graph: Graph, builder: GraphBuilder) -> list[Node]:
    """The node, or if it reduces a function of x what computes that, and what reduces it."""
    if not isinstance(last.op, Reduce) or not {moments.x, moments.centred} & {*last.inputs}:
        return [last]
    shape = graph.values[moments.x].shape
    sizes = [graph.values[v].shape for v in last.inputs]
    if any(n not in (1, whole) for size in sizes for n, whole in zip(size, shape, strict=True)):
        return [last]
    within = builder.value(shape, DType.FLOAT32)
    reduced = dataclasses.replace(last, op=dataclasses.replace(last.op, prologue=RESULT), inputs=(within,))
    return [Node(Elementwise(), (), within, last.op.prologue, last.inputs, last.sources), reduced]


@dataclass(frozen=True)
class _Moments:
    """The values x, its mean, what is left of it (perhaps), and the deviation or what is left is multiplied by."""

    x: int
    mean: int | None  # None: x is not centred
    centred: int | None
    deviation: int
    inverse: bool  # `deviation` is 1 / sqrt(variance + epsilon)
    epsilon: float
    sources: tuple[int, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """What a LayerNorm makes superfluous."""
        return tuple(v for v in (self.mean, self.centred, self.deviation) if v is not None)


def _moments(node: Node, graph: Graph, producer: Mapping[int, Node]) -> _Moments | None:
    """The moments, if `node` is the second of the reductions."""
    if not isinstance(node.op, Reduce) or (node.op.kind, node.op.axes) != ("mean", (3,)):
        return None
    match numbered(node.epilogue, node.operands, 1, graph):
        case Apply("rsqrt" | "sqrt" as fn, (Apply("add", (Arg(0), Literal(number)) | (Literal(number), Arg(0))),)):
            epsilon = float(number)
        case _:
            return None
    squared, centred = root(numbered(node.op.prologue, node.inputs, 0, graph)), None
    inputs = node.inputs
    sources = set(node.sources)
    plain = None
    if isinstance(squared, Arg):
        x = inputs[squared.index]
        if _is_real(x, graph):
            plain = _Moments(x, None, None, node.output, fn == "rsqrt", epsilon, tuple(sources))
        left = producer.get(x)
        if left is None or not isinstance(left.op, Elementwise):
            return plain
        centred, squared, inputs = x, left.epilogue, left.operands
        sources |= set(left.sources)
    match squared:
        case Apply("sub", (Arg(first), Arg(second))):
            x, mean = inputs[first], inputs[second]
        case _:
            return plain
    average = producer.get(mean)
    if average is None or average.op != Reduce("mean", (3,)) or average.epilogue != RESULT or average.inputs != (x,):
        return plain
    if not _is_real(x, graph):
        return None
    sources |= set(average.sources)
    return _Moments(x, mean, centred, node.output, fn == "rsqrt", epsilon, tuple(sources))


def _is_real(x: int, graph: Graph) -> bool:
    value = graph.values[x]
    return value.dtype is DType.FLOAT32 and not value.is_constant and 1 < value.shape[3] <= MOST_CHANNELS


def _normalised(last: Node, moments: _Moments, graph: Graph) -> Node | None:
    """`last` as LayerNorm with an epilogue, if it is a function of what is left of x divided by the deviation."""
    shape = graph.values[moments.x].shape
    if not isinstance(last.op, Elementwise) or (
        last.output in graph.values and graph.values[last.output].shape != shape
    ):
        return None
    operands = [v for v in last.operands if v not in (*moments.values, moments.x)]
    replace: dict[int, Expr] = {}
    roles: dict[int | None, Expr] = {
        moments.centred: apply("sub", X, MEAN), moments.mean: MEAN, moments.deviation: DEVIATION, moments.x: X
    }  # fmt: skip
    for i, v in enumerate(last.operands):
        replace[i] = roles[v] if v in roles else Arg(operands.index(v) + 1)
    centred = moments.mean is not None
    found = normalised(substitute(last.epilogue, replace), operands, moments.x, moments.inverse, centred)
    if found is None:
        return None
    epilogue, operands = found
    sources = tuple(sorted({*moments.sources, *last.sources}))
    op = LayerNorm(moments.epsilon, moments.mean is not None)
    return dataclasses.replace(
        last, op=op, inputs=(moments.x,), epilogue=epilogue, operands=tuple(operands), sources=sources
    )
