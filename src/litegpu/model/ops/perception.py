"""Custom operators: MediaPipe's, and those of the official runtime that look at images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.model.ops.checks import Tensors, flexbuffer_options, require
from litegpu.model.ops.record import FLOAT, Gpu, Op
from litegpu.model.ops.rules import images, rows_alike, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.windows import SAME, VALID, placed
from litegpu.model.types import Operator

_COUNT = "1..1048576"
_DETECTIONS = f"max_detections:{_COUNT} max_classes_per_detection:{_COUNT} num_classes:{_COUNT}"
_MEMORY = "stride_width:1..65536 stride_height:1..65536"
_WINDOW = f"{_MEMORY} filter_width:1..65536 filter_height:1..65536"
# The options of MediaPipe's operators, as they lie in memory.
_STRIDES = ("padding", "stride_width", "stride_height")
_POOL = (*_STRIDES, "filter_width", "filter_height")


def _pool_with_argmax_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    padding, stride_w, stride_h, width, height = node.struct(5)
    node.require(len(x) == 4 and padding in (1, 2))
    kind = SAME if padding == 1 else VALID
    return [placed(node, x, (height, width), (stride_h, stride_w), (1, 1), kind, x[3])] * 2


def _transpose_bias_shape(node: ShapeNode) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    padding, stride_w, stride_h = node.struct(3)
    node.require(len(x) == len(weights) == 4 and padding in (0, 1, 2) and min(stride_h, stride_w) > 0)
    sizes = []
    for n, k, s in zip(x[1:3], weights[1:3], (stride_h, stride_w), strict=True):
        cut = max(0, k - (n - 1) % s - 1) if padding == 1 else 0
        sizes.append((n - 1) * s + k - cut)
    return [(x[0], *sizes, weights[0])]


def _transpose_bias_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    return results + math.prod(given[0]) * math.prod(given[1][:-1]) if len(given) > 1 else None


def _resampler_shape(node: ShapeNode) -> list[Shape]:
    image, warp = node.shape(0), node.shape(1)
    node.require(len(image) == len(warp) == 4)
    return [(*warp[:3], image[3])]


def _declared_shape(node: ShapeNode) -> list[Shape]:
    return [node.declared]


def _detection_shape(node: ShapeNode) -> list[Shape]:
    options = flexbuffer_options(node.operator)
    most = int(options.get("max_detections", 0) * options.get("max_classes_per_detection", 0))
    node.require(most > 0 and len(node.shape(0)) == len(node.shape(1)) == 3)
    return [(1, most, 4), (1, most), (1, most), (1,)]


def _detection_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel reads an anchor for each box, and scores of all classes and perhaps of the background."""
    boxes, scores, anchors = (tensors[index] for index in operator.inputs)
    require(
        boxes.shape[2] >= 4
        and len(anchors.shape) == 2
        and anchors.shape[1] == 4
        and anchors.shape[0] >= boxes.shape[1],
        f"its anchors of shape {list(anchors.shape)} are not those of boxes of shape {list(boxes.shape)}",
    )
    options = flexbuffer_options(operator)
    made = options.get("max_detections", 0) * options.get("max_classes_per_detection", 0)
    require(made <= 2**24, f"its options ask for {made:.0f} detections")
    require(
        0 <= scores.shape[2] - options.get("num_classes", 0) <= 1 and scores.shape[1] == boxes.shape[1],
        f"its scores of shape {list(scores.shape)} are not those of {options.get('num_classes', 0):.0f} classes "
        f"and boxes of shape {list(boxes.shape)}",
    )


# fmt: off
OPS = (
    Op(
        "Convolution2DTransposeBias", f"x[4] w[4] b^[1] -> .  ; {_MEMORY}", custom=True, shape=_transpose_bias_shape,
        batch=images, struct=_STRIDES, of_xnnpack=True, work=_transpose_bias_work, multiplies=True,
        gpu=Gpu(1, inputs=(FLOAT, FLOAT, FLOAT), counts=(2, 3), ranks=(4, 4),
            notes="data, weights OHWI, bias; options are a TfLiteTransposeConvParams"),
    ),
    Op(
        "Landmarks2TransformMatrix", custom=True, shape=_declared_shape,
        without="it makes one matrix of the landmarks of one image",
        gpu=Gpu(2, ranks=(3, 4), notes="landmarks of three dimensions; options, those of the version, are FlexBuffers"),
    ),
    Op(
        "Landmarks2TransformMatrixV2", custom=True, shape=_declared_shape,
        without="it makes one matrix of the landmarks of one image",
        gpu=Gpu(2, ranks=(3, 4), notes="landmarks of three dimensions; options, those of the version, are FlexBuffers"),
    ),
    Op(
        "MaxPoolingWithArgmax2D", f"x[4]:float32 -> .:float32 .^  ; {_WINDOW}", custom=True,
        shape=_pool_with_argmax_shape, batch=images, struct=_POOL, of_xnnpack=True,
        gpu=Gpu(1, ranks=(4, 4), notes="values, and places in the window + 0.1; options are a TfLitePoolParams"),
    ),
    Op(
        "MaxUnpooling2D", f"x[4]:float32 at[4] -> .:float32  ; {_WINDOW}", custom=True, shape=_declared_shape,
        batch=rows_alike, struct=_POOL, of_xnnpack=True, moves="elements",
        gpu=Gpu(1, counts=2, ranks=(4, 4),
            notes="of values and their places in the window; options are a TfLitePoolParams"),
    ),
    Op("NumericVerify", "x y -> .", custom=True, stays="it compares values and reports: a tool of quantizers"),
    Op(
        "Resampler", custom=True, shape=_resampler_shape, batch=rows_alike,
        gpu=Gpu(1, counts=2, ranks=(4, 4), notes="bilinear, zeros outside of the image"),
    ),
    Op(
        "TFLite_Detection_PostProcess", f"boxes[3] scores[3] anchors[2]:=boxes -> . . . .  ; {_DETECTIONS}",
        custom=True, hazard=_detection_hazard,
        shape=_detection_shape, without="it takes the boxes of one image",
        gpu=Gpu(1, counts=3, ranks=(3, 3),
            notes="with use_regular_nms one class of each detection; of equal scores the first class comes first (on "
            "the CPU in the order of a heap); what lies behind the detections is zero"),
    ),
    Op(
        "TransformLandmarks", custom=True, shape=same_shape,
        without="it takes the landmarks of one image, and one matrix",
        gpu=Gpu(2, counts=2, ranks=(3, 4),
            notes="version 1 with dimensions and scale, version 2 without; options are FlexBuffers"),
    ),
    Op(
        "TransformTensor", custom=True, shape=_declared_shape, without="it takes one image, and one matrix",
        gpu=Gpu(2, counts=2, ranks=(4, 4), notes="bilinear; options are FlexBuffers"),
    ),
    Op(
        "TransformTensorBilinear", custom=True, shape=_declared_shape, without="it takes one image, and one matrix",
        gpu=Gpu(2, counts=2, ranks=(4, 4), notes="bilinear; options are FlexBuffers"),
    ),
)
# fmt: on
