"""The padding rules of convolutions and pools (ComputePaddingHeightWidth of the TFLite reference)."""

from __future__ import annotations

from litegpu.gpu.lower.constants import Unsupported

SAME, VALID = 0, 1


def output_size(size: int, kernel: int, stride: int, dilation: int, padding: int) -> int:
    """How many windows there are along one axis."""
    span = (kernel - 1) * dilation + 1
    if padding == SAME:
        return -(-size // stride)
    if padding == VALID:
        return max(0, -(-(size - span + 1) // stride))
    raise Unsupported(f"padding {padding} is neither SAME (0) nor VALID (1)")


def before(size: int, kernel: int, stride: int, dilation: int, output: int) -> int:
    """What lies in front of the input so that `output` windows cover it (0 if they fit)."""
    span = (kernel - 1) * dilation + 1
    return max(0, (output - 1) * stride + span - size) // 2
