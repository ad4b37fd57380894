"""Reductions, and what searches along an axis; segments."""

from __future__ import annotations

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import Tensors
from litegpu.model.ops.record import ANY, BOOL, INT32, INTEGERS, MAX_RANK, NUMBER, STATIC, WHOLE, Gpu, Op
from litegpu.model.ops.rules import last_axis, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.spans import among
from litegpu.model.types import Operator, TensorType


def _reduction_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    node.require(len(x) > 0)
    axes = {node.axis(a, len(x)) for a in node.integers(1)}
    if node.option("keep_dims", False):
        return [tuple(1 if i in axes else n for i, n in enumerate(x))]
    return [tuple(n for i, n in enumerate(x) if i not in axes)]


def _arg_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(node.integer(1), len(x))
    return [x[:axis] + x[axis + 1 :]]


def _segments_shape(node: ShapeNode) -> list[Shape]:
    count = node.integer(2) if node.count > 2 else max(node.integers(1), default=-1) + 1
    x, ids = node.shape(0), node.shape(1)
    node.require(count >= 0 and len(ids) > 0 and x[: len(ids)] == ids)
    return [(count, *x[len(ids) :])]


def _reduction_batch(node: BatchNode) -> Place:
    place, rank = node.only(0), node.rank(0)
    axes = {node.off_batch(axis, place, rank, "reduces") for axis in node.integers(1)}
    keeps = bool(node.option("keep_dims", False)) and not node.operator.name.startswith("ARG_")
    return place if keeps else place.at(place.axis - sum(axis < place.axis for axis in axes))


def _is_whole_arg(operator: Operator, tensors: Tensors) -> bool:
    return len(tensors[operator.inputs[0]].shape) == 1


def _is_whole_reduction(operator: Operator, tensors: Tensors) -> bool:
    """Whether it reduces all axes."""
    if len(operator.inputs) < 2 or operator.inputs[1] < 0:
        return False
    rank, axes = len(tensors[operator.inputs[0]].shape), tensors[operator.inputs[1]].data
    return axes is not None and {int(a) % rank for a in axes.reshape(-1) if rank} == set(range(rank))


_SEGMENTS = "its rows belong to segments, not to a batch"

# fmt: off
OPS = (
    Op(
        "ARG_MAX", "x axis{1}:int32|int64 -> .", shape=_arg_shape, is_scalar=_is_whole_arg, batch=_reduction_batch,
        makes_option="output_type", defaults={"output_type": int(TensorType.INT32)},
        gpu=Gpu(3, inputs=(ANY, STATIC), outputs=INTEGERS, counts=2, joins="axes", quanta="linear",
            notes="constant axis; the result may be INT32 or INT64; numbers come before NaN"),
    ),
    Op(
        "ARG_MIN", "x axis{1}:int32|int64 -> .", shape=_arg_shape, is_scalar=_is_whole_arg, batch=_reduction_batch,
        makes_option="output_type", defaults={"output_type": int(TensorType.INT32)},
        gpu=Gpu(3, inputs=(ANY, STATIC), outputs=INTEGERS, counts=2, joins="axes", quanta="linear",
            notes="constant axis; the result may be INT32 or INT64; numbers come before NaN"),
    ),
    Op(
        "L2_NORMALIZATION", "x -> .", shape=same_shape, batch=last_axis, table="L2NormOptions",
        gpu=Gpu(2, notes="along the last axis"),
    ),
    Op(
        "MEAN", "x axes{8}:int32 -> =x", shape=_reduction_shape, is_scalar=_is_whole_reduction, batch=_reduction_batch,
        table="ReducerOptions",
        gpu=Gpu(3, inputs=(NUMBER, STATIC), counts=2, joins="axes", quanta="linear", span=among,
            notes="any constant axes, keep_dims or not"),
    ),
    Op(
        "REDUCE_ALL", "x:bool axes{8}:int32 -> .:bool", shape=_reduction_shape, is_scalar=_is_whole_reduction,
        batch=_reduction_batch, table="ReducerOptions",
        gpu=Gpu(1, inputs=(BOOL, STATIC), counts=2, joins="axes", notes="any constant axes, keep_dims or not"),
    ),
    Op(
        "REDUCE_ANY", "x:bool axes{8}:int32 -> .:bool", shape=_reduction_shape, is_scalar=_is_whole_reduction,
        batch=_reduction_batch, table="ReducerOptions",
        gpu=Gpu(1, inputs=(BOOL, STATIC), counts=2, joins="axes", notes="any constant axes, keep_dims or not"),
    ),
    Op(
        "REDUCE_MAX", "x axes{8}:int32 -> =x", shape=_reduction_shape, is_scalar=_is_whole_reduction,
        batch=_reduction_batch, folds="values", table="ReducerOptions",
        gpu=Gpu(3, inputs=(ANY, STATIC), counts=2, joins="axes", span=among, quanta="linear", grids="alike",
            small=WHOLE,
            notes="any constant axes, keep_dims or not; a NaN is passed over (on the CPU its place decides)"),
    ),
    Op(
        "REDUCE_MIN", "x axes{8}:int32 -> =x", shape=_reduction_shape, is_scalar=_is_whole_reduction,
        batch=_reduction_batch, folds="values", table="ReducerOptions",
        gpu=Gpu(3, inputs=(ANY, STATIC), counts=2, joins="axes", span=among, quanta="linear", grids="alike",
            small=WHOLE,
            notes="any constant axes, keep_dims or not; a NaN is passed over (on the CPU its place decides)"),
    ),
    Op(
        "REDUCE_PROD", "x axes{8}:int32 -> =x", shape=_reduction_shape, is_scalar=_is_whole_reduction,
        batch=_reduction_batch, folds="values", table="ReducerOptions",
        gpu=Gpu(3, inputs=(NUMBER, STATIC), counts=2, joins="axes", small=WHOLE,
            notes="any constant axes, keep_dims or not"),
    ),
    Op(
        "SEGMENT_SUM", "x at:int32 -> =x", shape=_segments_shape, without=_SEGMENTS,
        gpu=Gpu(1, inputs=(NUMBER, STATIC), counts=2, quantized=False, ranks=(1, MAX_RANK), notes="constant segments"),
    ),
    Op(
        "SUM", "x axes{8}:int32 -> =x", shape=_reduction_shape, is_scalar=_is_whole_reduction, batch=_reduction_batch,
        folds="values", table="ReducerOptions",
        gpu=Gpu(3, inputs=(NUMBER, STATIC), counts=2, joins="axes", quanta="linear",
            notes="any constant axes, keep_dims or not"),
    ),
    *(
        Op(
            f"UNSORTED_SEGMENT_{kind}", "x at:int32 n:int32 -> =x", shape=_segments_shape, without=_SEGMENTS,
            gpu=Gpu(1, inputs=(NUMBER, INT32, STATIC), outputs=NUMBER, counts=3, quantized=False, ranks=(1, MAX_RANK),
                notes="constant number of segments"),
        )
        for kind in ("MAX", "MIN", "PROD", "SUM")
    ),
)
# fmt: on
