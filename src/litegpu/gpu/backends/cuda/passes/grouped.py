"""Convolutions in groups, which tensor cores are fed with poorly, as some of fewer and wider groups without any."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.grouped import bundle_of
from litegpu.gpu.graph import Concat, Conv2D, Copy, DType, Graph, GraphBuilder, Node, Slice

#: Channels of a bundle of groups, at least and at most, and the bytes of all weights of a layer at most.
_LEAST, _MOST, _MOST_BYTES = 64, 512, 10 << 20
#: Fitted to an H200, microseconds: the language's kernel does so many operations, and takes so long for each number
#: that a thread adds and channel of a group; a convolution of tensor cores has so much to begin with and for each
#: number that is added, and does so many operations.
_PLAIN_RATE, _PLAIN_STEP = 22e6, 0.0107
_START, _STEP, _RATE = 2.0, 0.0022, 250e6
#: A bundle must be so much quicker by these estimates.
_GAIN = 0.8


def split_groups(graph: Graph) -> Graph:
    """The graph with convolutions of bundles of groups, whose weights are zero between groups, where they are quicker
    in float16. Each reads a slice of the channels and writes another: neither is copied."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        bundle = _bundle(node, graph)
        if bundle:
            _put(builder, node, bundle)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if len(builder.nodes) > len(graph.nodes) else graph


def _bundle(node: Node, graph: Graph) -> int:
    """How many groups are best done together; 0: the node stays as it is."""
    op = node.op
    if not isinstance(op, Conv2D) or op.groups == 1 or node.output in graph.outputs:
        return 0
    x, weights, y = (graph.values[v] for v in (*node.inputs, node.output))
    inner, outputs = weights.shape[3], y.shape[3] // op.groups
    if bundle_of(inner, outputs, op.groups) and x.shape[3] % 8 == 0:
        return 0  # a kernel of its own does these
    channelwise = all((v := graph.values[i]).is_constant and v.shape[:3] == (1, 1, 1) for i in node.operands)
    if weights.data is None or not channelwise or x.dtype is not DType.FLOAT32 or y.dtype is not DType.FLOAT32:
        return 0
    taps, pixels = math.prod(weights.shape[1:3]), math.prod(y.shape[:3])
    plain = max(2 * pixels * y.shape[3] * taps * inner / _PLAIN_RATE, _PLAIN_STEP * taps * inner**2)

    def seconds(groups: int) -> float:
        """Of all bundles of so many groups."""
        depth = taps * inner * groups
        return op.groups // groups * max(_START + _STEP * depth, 2 * pixels * outputs * groups * depth / _RATE)

    fitting = [
        n for n in range(2, op.groups + 1)
        if op.groups % n == 0 and inner * n % 8 == outputs * n % 8 == 0
        and _LEAST <= inner * n <= _MOST and _LEAST <= outputs * n <= _MOST
        and 2 * taps * inner * n * y.shape[3] <= _MOST_BYTES
    ]  # fmt: skip
    best = min(fitting, key=seconds, default=0)
    return best if best and seconds(best) < _GAIN * plain else 0


def _put(builder: GraphBuilder, node: Node, bundle: int) -> None:
    """Convolutions of bundles of groups, and what joins their channels."""
    op, values = node.op, builder.values
    assert isinstance(op, Conv2D)
    x, weights, y = (values[v] for v in (*node.inputs, node.output))
    assert weights.data is not None
    inner, outputs = weights.shape[3], y.shape[3] // op.groups
    wide, made = inner * bundle, outputs * bundle
    parts = []
    for i in range(op.groups // bundle):
        source = builder.value((*x.shape[:3], wide), x.dtype, name=x.name)
        step = Slice((0, 0, 0, i * wide), (1, 1, 1, 1), (*x.shape[:3], wide))
        builder.node(Copy((step,)), [x.id], source, sources=node.sources)
        dense = np.zeros((made, *weights.shape[1:3], wide), np.float32)
        for g in range(bundle):
            rows = slice(g * outputs, (g + 1) * outputs)
            dense[rows, :, :, g * inner : (g + 1) * inner] = weights.data[i * made :][rows]
        operands = []
        for v in node.operands:
            data = values[v].data
            assert data is not None
            shared = data.shape[3] == 1
            operands.append(v if shared else builder.constant(data[..., i * made : (i + 1) * made]))
        part = builder.value((*y.shape[:3], made), y.dtype, name=y.name)
        builder.nodes.append(
            dataclasses.replace(
                node,
                op=dataclasses.replace(op, groups=1),
                inputs=(source, builder.constant(dense)),
                output=part,
                operands=tuple(operands),
            )
        )
        parts.append(part)
    if len(parts) == 1:
        builder.nodes[-1] = dataclasses.replace(builder.nodes[-1], output=node.output)
        return
    builder.node(Concat(3), parts, node.output, sources=node.sources)
