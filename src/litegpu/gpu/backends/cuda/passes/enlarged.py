"""A convolution behind a nearest-neighbour resize is a transposed one: taps that read the same pixel are added up, so
there are fewer products, and each of its phases is an ordinary convolution."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.convolution import estimate_alone
from litegpu.gpu.backends.cuda.kernels.transpose import phases
from litegpu.gpu.backends.cuda.passes.borders import COPIED, mirrored
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder, Node, TransposeConv2D, fits_half, replaced
from litegpu.gpu.lang.features import Features

#: What the phases must take of what one convolution does, by estimate: what the same kernel would take for 4 of 9
#: products, and something for launches. Not measured yet. (H200: convolutions behind a resize take 1.2 to 1.4 times
#: what is estimated of them.)
GAIN = 0.6
#: Channels from which on phases have kernels that are fast.
LEAST_CHANNELS = 16


def transpose_enlarged(graph: Graph, features: Features) -> Graph:
    """The graph with transposed convolutions where these are quicker in float16."""
    found: dict[int, tuple[TransposeConv2D, np.ndarray]] = {}
    for node in graph.nodes:
        transposed = _transposed(node, graph)
        if transposed is not None and _gains(node, *transposed, graph, features):
            found[node.output] = transposed

    def put(builder: GraphBuilder, node: Node) -> None:
        op, weights = found[node.output]
        assert isinstance(node.op, Conv2D)
        around = _around(node.op)
        x = mirrored(builder, node, around, around, True) if any(around) else node.inputs[0]
        builder.nodes.append(dataclasses.replace(node, op=op, inputs=(x, builder.constant(weights))))

    return replaced(graph, found, put) if found else graph


def _transposed(node: Node, graph: Graph) -> tuple[TransposeConv2D, np.ndarray] | None:
    """What the convolution is, and its weights, if it is one behind a resize."""
    op = node.op
    if not isinstance(op, Conv2D) or op.upsample == (1, 1):
        return None
    if op != Conv2D(padding=op.padding, upsample=op.upsample, border=op.border):
        return None
    if op.border == "reflect" and any(n >= times for n, times in zip(op.padding, op.upsample, strict=True)):
        return None  # what lies outside is more than the outermost pixels
    x, weights = (graph.values[v] for v in node.inputs[:2])
    if weights.data is None or weights.shape[1:3] == (1, 1) or min(weights.shape[::3]) < LEAST_CHANNELS:
        return None
    joined = _joined(weights.data, op.upsample)
    if x.dtype is not DType.FLOAT32 or not fits_half(joined):
        return None
    window = weights.shape[1:3]
    # the last tap that reads a pixel, of the output that lies `padding` in front of it, is the window's first
    inside = [before - n * times for before, n, times in zip(op.padding, _around(op), op.upsample, strict=True)]
    down, across = (n - 1 - before for n, before in zip(window, inside, strict=True))
    return (TransposeConv2D(op.upsample, (down, across)), joined) if min(down, across) >= 0 else None


def _around(op: Conv2D) -> tuple[int, int]:
    """Rows and columns by which its input is mirrored first: with the outermost ones twice, as a mirrored resize has
    them."""
    if op.border == "zero":
        return 0, 0
    down, across = (-(-n // times) for n, times in zip(op.padding, op.upsample, strict=True))
    return down, across


def _joined(weights: np.ndarray, times: tuple[int, int]) -> np.ndarray:
    """The weights of the transposed convolution: tap m adds up taps n - 1 - m, ..., n - 1 - m + times - 1."""
    outputs, rows, columns, inputs = weights.shape
    found = np.zeros((outputs, rows + times[0] - 1, columns + times[1] - 1, inputs), np.float32)
    for y, x in itertools.product(range(times[0]), range(times[1])):
        found[:, y : y + rows, x : x + columns] += weights[:, ::-1, ::-1]
    return found


def _gains(node: Node, op: TransposeConv2D, joined: np.ndarray, graph: Graph, features: Features) -> bool:
    x, weights, y = (graph.values[v] for v in (*node.inputs[:2], node.output))
    assert isinstance(node.op, Conv2D) and weights.data is not None
    more, (b, h, w, c) = _around(node.op), x.shape
    source = (b, h + 2 * more[0], w + 2 * more[1], c)
    parts = 2 * (math.prod(x.shape) + math.prod(source)) / COPIED if any(more) else 0.0
    for down, across in itertools.product(
        *(phases(y.shape[i], joined.shape[i], op.stride[i - 1], op.padding[i - 1]) for i in (1, 2))
    ):
        part = joined[:, down.taps][:, :, across.taps]
        if not math.prod(part.shape):
            return False
        shape = (y.shape[0], down.size, across.size, y.shape[3])
        parts += estimate_alone(Conv2D(padding=(down.padding, across.padding)), source, part, shape, features)
    return parts <= GAIN * estimate_alone(node.op, x.shape, weights.data, y.shape, features)
