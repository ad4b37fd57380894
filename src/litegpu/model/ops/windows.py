"""Where windows lie: the padding rules of convolutions and pools (ComputePaddingHeightWidth of TFLite)."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.model.ops.shape_node import Shape, ShapeNode

SAME, VALID = 0, 1


def output_size(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    """How many windows there are along one axis; `padding` is SAME or VALID."""
    if padding == SAME:
        return -(-size // stride)
    return max(0, -(-(size - (kernel - 1) * dilation) // stride))


def before(size: int, kernel: int, stride: int, dilation: int, output: int) -> int:
    """What lies in front of the input so that `output` windows cover it (0 if they fit)."""
    span = (kernel - 1) * dilation + 1
    return max(0, (output - 1) * stride + span - size) // 2


def windows(node: ShapeNode, x: Shape, window: Sequence[int], channels: int) -> Shape:
    stride = int(node.option("stride_h", 1)), int(node.option("stride_w", 1))
    dilation = int(node.option("dilation_h_factor", 1)), int(node.option("dilation_w_factor", 1))
    return placed(node, x, window, stride, dilation, int(node.option("padding", SAME)), channels)


def placed(
    node: ShapeNode, x: Shape, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: int,
    channels: int,
) -> Shape:  # fmt: skip
    node.require(padding in (SAME, VALID) and min(*stride, *dilation, *window) > 0)
    places = [
        output_size(n, k, s, d, padding) for n, k, s, d in zip(x[1:3], window, stride, dilation, strict=True)
    ]  # fmt: skip
    node.require(min(places) > 0)
    return (x[0], *places, channels)
