"""A convolution with few outputs and a wide window, as those that end with a picture: each column of the window has
outputs of its own, which a second convolution adds up along rows. Tensor cores compute eight outputs at the least, and
load what they multiply for each tap anew: so it is loaded for all columns of the window at once."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.backends.cuda.kernels.convolution import estimate_alone
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder, Node, fits_half, replaced
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.decisions import values_decided_on

#: Outputs that are few, and columns of a window that is wide.
MOST_OUTPUTS, LEAST_COLUMNS = 4, 3
#: What both convolutions must take of what one does, by estimate: so little that they are quicker even if either takes
#: twice as long. Not measured yet. (H200: SRResNet's 9x9 from 64 channels, batch 16, took 1326 us for 1281 estimated;
#: as many products as the first of the two has took 214 by the oldest kernel, nine times the second one's taps 394.)
GAIN = 0.35
#: Channels of what lies between them are a multiple of this, which is what kernels copy at once.
WHOLE = 8


def split_few_outputs(graph: Graph, features: Features) -> Graph:
    """The graph with two convolutions, of a window's columns and of its rows, for each that is quicker so in
    float16."""
    found = {node.output for node in graph.nodes if _suits(node, graph) and _gains(node, graph, features)}
    found -= values_decided_on(graph).keys() if found else set()
    return replaced(graph, found, _put) if found else graph


def _suits(node: Node, graph: Graph) -> bool:
    op = node.op
    if not isinstance(op, Conv2D):
        return False
    x, weights = (graph.values[v] for v in node.inputs[:2])
    if weights.data is None or x.dtype is not DType.FLOAT32 or not fits_half(weights.data):
        return False
    outputs, _, columns, inputs = weights.shape
    plain = op == Conv2D(op.stride, op.dilation, op.padding, border=op.border)
    return plain and outputs <= MOST_OUTPUTS and columns >= LEAST_COLUMNS and inputs > columns * outputs


def _gains(node: Node, graph: Graph, features: Features) -> bool:
    values = graph.values
    x, weights, y = (values[v] for v in (*node.inputs[:2], node.output))
    assert isinstance(node.op, Conv2D) and weights.data is not None
    first, second, between = _halves(node.op, x.shape, y.shape, weights.data)

    now = estimate_alone(node.op, x.shape, weights.data, y.shape, features)
    both = estimate_alone(first[0], x.shape, first[1], between, features)
    both += estimate_alone(second[0], between, second[1], y.shape, features)
    return both <= GAIN * now


def _halves(
    op: Conv2D, source: tuple[int, ...], shape: tuple[int, ...], weights: np.ndarray
) -> tuple[tuple[Conv2D, np.ndarray], tuple[Conv2D, np.ndarray], tuple[int, int, int, int]]:
    """The convolution of the window's columns and the one of its rows, each with its weights, and the shape of what
    lies between them: output o of column k is channel k * outputs + o."""
    outputs, rows, columns, inputs = weights.shape
    channels = -(-columns * outputs // WHOLE) * WHOLE
    down = np.zeros((channels, rows, 1, inputs), np.float32)
    down[: columns * outputs, :, 0] = weights.transpose(2, 0, 1, 3).reshape(columns * outputs, rows, inputs)
    across = np.zeros((outputs, 1, columns, channels), np.float32)
    for k, o in np.ndindex(columns, outputs):
        across[o, 0, k, k * outputs + o] = 1
    first = dataclasses.replace(
        op, stride=(op.stride[0], 1), dilation=(op.dilation[0], 1), padding=(op.padding[0], 0),
        border=op.border if rows > 1 else "zero",
    )  # fmt: skip
    second = dataclasses.replace(op, stride=(1, op.stride[1]), dilation=(1, op.dilation[1]), padding=(0, op.padding[1]))
    return (first, down), (second, across), (source[0], shape[1], source[2], channels)


def _put(builder: GraphBuilder, node: Node) -> None:
    assert isinstance(node.op, Conv2D)
    values = builder.values
    x, weights, y = (values[v] for v in (*node.inputs[:2], node.output))
    assert weights.data is not None
    first, second, shape = _halves(node.op, x.shape, y.shape, weights.data)
    between = builder.node(
        first[0], [x.id, builder.constant(first[1])], builder.value(shape, DType.FLOAT32), sources=node.sources
    )
    inputs = (between, builder.constant(second[1]))
    builder.nodes.append(dataclasses.replace(node, op=second[0], inputs=inputs))
