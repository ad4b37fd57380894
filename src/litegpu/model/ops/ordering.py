"""Operators that look at a whole axis: sums, reversals, choices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.model.ops.checks import Tensors, require, values_of
from litegpu.model.ops.record import ANY, FLOAT, INT32, INTEGERS, MAX_RANK, NUMBER, STATIC, WHOLE, Gpu, Op
from litegpu.model.ops.rules import along, last_axis, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.spans import among, numbered
from litegpu.model.types import Operator, TensorType

#: Each result of CUMSUM and TOPK_V2 looks at the whole axis, so the GPU leaves long ones to the CPU.
LONGEST = 8192


def _top_shape(node: ShapeNode) -> list[Shape]:
    x, k = node.shape(0), node.integer(1)
    node.require(len(x) > 0 and 0 <= k <= x[-1])
    return [(*x[:-1], k)] * 2


def _reverse_hazard(operator: Operator, tensors: Tensors) -> None:
    axes = tensors[operator.inputs[1]]
    rank = len(tensors[operator.inputs[0]].shape)
    require(math.prod(axes.shape) > 0, "it is given no axis")
    if axes.data is not None:
        require(
            bool(((axes.data >= -rank) & (axes.data < rank)).all()), f"its axes {values_of(axes)} exceed rank {rank}"
        )


def _sequence_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel reverses as many elements as it is told, however many there are."""
    source, lengths = (tensors[index] for index in operator.inputs)
    axis = operator.options.get("seq_dim", 0)
    if lengths.data is not None and 0 <= axis < len(source.shape):
        require(
            bool(np.all((lengths.data >= 0) & (lengths.data <= source.shape[axis]))),
            f"its lengths {values_of(lengths)} exceed shape {list(source.shape)} along {axis}",
        )


def _nothing_hazard(operator: Operator, tensors: Tensors, given: Sequence[Shape]) -> str | None:
    """The kernel divides by the extents behind the first axis that it reverses."""
    if 0 not in given[0][1:]:
        return None
    axes, rank = tensors[operator.inputs[1]].data, len(given[0])
    first = 0 if axes is None or not axes.size else min(int(axis) % rank for axis in axes.reshape(-1))
    return f"its input of shape {list(given[0])} has no elements to reverse" if 0 in given[0][first + 1 :] else None


def _suppression_shape(node: ShapeNode) -> list[Shape]:
    most = node.integer(2)
    node.require(most >= 0 and len(node.shape(0)) == 2)
    return [(most,)] * (len(node.operator.outputs) - 1) + [()]


_BOUNDED = (
    "as many rows as there can be, up to 262,144 elements, and what follows row by row with them (elementwise, "
    "GATHER and GATHER_ND at these places, FULLY_CONNECTED, SOFTMAX, RESHAPE and the like); the true number is read "
    "once, behind that"
)


def _where_bound(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    return [(math.prod(x), len(x))]


def _unique_bound(node: ShapeNode) -> list[Shape]:
    return [node.shape(0)] * 2


_BOXES = "its boxes are those of one image"

# fmt: off
OPS = (
    Op(
        "CUMSUM", "x axis{1}:int32 -> =x", shape=same_shape, batch=along("sums up"),
        gpu=Gpu(1, inputs=(NUMBER, STATIC), counts=2, ranks=(1, MAX_RANK),
            notes=f"constant axis of up to {LONGEST} elements, exclusive, reverse"),
    ),
    Op(
        "NON_MAX_SUPPRESSION_V4", "boxes scores n iou score -> . .", shape=_suppression_shape, without=_BOXES,
        gpu=Gpu(1, inputs=(FLOAT, FLOAT, STATIC, FLOAT), outputs=INT32, counts=5, ranks=(2, 2), quantized=False,
            notes="constant number and thresholds; of equal scores the first box comes first"),
    ),
    Op(
        "NON_MAX_SUPPRESSION_V5", "boxes scores n iou score sigma -> . . .", shape=_suppression_shape, without=_BOXES,
        gpu=Gpu(1, inputs=(FLOAT, FLOAT, STATIC, FLOAT), outputs=NUMBER, counts=6, ranks=(2, 2), quantized=False,
            notes="constant number and thresholds; of equal scores the first box comes first; with a sigma above 0 up "
            "to 512 of 2048 boxes"),
    ),
    Op(
        "REVERSE_SEQUENCE", "x n -> .", shape=same_shape, hazard=_sequence_hazard, moves="elements",
        without="its lengths are those of one batch",
        gpu=Gpu(1, inputs=(ANY, INT32), outputs=ANY, counts=2, quanta="linear", grids="moved", ranks=(2, MAX_RANK)),
    ),
    Op(
        "REVERSE_V2", "x axes{8}:int32 -> .", shape=same_shape, batch=along("reverses"), hazard=_reverse_hazard,
        shape_hazard=_nothing_hazard, folds="values", moves="elements",
        gpu=Gpu(4, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="moved", notes="constant axes"),
    ),
    Op(
        "TOPK_V2", "x k{1}:int32|int16 -> . .", shape=_top_shape, batch=last_axis,
        gpu=Gpu(3, inputs=(NUMBER, STATIC), outputs=NUMBER, counts=2, ranks=(1, MAX_RANK), small=WHOLE, span=among,
            exact=True, notes=f"constant k, rows of up to {LONGEST} elements; of equals the first comes first"),
    ),
    Op(
        "UNIQUE", "x -> . .", moves="elements", bound=_unique_bound,
        without="the data decide how many rows its result has",
        gpu=Gpu(1, inputs=(NUMBER,), outputs=NUMBER | INTEGERS, ranks=(1, 1), quantized=False, small=WHOLE, span=among,
            notes=f"up to {LONGEST} elements; otherwise as WHERE"),
    ),
    Op(
        "WHERE", "x -> .", makes=TensorType.INT64, moves="elements", bound=_where_bound,
        without="the data decide how many rows its result has",
        gpu=Gpu(2, inputs=(ANY,), outputs=INTEGERS, ranks=(1, MAX_RANK), quantized=False, span=numbered,
            notes=_BOUNDED),
    ),
)
# fmt: on
