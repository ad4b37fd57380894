"""Classifiers whose layers branch: towers, mixtures of windows, two paths, norms by groups, and none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_pictures, of_torch_pictures
from strangers.residual import Blocks, resnet

Tensor = NetworkTensor


@of_torch_pictures("AlexNet")
def alexnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Krizhevsky 2014, as in torchvision: windows of 11x11 by steps of four; 61.1 million parameters."""
    x = net.max_pool(net.conv(x, wide(64, width), 11, 4, pad=2), 3, 2)
    x = net.max_pool(net.conv(x, wide(192, width), 5), 3, 2)
    for channels in (384, 256, 256):
        x = net.conv(x, wide(channels, width), 3)
    x = net.max_pool(x, 3, 2) if x.sample.shape[1] > 2 else x
    x = net.reshape(x, x.sample[0].size)
    for _ in range(2):
        x = net.dense(x, wide(4096, width), "RELU", gain=1.4)
    net.classify(x, classes)


@of_torch_pictures("GoogLeNet")
def googlenet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Szegedy et al. 2014, as in torchvision: four towers, whose larger windows are of 3x3; 6.6 million parameters."""

    def block(x: Tensor, one: int, *others: int) -> Tensor:
        a, b, c, d, e = (wide(n, width) for n in others)
        towers = [net.conv(x, wide(one, width)), net.conv(net.conv(x, a), b, 3), net.conv(net.conv(x, c), d, 3)]
        return net.join(*towers, net.conv(net.max_pool(x, 3, 1, "SAME"), e))

    x = net.max_pool(net.conv(x, wide(64, width), 7, 2, pad=3), 3, 2, "SAME")
    x = net.max_pool(net.conv(net.conv(x, wide(64, width)), wide(192, width), 3), 3, 2, "SAME")
    x = block(block(x, 64, 96, 128, 16, 32, 32), 128, 128, 192, 32, 96, 64)
    x = block(net.max_pool(x, 3, 2, "SAME"), 192, 96, 208, 16, 48, 64)
    x = block(block(x, 160, 112, 224, 24, 64, 64), 128, 128, 256, 24, 64, 64)
    x = block(block(x, 112, 144, 288, 32, 64, 64), 256, 160, 320, 32, 128, 128)
    x = block(net.max_pool(x, 2, 2, "SAME"), 256, 160, 320, 32, 128, 128)
    net.classify(net.mean(block(x, 384, 192, 384, 48, 128, 128)), classes)


@of_pictures("Inception-ResNet v2", 299)
def inception_resnet_v2(
    net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, blocks: Sequence[int] = (10, 20, 10)
) -> None:
    """Szegedy et al. 2016: towers that are joined, multiplied and added; 55.8 million parameters."""

    def conv(x: Tensor, filters: int, kernel: int | tuple[int, int] = 1, stride: int = 1, padding: str = "") -> Tensor:
        padding = padding or ("VALID" if stride > 1 else "SAME")
        return net.conv(x, wide(filters, width), kernel, stride, padding=padding)

    def added(x: Tensor, towers: Sequence[Tensor], scale: float, activation: str = "RELU") -> Tensor:
        y = net.scale("MUL", net.plain(net.join(*towers), x.channels), scale)
        return net.activate(net.add(x, y), activation)

    x = conv(conv(conv(x, 32, 3, 2), 32, 3, 1, "VALID"), 64, 3)
    x = net.max_pool(conv(conv(net.max_pool(x, 3, 2), 80), 192, 3, 1, "VALID"), 3, 2)
    double = conv(conv(conv(x, 64), 96, 3), 96, 3)
    x = net.join(conv(x, 96), conv(conv(x, 48), 64, 5), double, conv(net.mean_pool(x, 3, 1, "SAME"), 64))
    for _ in range(blocks[0]):
        x = added(x, [conv(x, 32), conv(conv(x, 32), 32, 3), conv(conv(conv(x, 32), 48, 3), 64, 3)], 0.17)
    x = net.join(conv(x, 384, 3, 2), conv(conv(conv(x, 256), 256, 3), 384, 3, 2), net.max_pool(x, 3, 2))
    for _ in range(blocks[1]):
        x = added(x, [conv(x, 192), conv(conv(conv(x, 128), 160, (1, 7)), 192, (7, 1))], 0.1)
    ends = [conv(conv(x, 256), 384, 3, 2), conv(conv(x, 256), 288, 3, 2)]
    x = net.join(*ends, conv(conv(conv(x, 256), 288, 3), 320, 3, 2), net.max_pool(x, 3, 2))
    for block in range(blocks[2]):
        towers = [conv(x, 192), conv(conv(conv(x, 192), 224, (1, 3)), 256, (3, 1))]
        x = added(x, towers, 0.2, "RELU" if block < blocks[2] - 1 else "NONE")
    net.classify(net.mean(conv(x, 1536)), classes)


@of_torch_pictures("SE-ResNeXt-50")
def seresnext50(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Hu et al. 2017: 32 groups and gates; 27.6 million parameters."""
    net.classify(net.mean(resnet(net, x, width, (3, 4, 6, 3), inner=2, groups=32, gated=True)[-1]), classes)


@of_torch_pictures("Res2Net-50")
def res2net50(
    net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, blocks: Blocks = (3, 4, 6, 3)
) -> None:
    """Gao et al. 2019, as in timm (26w, 4s): quarters of the channels, each with the result of the one before added;
    25.7 million parameters."""
    x = net.max_pool(net.pad(net.conv(x, wide(64, width), 7, 2, pad=3), 1, 1), 3, 2)
    for stage, count in enumerate(blocks):
        quarter = max(8, int(26 * width)) << stage
        outward = wide(256, width) << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            shortcut = x if block else net.conv(x, outward, stride=stride, activation="NONE")
            y = net.conv(x, 4 * quarter)
            parts = [net.span(y, 3, i * quarter, quarter) for i in range(4)]
            done: list[Tensor] = []
            for part in parts[:3]:
                part = net.add(part, done[-1]) if block and done else part
                done.append(net.conv(part, quarter, 3, stride, pad=1 if stride > 1 else 0))
            last = parts[3] if block else net.mean_pool(parts[3], 3, stride, "SAME")
            x = net.add(net.conv(net.join(*done, last), outward, activation="NONE"), shortcut, "RELU")
    net.classify(net.mean(x), classes)


@of_torch_pictures("DPN-92")
def dpn92(
    net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, blocks: Blocks = (3, 4, 20, 3)
) -> None:
    """Chen et al. 2017: some channels are added up, others joined, batch norms in front, 32 groups; 37.7 million
    parameters."""
    x = net.conv(x, wide(64, width), 7, 2, pad=3)
    x = net.max_pool(net.pad(x, 1, 1), 3, 2)
    for stage, (count, grown) in enumerate(zip(blocks, (16, 32, 24, 128), strict=True)):
        outward, grown = wide(256, width) << stage, wide(grown, width)
        inner = 32 * max(1, int(3 * width)) << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            if not block:
                both = net.plain(net.norm_activate(x), outward + 2 * grown, 1, stride)
                summed, joined = net.span(both, 3, 0, outward), net.span(both, 3, outward, 2 * grown)
            y = net.conv(net.norm_activate(x), inner)
            y = net.conv(y, inner, 3, stride, pad=1 if stride > 1 else 0, groups=32)
            y = net.plain(y, outward + grown)
            summed = net.add(summed, net.span(y, 3, 0, outward))
            joined = net.join(joined, net.span(y, 3, outward, grown))
            x = net.join(summed, joined)
    net.classify(net.mean(net.norm_activate(x)), classes)


@of_torch_pictures("BiT ResNet-50")
def bit_resnet50(
    net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, blocks: Blocks = (3, 4, 6, 3)
) -> None:
    """Kolesnikov et al. 2019: group norms in front of the convolutions; 25.5 million parameters."""

    def norm(x: Tensor) -> Tensor:
        return net.activate(net.group_norm_of_keras(x, 32 if x.channels % 32 == 0 else 8), "RELU")

    x = net.conv(x, wide(64, width), 7, 2, pad=3, activation="NONE")
    x = net.max_pool(net.pad(x, 1, 1), 3, 2)
    for stage, count in enumerate(blocks):
        narrow = wide(64, width) << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            before = norm(x)
            shortcut = x if block else net.plain(before, 4 * narrow, 1, stride)
            y = net.plain(norm(net.plain(before, narrow)), narrow, 3, stride)
            x = net.add(net.plain(norm(y), 4 * narrow), shortcut)
    net.classify(net.mean(norm(x)), classes)


@of_torch_pictures("NFNet-F0", 192)
def nfnet_f0(
    net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, blocks: Blocks = (1, 2, 6, 3)
) -> None:
    """Brock et al. 2021: no norms but scaled GELU, 3x3 layers in groups of 128 channels, gates; 71.5 million
    parameters."""

    def gelu(x: Tensor, times: float = 1.0) -> Tensor:
        return net.scale("MUL", net.activate(x, "GELU"), 1.7015 * times)

    def conv(x: Tensor, filters: int, kernel: int = 1, stride: int = 1, group: int = 0) -> Tensor:
        group = group or x.channels
        weights = net._normal((filters, kernel, kernel, group), fan_in=kernel**2 * group)
        options = dict(stride_h=stride, stride_w=stride, padding="SAME")
        return net.apply("CONV_2D", [x], [weights, net._bias(filters)], options)

    for number, channels in enumerate((16, 32, 64, 128)):
        x = conv(x, wide(channels, width), 3, 1 if number in (1, 2) else 2)
        x = gelu(x) if number < 3 else x
    expected = 1.0
    for stage, (count, full) in enumerate(zip(blocks, (256, 512, 1536, 1536), strict=True)):
        channels = wide(full, width)
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = gelu(x, expected**-0.5)
            if not block:
                x = conv(net.mean_pool(y, 2, 2) if stride > 1 else y, channels)
                expected = 1.0
            middle = channels // 2
            group = math.gcd(128, middle)
            y = gelu(conv(y, middle))
            y = gelu(conv(gelu(conv(y, middle, 3, stride, group)), middle, 3, 1, group))
            y = net.gate(conv(y, channels), channels // 2, "RELU", flat=False)
            x = net.add(net.scale("MUL", y, 0.4), x)
            expected += 0.04
    net.classify(net.mean(gelu(conv(x, 2 * x.channels))), classes)


# (windows, groups of the first 1x1 layer, of the last, stride, expansion, channels, gate's part of the input, blocks)
_MIXED = (
    *(((3,), 1, 1, 1, 1, 16, 0.0, 1), ((3,), 2, 2, 2, 6, 24, 0.0, 1), ((3,), 2, 2, 1, 3, 24, 0.0, 1)),
    *(((3, 5, 7), 1, 1, 2, 6, 40, 0.5, 1), ((3, 5), 2, 2, 1, 6, 40, 0.5, 3)),
    *(((3, 5, 7), 1, 2, 2, 6, 80, 0.25, 1), ((3, 5), 1, 2, 1, 6, 80, 0.25, 2)),
    *(((3, 5, 7), 2, 2, 1, 6, 120, 0.5, 1), ((3, 5, 7, 9), 2, 2, 1, 3, 120, 0.5, 2)),
    *(((3, 5, 7, 9, 11), 1, 1, 2, 6, 200, 0.5, 1), ((3, 5, 7, 9), 1, 2, 1, 6, 200, 0.5, 2)),
)


@of_torch_pictures("MixNet-S")
def mixnet_s(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Tan and Le 2019: depthwise windows of several sizes side by side, 1x1 layers in halves; 4.1 million
    parameters."""

    def sizes(channels: int, count: int) -> list[int]:
        each = channels // count
        return [channels - each * (count - 1), *[each] * (count - 1)]

    def parts(x: Tensor, count: int) -> list[Tensor]:
        begins = np.cumsum([0, *sizes(x.channels, count)])
        return [net.span(x, 3, int(a), int(b - a)) for a, b in pairwise(begins)]

    def pointwise(x: Tensor, filters: int, groups: int, activation: str) -> Tensor:
        if groups == 1:
            return net.conv(x, filters, activation=activation)
        halves = zip(parts(x, groups), sizes(filters, groups), strict=True)
        return net.activate(net.join(*(net.conv(y, n, activation="NONE") for y, n in halves)), activation)

    x = net.conv(x, wide(16, width), 3, 2, pad=1)
    for windows, first, last, stride, expansion, full, gated, blocks in _MIXED:
        activation = "SWISH" if gated else "RELU"
        for block in range(blocks):
            step, before = 1 if block else stride, x
            y = pointwise(x, expansion * x.channels, first, activation) if expansion > 1 else x
            if len(windows) == 1:
                y = net.separate(y, step, windows[0], activation)
            else:
                mixed = zip(parts(y, len(windows)), windows, strict=True)
                y = net.activate(net.join(*(net.separate(z, step, k, "NONE") for z, k in mixed)), activation)
            y = net.gate(y, max(1, int(before.channels * gated)), flat=False) if gated else y
            y = pointwise(y, wide(full, width), last, "NONE")
            x = net.add(y, before) if step == 1 and y.channels == before.channels else y
    net.classify(net.mean(net.conv(x, wide(1536, width))), classes)


# (expansion, stride, channels, blocks, gated)
_EFFICIENT_2 = (
    *((1, 1, 24, 2, False), (4, 2, 48, 4, False), (4, 2, 64, 4, False)),
    *((4, 2, 128, 6, True), (6, 1, 160, 9, True), (6, 2, 256, 15, True)),
)


@of_torch_pictures("EfficientNet v2 S", pictures=1)
def efficientnet_v2_s(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Tan and Le 2021, as in torchvision: 3x3 layers that widen, then depthwise ones; 21.5 million parameters."""
    x = net.conv(x, wide(24, width), 3, 2, pad=1, activation="SWISH")
    for expansion, first, full, blocks, gated in _EFFICIENT_2:
        for block in range(blocks):
            stride, channels, inner = 1 if block else first, wide(full, width), expansion * x.channels
            if gated:
                y = net.separate(net.conv(x, inner, activation="SWISH"), stride, activation="SWISH")
                y = net.conv(net.gate(y, max(1, x.channels // 4), flat=False), channels, activation="NONE")
            elif expansion == 1:
                y = net.conv(x, channels, 3, activation="SWISH")
            else:
                y = net.conv(x, inner, 3, stride, pad=1 if stride > 1 else 0, activation="SWISH")
                y = net.conv(y, channels, activation="NONE")
            x = net.add(y, x) if stride == 1 and y.channels == x.channels else y
    net.classify(net.mean(net.conv(x, wide(1280, width), activation="SWISH")), classes)


@of_torch_pictures("DLA-34")
def dla34(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Yu et al. 2018: trees of residual blocks whose results 1x1 layers join; 15.7 million parameters."""

    def basic(x: Tensor, channels: int, stride: int, shortcut: Tensor | None) -> Tensor:
        y = net.conv(x, channels, 3, stride, pad=1 if stride > 1 else 0)
        return net.add(net.conv(y, channels, 3, activation="NONE"), x if shortcut is None else shortcut, "RELU")

    def tree(x: Tensor, depth: int, channels: int, stride: int, above: Sequence[Tensor], root: bool) -> Tensor:
        bottom = net.max_pool(x, stride, stride) if stride > 1 else x
        children = [*above, bottom] if root else list(above)
        if depth > 1:
            first = tree(x, depth - 1, channels, stride, (), False)
            return tree(first, depth - 1, channels, 1, [*children, first], False)
        shortcut = net.conv(bottom, channels, activation="NONE") if x.channels != channels else bottom
        first = basic(x, channels, stride, shortcut)
        return net.conv(net.join(basic(first, channels, 1, None), first, *children), channels)

    x = net.conv(net.conv(net.conv(x, wide(16, width), 7), wide(16, width), 3), wide(32, width), 3, 2, pad=1)
    for channels, depth in ((64, 1), (128, 2), (256, 2), (512, 1)):
        x = tree(x, depth, wide(channels, width), 2, (), channels > 64)
    net.classify(net.mean(x), classes)
