"""Let a 1x1 convolution find the mean of its results, where that is all that a classifier reads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from litegpu.gpu.backends.cuda.kernels import mean, overlapped
from litegpu.gpu.backends.cuda.passes.excite import averages
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Conv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    MeanConv2D,
    Node,
    PointwiseConv2D,
    apply,
    arguments,
    fits_half,
    sources_of,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.gpu.passes.layout import place
from litegpu.gpu.view import View, padded

#: Pixels of which there are so few tiles that adding up their parts costs little.
MOST_PIXELS = 200
#: How means are rounded that are none halfway between two whole numbers, as of an odd number of these.
ROUNDED = apply("round", apply("small", RESULT))
#: The largest sum of whole numbers whose mean is farther from such a half than two units of float32's last place, by
#: which it may be off where a product is taken for the quotient.
MOST_SUM = 1 << 21


def join_means(graph: Graph, features: Features) -> Graph:
    """The graph with MeanConv2D nodes, in float16, of networks whose kernels wait for each other more than they work:
    there, each launch less counts."""
    if not overlapped.will_overlap(graph):
        return graph
    producer, consumers = graph.producer(), graph.consumers()
    found: dict[int, tuple[Node, Node, int]] = {}  # by the mean: it, the convolution and the parts
    for node in graph.nodes:
        before = producer.get(node.inputs[0]) if node.inputs else None
        readers = consumers[node.output]
        if before is None or not averages(node, before.output, graph) or len(readers) != 1:
            continue
        if arguments(node.epilogue) != {0}:
            continue
        alone = consumers[before.output] == [node] and not {before.output, node.output} & set(graph.outputs)
        if alone and _is_plain(before, graph) and _is_plain(readers[0], graph) and readers[0].inputs[0] == node.output:
            parts = _parts(before, graph, producer, features)
            if parts is not None and node.output not in readers[0].operands:
                found[node.output] = node, before, parts
    decided = values_decided_on(graph) if found else {}
    found = {v: f for v, f in found.items() if decided.keys().isdisjoint((v, f[1].output, f[1].inputs[0]))}
    if not found:
        return graph
    joined, made = _joined(graph, found)
    views = place(joined, True, values_decided_on(joined)).views
    fitting = {v: f for v, f in found.items() if _fits(joined, joined.producer()[made[v]], views, features)}
    return joined if fitting == found else _joined(graph, fitting)[0]


def _joined(graph: Graph, found: Mapping[int, tuple[Node, Node, int]]) -> tuple[Graph, dict[int, int]]:
    """`found`: by the mean: it, the convolution and the parts. Also the results of the new nodes, by the mean."""
    gone = {before.output for _, before, _ in found.values()}
    builder = GraphBuilder(dict(graph.values), [])
    made: dict[int, int] = {}
    for node in graph.nodes:
        if node.output in found:
            _, before, parts = found[node.output]
            made[node.output] = _put(builder, before, node, parts, graph)
        elif node.inputs and node.inputs[0] in made:
            mean_of, before, parts = found[node.inputs[0]]
            op = node.op if parts == 1 else PointwiseConv2D(_of_sum(mean_of, before, graph), parts=parts)
            inputs = (made[node.inputs[0]], *node.inputs[1:])
            builder.nodes.append(Node(op, inputs, node.output, node.epilogue, node.operands, node.sources))
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs), made


def _fits(graph: Graph, node: Node, views: Mapping[int, View], features: Features) -> bool:
    """Whether the kernel can read a MeanConv2D's input where it lies: one pixel is stored as float32, say."""
    x, weights = graph.values[node.inputs[0]], graph.values[node.inputs[1]].data
    assert isinstance(node.op, MeanConv2D) and weights is not None
    return bool(mean.tiles_of(node.op, mean.layer_of(views[x.id], weights, x.shape), features))


def _is_plain(node: Node, graph: Graph) -> bool:
    """Whether it is a 1x1 convolution with weights that are halves."""
    if node.op != Conv2D():
        return False
    data = graph.values[node.inputs[1]].data
    return data is not None and data.shape[1:3] == (1, 1) and fits_half(data)


def _parts(node: Node, graph: Graph, producer: dict[int, Node], features: Features) -> int | None:
    """Of the mean of a convolution's results; None if it is not for the kernel."""
    x, weights = graph.values[node.inputs[0]], graph.values[node.inputs[1]].data
    if x.shape[0] > 1 or x.shape[1] * x.shape[2] > MOST_PIXELS or x.id not in producer or weights is None:
        return None
    operands = [graph.values[v] for v in node.operands]
    if any(v.data is None or v.dtype is not DType.FLOAT32 or v.shape[:3] != (1, 1, 1) for v in operands):
        return None
    if x.dtype is not DType.FLOAT32 or graph.values[node.output].dtype is not DType.FLOAT32 or x.shape[3] % 8:
        return None
    layer = mean.layer_of(padded(0, x.shape, DType.FLOAT16), weights, x.shape)
    tiles = mean.ranked(layer, features.capability, features.compute_units)
    return mean.parts_of(layer, tiles[0]) if tiles else None


def _put(builder: GraphBuilder, node: Node, mean_of: Node, parts: int, graph: Graph) -> int:
    """What all of its pixels are summed up in is finished there, once; of parts, who adds them up finishes it."""
    behind = _of_sum(mean_of, node, graph)
    op = MeanConv2D(parts, node.epilogue, behind != RESULT)
    out = builder.value((1, 1, parts, graph.values[node.output].shape[3]), DType.FLOAT32)
    inputs, sources = [*node.inputs, *node.operands], sources_of(node, mean_of)
    return builder.node(op, inputs, out, behind if parts == 1 else RESULT, sources=sources)


def _of_sum(mean_of: Node, before: Node, graph: Graph) -> Expr:
    """The mean's epilogue as one of the sum of what the node before gives, which is divided as the mean's own kernel
    does it: where whole numbers are averaged and rounded, that is the same in any order. Without an epilogue, the mean
    is added up as it is."""
    if mean_of.epilogue == RESULT:
        return RESULT
    pixels = math.prod(graph.values[mean_of.inputs[0]].shape[1:3])
    if mean_of.epilogue == ROUNDED and pixels % 2 and pixels * _largest(before.epilogue) <= MOST_SUM:
        return substitute(ROUNDED, {0: apply("mul", RESULT, float(np.float32(1 / pixels)))})
    return substitute(mean_of.epilogue, {0: apply("div", RESULT, pixels)})


def _largest(expr: Expr) -> float:
    """How large whole numbers are, at most, if an expression gives such and says so."""
    match expr:
        case Apply("min", (Apply("max", (Apply("round"), Literal(low))), Literal(high))) if (
            float(low).is_integer() and float(high).is_integer()
        ):
            return max(abs(low), abs(high))
    return math.inf
