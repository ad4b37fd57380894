"""Operators that make values of shapes, sizes or chance."""

from __future__ import annotations

import itertools
import math

import numpy as np

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import Tensors, require, values_of
from litegpu.model.ops.record import (
    ANY,
    FLOAT,
    INT32,
    INTEGERS,
    MAX_RANK,
    NUMBER,
    STATIC,
    WHOLE,
    Gpu,
    Op,
    Repeating,
)
from litegpu.model.ops.rules import EACH, pointwise, rows_alike, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.spans import among
from litegpu.model.types import Operator, TensorType


def _shape_shape(node: ShapeNode) -> list[Shape]:
    return [(len(node.shape(0)),)]


def _rank_shape(node: ShapeNode) -> list[Shape]:
    return [()]


def _fill_shape(node: ShapeNode) -> list[Shape]:
    node.require(len(node.shape(0)) == 1 and node.shape(1) == ())
    return [node.integers(0)]


def _filled_shape(node: ShapeNode) -> list[Shape]:
    return [node.integers(0)]


def _samples_shape(node: ShapeNode) -> list[Shape]:
    x, (count,) = node.shape(0), node.integers(1)
    node.require(len(x) == 2 and count >= 0)
    return [(x[0], count)]


def _range_shape(node: ShapeNode) -> list[Shape]:
    start, limit, delta = (node.number(i) for i in range(3))
    node.require(delta != 0 and math.isfinite(start + limit + delta))
    return [(steps(start, limit, delta),)]


def steps(start: float, limit: float, delta: float) -> int:
    """How many numbers RANGE makes, reckoned as the kernel does: integers exactly, others in single precision."""
    if all(float(n).is_integer() for n in (start, limit, delta)):
        return max(0, -int(-(limit - start) // delta))
    return max(0, math.ceil((np.float32(limit) - np.float32(start)) / np.float32(delta)))


def _broadcast_args_shape(node: ShapeNode) -> list[Shape]:
    return [(max(math.prod(node.shape(0)), math.prod(node.shape(1))),)]


def _diagonal_shape(node: ShapeNode) -> list[Shape]:
    node.require(len(node.shape(0)) > 0)
    return [(*node.shape(0), node.shape(0)[-1])]


def _nowhere(node: BatchNode) -> None:
    return None


def _broadcast_args_hazard(operator: Operator, tensors: Tensors) -> None:
    first, second = (tensors[index].data for index in operator.inputs)
    if first is None or second is None:
        return
    pairs = itertools.zip_longest(first.reshape(-1)[::-1], second.reshape(-1)[::-1], fillvalue=1)
    require(
        all(a == b or 1 in (a, b) for a, b in pairs),
        f"the shapes {first.tolist()} and {second.tolist()} do not broadcast",
    )


def _random_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel fills its result even if the runtime could not make one of that shape."""
    shape = tensors[operator.inputs[0]]
    if shape.data is not None:
        require(bool((shape.data >= 0).all()), f"its shape is {values_of(shape)}")


def _diagonal_hazard(operator: Operator, tensors: Tensors) -> None:
    matrix, diagonal = (tensors[index].shape for index in operator.inputs)
    require(
        len(matrix) >= 2 and diagonal == (*matrix[:-2], min(matrix[-2:])),
        f"its diagonal of shape {list(diagonal)} is not that of matrices of shape {list(matrix)}",
    )


def _repeats_fill(node: BatchNode, place: Place) -> bool:
    node.resize(0, place)
    return True


#: The sizes are the only input; FLOAT32 stands for the numbers that are drawn.
_SEEDED = Gpu(
    1, inputs=(STATIC,), outputs=FLOAT, quantized=False,
    notes="constant sizes; with a seed: the runtime's numbers, which a reset of variables begins anew; not in a "
    "loop or a branch",
)  # fmt: skip
_CHANCE = (
    "chance: without a seed every time others are wanted, and with one the runtime compares with sums in double "
    "precision, which GPUs lack, so that now and then another number would be drawn"
)
_OF_SHAPES = "it follows from shapes, which another batch changes as a whole"

#: What has diagonals: of other types the official kernels end the process.
_DIAGONAL = "float32|int32|int64|int16|int8|uint8"

# fmt: off
OPS = (
    Op(
        "BROADCAST_ARGS", "a{8}:int32|int64 b{8}:int32|int64 -> .", sizes_from=0, hazard=_broadcast_args_hazard,
        folds="values", moves="elements", shape=_broadcast_args_shape,
        stays="it calculates with shapes, which are known before the inference: its result is a constant then",
    ),
    Op(
        "FILL", "shape{8}:int32|int64 x:any -> .", shape=_fill_shape, sizes_from=0,
        repeating=Repeating(sizes=_repeats_fill), folds="values", passes_strings=True, makes_like=1, moves="elements",
        without="its sizes are constants", gpu=Gpu(5, inputs=(STATIC, ANY), outputs=ANY, counts=2, quantized=False,
            notes="constant sizes"),
    ),
    Op(
        "MATRIX_DIAG", f"x:{_DIAGONAL} -> .", shape=_diagonal_shape, batch=pointwise, moves="elements",
        gpu=Gpu(2, inputs=(NUMBER,), quantized=False, ranks=(1, MAX_RANK - 1), span=among, small=WHOLE),
    ),
    Op(
        "MATRIX_SET_DIAG", f"x:{_DIAGONAL} d:=x -> .", shape=same_shape, batch=rows_alike, repeating=EACH,
        hazard=_diagonal_hazard, moves="elements",
        gpu=Gpu(2, inputs=(NUMBER, NUMBER), counts=2, quantized=False, ranks=(2, MAX_RANK), span=among, small=WHOLE),
    ),
    Op(
        "MULTINOMIAL", "x:float32 n{1}:int32 -> .:int32|int64", table="RandomOptions",
        makes=TensorType.INT64, shape=_samples_shape,
        stays=_CHANCE,
    ),
    Op(
        "RANDOM_STANDARD_NORMAL", "shape{8} -> .:float32", sizes_from=0, hazard=_random_hazard,
        table="RandomOptions", makes=TensorType.FLOAT32,
        shape=_filled_shape, without="it draws for one batch", goes_on=True, gpu=_SEEDED,
    ),
    Op(
        "RANDOM_UNIFORM", "shape{8} -> .:float32", sizes_from=0, hazard=_random_hazard,
        table="RandomOptions", makes=TensorType.FLOAT32,
        shape=_filled_shape, without="it draws for one batch", goes_on=True, gpu=_SEEDED,
    ),
    Op(
        "RANGE", "a b c -> .", shape=_range_shape, without=_OF_SHAPES, sizes_from=0, folds="values", moves="elements",
        gpu=Gpu(2, inputs=(NUMBER,), outputs=NUMBER | INTEGERS, counts=3, quantized=False, notes="of constants"),
    ),
    Op(
        "RANK", "x:any -> .", shape=_rank_shape, batch=_nowhere, folds="shapes", makes=TensorType.INT32,
        moves="elements", gpu=Gpu(1, inputs=(ANY,), outputs=INT32, notes="known beforehand"),
    ),
    Op(
        "SHAPE", "x:any|variant -> .", shape=_shape_shape, folds="shapes", makes_option="out_type",
        defaults={"out_type": int(TensorType.INT32)}, moves="elements", without=_OF_SHAPES,
        gpu=Gpu(1, inputs=(ANY,), outputs=INTEGERS, notes="known beforehand"),
    ),
)
# fmt: on
