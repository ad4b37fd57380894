"""Squeeze-and-excite in two kernels: mean and first layer beside what computes the values, the rest in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from litegpu.gpu.backends.cuda.kernels import excite, overlapped, squeeze
from litegpu.gpu.backends.cuda.kernels.biased import activation, bias_of
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Excite,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    Node,
    Pool2D,
    Reduce,
    Squeeze,
    fits_half,
    sources_of,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.gpu.view import padded

_PRODUCT = (Apply("mul", (Arg(0), Arg(1))), Apply("mul", (Arg(1), Arg(0))))


@dataclass(frozen=True, eq=False)
class _Block:
    """The nodes of a block behind the value `x`: the mean, two layers, what multiplies; and the layers' activations."""

    x: int
    nodes: tuple[Node, Node, Node, Node]
    inner: Expr
    gate: Expr
    biases: tuple[np.ndarray, np.ndarray]
    parts: int


def join_excitations(graph: Graph, features: Features) -> Graph:
    """The graph with Squeeze and Excite nodes in float16, of networks whose kernels wait for each other more than they
    work: there, each launch less counts, whether kernels overlap or not, and values are as near as the second cache."""
    if not overlapped.will_overlap(graph):
        return graph
    consumers, producer = graph.consumers(), graph.producer()
    found = [_block(node, graph, consumers, producer, features) for node in graph.nodes]
    decided = values_decided_on(graph) if any(found) else {}
    blocks = [b for b in found if b and decided.keys().isdisjoint((b.x, *(n.output for n in b.nodes)))]
    if not blocks:
        return graph
    first = {block.nodes[0].output: block for block in blocks}
    last = {block.nodes[3].output: block for block in blocks}
    gone = {node.output for block in blocks for node in block.nodes}
    builder, made = GraphBuilder(dict(graph.values), []), {}
    for node in graph.nodes:
        if node.output in first:
            block = first[node.output]
            x, weights = graph.values[block.x], block.nodes[1].inputs[1]
            results = graph.values[weights].shape[0]
            parts = builder.value((x.shape[0], 1, block.parts, results), DType.FLOAT32)
            made[block.nodes[3].output] = builder.node(
                Squeeze(block.parts), [x.id, weights], parts, sources=sources_of(*block.nodes[:2])
            )
        elif node.output in last:
            block = last[node.output]
            biases = [builder.constant(bias) for bias in block.biases]
            inputs = [block.x, made[node.output], biases[0], block.nodes[2].inputs[1], biases[1]]
            builder.node(Excite(block.inner, block.gate), inputs, node.output, sources=sources_of(*block.nodes[2:]))
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _block(
    node: Node, graph: Graph, consumers: Mapping[int, Sequence[Node]], producer: Mapping[int, Node], features: Features
) -> _Block | None:
    """The one that ends with the node."""
    values, result = graph.values, graph.values[node.output]
    if not isinstance(node.op, Elementwise) or node.epilogue not in _PRODUCT or result.dtype is not DType.FLOAT32:
        return None
    for v, gates in (node.operands, node.operands[::-1]):
        x, second = values[v], producer.get(gates)
        if x.is_constant or x.shape != result.shape or x.dtype is not DType.FLOAT32 or second is None:
            continue
        first = producer.get(second.inputs[0]) if second.inputs else None
        mean = producer.get(first.inputs[0]) if first is not None and first.inputs else None
        if first is None or mean is None or not is_mean(mean, v, graph):
            continue
        chain = (mean, first, second, node)
        alone = all(consumers[a.output] == [b] and a.output not in graph.outputs for a, b in pairwise(chain))
        layers = [_layer(n, graph) for n in (first, second)]
        if alone and layers[0] is not None and layers[1] is not None and _lies_in_rows(v, graph, consumers, producer):
            (inner, bias), (gate, other) = layers[0], layers[1]
            parts = _parts(v, first, graph, producer, features)
            if parts is not None and excite.ranked(x.shape, bias.size, parts, features.compute_units):
                return _Block(v, chain, inner, gate, (bias, other), parts)
    return None


def is_mean(node: Node, v: int, graph: Graph) -> bool:
    """Whether it is the mean of value v over all its pixels."""
    return averages(node, v, graph) and node.epilogue == RESULT


def averages(node: Node, v: int, graph: Graph) -> bool:
    """Whether it is an epilogue of that."""
    if node.inputs != (v,) or graph.values[node.output].dtype is not DType.FLOAT32:
        return False
    if isinstance(node.op, Pool2D):
        _, height, width, _ = graph.values[v].shape
        return node.op == Pool2D("average", (height, width), node.op.stride) and (
            graph.values[node.output].shape[1:3] == (1, 1)
        )
    return node.op == Reduce("mean", (1, 2))


def _layer(node: Node, graph: Graph) -> tuple[Expr, np.ndarray] | None:
    """The activation of a layer of one pixel, and its bias."""
    values = graph.values
    weights = values[node.inputs[1]].data if node.op == Conv2D() else None
    if weights is None or weights.shape[1:3] != (1, 1) or not fits_half(weights):
        return None
    numbers: dict[int, Expr] = {}  # single numbers among the operands
    others: list[int] = []
    for i, v in enumerate(node.operands, 1):
        data = values[v].data
        if data is not None and data.size == 1 and data.dtype == np.float32:
            numbers[i] = Literal(float(data.reshape(-1)[0]))
        else:
            numbers[i] = Arg(1 + len(others))
            others.append(v)
    plain = Node(node.op, node.inputs, node.output, substitute(node.epilogue, {0: RESULT} | numbers), tuple(others))
    found = activation(plain, graph)
    if found is None or any(values[v].shape[1:3] != (1, 1) for v in (node.inputs[0], node.output)):
        return None
    return found.expr, bias_of(found, graph, values[node.output].shape[3])


def _lies_in_rows(v: int, graph: Graph, consumers: Mapping[int, Sequence[Node]], producer: Mapping[int, Node]) -> bool:
    """Whether a value has memory of its own, as it is computed: then four channels of a pixel lie side by side."""
    node = producer.get(v)
    kinds = (Conv2D, DepthwiseConv2D, Elementwise, Excite, Reduce, Pool2D)
    return node is not None and v not in graph.outputs and all(isinstance(n.op, kinds) for n in consumers[v])


def _parts(v: int, first: Node, graph: Graph, producer: Mapping[int, Node], features: Features) -> int | None:
    """Into which the work is best divided, of what computes v if it is a depthwise convolution."""
    values, node = graph.values, producer[v]
    results, units = values[first.inputs[1]].shape[0], features.compute_units
    layer = squeeze.alone(padded(0, values[v].shape, DType.FLOAT16))
    if isinstance(node.op, DepthwiseConv2D) and node.op.multiplier == 1 and activation(node, graph) is not None:
        weights = values[node.inputs[1]].data
        if weights is not None:
            source = padded(0, values[node.inputs[0]].shape, DType.FLOAT16)
            layer = squeeze.window(node.op, source, weights, values[v].shape)
    return squeeze.parts_of(layer, results, units)
