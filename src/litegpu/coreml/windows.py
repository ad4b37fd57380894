"""Convolutions, pools and resizing: images, whose channels MIL wants in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.coreml.node import MilNode, translates
from litegpu.model.ops.windows import before


def _pair(node: MilNode, name: str) -> tuple[int, int]:
    """Options for height and width: "stride", "dilation"."""
    tail = "_factor" if name == "dilation" else ""
    return int(node.option(f"{name}_h{tail}", 1)), int(node.option(f"{name}_w{tail}", 1))


def _padding(node: MilNode, x: Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Before and after, of height and then of width, as many as the windows of the result reach out."""
    pads: list[int] = []
    for n, k, s, d, output in zip(x[1:3], kernel, _pair(node, "stride"), dilation, node.result()[1:3], strict=True):
        first = before(n, k, s, d, output)
        pads += [first, max(0, (output - 1) * s + (k - 1) * d + 1 - n - first)]
    return pads


@translates("CONV_2D", "DEPTHWISE_CONV_2D")
def _convolution(node: MilNode) -> Any:
    x, weights = node.shape(0), node.constant(1, "weights")
    # to output, input, height, width
    weights = weights.transpose((0, 3, 1, 2) if node.name == "CONV_2D" else (3, 0, 1, 2))
    dilation = _pair(node, "dilation")
    made = node.mb.conv(
        x=node.channels_first(0),
        weight=np.ascontiguousarray(weights),
        strides=list(_pair(node, "stride")),
        dilations=list(dilation),
        groups=x[3] // weights.shape[1],
        pad_type="custom",
        pad=_padding(node, x, weights.shape[2:], dilation),
        **_bias(node, 2),
    )
    return node.channels_last(made)


@translates("TRANSPOSE_CONV")
def _transposed_convolution(node: MilNode) -> Any:
    """The window of the result lies in the plane that all products cover; where it reaches out there is the bias."""
    weights, x = node.constant(1, "weights").transpose(3, 0, 1, 2), node.shape(2)  # input, output, height, width
    stride, kernel, output = _pair(node, "stride"), weights.shape[2:], node.result()[1:3]
    covered = [(n - 1) * s + k for n, s, k in zip(x[1:3], stride, kernel, strict=True)]
    # of the convolution whose transpose it is, which goes from the result to the input
    first = [before(o, k, s, 1, n) for o, k, s, n in zip(output, kernel, stride, x[1:3], strict=True)]
    last = [c - f - o for c, f, o in zip(covered, first, output, strict=True)]
    inside = min(last) >= 0
    bias = _bias(node, 3)
    made = node.mb.conv_transpose(
        x=node.channels_first(2),
        weight=np.ascontiguousarray(weights),
        strides=list(stride),
        pad_type="custom",
        pad=[first[0], max(0, last[0]), first[1], max(0, last[1])],
        **(bias if inside else {}),
    )
    if not inside:
        beyond = [0, 0, 0, 0, 0, max(0, -last[0]), 0, max(0, -last[1])]
        made = node.mb.pad(x=made, pad=beyond, mode="constant", constant_val=np.float32(0))
        if bias:
            made = node.mb.add(x=made, y=bias["bias"].reshape(1, -1, 1, 1))
    return node.channels_last(made)


def _bias(node: MilNode, i: int) -> dict[str, np.ndarray]:
    return {"bias": node.constant(i, "biases").ravel()} if node.has(i) else {}


@translates("AVERAGE_POOL_2D", "MAX_POOL_2D")
def _pool(node: MilNode) -> Any:
    kernel = int(node.option("filter_height")), int(node.option("filter_width"))
    window = dict(
        kernel_sizes=list(kernel),
        strides=list(_pair(node, "stride")),
        pad_type="custom",
        pad=_padding(node, node.shape(0), kernel, (1, 1)),
    )
    x = node.channels_first(0)
    if node.name == "MAX_POOL_2D":
        return node.channels_last(node.mb.max_pool(x=x, **window))
    return node.channels_last(node.mb.avg_pool(x=x, exclude_padding_from_average=True, **window))


@translates("RESIZE_BILINEAR")
def _bilinear(node: MilNode) -> Any:
    corners, half = node.option("align_corners", False), node.option("half_pixel_centers", False)
    mode = "UNALIGN_CORNERS" if half else "STRICT_ALIGN_CORNERS" if corners else "DEFAULT"
    height, width = node.result()[1:3]
    made = node.mb.resize_bilinear(
        x=node.channels_first(0), target_size_height=height, target_size_width=width, sampling_mode=mode
    )
    return node.channels_last(made)


@translates("RESIZE_NEAREST_NEIGHBOR")
def _nearest(node: MilNode) -> Any:
    corners, half = bool(node.option("align_corners", False)), bool(node.option("half_pixel_centers", False))
    sizes, wanted = node.shape(0)[1:3], node.result()[1:3]
    if not corners and all(o % n == 0 for n, o in zip(sizes, wanted, strict=True)):
        height, width = (o // n for n, o in zip(sizes, wanted, strict=True))
        x = node.channels_first(0)
        made = node.mb.upsample_nearest_neighbor(x=x, scale_factor_height=height, scale_factor_width=width)
        return node.channels_last(made)
    x = node.value(0)
    for axis, (n, o) in enumerate(zip(sizes, wanted, strict=True), 1):
        x = node.mb.gather(x=x, indices=_neighbours(n, o, corners, half), axis=axis)
    return x


def _neighbours(size: int, output: int, corners: bool, half: bool) -> np.ndarray:
    """Which element each of the output takes, in the float32 arithmetic of the official kernel."""
    scale = np.float32(size - 1) / np.float32(output - 1) if corners and output > 1 else np.float32(size / output)
    at = (np.arange(output, dtype=np.float32) + np.float32(0.5 if half else 0)) * scale
    rounded = np.floor(at + np.float32(0.5)) if corners else np.floor(at)
    return np.asarray(np.clip(rounded, 0, size - 1), np.int32)
