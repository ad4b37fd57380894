"""MobileNet v2 (Sandler et al. 2018) and v3 large (Howard et al. 2019), as Keras has them."""

from __future__ import annotations

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import NetworkTensor

# (expansion, channels, blocks, stride of the first)
_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# (kernel, wide channels, channels, squeeze and excite, activation, stride)
_V3 = (
    *((3, 16, 16, False, "RELU", 1), (3, 64, 24, False, "RELU", 2), (3, 72, 24, False, "RELU", 1)),
    *((5, 72, 40, True, "RELU", 2), (5, 120, 40, True, "RELU", 1), (5, 120, 40, True, "RELU", 1)),
    *((3, 240, 80, False, "HARD_SWISH", 2), (3, 200, 80, False, "HARD_SWISH", 1)),
    *((3, 184, 80, False, "HARD_SWISH", 1), (3, 184, 80, False, "HARD_SWISH", 1)),
    *((3, 480, 112, True, "HARD_SWISH", 1), (3, 672, 112, True, "HARD_SWISH", 1)),
    *((5, 672, 160, True, "HARD_SWISH", 2), (5, 960, 160, True, "HARD_SWISH", 1), (5, 960, 160, True, "HARD_SWISH", 1)),
)


@classifier("MobileNet v2 {width} {resolution}")
def mobilenet_v2(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 3.5 million parameters."""
    x = net.conv(picture, scaled(32, width), 3, 2, activation="RELU6")
    for expansion, channels, blocks, first in _V2:
        for block in range(blocks):
            stride = 1 if block else first
            y = net.conv(x, expansion * x.channels, activation="RELU6") if expansion > 1 else x
            y = net.conv(net.separate(y, stride, activation="RELU6"), scaled(channels, width), activation="NONE")
            x = net.add(x, y) if block else y
    net.classify(net.mean(net.conv(x, max(1280, scaled(1280, width)), activation="RELU6")), classes)


@classifier("MobileNet v3 large {width} {resolution}")
def mobilenet_v3(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 5.5 million parameters."""
    x = net.conv(picture, scaled(16, width), 3, 2, activation="HARD_SWISH")
    for kernel, wide, channels, gated, activation, stride in _V3:
        x = _v3_block(net, x, kernel, scaled(wide, width), scaled(channels, width), gated, activation, stride)
    x = net.conv(x, scaled(960, width), activation="HARD_SWISH")
    x = net.plain(net.mean(x, keep=True), scaled(1280, width), activation="HARD_SWISH")
    net.classify(net.reshape(x, x.channels), classes)


def _v3_block(
    net: Layers, x: NetworkTensor, kernel: int, wide: int, channels: int, gated: bool, activation: str, stride: int
) -> NetworkTensor:
    y = net.conv(x, wide, activation=activation) if wide != x.channels else x
    y = net.separate(y, stride, kernel, activation)
    if gated:
        y = net.gate(y, _divisible(wide / 4), "RELU", "HARD_SIGMOID", flat=False)
    y = net.conv(y, channels, activation="NONE")
    return net.add(x, y) if stride == 1 and channels == x.channels else y


def _divisible(channels: float) -> int:
    """To a multiple of 8, not below 90%."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8
