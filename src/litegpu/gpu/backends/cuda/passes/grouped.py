"""Convolutions in groups, which tensor cores are fed with poorly, as some of fewer and wider groups without any."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels import grouped
from litegpu.gpu.backends.cuda.kernels.convolution import estimate
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.tile import times_slower
from litegpu.gpu.backends.cuda.overlap import LITTLE_BYTES
from litegpu.gpu.graph import Concat, Conv2D, Copy, DType, Graph, GraphBuilder, Node, Slice
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

#: Channels of a bundle of groups, at least and at most, and the bytes of all weights of a layer at most.
_LEAST, _MOST, _MOST_BYTES = 48, 512, 10 << 20
#: Fitted to an H200, microseconds: the language's kernel does so many operations, and takes so long for each number
#: that a thread adds and channel of a group; a convolution of tensor cores has so much to begin with and for each
#: number that is added, and does so many operations.
_PLAIN_RATE, _PLAIN_STEP = 22e6, 0.0107
_START, _STEP, _RATE = 2.0, 0.0022, 250e6
#: What the kernel for groups takes at batch 64 over what it estimates: 1.1 to 1.9.
_OWN = 1.2
#: What a group by itself must gain over bundles by these estimates, and by those of kernels where no other kernel does
#: groups.
_ALONE, _CLEARLY = 1.1, 0.7
#: What either must take of what the other kernels do.
_GAIN = 0.8


def split_groups(graph: Graph, features: Features) -> Graph:
    """The graph with convolutions of bundles of groups, whose weights are zero between groups, where they are quicker
    in float16. Each reads a slice of the channels and writes another: neither is copied."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        bundle = _bundle(node, graph, features)
        if bundle:
            _put(builder, node, bundle)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if len(builder.nodes) > len(graph.nodes) else graph


def _bundle(node: Node, graph: Graph, features: Features) -> int:
    """How many groups are best done together; 0: the node stays as it is."""
    op = node.op
    if not isinstance(op, Conv2D) or op.groups == 1 or node.output in graph.outputs:
        return 0
    x, weights, y = (graph.values[v] for v in (*node.inputs, node.output))
    inner, outputs = weights.shape[3], y.shape[3] // op.groups
    channelwise = all((v := graph.values[i]).is_constant and v.shape[:3] == (1, 1, 1) for i in node.operands)
    if weights.data is None or not channelwise or x.dtype is not DType.FLOAT32 or y.dtype is not DType.FLOAT32:
        return 0
    taps, pixels = math.prod(weights.shape[1:3]), math.prod(y.shape[:3])
    slower = times_slower(features.capability, features.compute_units)
    plain = max(2 * slower * pixels * y.shape[3] * taps * inner / _PLAIN_RATE, _PLAIN_STEP * taps * inner**2)
    own = bool(grouped.bundle_of(inner, outputs, op.groups)) and x.shape[3] % 8 == 0
    if own:  # a kernel does these
        if min(inner, outputs) < _LEAST:
            return 0
        layer = Layer(op, padded(0, x.shape, DType.FLOAT16), weights.data, y.shape, True)
        blocks = grouped.ranked(layer, features.compute_units)
        plain = _OWN * grouped.cost(layer, blocks[0], features.compute_units) if blocks else plain

    def is_little(parts: float) -> bool:
        """Whether the work of one of so many parts is such that kernels would be made to overlap."""
        return 2 * (math.prod(x.shape) + math.prod(y.shape)) <= parts * LITTLE_BYTES

    def seconds(groups: int) -> float:
        """Of all bundles of so many groups."""
        depth = taps * inner * groups
        multiplied = 2 * slower * pixels * outputs * groups * depth / _RATE
        return op.groups // groups * max(_START + _STEP * depth, multiplied)

    fitting = [
        n for n in range(1, op.groups + 1)
        if op.groups % n == 0 and inner * n % 8 == outputs * n % 8 == 0
        and _LEAST <= inner * n <= _MOST and _LEAST <= outputs * n <= _MOST
        and 2 * taps * inner * n * y.shape[3] <= _MOST_BYTES
        and (n > 1 or is_little(1) or not is_little(op.groups))
    ]  # fmt: skip

    def estimated(groups: int) -> float:
        """The same, by the estimates of the kernels."""
        view = dataclasses.replace(padded(0, x.shape, DType.FLOAT16), shape=(*x.shape[:3], inner * groups))
        dense = np.zeros((outputs * groups, *weights.shape[1:3], inner * groups), np.float16)
        part = Layer(dataclasses.replace(op, groups=1), view, dense, (*y.shape[:3], outputs * groups), True)
        return op.groups // groups * estimate(part, features)

    best = min(fitting, key=lambda n: seconds(n) * (_ALONE if n == 1 else 1.0), default=0)
    wider = min((n for n in fitting if n > 1), key=seconds, default=0)
    if best == 1 and wider and not own and estimated(1) >= _CLEARLY * estimated(wider):
        best = wider
    return best if best and max(seconds(best), estimated(best)) < _GAIN * plain else 0


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
