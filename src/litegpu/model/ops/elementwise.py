"""Operators that work element by element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import EIGHT_BIT, QUANTIZED, Tensors, require, scale_of
from litegpu.model.ops.record import ANY, BOOL, FLOAT, INT16, MANY, NUMBER, SIGNED, UINT32, UNSIGNED, WHOLE, Gpu, Op
from litegpu.model.ops.rules import (
    EACH,
    alike_hazard,
    broadcast_rows,
    broadcast_shape,
    pointwise,
    rows_alike,
    same_shape,
    together,
)
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.spans import added, among, left, mirrored, multiplied, subtracted, told
from litegpu.model.types import Operator, Tensor, TensorType


def _alike_shape(node: ShapeNode) -> list[Shape]:
    node.require(len({node.shape(i) for i in range(node.count)}) == 1)
    return [node.shape(0)]


def _prelu_shape(node: ShapeNode) -> list[Shape]:
    node.require(together(node, [node.shape(0), node.shape(1)]) == node.shape(0))
    return [node.shape(0)]


def _select_shape(node: ShapeNode) -> list[Shape]:
    condition, x, y = (node.shape(i) for i in range(3))
    node.require(x == y and (condition in (x, ()) or condition == x[:1]))
    return _of_one_element(node) or [x]


def _select_v2_shape(node: ShapeNode) -> list[Shape]:
    return _of_one_element(node) or broadcast_shape(node)


def _of_one_element(node: ShapeNode) -> list[Shape]:
    """The kernels of SELECT leave a result of one element the shape that it has in the file."""
    single = all(math.prod(node.shape(i)) == 1 for i in range(3)) and math.prod(node.declared) == 1
    return [node.declared] if single else []


def _broadcast_estimate(node: ShapeNode) -> Shape:
    a, b = node.shape(0), node.shape(1)
    rank = max(len(a), len(b))
    padded = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(0 if 0 in pair else max(pair) for pair in padded)


def _select_batch(node: BatchNode) -> Place:
    """The condition may be a scalar, or choose rows."""
    places = [node.place(i) for i in (1, 2, 0)]
    place = next(p for p in places if p is not None)
    for i in (1, 2):
        if node.place(i) is None:
            node.repeat(i, place)
    if node.rank(0) == 0:
        node.require(node.place(0) is None, "its condition depends on the batch")
    elif node.rank(0) == node.rank(1) or place.axis == 0:
        if node.place(0) is None:
            node.repeat(0, place)
    else:
        node.require(node.place(0) is None, "its condition depends on the batch")
    node.require(
        len({p for i in node.given if (p := node.place(i)) is not None}) == 1, "its inputs have different rows"
    )
    return place


def _table_hazard(operator: Operator, tensors: Tensors) -> None:
    """Of numbers of 16 bits the kernel makes a table by their scale, without asking whether they have one."""
    source = tensors[operator.inputs[0]]
    require(
        source.type is not TensorType.INT16 or source.quantization is not None,
        f"its input, tensor {source.index} '{source.name}', of type INT16 has no scale",
    )


def _addition_aborts(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    """The kernel rescales both inputs to twice the larger scale with some bits to spare, and back to the output's. What
    it multiplies scales by is of single precision, the factors are of double."""
    used = [tensors[index] for index in (*operator.inputs, *operator.outputs)]
    type_ = used[1].type  # which the kernel gives the result, whatever the file says
    if type_ not in (QUANTIZED if operator.name != "SQUARED_DIFFERENCE" else {TensorType.INT8}):
        return None
    if type_ is TensorType.INT16 and operator.name == "ADD" and not any(scale_of(tensor) for tensor in used):
        return None  # plain integers, which SUB does not have
    first, second, result = (np.float32(scale_of(tensor)) for tensor in used)
    with np.errstate(all="ignore"):
        doubled = np.float64(np.float32(2) * max(first, second))
        if operator.name == "SQUARED_DIFFERENCE":
            shared = doubled * doubled / np.float64(np.float32(2**14) * result)
        else:
            shared = doubled / np.float64(np.float32(2 ** _spare_bits(used[1])) * result)
        each = [float(first / doubled), float(second / doubled)]
    may_exceed_one = operator.name == "SUB"
    if all(_is_multiplier(f) for f in each) and _is_multiplier(float(shared), may_exceed_one=may_exceed_one):
        return None
    return f"its scales {first:g} and {second:g} do not go with the scale {result:g} of its output"


def _spare_bits(result: Tensor) -> int:
    return 15 if result.type is TensorType.INT16 else 20


def _is_multiplier(factor: float, *, may_exceed_one: bool = False) -> bool:
    """Whether the kernels can write the factor as 31 bits and a shift: to the right, or, beyond one, to the left. Not
    even then one itself, for which they have neither."""
    if factor > 1:
        return may_exceed_one and math.isfinite(factor)
    return 0 < factor < 1 and (factor < 0.5 or round(factor * 2**31) < 2**31)


def _comparison_aborts(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    first = tensors[operator.inputs[0]]
    equality = operator.name in ("EQUAL", "NOT_EQUAL")
    rescaled = QUANTIZED if equality and first.quantization is not None else EIGHT_BIT  # int16 may be plain numbers
    for index in operator.inputs:
        scale = scale_of(tensors[index])
        if tensors[index].type in rescaled and not _is_multiplier(scale, may_exceed_one=True):
            return f"'{tensors[index].name}' has scale {scale:g}"
    return None


# fmt: off
OPS = (
    Op(
        "ABS", "x -> .", shape=same_shape, batch=pointwise, folds="values",
        gpu=Gpu(5, small=INT16, inputs=(NUMBER,), quanta="linear", span=mirrored),
    ),
    Op(
        "ADD", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, aborts=_addition_aborts,
        folds="values",
        gpu=Gpu(6, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=added, quanta="reads", halves="up",
            small=INT16, notes="broadcasting"),
    ),
    Op(
        "ADD_N", "x+ -> .", shape=_alike_shape, batch=rows_alike, repeating=EACH,
        gpu=Gpu(2, inputs=(NUMBER,), counts=(1, MANY), quanta="reads", notes="inputs of one shape"),
    ),
    Op(
        "ATAN2", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, shape_hazard=alike_hazard,
        gpu=Gpu(1, inputs=(FLOAT, FLOAT), counts=2, joins="broadcast", quanta="reads",
            notes="inputs of one shape"),
    ),
    Op(
        "BITWISE_XOR", "a b -> .", estimate=_broadcast_estimate, shape=broadcast_shape, batch=broadcast_rows,
        repeating=EACH, gpu=Gpu(1, inputs=(WHOLE, WHOLE), counts=2, joins="broadcast", quantized=False,
            small=UNSIGNED, notes="broadcasting"),
    ),
    Op("CEIL", "x -> .", shape=same_shape, batch=pointwise, folds="values", gpu=Gpu(1, quanta="reads")),
    Op("COS", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op(
        "DIV", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        gpu=Gpu(2, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", quanta="reads",
            notes="broadcasting; of integers towards zero, and by 0, an error on the CPU, anything"),
    ),
    Op("ELU", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op(
        "EQUAL", "a:any b:any -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH,
        aborts=_comparison_aborts, folds="values", makes=TensorType.BOOL,
        gpu=Gpu(5, inputs=(ANY, ANY), outputs=BOOL, counts=2, joins="broadcast", quanta="reads", notes="broadcasting"),
    ),
    Op("EXP", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op("FLOOR", "x -> .", shape=same_shape, batch=pointwise, folds="values", gpu=Gpu(2, quanta="reads")),
    Op(
        "FLOOR_DIV", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        gpu=Gpu(3, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=mirrored, quantized=False, quanta="reads",
            small=SIGNED, notes="broadcasting; a division by 0 is an error on the CPU, and infinite or NaN here"),
    ),
    Op(
        "FLOOR_MOD", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        gpu=Gpu(2, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=left, quantized=False, quanta="reads",
            small=SIGNED, notes="broadcasting; exact for quotients of floats below 2^24"),
    ),
    Op(
        "GELU", "x -> .", shape=same_shape, batch=pointwise,
        gpu=Gpu(3, quanta="reads", notes="exact and approximate (tanh) form"),
    ),
    Op(
        "GREATER", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, aborts=_comparison_aborts,
        folds="values", makes=TensorType.BOOL,
        gpu=Gpu(3, inputs=(NUMBER, NUMBER), outputs=BOOL, counts=2, joins="broadcast", span=told, quanta="reads",
            small=INT16, notes="broadcasting"),
    ),
    Op(
        "GREATER_EQUAL", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH,
        aborts=_comparison_aborts, folds="values", makes=TensorType.BOOL,
        gpu=Gpu(3, inputs=(NUMBER, NUMBER), outputs=BOOL, counts=2, joins="broadcast", span=told, quanta="reads",
            small=INT16, notes="broadcasting"),
    ),
    Op("HARD_SWISH", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(1, quanta="reads")),
    Op("LEAKY_RELU", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op(
        "LESS", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, aborts=_comparison_aborts,
        folds="values", makes=TensorType.BOOL,
        gpu=Gpu(3, inputs=(NUMBER, NUMBER), outputs=BOOL, counts=2, joins="broadcast", span=told, quanta="reads",
            small=INT16, notes="broadcasting"),
    ),
    Op(
        "LESS_EQUAL", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH,
        aborts=_comparison_aborts, folds="values", makes=TensorType.BOOL,
        gpu=Gpu(3, inputs=(NUMBER, NUMBER), outputs=BOOL, counts=2, joins="broadcast", span=told, quanta="reads",
            small=INT16, notes="broadcasting"),
    ),
    Op("LOG", "x -> .", shape=same_shape, batch=pointwise, hazard=_table_hazard, gpu=Gpu(2, quanta="reads")),
    Op(
        "LOGICAL_AND", "a b -> .", shape=broadcast_shape, estimate=_broadcast_estimate, batch=broadcast_rows,
        repeating=EACH, makes=TensorType.BOOL,
        gpu=Gpu(1, inputs=(BOOL, BOOL), counts=2, joins="broadcast", quanta="reads", notes="broadcasting"),
    ),
    Op(
        "LOGICAL_NOT", "x -> .", shape=same_shape, batch=pointwise, makes=TensorType.BOOL,
        gpu=Gpu(1, inputs=(BOOL,), quanta="reads"),
    ),
    Op(
        "LOGICAL_OR", "a b -> .", shape=broadcast_shape, estimate=_broadcast_estimate, batch=broadcast_rows,
        repeating=EACH, makes=TensorType.BOOL,
        gpu=Gpu(1, inputs=(BOOL, BOOL), counts=2, joins="broadcast", quanta="reads", notes="broadcasting"),
    ),
    Op("LOGISTIC", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(3, quanta="reads", largest=1)),
    Op(
        "MAXIMUM", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        table="MaximumMinimumOptions",
        gpu=Gpu(4, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=among, quanta="linear", grids="moved",
            small=WHOLE, notes="broadcasting"),
    ),
    Op(
        "MINIMUM", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        table="MaximumMinimumOptions",
        gpu=Gpu(4, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=among, quanta="linear", grids="moved",
            small=WHOLE, notes="broadcasting"),
    ),
    Op(
        "MUL", "a b -> =a", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        gpu=Gpu(8, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=multiplied, quanta="reads",
            small=INT16 | UINT32, notes="broadcasting"),
    ),
    Op(
        "NEG", "x -> .", shape=same_shape, batch=pointwise, folds="values",
        gpu=Gpu(2, small=SIGNED, inputs=(NUMBER,), quanta="linear", span=mirrored),
    ),
    Op(
        "NOT_EQUAL", "a:any b:any -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH,
        aborts=_comparison_aborts, folds="values", makes=TensorType.BOOL,
        gpu=Gpu(4, inputs=(ANY, ANY), outputs=BOOL, counts=2, joins="broadcast", quanta="reads", notes="broadcasting"),
    ),
    Op(
        "POW", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH,
        gpu=Gpu(2, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", quanta="reads", notes="broadcasting"),
    ),
    Op(
        "PRELU", "x a:=x -> .", shape=_prelu_shape, batch=broadcast_rows, repeating=EACH,
        gpu=Gpu(1, inputs=(FLOAT, FLOAT), counts=2, joins="broadcast", quanta="reads",
            notes="alpha of any shape that broadcasts"),
    ),
    Op("RELU", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(3, quanta="linear")),
    Op("RELU6", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(3, quanta="reads")),
    Op("RELU_0_TO_1", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op("RELU_N1_TO_1", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op(
        "RIGHT_SHIFT", "a b -> .", estimate=_broadcast_estimate, shape=broadcast_shape, batch=broadcast_rows,
        repeating=EACH, gpu=Gpu(1, inputs=(WHOLE, WHOLE), counts=2, joins="broadcast", quantized=False,
            small=UNSIGNED, notes="broadcasting"),
    ),
    Op("ROUND", "x -> .", shape=same_shape, batch=pointwise, folds="values", gpu=Gpu(1, quanta="reads")),
    Op("RSQRT", "x -> .", shape=same_shape, batch=pointwise, hazard=_table_hazard, gpu=Gpu(3, quanta="reads")),
    Op(
        "SELECT", "p a:any b:any -> .", shape=_select_shape, batch=_select_batch, folds="values", passes_strings=True,
        makes_like=1, moves="elements",
        gpu=Gpu(4, inputs=(BOOL, ANY, ANY), outputs=ANY, counts=3, joins="rows", quanta="reads", exact=True,
            notes="condition of the operands' shape, a scalar, or of rank 1 for axis 0"),
    ),
    Op(
        "SELECT_V2", "p a:any b:any -> .", shape=_select_v2_shape, batch=broadcast_rows, repeating=EACH, folds="values",
        passes_strings=True, makes_like=1, moves="elements",
        gpu=Gpu(2, inputs=(BOOL, ANY, ANY), outputs=ANY, counts=3, joins="broadcast", quanta="reads", exact=True,
            notes="broadcasting of all three"),
    ),
    Op(
        "SIGN", "x -> .", shape=same_shape, batch=pointwise,
        gpu=Gpu(2, inputs=(NUMBER,), quanta="reads", span=mirrored),
    ),
    Op("SIN", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op("SQRT", "x -> .", shape=same_shape, batch=pointwise, hazard=_table_hazard, gpu=Gpu(2, quanta="reads")),
    Op("SQUARE", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(2, quanta="reads")),
    Op(
        "SQUARED_DIFFERENCE", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH,
        aborts=_addition_aborts, gpu=Gpu(2, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", quanta="reads",
            notes="broadcasting"),
    ),
    Op(
        "SUB", "a b -> .", shape=broadcast_shape, batch=broadcast_rows, repeating=EACH, aborts=_addition_aborts,
        folds="values",
        gpu=Gpu(5, inputs=(NUMBER, NUMBER), counts=2, joins="broadcast", span=subtracted, quanta="reads", halves="up",
            notes="broadcasting"),
    ),
    Op("TANH", "x -> .", shape=same_shape, batch=pointwise, gpu=Gpu(3, quanta="reads", largest=1)),
    Op(
        "ZEROS_LIKE", "x:number|variant -> .", shape=same_shape, batch=pointwise, folds="values", moves="elements",
        gpu=Gpu(1, inputs=(NUMBER,), quantized=False, span=among),
    ),
)
# fmt: on
