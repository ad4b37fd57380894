"""Resizing of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.model.ops.checks import Tensors, require
from litegpu.model.ops.record import ANY, FLOAT, STATIC, Gpu, Op
from litegpu.model.ops.rules import images
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator


def _resize_shape(node: ShapeNode) -> list[Shape]:
    x, size = node.shape(0), node.integers(1)
    node.require(len(x) == 4 and len(size) == 2 and min(size) > 0)
    return [(x[0], *size, x[3])]


def _resize_hazard(operator: Operator, tensors: Tensors) -> None:
    image = tensors[operator.inputs[0]]
    require(0 not in image.shape[1:3], f"its input of shape {list(image.shape)} has no pixels")


def _nearest_hazard(operator: Operator, tensors: Tensors) -> None:
    _resize_hazard(operator, tensors)
    size = tensors[operator.inputs[1]].data
    require(size is None or bool(np.all(size > 0)), f"it resizes to {[] if size is None else size.tolist()}")


def _resize_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 3 if options["half_pixel_centers"] else 1


def _nearest_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 3 if options["half_pixel_centers"] or options["align_corners"] else 1


# fmt: off
OPS = (
    Op(
        "RESIZE_BILINEAR", "x size{2}:int32 -> =x", shape=_resize_shape, batch=images, hazard=_resize_hazard,
        version=_resize_version,
        gpu=Gpu(4, inputs=(FLOAT, STATIC), counts=2, ranks=(4, 4), quanta="linear",
            notes="constant size; align_corners or half_pixel_centers"),
    ),
    Op(
        "RESIZE_NEAREST_NEIGHBOR", "x size{2}:int32 -> .", shape=_resize_shape, batch=images, hazard=_nearest_hazard,
        version=_nearest_version, moves="elements",
        gpu=Gpu(4, inputs=(ANY, STATIC), counts=2, ranks=(4, 4), quanta="linear", grids="moved",
            notes="constant size; align_corners or half_pixel_centers"),
    ),
)
# fmt: on
