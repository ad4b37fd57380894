"""DenseNet-121 (Huang et al. 2016): every layer reads all before it in its block."""

from __future__ import annotations

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import NetworkTensor

_BLOCKS = (6, 12, 24, 16)
_GROWTH = 32


@classifier("DenseNet-121 {width} {resolution}")
def densenet121(net: Layers, picture: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 8.0 million parameters."""
    growth = scaled(_GROWTH, width)
    x = net.conv(picture, 2 * growth, 7, 2, pad=3)
    x = net.max_pool(net.pad(x, 1, 1), 3, 2)
    for block, layers in enumerate(_BLOCKS):
        for _ in range(layers):
            y = net.conv(net.norm_activate(x), 4 * growth)
            x = net.op("CONCATENATION", [x, net.plain(y, growth, 3)], dict(axis=3))
        x = net.norm_activate(x)
        if block + 1 < len(_BLOCKS):
            x = net.mean_pool(net.plain(x, x.channels // 2), 2, 2)
    net.classify(net.mean(x), classes)
