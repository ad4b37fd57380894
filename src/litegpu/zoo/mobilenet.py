"""MobileNet v1 (Howard et al. 2017) and the dilated MobileNet v2 (Sandler et al. 2018) that DeepLab uses."""

from __future__ import annotations

from litegpu.zoo.network import Network, NetworkTensor

# (channels, stride) of the 13 separable blocks.
_V1_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))

# (channels, stride, dilation of the depthwise convolution) of the inverted residual blocks after the first. The strides
# of the last two stages are replaced by dilation, so that the result has 1/8 of the picture's resolution.
_V2_BLOCKS = (
    *((24, 2, 1), (24, 1, 1)),
    *((32, 2, 1), (32, 1, 1), (32, 1, 1)),
    *((64, 1, 1), (64, 1, 2), (64, 1, 2), (64, 1, 2)),
    *((96, 1, 2), (96, 1, 2), (96, 1, 2)),
    *((160, 1, 2), (160, 1, 4), (160, 1, 4)),
    (320, 1, 4),
)
_EXPANSION = 6


def mobilenet_v1(
    *,
    seed: int = 0,
    precision: str = "float32",
    batch: int = 1,
    width: float = 1.0,
    resolution: int = 224,
    classes: int = 1001,
) -> bytes:
    """The classifier: [batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 31 ops."""
    net = Network(f"MobileNet v1 {width} {resolution}, seeded weights", seed=seed, precision=precision, batch=batch)
    features = v1_features(net, net.image("input", resolution, resolution), width)[-1]
    logits = net.head(net.average_pool(features), classes, deviation=2.0, spread=1.5)
    net.output("probabilities", net.op("SOFTMAX", [net.reshape(logits, classes)], dict(beta=1.0)).tensor)
    return net.build()


def v1_features(net: Network, x: NetworkTensor, width: float = 1.0) -> list[NetworkTensor]:
    """The results of the first convolution and of each of the 13 blocks, at last 1/32 of the picture's resolution."""
    features = [net.convolution(x, scaled(32, width), 3, 2)]
    for channels, stride in _V1_BLOCKS:
        features.append(net.convolution(net.depthwise(features[-1], stride), scaled(channels, width)))
    return features


def v2_dilated_features(net: Network, x: NetworkTensor, width: float = 0.5) -> NetworkTensor:
    """The backbone's last block, at 1/8 of the picture's resolution."""
    x = net.depthwise(net.convolution(x, scaled(32, width), 3, 2))
    x = net.convolution(x, scaled(16, width), activation="NONE")
    for channels, stride, dilation in _V2_BLOCKS:
        wide = net.depthwise(net.convolution(x, _EXPANSION * x.channels), stride, dilation)
        narrow = net.convolution(wide, scaled(channels, width), activation="NONE")
        residual = stride == 1 and narrow.channels == x.channels
        x = net.op("ADD", [x, narrow]) if residual else narrow
    return x


def scaled(channels: int, width: float) -> int:
    """Channels under a width multiplier, at least 8."""
    return max(8, int(channels * width))
