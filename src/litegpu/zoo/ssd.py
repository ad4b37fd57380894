"""SSD (Liu et al. 2016) on MobileNet v1, with the post-processing op that the object detection exporter appends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flatbuffers import flexbuffers

from litegpu.errors import OptionError
from litegpu.model.builder import SubgraphBuilder
from litegpu.model.types import TensorType
from litegpu.zoo.mobilenet import scaled, v1_features
from litegpu.zoo.network import Network

# (channels of the 1x1 and of the 3x3 stride 2 convolution) of the feature maps after the backbone's.
_EXTRA_LAYERS = ((256, 512), (128, 256), (128, 256), (64, 128))
_SCALES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)  # of the boxes of each feature map; the last is only interpolated to


def ssd_mobilenet_v1(
    *,
    seed: int = 0,
    precision: str = "float32",
    width: float = 1.0,
    resolution: int = 300,
    classes: int = 90,
    max_detections: int = 10,
) -> bytes:
    """[1, resolution, resolution, 3] in -1..1 to boxes [1, n, 4] (ymin, xmin, ymax, xmax in 0..1), classes [1, n],
    scores [1, n] and count [1], for n = max_detections; 64 ops, the last of them custom. The op takes batch 1 only.
    """
    if max_detections < 1:
        raise OptionError(f"max_detections is {max_detections}; it must be 1 or more")
    net = Network(f"SSD MobileNet v1 {width} {resolution}, seeded weights", seed=seed, precision=precision)
    backbone = v1_features(net, net.image("input", resolution, resolution), width)
    maps = [backbone[11], backbone[13]]
    for narrow, wide in _EXTRA_LAYERS:
        maps.append(net.convolution(net.convolution(maps[-1], scaled(narrow, width)), scaled(wide, width), 3, 2))

    encodings, scores = [], []
    for level, features in enumerate(maps):
        boxes = len(_boxes_per_cell(level))
        height, across = features.sample.shape[1:3]
        count = height * across * boxes
        encodings.append(net.reshape(net.head(features, 4 * boxes), count, 1, 4))
        logits = net.head(features, (classes + 1) * boxes, mean=-5.0, deviation=2.0)
        scores.append(net.reshape(logits, count, classes + 1))
    merged = net.reshape(net.op("CONCATENATION", encodings, dict(axis=1)), -1, 4)
    probabilities = net.op("LOGISTIC", [net.op("CONCATENATION", scores, dict(axis=1))])
    anchors = ssd_anchors([features.sample.shape[1:3] for features in maps])
    outputs = ssd_post_process(net.builder, merged.tensor, probabilities.tensor, anchors, classes, max_detections)
    for name, tensor in zip(("boxes", "classes", "scores", "count"), outputs, strict=True):
        net.output(name, tensor)
    return net.build()


def ssd_feature_maps(height: int, width: int) -> list[tuple[int, int]]:
    """The sizes of the feature maps of an SSD on MobileNet for a picture: 1/16 of it, and then half of the last."""
    maps = [(-(-height // 16), -(-width // 16))]
    for _ in range(len(_EXTRA_LAYERS) + 1):
        maps.append((-(-maps[-1][0] // 2), -(-maps[-1][1] // 2)))
    return maps


def ssd_anchors(maps: Sequence[Sequence[int]]) -> np.ndarray:
    """The anchors of all cells of feature maps (height, width), the finest first: float32 [n, 4], centre y, centre x,
    height, width, as fractions of the picture."""
    rows = [
        ((y + 0.5) / height, (x + 0.5) / width, *box)
        for level, (height, width) in enumerate(maps)
        for y in range(height)
        for x in range(width)
        for box in _boxes_per_cell(level)
    ]
    return np.array(rows, np.float32)


def ssd_post_process(
    builder: SubgraphBuilder, boxes: int, scores: int, anchors: np.ndarray, classes: int, max_detections: int
) -> list[int]:
    """TFLite_Detection_PostProcess as the exporter for COCO sets it: the tensors of boxes, classes, scores and count.

    boxes, scores: the tensors [1, n, 4] and [1, n, classes + 1], the background first.
    """
    counts = dict(max_detections=max_detections, max_classes_per_detection=1, num_classes=classes)
    thresholds = dict(nms_score_threshold=1e-8, nms_iou_threshold=0.6)
    scales = dict(y_scale=10.0, x_scale=10.0, h_scale=5.0, w_scale=5.0)
    options = flexbuffers.Dumps(counts | thresholds | scales)  # type: ignore[no-untyped-call]
    shapes = [(1, max_detections, 4), (1, max_detections), (1, max_detections), (1,)]
    return builder.custom(
        "TFLite_Detection_PostProcess",
        [boxes, scores, builder.constant(anchors, "anchors")],
        [(shape, TensorType.FLOAT32) for shape in shapes],
        bytes(options),
    )


def _boxes_per_cell(level: int) -> list[tuple[float, float]]:
    """(height, width) of the anchors of a feature map: aspect ratios 1, 2, 1/2, 3, 1/3 at the level's scale, and 1 at
    the geometric mean with the next scale; the finest map has three only."""
    scale = _SCALES[level]
    if level == 0:
        return [(0.1, 0.1), _shaped(scale, 2), _shaped(scale, 1 / 2)]
    between = (scale * _SCALES[level + 1]) ** 0.5
    return [*(_shaped(scale, ratio) for ratio in (1, 2, 1 / 2, 3, 1 / 3)), (between, between)]


def _shaped(scale: float, ratio: float) -> tuple[float, float]:
    return scale / ratio**0.5, scale * ratio**0.5
