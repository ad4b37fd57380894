"""Which depthwise convolutions and the 1x1 convolutions behind them the native kernel does better together."""

from __future__ import annotations

import math

from litegpu.gpu.graph import Graph, Node, fits_half
from litegpu.gpu.passes.separable import is_pair, join_pairs_where

#: Each workgroup of the joint kernel computes the depthwise results for all outputs that it has, of which these are the
#: most: with more, several would compute the same.
MOST_OUTPUTS = 128
#: Channels up to which moving the depthwise results through memory costs more than computing them less evenly.
MOST_CHANNELS = 128
#: Output pixels from which on that is so: with fewer, time goes into latency, and two short kernels that overlap have
#: less of it than one with two phases. (On an H200, batch 1: DeepLab v3 119 us apart and 135 joined, pose detection 122
#: and 165; batch 64: MobileNet v1 699 and 659, pose detection 2067 and 1758.)
LEAST_PIXELS = 50_000
#: Taps of a window that a thread can unroll.
MOST_TAPS = 49


def join_separable(graph: Graph) -> Graph:
    """The graph with SeparableConv2D nodes where these are worth it: their kernel is for float16."""
    return join_pairs_where(graph, lambda depthwise, pointwise: can_join(depthwise, pointwise, graph))


def can_join(depthwise: Node, pointwise: Node, graph: Graph) -> bool:
    """Whether the joint kernel can and should compute these, of which the second alone reads the first."""
    values = graph.values
    if not is_pair(depthwise, pointwise, graph):
        return False
    weights = [values[node.inputs[1]].data for node in (depthwise, pointwise)]
    outputs, channels = values[pointwise.inputs[1]].shape[0], values[depthwise.output].shape[3]
    return (
        all(w is not None and fits_half(w) for w in weights)
        and math.prod(values[pointwise.output].shape[:3]) >= LEAST_PIXELS
        and outputs <= MOST_OUTPUTS
        and channels <= MOST_CHANNELS
        and math.prod(values[depthwise.inputs[1]].shape[1:3]) <= MOST_TAPS
    )
