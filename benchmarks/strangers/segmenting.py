"""Networks that say of every place what is there: segmentation with pyramids and nested skips, poses, boxes."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_torch_pictures
from strangers.residual import resnet

Tensor = NetworkTensor


@of_torch_pictures("PSPNet ResNet-50", 240, pictures=1)
def pspnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 21) -> None:
    """Zhao et al. 2017: averages of four sizes beside 30x30 places, 3x3 of 4096 channels; 46.7 million parameters."""
    size = x.sample.shape[1]
    x = resnet(net, x, width, (3, 4, 6, 3), dilated=True)[-1]
    places, parts = x.sample.shape[1], [x]
    for bins in (1, 2, 3, 6):
        y = net.mean_pool(x, places // bins, places // bins) if places >= 6 else net.mean(x, keep=True)
        parts.append(net.smooth(net.conv(y, x.channels // 4), places, places))
    y = net.conv(net.join(*parts), wide(512, width), 3)
    net.output("classes", net.smooth(net.head(y, classes), size, size).tensor)


@of_torch_pictures("U-Net++", 256, pictures=1)
def unet_plus(net: StrangeLayers, x: Tensor, *, width: float = 1.0, levels: int = 5) -> None:
    """Zhou et al. 2018: every node joins all before it at its level and the one below, enlarged; 9.2 million
    parameters."""

    def double(x: Tensor, channels: int) -> Tensor:
        return net.conv(net.conv(x, channels, 3), channels, 3)

    sizes = [wide(32, width) << level for level in range(levels)]
    rows = [[double(x, sizes[0])]]
    for level in range(1, levels):
        rows.append([double(net.max_pool(rows[-1][0], 2, 2), sizes[level])])
        for above in reversed(range(level)):
            side = 2 * rows[above + 1][-1].sample.shape[1]
            below = net.smooth(rows[above + 1][-1], side, side)
            rows[above].append(double(net.join(*rows[above], below), sizes[above]))
    net.output("mask", net.op("LOGISTIC", [net.head(rows[0][-1], 1, deviation=3)]).tensor)


@of_torch_pictures("BiSeNet ResNet-18", 384, pictures=1)
def bisenet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 19) -> None:
    """Yu et al. 2018: a shallow path beside a deep one, whose results gates refine; 13.4 million parameters."""
    size, channels = x.sample.shape[1], wide(128, width)

    def refined(x: Tensor) -> Tensor:
        y = net.conv(x, channels, 3)
        return net.op("MUL", [y, net.activate(net.plain(net.mean(y, keep=True), channels), "LOGISTIC")])

    fine = net.conv(x, wide(64, width), 7, 2, pad=3)
    for _ in range(2):
        fine = net.conv(fine, wide(64, width), 3, 2, pad=1)
    fine = net.conv(fine, channels)
    *_, fourth, fifth = resnet(net, x, width, (2, 2, 2, 2), basic=True)
    y = net.add(refined(fifth), net.plain(net.mean(fifth, keep=True), channels, activation="RELU"))
    y = net.conv(net.enlarge(y), channels, 3)
    y = net.conv(net.enlarge(net.add(refined(fourth), y)), channels, 3)
    y = net.conv(net.join(fine, y), 2 * channels)
    y = net.add(y, net.gate(y, y.channels // 4, "RELU", flat=False))
    y = net.head(net.conv(y, y.channels, 3), classes)
    net.output("classes", net.smooth(y, size, size).tensor)


@of_torch_pictures("stacked hourglass", 256)
def hourglass(net: StrangeLayers, x: Tensor, *, width: float = 1.0, repeats: int = 2, joints: int = 16) -> None:
    """Newell et al. 2016, two of them: batch norms in front of residual blocks, down to 4x4 and up again; 6.7 million
    parameters."""

    def block(x: Tensor, channels: int) -> Tensor:
        y = net.conv(net.norm_activate(x), channels // 2)
        y = net.plain(net.conv(y, channels // 2, 3), channels)
        return net.add(net.plain(x, channels) if x.channels != channels else x, y)

    def glass(x: Tensor, levels: int) -> Tensor:
        y = block(net.max_pool(x, 2, 2), x.channels)
        y = glass(y, levels - 1) if levels > 1 else block(y, x.channels)
        return net.add(block(x, x.channels), net.enlarge(block(y, x.channels)))

    channels = wide(256, width)
    x = block(net.conv(x, channels // 4, 7, 2, pad=3), channels // 2)
    x = block(block(net.max_pool(x, 2, 2), channels // 2), channels)
    for number in range(repeats):
        y = net.conv(block(glass(x, 4), channels), channels)
        heat = net.head(y, joints)
        if number < repeats - 1:
            x = net.add(net.add(x, net.plain(y, channels)), net.plain(heat, channels))
        else:
            net.output("joints", heat.tensor)


@of_torch_pictures("YOLOv5s", 640, pictures=1)
def yolov5s(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 80) -> None:
    """Jocher 2020: a first layer of 6x6, cross-stage blocks with SiLU, poolings one after the other, a pyramid both
    ways; 7.2 million parameters. Boxes and scores [batch, n, 5 + classes] as shares of the picture."""

    def conv(x: Tensor, filters: float, kernel: int = 1, stride: int = 1) -> Tensor:
        pad = kernel // 2 if kernel == 3 else 2
        return net.conv(x, wide(filters, width), kernel, stride, pad=pad if stride > 1 else 0, activation="SWISH")

    def block(x: Tensor, filters: int, count: int, residual: bool = True) -> Tensor:
        y, past = conv(x, filters / 2), conv(x, filters / 2)
        for _ in range(count):
            inner = conv(conv(y, filters / 2), filters / 2, 3)
            y = net.add(y, inner) if residual else inner
        return conv(net.join(y, past), filters)

    size = x.sample.shape[1]
    x = block(conv(conv(x, 32, 6, 2), 64, 3, 2), 64, 1)
    third = block(conv(x, 128, 3, 2), 128, 2)
    fourth = block(conv(third, 256, 3, 2), 256, 3)
    pools = [conv(block(conv(fourth, 512, 3, 2), 512, 1), 256)]
    for _ in range(3):
        pools.append(net.max_pool(pools[-1], 5, 1, "SAME"))
    fifth = conv(conv(net.join(*pools), 512), 256)
    y = conv(block(net.join(net.enlarge(fifth), fourth), 256, 1, False), 128)
    fine = block(net.join(net.enlarge(y), third), 128, 1, False)
    middle = block(net.join(conv(fine, 128, 3, 2), y), 256, 1, False)
    coarse = block(net.join(conv(middle, 256, 3, 2), fifth), 512, 1, False)
    rows = []
    for level, step in zip((fine, middle, coarse), (8, 16, 32), strict=True):
        places = level.sample.shape[1]
        y = net.head(level, 3 * (5 + classes), mean=-2)
        y = net.op("LOGISTIC", [net.reshape(y, places**2, 3, 5 + classes)])
        grid = np.stack(np.meshgrid(np.arange(places), np.arange(places)), -1).reshape(1, -1, 1, 2)
        centre = net.scale("ADD", net.scale("MUL", net.span(y, 3, 0, 2), 2.0), grid - 0.5)
        centre = net.scale("MUL", centre, step / size)
        doubled = net.scale("MUL", net.span(y, 3, 2, 2), 2.0)
        sides = net.scale("MUL", net.op("MUL", [doubled, doubled]), net.rng.uniform(0.05, 0.5, (1, 1, 3, 2)))
        y = net.join(centre, sides, net.span(y, 3, 4, 1 + classes), axis=3)
        rows.append(net.reshape(y, 3 * places**2, 5 + classes))
    net.output("boxes", net.join(*rows, axis=1).tensor)
