"""Networks from pictures to pictures and boxes: U-Net, EDSR, ESPCN, and detectors like YOLOv8 and EfficientDet."""

from __future__ import annotations

import numpy as np

from litegpu.model.types import TensorType
from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_pictures, of_torch_pictures

Tensor = NetworkTensor


@of_pictures("U-Net", 256)
def unet(net: StrangeLayers, x: Tensor, *, width: float = 1.0) -> None:
    """Ronneberger et al. 2015, as in Keras with 32 channels at first: transposed convolutions, skips, a mask."""

    def double(x: Tensor, channels: int) -> Tensor:
        return net.conv(net.conv(x, channels, 3), channels, 3)

    skips = []
    channels = wide(32, width)
    for level in range(4):
        skips.append(double(x, channels << level))
        x = net.max_pool(skips[-1], 2, 2)
    x = double(x, channels << 4)
    for level in reversed(range(4)):
        x = double(net.join(net.transposed(x, channels << level), skips[level]), channels << level)
    net.output("mask", net.op("LOGISTIC", [net.head(x, 1, deviation=3)]).tensor)


@of_torch_pictures("YOLO-like", 320)
def yolo(net: StrangeLayers, picture: Tensor, *, width: float = 1.0, classes: int = 80) -> None:
    """In the manner of YOLOv8n through onnx2tf: SiLU, split and joined blocks, poolings one after the other, boxes as
    distributions whose mean a convolution takes; 3.2 million parameters. Boxes and scores [batch, 4 + classes, n]."""

    def silu(x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, channels, kernel, stride, pad=1 if stride == 2 else 0, activation="SWISH")

    def conv(x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return silu(x, 2 * wide(channels / 2, width), kernel, stride)

    def block(x: Tensor, channels: int, count: int, residual: bool = True) -> Tensor:
        parts = net.split(conv(x, channels), 2)
        for _ in range(count):
            half = parts[-1].channels
            y = silu(silu(parts[-1], half, 3), half, 3)
            parts.append(net.add(parts[-1], y) if residual else y)
        return conv(net.join(*parts), channels)

    x = block(conv(conv(picture, 16, 3, 2), 32, 3, 2), 32, 1)
    third = block(conv(x, 64, 3, 2), 64, 2)
    fourth = block(conv(third, 128, 3, 2), 128, 2)
    x = block(conv(fourth, 256, 3, 2), 256, 1)
    pools = [conv(x, 128)]
    for _ in range(3):
        pools.append(net.max_pool(pools[-1], 5, 1, "SAME"))
    fifth = conv(net.join(*pools), 256)
    x = block(net.join(net.enlarge(fifth), fourth), 128, 1, False)
    fine = block(net.join(net.enlarge(x), third), 64, 1, False)
    middle = block(net.join(conv(fine, 64, 3, 2), x), 128, 1, False)
    coarse = block(net.join(conv(middle, 128, 3, 2), fifth), 256, 1, False)
    rows = []
    for level in (fine, middle, coarse):
        boxes = net.head(conv(conv(level, 64, 3), 64, 3), 64)
        scores = net.head(conv(conv(level, 80, 3), 80, 3), classes, mean=-3)
        y = net.join(boxes, scores)
        y = net.transpose(y, 0, 3, 1, 2)  # what the exporter flattens has the channels in front
        rows.append(net.reshape(y, y.sample.shape[1], y.sample[0, 0].size))
    x = net.join(*rows, axis=2)
    places = x.sample.shape[2]
    boxes, scores = net.span(x, 1, 0, 64), net.span(x, 1, 64, classes)
    y = net.transpose(net.reshape(boxes, 4, 16, places), 0, 3, 1, 2)
    y = net.op("SOFTMAX", [y], dict(beta=1.0))
    weights = np.arange(16, dtype=np.float32).reshape(1, 1, 1, 16)
    options = dict(stride_h=1, stride_w=1, padding="SAME")
    y = net.apply("CONV_2D", [y], [weights, np.zeros(1, np.float32)], options)
    y = net.transpose(net.reshape(y, places, 4), 0, 2, 1)
    anchors = net.rng.uniform(0, 40, (1, 2, places))
    near = net.op("NEG", [net.scale("SUB", net.span(y, 1, 0, 2), anchors)])
    far = net.scale("ADD", net.span(y, 1, 2, 2), anchors)
    centre = net.scale("MUL", net.add(near, far), 0.5)
    boxes = net.scale("MUL", net.join(centre, net.op("SUB", [far, near]), axis=1), 8)
    net.output("boxes", net.join(boxes, net.op("LOGISTIC", [scores]), axis=1).tensor)


@of_torch_pictures("EDSR x2", 96)
def edsr(net: StrangeLayers, x: Tensor, *, width: float = 1.0, depth: int = 16) -> None:
    """Lim et al. 2017, the small one: residual blocks without norms, and pixels from channels by six axes."""
    first = x = net.plain(x, wide(64, width), 3)
    for _ in range(depth):
        y = net.plain(net.plain(x, x.channels, 3, activation="RELU"), x.channels, 3)
        x = net.add(x, net.scale("MUL", y, 0.1))
    x = net.plain(net.add(net.plain(x, x.channels, 3), first), 4 * x.channels, 3)
    net.output("picture", net.plain(net.shuffled_pixels(x, 2), 3, 3).tensor)


@of_pictures("ESPCN x3", 128)
def espcn(net: StrangeLayers, x: Tensor, *, width: float = 1.0) -> None:
    """Shi et al. 2016, as in Keras: DEPTH_TO_SPACE."""
    x = net.plain(x, wide(64, width), 5, activation="RELU")
    x = net.plain(net.plain(x, wide(64, width), 3, activation="RELU"), wide(32, width), 3, activation="RELU")
    net.output("picture", net.op("DEPTH_TO_SPACE", [net.plain(x, 27, 3)], dict(block_size=3)).tensor)


@of_pictures("EfficientDet-like", 256)
def efficientdet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 20, kept: int = 20) -> None:
    """A weighted pyramid both ways (Tan et al. 2019), heads shared by its levels, and NON_MAX_SUPPRESSION_V5 of each
    place's best class: boxes [kept, 4], scores and classes [kept], and how many they are. One picture only."""
    channels = wide(64, width)
    maps = []
    for number, filters in enumerate((32, 48, 96, 128, 192)):
        x = net.conv(x, wide(filters, width), 3, 2, activation="SWISH")
        y = net.separate(net.conv(x, 4 * x.channels, activation="SWISH"), activation="SWISH")
        x = net.add(x, net.conv(net.gate(y, max(4, x.channels // 4)), x.channels, activation="NONE"))
        if number >= 2:
            maps.append(net.conv(x, channels, activation="NONE"))

    def mixed(*parts: Tensor) -> Tensor:
        weights = net.rng.uniform(0.1, 1, len(parts))
        scaled = [net.scale("MUL", y, w) for y, w in zip(parts, weights / weights.sum(), strict=True)]
        total = scaled[0]
        for other in scaled[1:]:
            total = net.add(total, other)
        return net.conv(net.depthwise_bare(net.activate(total, "SWISH"), 3), channels, activation="NONE")

    for _ in range(2):
        down = [maps[-1]]
        for level in maps[-2::-1]:
            down.insert(0, mixed(level, net.enlarge(down[0])))
        up = [down[0]]
        for level, between in zip(maps[1:], down[1:], strict=True):
            up.append(mixed(level, between, net.max_pool(up[-1], 3, 2, "SAME")))
        maps = up

    boxes, scores = [], []
    for y in maps:
        one = two = y
        for _ in range(2):
            one = net.conv(net.depthwise_bare(one, 3), channels, activation="SWISH")
            two = net.conv(net.depthwise_bare(two, 3), channels, activation="SWISH")
        boxes.append(net.rows(net.head(one, 9 * 4, deviation=0.5), 4))
        scores.append(net.rows(net.head(two, 9 * classes, mean=-2.5, deviation=1.5), classes))
    anchors = _anchors([y.sample.shape[1:3] for y in maps])
    deltas, logits = (net.join(*parts, axis=0) for parts in (boxes, scores))
    net.pictures = 1  # what follows is measured on one, whose anchors are constants
    deltas, logits = (Tensor(y.tensor, y.sample[: len(anchors)]) for y in (deltas, logits))
    _suppressed(net, deltas, net.op("LOGISTIC", [logits]), anchors, kept)


def _anchors(maps: list[tuple[int, ...]]) -> np.ndarray:
    """[n, 4]: centre y, x, height, width."""
    rows = []
    for height, width in maps:
        for y in range(height):
            for x in range(width):
                for size in (1, 1.26, 1.59):
                    for ratio in (0.7, 1, 1.4):
                        high, broad = 3 * size * ratio / height, 3 * size / ratio / width
                        rows.append(((y + 0.5) / height, (x + 0.5) / width, high, broad))
    return np.array(rows, np.float32)


def _suppressed(net: StrangeLayers, deltas: Tensor, scores: Tensor, anchors: np.ndarray, kept: int) -> None:
    build = net.builder
    n = len(anchors)

    def constant(value: object) -> int:
        return build.constant(np.asarray(value))

    def part(begin: int) -> Tensor:
        return net.span(deltas, 1, begin, 2)

    middle = net.scale("ADD", net.scale("MUL", part(0), anchors[:, 2:]), anchors[:, :2])
    half = net.scale("MUL", net.op("EXP", [part(2)]), anchors[:, 2:] / 2)
    boxes = net.join(net.op("SUB", [middle, half]), net.op("ADD", [middle, half]), axis=1).tensor
    axis = constant(np.array([1], np.int32))
    best = build.op("REDUCE_MAX", [scores.tensor, axis], (n,), dict(keep_dims=False))
    label = build.op("ARG_MAX", [scores.tensor, constant(np.int32(1))], (n,), dict(output_type="INT32"))
    operands = [boxes, best, constant(np.int32(kept)), constant(np.float32(0.5)), constant(np.float32(0.1))]
    outputs = [((kept,), TensorType.INT32), ((kept,), TensorType.FLOAT32), ((), TensorType.INT32)]
    rows, values, count = build.op_multi("NON_MAX_SUPPRESSION_V5", [*operands, constant(np.float32(0))], outputs)
    net.output("boxes", build.op("GATHER", [boxes, rows], (kept, 4), dict(axis=0)))
    net.output("scores", values)
    net.output("classes", build.op("GATHER", [label, rows], (kept,), dict(axis=0)))
    net.output("count", count)
