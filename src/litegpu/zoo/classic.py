"""VGG-16 (Simonyan and Zisserman 2014) and SqueezeNet 1.1 (Iandola et al. 2016)."""

from __future__ import annotations

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import NetworkTensor

_VGG = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # (channels, convolutions) between poolings
_FIRE = ((16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256))


@classifier("VGG-16 {width} {resolution}")
def vgg16(net: Layers, x: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 138 million parameters."""
    for channels, count in _VGG:
        for _ in range(count):
            x = net.conv(x, scaled(channels, width), 3)
        x = net.max_pool(x, 2, 2)
    x = net.reshape(x, x.sample[0].size)
    for _ in range(2):
        x = net.dense(x, scaled(4096, width), "RELU")
    net.classify(x, classes)


@classifier("SqueezeNet 1.1 {width} {resolution}")
def squeezenet(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 1.2 million parameters."""
    x = net.conv(picture, scaled(64, width), 3, 2, padding="VALID")
    x = net.max_pool(x, 3, 2)
    for fire in _FIRE:
        x = net.max_pool(x, 3, 2) if fire is None else _fire(net, x, *(scaled(n, width) for n in fire))
    logits = net.mean(net.head(x, classes, deviation=6.0, spread=2.0))
    net.output("probabilities", net.op("SOFTMAX", [logits], dict(beta=1.0)).tensor)


def _fire(net: Layers, x: NetworkTensor, squeezed: int, expanded: int) -> NetworkTensor:
    x = net.conv(x, squeezed)
    return net.op("CONCATENATION", [net.conv(x, expanded), net.conv(x, expanded, 3)], dict(axis=3))
