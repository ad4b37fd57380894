"""EfficientNet B0 (Tan and Le 2019) and v2 B0 (2021), as Keras has them."""

from __future__ import annotations

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import NetworkTensor

# (fused expansion, expansion, kernel, channels, blocks, stride of the first, squeeze and excite)
_B0 = (
    *((False, 1, 3, 16, 1, 1, True), (False, 6, 3, 24, 2, 2, True), (False, 6, 5, 40, 2, 2, True)),
    *((False, 6, 3, 80, 3, 2, True), (False, 6, 5, 112, 3, 1, True), (False, 6, 5, 192, 4, 2, True)),
    (False, 6, 3, 320, 1, 1, True),
)
_V2_B0 = (
    *((True, 1, 3, 16, 1, 1, False), (True, 4, 3, 32, 2, 2, False), (True, 4, 3, 48, 2, 2, False)),
    *((False, 4, 3, 96, 3, 2, True), (False, 6, 3, 112, 5, 1, True), (False, 6, 3, 192, 8, 2, True)),
)
_Stages = tuple[tuple[bool, int, int, int, int, int, bool], ...]


@classifier("EfficientNet B0 {width} {resolution}")
def efficientnet_b0(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 5.3 million parameters."""
    _lay(net, picture, classes, width, _B0)


@classifier("EfficientNet v2 B0 {width} {resolution}")
def efficientnet_v2_b0(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 7.1 million parameters."""
    _lay(net, picture, classes, width, _V2_B0)


def _lay(net: Layers, picture: NetworkTensor, classes: int, width: float, stages: _Stages) -> None:
    x = net.scale("MUL", picture, [1.11, 1.14, 1.13])
    x = net.scale("ADD", x, [0.06, 0.18, 0.38])  # the normalization that is part of the network
    x = net.conv(x, scaled(32, width), 3, 2, activation="SWISH")
    for fused, expansion, kernel, channels, blocks, first, gated in stages:
        for block in range(blocks):
            stride = 1 if block else first
            y = _block(net, x, fused, expansion, kernel, scaled(channels, width), stride, gated)
            x = net.add(y, x) if stride == 1 and y.channels == x.channels else y
    net.classify(net.mean(net.conv(x, scaled(1280, width), activation="SWISH")), classes)


def _block(
    net: Layers, x: NetworkTensor, fused: bool, expansion: int, kernel: int, channels: int, stride: int, gated: bool
) -> NetworkTensor:
    wide = expansion * x.channels
    squeezed = max(1, x.channels // 4)
    if fused and expansion == 1:
        return net.conv(x, channels, kernel, stride, activation="SWISH")
    if fused:
        y = net.conv(x, wide, kernel, stride, activation="SWISH")
    else:
        y = net.conv(x, wide, activation="SWISH") if expansion > 1 else x
        y = net.separate(y, stride, kernel, "SWISH")
    y = net.gate(y, squeezed) if gated else y
    return net.conv(y, channels, activation="NONE")
