"""What scales and shifts a picture is done by the first layer: in its weights, and by a constant for each result."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels import overlapped
from litegpu.gpu.backends.cuda.kernels.biased import activation
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.evaluate.windows import conv2d
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Node,
    apply,
    sources_of,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.by_channel import affine

#: Factors: with smaller ones what was given might be larger than a half can be, or with larger ones smaller.
FACTORS = (2.0**-9, 2.0**6)
#: Channels of a picture, which kernels load one by one in any case.
MOST_CHANNELS = 4
#: Bytes of the constants, in halves: reading more would take longer than the launch that is saved.
MOST_BYTES = 2 << 20


def join_scaled(graph: Graph, features: Features) -> Graph:
    """The graph whose first layers read the picture as it comes, in float16 where kernels overlap: there, each launch
    less counts. What a picture is shifted by counts where a tap is inside of it, which is why there is a constant for
    each result rather than each channel."""
    if features.capability != WARPGROUP_CAPABILITY or not overlapped.will_overlap(graph):
        return graph
    producer, consumers = graph.producer(), graph.consumers()
    found: dict[int, tuple[Node, int, np.ndarray, np.ndarray]] = {}  # the convolution's result -> what is in front
    for node in graph.nodes:
        before = producer.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        if before is not None and consumers[before.output] == [node] and before.output not in graph.outputs:
            scaled = _scaled(before, graph)
            if scaled is not None and _can(node, before.output, graph):
                found[node.output] = (before, *scaled)
    gone = {before.output for before, *_ in found.values()}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in found:
            _put(builder, graph, node, *found[node.output])
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if found else graph


def _scaled(node: Node, graph: Graph) -> tuple[int, np.ndarray, np.ndarray] | None:
    """The input of the graph that an elementwise node multiplies and adds to, each channel's factor and summand."""
    values, shape = graph.values, graph.values[node.output].shape
    inputs = [v for v in node.operands if not values[v].is_constant]
    if not isinstance(node.op, Elementwise) or len(inputs) != 1 or inputs[0] not in graph.inputs:
        return None
    x = values[inputs[0]]
    constants = [values[v].data for v in node.operands if v != x.id]
    flat = all(d is not None and d.shape[:3] == (1, 1, 1) and d.dtype == np.float32 for d in constants)
    if not flat or x.shape != shape or x.dtype is not DType.FLOAT32 or node.operands.count(x.id) != 1:
        return None
    order = [v for v in node.operands if v != x.id]
    places: dict[int, Expr] = {i: Arg(0) if v == x.id else Arg(1 + order.index(v)) for i, v in enumerate(node.operands)}
    each = [np.broadcast_to(d, (1, 1, 1, shape[3])).reshape(-1) for d in constants if d is not None]
    parts = affine(substitute(node.epilogue, places), each, shape[3])
    if parts is None or not all(np.isfinite(p).all() for p in parts):
        return None
    sizes = np.abs(parts[0])
    return (x.id, *parts) if np.all((sizes >= FACTORS[0]) & (sizes <= FACTORS[1])) else None


def _can(node: Node, v: int, graph: Graph) -> bool:
    op, shape = node.op, graph.values[node.output].shape
    assert isinstance(op, Conv2D)
    few = graph.values[v].shape[3] <= MOST_CHANNELS
    plain = few and op == Conv2D(op.stride, op.dilation, op.padding) and graph.values[node.inputs[1]].is_constant
    return (
        plain
        and activation(node, graph) is not None
        and v not in node.operands
        and 2 * shape[1] * shape[2] * shape[3] <= MOST_BYTES
    )


def _put(
    builder: GraphBuilder, graph: Graph, node: Node, before: Node, x: int, scale: np.ndarray, shift: np.ndarray
) -> None:
    values, shape = builder.values, builder.values[node.output].shape
    weights, found = values[node.inputs[1]].data, activation(node, graph)
    assert weights is not None and found is not None and isinstance(node.op, Conv2D)
    picture = np.broadcast_to(shift.astype(np.float32), (1, *values[x].shape[1:]))
    added = conv2d(node.op, picture, weights, (1, *shape[1:]))
    bias = None if found.bias is None else values[found.bias].data
    added = (added if bias is None else added + bias).astype(np.float32)
    inputs = [x, builder.constant((weights * scale).astype(np.float32))]
    epilogue = substitute(found.expr, {0: apply("add", RESULT, Arg(1))})
    sources = sources_of(before, node)
    builder.node(node.op, inputs, node.output, epilogue, [builder.constant(added)], sources)
