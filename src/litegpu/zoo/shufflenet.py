"""ShuffleNet v2 1.0x (Ma et al. 2018): halves of the channels pass by, and all are shuffled after each unit."""

from __future__ import annotations

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import NetworkTensor

_STAGES = ((116, 4), (232, 8), (464, 4))  # (channels, units)


@classifier("ShuffleNet v2 {width} {resolution}")
def shufflenet_v2(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 2.3 million parameters."""
    x = net.conv(picture, 24, 3, 2)
    x = net.max_pool(x, 3, 2, "SAME")
    for channels, units in _STAGES:
        half = scaled(channels // 2, width)
        for unit in range(units):
            left, y = (x, x) if not unit else net.halves(x)
            if not unit:
                left = net.conv(net.separate(left, 2, activation="NONE"), half)
            y = net.conv(net.separate(net.conv(y, half), 1 if unit else 2, activation="NONE"), half)
            x = _shuffled(net, net.op("CONCATENATION", [left, y], dict(axis=3)))
    net.classify(net.mean(net.conv(x, scaled(1024, width))), classes)


def _shuffled(net: Layers, x: NetworkTensor) -> NetworkTensor:
    """The channels of both halves in turn, by RESHAPE and TRANSPOSE of four axes."""
    _, height, wide, channels = x.sample.shape
    y = net.transpose(net.reshape(x, height * wide, 2, channels // 2), 0, 1, 3, 2)
    return net.reshape(y, height, wide, channels)
