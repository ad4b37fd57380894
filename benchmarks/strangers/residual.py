"""Classifiers of convolutions from torchvision's and timm's catalogues: residual networks of several widths, groups and
gates, cross-stage and one-shot aggregation, and mobile networks."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import regnet, wide
from strangers.layers import StrangeLayers, of_pictures, of_torch_pictures

Tensor = NetworkTensor
Blocks = tuple[int, int, int, int]


def resnet(
    net: StrangeLayers,
    x: Tensor,
    width: float,
    blocks: Sequence[int],
    *,
    basic: bool = False,
    inner: int = 1,
    groups: int = 1,
    gated: bool = False,
    dilated: bool = False,
) -> list[Tensor]:
    """The results of four stages. `basic`: blocks of two 3x3 layers; `inner`: how much wider the 3x3 layers are, of
    `groups`; `dilated`: the last two stages keep the resolution, as DeepLab has them."""
    x = net.conv(x, wide(64, width), 7, 2, pad=3)
    x = net.max_pool(net.pad(x, 1, 1), 3, 2)
    stages, dilation = [], 1
    for stage, count in enumerate(blocks):
        channels = wide(64, width) << stage
        for block in range(count):
            stride = 2 if stage and not block and not (dilated and stage > 1) else 1
            pad = 1 if stride > 1 else 0
            before = dilation
            if dilated and stage > 1 and not block:
                dilation *= 2  # of the layers behind this one
            outward = channels if basic else 4 * channels
            shortcut = x
            if stride > 1 or x.channels != outward:
                shortcut = net.conv(x, outward, stride=stride, activation="NONE")
            if basic:
                y = net.conv(net.conv(x, channels, 3, stride, pad=pad), channels, 3, activation="NONE")
            else:
                y = net.conv(x, inner * channels)
                rate = dilation if block else before
                y = net.conv(y, inner * channels, 3, stride, pad=pad, dilation=rate, groups=groups)
                y = net.conv(y, outward, activation="NONE")
            y = net.gate(y, max(4, outward // 16), "RELU", flat=False) if gated else y
            x = net.add(y, shortcut, "RELU")
        stages.append(x)
    return stages


@of_torch_pictures("ResNet-18")
def resnet18(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """He et al. 2015: 11.7 million parameters."""
    net.classify(net.mean(resnet(net, x, width, (2, 2, 2, 2), basic=True)[-1]), classes)


@of_torch_pictures("ResNet-34")
def resnet34(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """He et al. 2015: 21.8 million parameters."""
    net.classify(net.mean(resnet(net, x, width, (3, 4, 6, 3), basic=True)[-1]), classes)


@of_torch_pictures("ResNet-152")
def resnet152(
    net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, blocks: Blocks = (3, 8, 36, 3)
) -> None:
    """He et al. 2015: 60.2 million parameters."""
    net.classify(net.mean(resnet(net, x, width, blocks)[-1]), classes)


@of_torch_pictures("Wide ResNet-50-2")
def wide_resnet50(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Zagoruyko and Komodakis 2016: 68.9 million parameters."""
    net.classify(net.mean(resnet(net, x, width, (3, 4, 6, 3), inner=2)[-1]), classes)


@of_torch_pictures("SE-ResNet-50")
def seresnet50(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Hu et al. 2017: 28.1 million parameters."""
    net.classify(net.mean(resnet(net, x, width, (3, 4, 6, 3), gated=True)[-1]), classes)


@of_pictures("RegNetX-8GF")
def regnet_x_8gf(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Radosavovic et al. 2020: groups of 120 channels; 39.6 million parameters."""
    stages = ((80, 2), (240, 5), (720, 15), (1920, 1))
    net.classify(net.mean(regnet(net, x, width, stages, 120, gated=False)), classes)


@of_pictures("RegNetY-8GF")
def regnet_y_8gf(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Radosavovic et al. 2020: groups of 56 channels, squeeze and excite; 39.4 million parameters."""
    stages = ((168, 2), (448, 4), (896, 10), (2016, 1))
    net.classify(net.mean(regnet(net, x, width, stages, 56)), classes)


@of_torch_pictures("RepVGG-A2")
def repvgg_a2(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Ding et al. 2021, its branches merged: 3x3 layers only; 25.5 million parameters."""
    x = net.conv(x, wide(64, width), 3, 2, pad=1)
    for channels, blocks in ((96, 2), (192, 4), (384, 14), (1408, 1)):
        for block in range(blocks):
            x = net.conv(x, wide(channels, width), 3, 1 if block else 2, pad=0 if block else 1)
    net.classify(net.mean(x), classes)


@of_torch_pictures("CSPDarknet-53", 256)
def cspdarknet53(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Wang et al. 2019, as in timm: half of the channels go past each stage's blocks, leaky RELUs; 27.6 million
    parameters."""

    def conv(x: Tensor, filters: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, filters, kernel, stride, pad=1 if stride > 1 else 0, activation="LEAKY_RELU")

    x = conv(x, wide(32, width), 3)
    for stage, blocks in enumerate((1, 2, 8, 8, 4)):
        channels = wide(64, width) << stage
        x = conv(x, channels, 3, 2)
        past, y = net.split(conv(x, channels if stage else 2 * channels), 2)
        for _ in range(blocks):
            y = net.add(y, conv(conv(y, y.channels if stage else y.channels // 2), y.channels, 3))
        x = conv(net.join(past, conv(y, y.channels)), channels)
    net.classify(net.mean(x), classes)


@of_torch_pictures("VoVNet-39")
def vovnet39(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Lee et al. 2019, as in timm: five 3x3 layers whose results are all joined, a gate; 24.6 million parameters."""
    x = net.conv(x, wide(64, width), 3, 2, pad=1)
    x = net.conv(net.conv(x, x.channels, 3), wide(128, width), 3, 2, pad=1)
    for stage, (inner, outward, blocks) in enumerate(((128, 256, 1), (160, 512, 1), (192, 768, 2), (224, 1024, 2))):
        x = net.max_pool(x, 3, 2, "SAME") if stage else x
        for block in range(blocks):
            parts = [x]
            for _ in range(5):
                parts.append(net.conv(parts[-1], wide(inner, width), 3))
            y = net.conv(net.join(*parts), wide(outward, width))
            if block == blocks - 1:
                factor = net.plain(net.mean(y, keep=True), y.channels, activation="HARD_SIGMOID")
                y = net.op("MUL", [y, factor])
            x = net.add(y, x) if block else y
    net.classify(net.mean(x), classes)


def _inverted(
    net: StrangeLayers, x: Tensor, stages: Sequence[tuple[int, int, int, int, int]], activation: str, gated: bool
) -> Tensor:
    """Inverted residual blocks: (expansion, kernel, stride of the first, channels, blocks) of each stage."""
    for expansion, kernel, first, channels, blocks in stages:
        for block in range(blocks):
            stride = 1 if block else first
            y = net.conv(x, expansion * x.channels, activation=activation) if expansion > 1 else x
            y = net.separate(y, stride, kernel, activation)
            y = net.gate(y, max(1, x.channels // 4), flat=False) if gated else y
            y = net.conv(y, channels, activation="NONE")
            x = net.add(y, x) if stride == 1 and y.channels == x.channels else y
    return x


@of_torch_pictures("EfficientNet-B3", 300)
def efficientnet_b3(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Tan and Le 2019, as in torchvision: 12.2 million parameters."""
    stages = (
        *((1, 3, 1, 24, 2), (6, 3, 2, 32, 3), (6, 5, 2, 48, 3), (6, 3, 2, 96, 5)),
        *((6, 5, 1, 136, 5), (6, 5, 2, 232, 6), (6, 3, 1, 384, 2)),
    )
    x = net.conv(x, wide(40, width), 3, 2, pad=1, activation="SWISH")
    x = _inverted(net, x, [(*s[:3], wide(s[3], width), s[4]) for s in stages], "SWISH", gated=True)
    net.classify(net.mean(net.conv(x, wide(1536, width), activation="SWISH")), classes)


@of_pictures("EfficientNet-lite0")
def efficientnet_lite0(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Liu 2020: no gates, RELU6; 4.65 million parameters."""
    stages = (
        *((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)),
        *((6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)),
    )
    x = net.conv(x, wide(32, width), 3, 2, activation="RELU6")
    x = _inverted(net, x, [(*s[:3], wide(s[3], width), s[4]) for s in stages], "RELU6", gated=False)
    net.classify(net.mean(net.conv(x, wide(1280, width), activation="RELU6")), classes)


# (kernel in front, kernel between, stride, expansion, channels)
_MOBILE_4 = (
    *((5, 5, 2, 3, 96), *((0, 3, 1, 2, 96),) * 4, (3, 0, 1, 4, 96)),
    *((3, 3, 2, 6, 128), (5, 5, 1, 4, 128), (0, 5, 1, 4, 128), (0, 5, 1, 3, 128), *((0, 3, 1, 4, 128),) * 2),
)


@of_torch_pictures("MobileNet v4 small")
def mobilenet_v4(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Qin et al. 2024, the small one of convolutions: depthwise layers in front of inverted blocks or within them; 3.77
    million parameters."""
    x = net.conv(x, wide(32, width), 3, 2, pad=1)
    for first, second in ((32, 32), (96, 64)):
        x = net.conv(net.conv(x, wide(first, width), 3, 2, pad=1), wide(second, width))
    for front, between, stride, expansion, full in _MOBILE_4:
        channels = wide(full, width)
        y = net.separate(x, 1, front, "NONE") if front else x
        y = net.conv(y, wide(expansion * x.channels, 1))
        y = net.separate(y, stride, between) if between else y
        y = net.conv(y, channels, activation="NONE")
        x = net.add(y, x) if stride == 1 else y
    x = net.mean(net.conv(x, wide(960, width)), keep=True)
    x = net.conv(x, wide(1280, width))
    net.classify(net.reshape(x, x.channels), classes)


@of_torch_pictures("MobileOne s1")
def mobileone_s1(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, depth: int = 10) -> None:
    """Vasu et al. 2022, its branches merged: depthwise and 1x1 layers with RELU; 4.8 million parameters."""
    x = net.conv(x, wide(64, width), 3, 2, pad=1)
    for channels, blocks in ((96, 2), (192, 8), (512, depth), (1280, 1)):
        for block in range(blocks):
            x = net.conv(net.separate(x, 1 if block else 2), wide(channels, width))
    net.classify(net.mean(x), classes)
