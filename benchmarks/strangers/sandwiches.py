"""A network as some converters from ONNX write it, with channels in front: each convolution between transpositions."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_torch_pictures

Tensor = NetworkTensor
_ROWS = np.array([2, 3], np.int32)


@of_torch_pictures("sandwiches")
def sandwiches(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Residual blocks with gates, halves that are split and joined, poolings and an enlargement; all but convolutions,
    poolings and resizes have the channels in front."""

    def inside(y: Tensor) -> Tensor:
        return net.transpose(y, 0, 2, 3, 1)

    def outside(y: Tensor) -> Tensor:
        return net.transpose(y, 0, 3, 1, 2)

    def padded(y: Tensor) -> Tensor:
        return net.apply("PAD", [y], [np.array([[0, 0], [0, 0], [1, 1], [1, 1]], np.int32)])

    def conv(y: Tensor, channels: int, kernel: int = 1, stride: int = 1, activation: str = "RELU") -> Tensor:
        y = inside(padded(y) if kernel == 3 else y)
        y = outside(net.conv(y, channels, kernel, stride, padding="VALID", activation="NONE"))
        if activation == "SWISH":
            return net.op("MUL", [y, net.op("LOGISTIC", [y])])
        return net.op("RELU", [y]) if activation == "RELU" else y

    def depthwise(y: Tensor) -> Tensor:
        return outside(net.depthwise(inside(padded(y)), padding="VALID", activation="NONE"))

    def gate(y: Tensor) -> Tensor:
        channels = y.sample.shape[1]
        squeezed = conv(net.mean(y, _ROWS, keep=True), max(8, channels // 4))
        return net.op("MUL", [y, net.op("LOGISTIC", [conv(squeezed, channels, activation="NONE")])])

    def residual(y: Tensor, activation: str) -> Tensor:
        channels = y.sample.shape[1]
        inner = gate(depthwise(conv(y, 4 * channels, activation=activation)))
        return net.op("RELU", [net.op("ADD", [y, conv(inner, channels, activation="NONE")])])

    def halves(y: Tensor) -> Tensor:
        left, right = net.split(y, 2, axis=1)
        return net.join(left, conv(right, right.sample.shape[1], 3), axis=1)

    def pooled(y: Tensor) -> Tensor:
        y = net.apply(
            "PADV2", [y], [np.array([[0, 0], [0, 0], [1, 1], [1, 1]], np.int32), np.array(-3.4e38, np.float32)]
        )
        return outside(net.max_pool(inside(y), 3, 2))

    y = pooled(conv(outside(x), wide(32, width), 3, 2))
    for stage, channels in enumerate((64, 128, 256)):
        y = conv(y, wide(channels, width), 3, 2 if stage else 1)
        y = halves(residual(residual(y, "SWISH"), "RELU"))
        if stage == 1:
            fine = y
    large = outside(net.enlarge(inside(conv(y, fine.sample.shape[1]))))
    y = residual(net.join(fine, large, axis=1), "RELU")
    y = net.mean(y, _ROWS)
    net.classify(y, classes)
