"""ResNet-50 v1.5 (He et al. 2015, the stride in the 3x3 convolutions) and ResNeXt-50 32x4d (Xie et al. 2016)."""

from __future__ import annotations

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import NetworkTensor

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # (channels of the narrow convolutions, blocks)


@classifier("ResNet-50 v1.5 {width} {resolution}")
def resnet50(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 25.6 million parameters."""
    _lay(net, picture, classes, width, groups=1, inner=1)


@classifier("ResNeXt-50 32x4d {width} {resolution}")
def resnext50(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """ResNet-50 whose 3x3 convolutions have 32 groups and twice the channels; 25.0 million parameters."""
    _lay(net, picture, classes, width, groups=32, inner=2)


def _lay(net: Layers, picture: NetworkTensor, classes: int, width: float, groups: int, inner: int) -> None:
    x = net.conv(picture, scaled(64, width), 7, 2, pad=3)
    x = net.max_pool(net.pad(x, 1, 1), 3, 2)
    for stage, (channels, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _bottleneck(net, x, scaled(channels, width), stride, not block, groups, inner)
    net.classify(net.mean(x), classes)


def _bottleneck(
    net: Layers, x: NetworkTensor, channels: int, stride: int, first: bool, groups: int, inner: int
) -> NetworkTensor:
    shortcut = net.conv(x, 4 * channels, stride=stride, activation="NONE") if first else x
    middle = -(-channels * inner // groups) * groups
    y = net.conv(net.conv(x, middle), middle, 3, stride, groups=groups, pad=1 if stride == 2 else 0)
    return net.add(shortcut, net.conv(y, 4 * channels, activation="NONE"), "RELU")
