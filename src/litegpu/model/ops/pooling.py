"""What a window moves over: pools, LOCAL_RESPONSE_NORMALIZATION, REDUCE_WINDOW."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.model.ops.checks import Tensors, require
from litegpu.model.ops.record import BOOL, NUMBER, STATIC, WHOLE, Gpu, Op
from litegpu.model.ops.rules import images, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.windows import windows
from litegpu.model.types import Operator

#: Elements of the largest window that is believed to move in steps smaller than its input.
_LARGEST_MOVING_WINDOW = 1 << 14

_SIZE = "1..16777215"
_POOL = f"stride_h:{_SIZE} stride_w:{_SIZE} filter_height:{_SIZE} filter_width:{_SIZE}"


def _pool_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    node.require(len(x) == 4)
    return [windows(node, x, (int(node.option("filter_height")), int(node.option("filter_width"))), x[3])]


def _reduce_window_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel divides by what it is given for each dimension."""
    source = tensors[operator.inputs[0]]
    for name, index in zip(("window", "strides", "dilations"), operator.inputs[2:], strict=True):
        sizes = tensors[index]
        require(
            sizes.data is not None and math.prod(sizes.shape) == len(source.shape) and bool(np.all(sizes.data > 0)),
            f"its {name} is not made of constant sizes for shape {list(source.shape)}",
        )


def _window_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    size, stride, apart = (node.integers(i) for i in (2, 3, 4))
    node.require(len(size) == len(stride) == len(apart) == len(x))
    windows = zip(x, size, stride, apart, strict=True)
    return [tuple((n - (k - 1) * d - 1) // s + 1 if n > (k - 1) * d else 0 for n, k, s, d in windows)]


def _pool_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int:
    return results * int(options.get("filter_height", 1)) * int(options.get("filter_width", 1))


def _is_outsized(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> bool:
    """Whether a window is far larger than what it moves over, which no output shows, or moves though it is larger than
    any image needs."""
    if len(given[0]) != 4:
        return False
    height, width = (int(options.get(option, 1)) for option in ("filter_height", "filter_width"))
    moves = results > given[0][0] * given[0][3]
    larger = height > 2 * given[0][1] + 64 or width > 2 * given[0][2] + 64
    return larger or (moves and height * width > _LARGEST_MOVING_WINDOW)


def _response_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int:
    return results * (2 * int(options.get("radius", 0)) + 1)


# fmt: off
OPS = (
    Op(
        "AVERAGE_POOL_2D", f"x -> =x  ; {_POOL}", shape=_pool_shape, work=_pool_work, outsized=_is_outsized,
        batch=images, table="Pool2DOptions",
        gpu=Gpu(3, ranks=(4, 4), quanta="linear", grids="alike", halves="away",
            notes="SAME padding is left out of averages"),
    ),
    Op(
        "L2_POOL_2D", f"x -> =x  ; {_POOL}", shape=_pool_shape, work=_pool_work, outsized=_is_outsized, batch=images,
        table="Pool2DOptions",
        gpu=Gpu(1, ranks=(4, 4), quantized=False,
            notes="the root of the mean of the squares; SAME padding is left out"),
    ),
    Op(
        "LOCAL_RESPONSE_NORMALIZATION", "x -> .  ; radius:0..1048575", shape=same_shape, work=_response_work,
        batch=images,
        gpu=Gpu(1, ranks=(4, 4), quantized=False,
            notes="infinities and NaN reach the channels at most `radius` away (on the CPU all later ones)"),
    ),
    Op(
        "MAX_POOL_2D", f"x -> =x  ; {_POOL}", shape=_pool_shape, work=_pool_work, outsized=_is_outsized, batch=images,
        table="Pool2DOptions",
        gpu=Gpu(3, ranks=(4, 4), quanta="linear", grids="alike", notes="SAME padding is left out of averages"),
    ),
    Op(
        "REDUCE_WINDOW", "x v window{8}:int64 strides{8}:int64 dilations{8}:int64 -> =x",
        hazard=_reduce_window_hazard, table="ReduceWindowOptions", shape=_window_shape,
        without="no converter writes it",
        gpu=Gpu(1, inputs=(NUMBER | BOOL, NUMBER | BOOL, STATIC, STATIC, STATIC), counts=5, quantized=False,
            small=WHOLE, notes="begins with a constant"),
    ),
)
# fmt: on
