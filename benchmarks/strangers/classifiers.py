"""Classifiers as Keras and PyTorch have them: towers of Inception and NASNet, Xception, pre-activation, searched mobile
networks, grouped convolutions, ghosts and high resolution."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.zoo.network import NetworkTensor
from strangers.layers import StrangeLayers, of_pictures, of_torch_pictures

Tensor = NetworkTensor


def wide(channels: float, width: float) -> int:
    """Channels under a width multiplier: a multiple of 8."""
    return max(8, int(channels * width + 4) // 8 * 8)


@of_pictures("Inception v3", 299)
def inception_v3(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Szegedy et al. 2015, as in Keras: 23.8 million parameters."""

    def conv(x: Tensor, filters: int, kernel: int | tuple[int, int] = 1, stride: int = 1, padding: str = "") -> Tensor:
        padding = padding or ("VALID" if stride > 1 else "SAME")
        return net.conv(x, wide(filters, width), kernel, stride, padding=padding)

    def pooled(x: Tensor, filters: int) -> Tensor:
        return conv(net.mean_pool(x, 3, 1, "SAME"), filters)

    x = conv(conv(conv(x, 32, 3, 2), 32, 3, 1, "VALID"), 64, 3)
    x = conv(conv(net.max_pool(x, 3, 2), 80, 1), 192, 3, 1, "VALID")
    x = net.max_pool(x, 3, 2)
    for last in (32, 64, 64):
        double = conv(conv(conv(x, 64), 96, 3), 96, 3)
        x = net.join(conv(x, 64), conv(conv(x, 48), 64, 5), double, pooled(x, last))
    x = net.join(conv(x, 384, 3, 2), conv(conv(conv(x, 64), 96, 3), 96, 3, 2), net.max_pool(x, 3, 2))
    for middle in (128, 160, 160, 192):
        one = conv(conv(conv(x, middle), middle, (1, 7)), 192, (7, 1))
        two = conv(conv(conv(conv(conv(x, middle), middle, (7, 1)), middle, (1, 7)), middle, (7, 1)), 192, (1, 7))
        x = net.join(conv(x, 192), one, two, pooled(x, 192))
    deep = conv(conv(conv(conv(x, 192), 192, (1, 7)), 192, (7, 1)), 192, 3, 2)
    x = net.join(conv(conv(x, 192), 320, 3, 2), deep, net.max_pool(x, 3, 2))
    for _ in range(2):
        one, two = conv(x, 384), conv(conv(x, 448), 384, 3)
        halves = [net.join(conv(y, 384, (1, 3)), conv(y, 384, (3, 1))) for y in (one, two)]
        x = net.join(conv(x, 320), *halves, pooled(x, 192))
    net.classify(net.mean(x), classes)


@of_pictures("Xception", 299)
def xception(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Chollet 2016, as in Keras: depthwise layers without activation in front of 1x1 ones; 22.9 million parameters."""

    def separate(x: Tensor, filters: int, activation: str = "NONE") -> Tensor:
        return net.conv(net.depthwise_bare(x, 3), wide(filters, width), activation=activation)

    x = net.conv(x, wide(32, width), 3, 2, padding="VALID")
    x = net.conv(x, wide(64, width), 3, padding="VALID")
    for number, filters in enumerate((128, 256, 728)):
        shortcut = net.conv(x, wide(filters, width), stride=2, activation="NONE")
        y = separate(net.activate(x, "RELU") if number else x, filters, "RELU")
        x = net.add(net.max_pool(separate(y, filters), 3, 2, "SAME"), shortcut)
    for _ in range(8):
        y = net.activate(x, "RELU")
        x = net.add(separate(separate(separate(y, 728, "RELU"), 728, "RELU"), 728), x)
    shortcut = net.conv(x, wide(1024, width), stride=2, activation="NONE")
    y = separate(separate(net.activate(x, "RELU"), 728, "RELU"), 1024)
    x = net.add(net.max_pool(y, 3, 2, "SAME"), shortcut)
    net.classify(net.mean(separate(separate(x, 1536, "RELU"), 2048, "RELU")), classes)


@of_pictures("ResNet-50 v2")
def resnet50_v2(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """He et al. 2016: batch norm and RELU in front of the convolutions; 25.5 million parameters."""
    x = net.conv(x, wide(64, width), 7, 2, pad=3, activation="NONE")
    x = net.max_pool(net.pad(x, 1, 1), 3, 2)
    for stage, (filters, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            narrow, stride = wide(filters, width), 2 if stage and not block else 1
            before = net.norm_activate(x)
            shortcut = x if block else net.plain(before, 4 * narrow, stride=stride)
            y = net.conv(before, narrow)
            y = net.conv(y, narrow, 3, stride, pad=1 if stride > 1 else 0)
            x = net.add(shortcut, net.plain(y, 4 * narrow))
    net.classify(net.mean(net.norm_activate(x)), classes)


@of_pictures("NASNet mobile")
def nasnet_mobile(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, repeats: int = 4) -> None:
    """Zoph et al. 2017, as in Keras: cells of separable convolutions in pairs, poolings and sums; 5.3 million
    parameters."""

    def separate(x: Tensor, filters: int, kernel: int, stride: int = 1) -> Tensor:
        y = net.conv(net.depthwise_bare(net.activate(x, "RELU"), kernel, stride), filters, activation="NONE")
        return net.conv(net.depthwise_bare(net.activate(y, "RELU"), kernel), filters, activation="NONE")

    def halved(x: Tensor, filters: int) -> Tensor:
        y = net.activate(x, "RELU")
        moved = net.pad(y, 0, 1)
        moved = net.span(net.span(moved, 1, 1, y.sample.shape[1]), 2, 1, y.sample.shape[2])
        parts = [net.conv(net.mean_pool(one, 1, 2), filters // 2, activation="NONE") for one in (y, moved)]
        return net.join(*parts)

    def squeezed(x: Tensor, filters: int) -> Tensor:
        return net.conv(net.activate(x, "RELU"), filters, activation="NONE")

    def adjusted(p: Tensor, x: Tensor, filters: int) -> Tensor:
        if p.sample.shape[1] != x.sample.shape[1]:
            return halved(p, filters)
        return squeezed(p, filters) if p.channels != filters else p

    def normal(x: Tensor, p: Tensor, filters: int) -> tuple[Tensor, Tensor]:
        p, h = adjusted(p, x, filters), squeezed(x, filters)
        parts = [
            net.add(separate(h, filters, 5), separate(p, filters, 3)),
            net.add(separate(p, filters, 5), separate(p, filters, 3)),
            net.add(net.mean_pool(h, 3, 1, "SAME"), p),
            net.add(net.mean_pool(p, 3, 1, "SAME"), net.mean_pool(p, 3, 1, "SAME")),
            net.add(separate(h, filters, 3), h),
        ]
        return net.join(p, *parts), x

    def reduced(x: Tensor, p: Tensor, filters: int) -> tuple[Tensor, Tensor]:
        p, h = adjusted(p, x, filters), squeezed(x, filters)
        one = net.add(separate(h, filters, 5, 2), separate(p, filters, 7, 2))
        two = net.add(net.max_pool(h, 3, 2, "SAME"), separate(p, filters, 7, 2))
        three = net.add(net.mean_pool(h, 3, 2, "SAME"), separate(p, filters, 5, 2))
        four = net.add(net.max_pool(h, 3, 2, "SAME"), separate(one, filters, 3))
        return net.join(two, three, net.add(net.mean_pool(one, 3, 1, "SAME"), two), four), x

    filters = max(8, int(44 * width) // 4 * 4)
    x = net.conv(x, wide(32, width), 3, 2, padding="VALID", activation="NONE")
    x, p = reduced(x, x, filters // 4 * 2)
    x, p = reduced(x, p, filters // 2 * 2)
    for stage in range(3):
        for _ in range(repeats):
            x, p = normal(x, p, filters << stage)
        if stage < 2:
            x, p = reduced(x, p, filters << (stage + 1))
    net.classify(net.mean(net.activate(x, "RELU")), classes)


_MNAS = ((3, 2, 3, 24, 3), (5, 2, 3, 40, 3), (5, 2, 6, 80, 3), (3, 1, 6, 96, 2), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1))


@of_torch_pictures("MnasNet 1.0")
def mnasnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Tan et al. 2018, as in torchvision: RELU, windows of 3 and 5; 4.4 million parameters."""
    x = net.conv(x, wide(32, width), 3, 2)
    x = net.conv(net.separate(x), wide(16, width), activation="NONE")
    for kernel, first, expansion, channels, blocks in _MNAS:
        for block in range(blocks):
            y = net.separate(net.conv(x, expansion * x.channels), 1 if block else first, kernel)
            y = net.conv(y, wide(channels, width), activation="NONE")
            x = net.add(x, y) if block else y
    net.classify(net.mean(net.conv(x, wide(1280, width))), classes)


@of_pictures("RegNetY-400MF")
def regnet_y(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Radosavovic et al. 2020: convolutions in groups of 8 channels, squeeze and excite; 4.3 million parameters."""
    stages = ((48, 1), (104, 3), (208, 6), (440, 6))
    net.classify(net.mean(regnet(net, x, width, stages, 8)), classes)


def regnet(
    net: StrangeLayers, x: Tensor, width: float, stages: Sequence[tuple[int, int]], group: int, *, gated: bool = True
) -> Tensor:
    """The last stage's result; (channels, blocks) of each, whose 3x3 layers have groups of so many channels."""
    x = net.conv(x, wide(32, width), 3, 2)
    for channels, blocks in stages:
        size = min(group, wide(channels, width))
        middle = max(1, int(channels * width / size + 0.5)) * size
        for block in range(blocks):
            before, stride = x.channels, 1 if block else 2
            shortcut = x if block else net.conv(x, middle, stride=2, activation="NONE")
            y = net.conv(net.conv(x, middle), middle, 3, stride, groups=middle // size)
            y = net.gate(y, max(4, before // 4), "RELU", flat=False) if gated else y
            x = net.add(shortcut, net.conv(y, middle, activation="NONE"), "RELU")
    return x


# (kernel, expanded, channels, squeeze and excite, stride)
_GHOST = (
    *((3, 16, 16, False, 1), (3, 48, 24, False, 2), (3, 72, 24, False, 1), (5, 72, 40, True, 2)),
    *((5, 120, 40, True, 1), (3, 240, 80, False, 2), (3, 200, 80, False, 1), (3, 184, 80, False, 1)),
    *((3, 184, 80, False, 1), (3, 480, 112, True, 1), (3, 672, 112, True, 1), (5, 672, 160, True, 2)),
    *((5, 960, 160, False, 1), (5, 960, 160, True, 1), (5, 960, 160, False, 1), (5, 960, 160, True, 1)),
)


@of_torch_pictures("GhostNet 1.0")
def ghostnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Han et al. 2019: half of each layer's channels are depthwise functions of the other half; 5.2 million
    parameters."""

    def ghost(x: Tensor, channels: int, activation: str = "RELU") -> Tensor:
        first = net.conv(x, channels // 2, activation=activation)
        return net.join(first, net.separate(first, activation=activation))

    x = net.conv(x, wide(16, width), 3, 2)
    for kernel, expanded, full, gated, stride in _GHOST:
        channels = wide(full, width)
        y = ghost(x, wide(expanded, width))
        y = net.separate(y, 2, kernel, "NONE") if stride == 2 else y
        y = net.gate(y, wide(y.channels / 4, 1), "RELU", "HARD_SIGMOID", flat=False) if gated else y
        y = ghost(y, channels, "NONE")
        if stride == 2 or x.channels != channels:
            x = net.conv(net.separate(x, stride, kernel, "NONE"), channels, activation="NONE")
        x = net.add(y, x)
    x = net.mean(net.conv(x, wide(960, width)), keep=True)
    x = net.plain(x, wide(1280, width), activation="RELU")
    net.classify(net.reshape(x, x.channels), classes)


@of_torch_pictures("HRNet W18 small")
def hrnet_w18_small(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Wang et al. 2019: four resolutions side by side, summed with one another again and again; 13.2 million
    parameters."""

    def basic(x: Tensor) -> Tensor:
        return net.add(net.conv(net.conv(x, x.channels, 3), x.channels, 3, activation="NONE"), x, "RELU")

    def bottleneck(x: Tensor, middle: int) -> Tensor:
        y = net.conv(net.conv(net.conv(x, middle), middle, 3), 4 * middle, activation="NONE")
        return net.add(y, x if x.channels == 4 * middle else net.conv(x, 4 * middle, activation="NONE"), "RELU")

    def halved(x: Tensor, channels: int, activation: str = "RELU") -> Tensor:
        return net.conv(x, channels, 3, 2, pad=1, activation=activation)

    def fused(branches: Sequence[Tensor]) -> list[Tensor]:
        results = []
        for i, target in enumerate(branches):
            total: Tensor | None = None
            for j, source in enumerate(branches):
                y = source
                if j > i:
                    y = net.enlarge(net.conv(source, target.channels, activation="NONE"), 1 << (j - i))
                for step in range(i - j):
                    last = step == i - j - 1
                    y = halved(y, target.channels if last else source.channels, "NONE" if last else "RELU")
                total = y if total is None else net.add(total, y, "RELU" if j == len(branches) - 1 else "NONE")
            assert total is not None
            results.append(total)
        return results

    x = halved(halved(x, wide(64, width)), wide(64, width))
    branches = [bottleneck(x, wide(32, width))]
    for count in (2, 3, 4):
        channels = [wide(16, width) << i for i in range(count)]
        if count == 2:
            branches = [net.conv(branches[0], channels[0], 3), halved(branches[0], channels[1])]
        else:
            branches.append(halved(branches[-1], channels[-1]))
        branches = fused([basic(basic(branch)) for branch in branches])
    y = bottleneck(branches[0], wide(32, width))
    for number, branch in enumerate(branches[1:], 1):
        y = net.add(bottleneck(branch, wide(32, width) << number), halved(y, 4 * wide(32, width) << number))
    net.classify(net.mean(net.conv(y, wide(2048, width))), classes)
