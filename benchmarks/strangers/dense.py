"""Networks whose result is as large as a picture: segmentation, detection, restoration, generation."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_frames, of_pictures, of_torch_pictures
from strangers.residual import resnet

Tensor = NetworkTensor


@of_torch_pictures("DeepLab v3 ResNet-50", pictures=1)
def deeplab_resnet50(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 21) -> None:
    """Chen et al. 2017, as in torchvision: the last two stages dilated, and windows of dilation 12, 24 and 36 side by
    side; 39.6 million parameters."""
    size = x.sample.shape[1]
    x = resnet(net, x, width, (3, 4, 6, 3), dilated=True)[-1]
    channels, (rows, columns) = wide(256, width), x.sample.shape[1:3]
    parts = [net.conv(x, channels), *(net.conv(x, channels, 3, dilation=rate) for rate in (12, 24, 36))]
    parts.append(net.smooth(net.plain(net.mean(x, keep=True), channels, activation="RELU"), rows, columns))
    y = net.conv(net.conv(net.join(*parts), channels), channels, 3)
    net.output("classes", net.smooth(net.head(y, classes), size, size).tensor)


@of_torch_pictures("RetinaNet ResNet-50", 256)
def retinanet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 91) -> None:
    """Lin et al. 2017, as in torchvision without the choice of boxes: a pyramid of five levels and heads that these
    share; 34 million parameters. Scores [batch, n, classes] and boxes [batch, n, 4]."""
    channels = wide(256, width)
    levels = [net.plain(y, channels) for y in resnet(net, x, width, (3, 4, 6, 3))[1:]]
    for i in (1, 0):
        levels[i] = net.add(levels[i], net.enlarge(levels[i + 1]))
    levels = [net.plain(y, channels, 3) for y in levels]
    levels.append(net.plain(levels[-1], channels, 3, 2))
    levels.append(net.plain(net.activate(levels[-1], "RELU"), channels, 3, 2))
    for name, count in (("scores", classes), ("boxes", 4)):
        weights = [net._normal((channels, 3, 3, channels), 9 * channels) * np.float32(1.4) for _ in range(4)]
        weights.append(net._normal((9 * count, 3, 3, channels), 9 * channels))
        layers = [(w, b, net._constant(w), net._constant(b)) for w in weights for b in [net._bias(len(w))]]
        rows = []
        for y in levels:
            for w, b, *shared in layers:
                options = dict(stride_h=1, stride_w=1, padding="SAME")
                options |= dict(fused_activation_function="RELU") if len(w) == channels else {}
                sample = net._measure("CONV_2D", [y.sample, w, b], options)
                y = net._made(net.builder.op("CONV_2D", [y.tensor, *shared], net.shape_of(sample), options), sample)
            rows.append(net.reshape(y, y.sample[0, :, :, 0].size * 9, count))
        net.output(name, net.join(*rows, axis=1).tensor)


@of_torch_pictures("LinkNet", 256)
def linknet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 2) -> None:
    """Chaurasia and Culurciello 2017: ResNet-18 and transposed convolutions of 3x3 that are added to what came before;
    11.5 million parameters."""
    stages = resnet(net, x, width, (2, 2, 2, 2), basic=True)
    y = stages[-1]
    for i in reversed(range(4)):
        channels = stages[max(i - 1, 0)].channels
        y = net.conv(y, y.channels // 4)
        y = net.transposed(y, y.channels, 3) if i else net.conv(y, y.channels, 3)
        y = net.conv(net.activate(y, "RELU") if i else y, channels)
        y = net.add(y, stages[i - 1]) if i else y
    y = net.activate(net.transposed(y, wide(32, width), 3), "RELU")
    y = net.conv(y, y.channels, 3)
    net.output("mask", net.transposed(y, classes).tensor)


@of_torch_pictures("YOLOX-S", 640, pictures=1)
def yolox_s(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 80) -> None:
    """Ge et al. 2021: quarters of the picture joined, cross-stage blocks with SiLU, a pyramid both ways and separate
    heads; 9 million parameters. [batch, n, 5 + classes]."""

    def conv(x: Tensor, filters: float, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, wide(filters, width), kernel, stride, pad=1 if stride > 1 else 0, activation="SWISH")

    def block(x: Tensor, filters: int, count: int, residual: bool = True) -> Tensor:
        y, past = conv(x, filters / 2), conv(x, filters / 2)
        for _ in range(count):
            inner = conv(conv(y, filters / 2), filters / 2, 3)
            y = net.add(inner, y) if residual else inner
        return conv(net.join(y, past), filters)

    quarters = [net.every_second(x, row, column) for column in (0, 1) for row in (0, 1)]
    x = conv(net.join(*quarters), 32, 3)
    x = block(conv(x, 64, 3, 2), 64, 1)
    third = block(conv(x, 128, 3, 2), 128, 3)
    fourth = block(conv(third, 256, 3, 2), 256, 3)
    x = conv(conv(fourth, 512, 3, 2), 256)
    x = conv(net.join(x, *(net.max_pool(x, n, 1, "SAME") for n in (5, 9, 13))), 512)
    fifth = conv(block(x, 512, 1, False), 256)
    y = conv(block(net.join(net.enlarge(fifth), fourth), 256, 1, False), 128)
    fine = block(net.join(net.enlarge(y), third), 128, 1, False)
    middle = block(net.join(conv(fine, 128, 3, 2), y), 256, 1, False)
    coarse = block(net.join(conv(middle, 256, 3, 2), fifth), 512, 1, False)
    rows = []
    for level in (fine, middle, coarse):
        level = conv(level, 128)
        scores = net.head(conv(conv(level, 128, 3), 128, 3), classes, mean=-3)
        y = conv(conv(level, 128, 3), 128, 3)
        boxes, objects = net.head(y, 4), net.head(y, 1, mean=-3)
        y = net.join(boxes, net.op("LOGISTIC", [objects]), net.op("LOGISTIC", [scores]))
        rows.append(net.reshape(y, y.sample[0, :, :, 0].size, 5 + classes))
    net.output("boxes", net.join(*rows, axis=1).tensor)


@of_torch_pictures("DnCNN", 128)
def dncnn(net: StrangeLayers, picture: Tensor, *, width: float = 1.0, depth: int = 15) -> None:
    """Zhang et al. 2016: seventeen layers of 3x3 at full resolution, whose result is taken from the picture; 0.56
    million parameters."""
    x = net.plain(picture, wide(64, width), 3, activation="RELU")
    for _ in range(depth):
        x = net.conv(x, x.channels, 3)
    net.output("picture", net.op("SUB", [picture, net.plain(x, 3, 3)]).tensor)


@of_torch_pictures("ESRGAN-like x4", 64)
def esrgan(net: StrangeLayers, x: Tensor, *, width: float = 1.0, depth: int = 4) -> None:
    """Wang et al. 2018, the generator with fewer blocks: each layer of a dense block reads all that came before, leaky
    RELUs, sums of a fifth; nearest neighbours twice over."""

    def leaky(x: Tensor, filters: int) -> Tensor:
        return net.apply("LEAKY_RELU", [net.plain(x, filters, 3)], options=dict(alpha=0.2))

    def dense_block(x: Tensor) -> Tensor:
        parts = [x]
        for _ in range(4):
            parts.append(leaky(net.join(*parts) if len(parts) > 1 else x, x.channels // 2))
        return net.add(x, net.scale("MUL", net.plain(net.join(*parts), x.channels, 3), 0.2))

    first = x = net.plain(x, wide(64, width), 3)
    for _ in range(depth):
        y = dense_block(dense_block(dense_block(x)))
        x = net.add(x, net.scale("MUL", y, 0.2))
    x = net.add(net.plain(x, x.channels, 3), first)
    for _ in range(2):
        x = leaky(net.enlarge(x), x.channels)
    net.output("picture", net.plain(leaky(x, x.channels), 3, 3).tensor)


@of_pictures("style transfer with instance norms", 256)
def stylize(net: StrangeLayers, x: Tensor, *, width: float = 1.0, depth: int = 5) -> None:
    """Johnson et al. 2016 with instance norms, op by op: windows of 9x9, residual blocks, nearest neighbours; 1.7
    million parameters."""

    def norm(x: Tensor, activation: str = "RELU") -> Tensor:
        return net.activate(net.instance_norm(x), activation)

    conv = net.reflected
    x = norm(conv(x, wide(32, width), 9))
    for channels in (64, 128):
        x = norm(conv(x, wide(channels, width), 3, 2))
    for _ in range(depth):
        x = net.add(x, norm(conv(norm(conv(x, x.channels)), x.channels), "NONE"))
    for channels in (64, 32):
        x = norm(conv(net.enlarge(x), wide(channels, width)))
    net.output("picture", conv(x, 3, 9).tensor)


@of_frames("DCGAN", 1, 100)
def dcgan(net: StrangeLayers, x: Tensor, *, width: float = 1.0) -> None:
    """Radford et al. 2015, the generator: pictures of 64x64 from noise [batch, 1, 100] by transposed convolutions of
    4x4; 12.7 million parameters."""
    channels = wide(1024, width)
    x = net.activate(net.reshape(net.dense(x, 16 * channels), 4, 4, channels), "RELU")
    for level in (1, 2, 3):
        x = net.activate(net.transposed(x, channels >> level, 4), "RELU")
    net.output("picture", net.op("TANH", [net.transposed(x, 3, 4)]).tensor)
