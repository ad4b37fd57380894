"""A mirrored border is copied in front of a convolution where that lets kernels be used which know zeros alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from litegpu.gpu.backends.cuda.kernels.convolution import estimate_alone
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.graph import Conv2D, Copy, DType, Graph, GraphBuilder, Mirror, Node, Shape, Value, fits_half, replaced
from litegpu.gpu.lang.features import Features

#: Bytes in a microsecond, read or written, of a copy.
COPIED = 3e6
#: Microseconds of a kernel more. (The style network at batch 1 lost 10 us by ten copies.)
LAUNCH = 2.0
#: What convolutions with a mirrored border take of what is estimated, unless for a program whose kernels overlap. (On
#: an H200 16x64x64x128 by 3x3 takes 51 us for 41.8, 16x64x64x256 184 for 136, 64x64x256 22 for 11.3: 18.7 by the other
#: estimates.)
MIRRORED = 1.35


def copy_borders(graph: Graph, features: Features) -> Graph:
    """The graph with copies in front of convolutions that are quicker without a border of their own in float16."""
    found = {n.output for n in graph.nodes if _is_mirrored(n, graph) and _gains(n, graph, features)}
    return replaced(graph, found, _put) if found else graph


def _put(builder: GraphBuilder, node: Node) -> None:
    assert isinstance(node.op, Conv2D)
    before, after = _around(node, builder.values)
    source = mirrored(builder, node, before, after, node.op.border == "symmetric")
    builder.nodes.append(dataclasses.replace(node, op=_within(node.op), inputs=(source, *node.inputs[1:])))


def _within(op: Conv2D) -> Conv2D:
    """The convolution of an input that has its border."""
    return dataclasses.replace(op, padding=(0, 0), border="zero")


def mirrored(
    builder: GraphBuilder, node: Node, before: tuple[int, int], after: tuple[int, int], symmetric: bool
) -> int:
    """A copy of the node's first input with so many more rows and columns in front and behind."""
    (b, h, w, c), kind = builder.values[node.inputs[0]].shape, builder.values[node.inputs[0]].dtype
    value = builder.value((b, before[0] + h + after[0], before[1] + w + after[1], c), kind)
    step = Mirror((0, *before, 0), (0, *after, 0), symmetric)
    return builder.node(Copy((step,)), [node.inputs[0]], value, sources=node.sources)


def _is_mirrored(node: Node, graph: Graph) -> bool:
    op = node.op
    if not isinstance(op, Conv2D) or op.border == "zero" or op.upsample != (1, 1):
        return False
    weights = graph.values[node.inputs[1]].data
    return weights is not None and fits_half(weights) and graph.values[node.inputs[0]].dtype is DType.FLOAT32


def _around(node: Node, values: Mapping[int, Value]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns that the convolution reads in front of its input, and behind."""
    op = node.op
    assert isinstance(op, Conv2D)
    x, weights, y = (values[v].shape for v in (*node.inputs[:2], node.output))
    after = [
        max(0, (y[i] - 1) * op.stride[i - 1] + (weights[i] - 1) * op.dilation[i - 1] + 1 - op.padding[i - 1] - x[i])
        for i in (1, 2)
    ]
    return op.padding, (after[0], after[1])


def _gains(node: Node, graph: Graph, features: Features) -> bool:
    x, weights, y = (graph.values[v] for v in (*node.inputs[:2], node.output))
    data = weights.data
    assert isinstance(node.op, Conv2D) and data is not None
    before, after = _around(node, graph.values)
    (b, h, w, c) = x.shape
    larger = (b, before[0] + h + after[0], before[1] + w + after[1], c)
    overlapping = features.capability == WARPGROUP_CAPABILITY and will_overlap(graph)

    def takes(op: Conv2D, shape: Shape) -> float:
        return estimate_alone(op, shape, data, y.shape, features, overlapping=overlapping)

    now, then = takes(node.op, x.shape), takes(_within(node.op), larger)
    copying = LAUNCH + 2 * (math.prod(x.shape) + math.prod(larger)) / COPIED
    return then + copying <= (1.0 if overlapping else MIRRORED) * now and then < now
