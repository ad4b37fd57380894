"""Operators that give the same numbers another type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.model.ops.checks import EIGHT_BIT, Tensors, require, scale_of
from litegpu.model.ops.record import ANY, INT32, INTEGERS, NUMBER, UINT32, Gpu, Op
from litegpu.model.ops.rules import pointwise, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator, Tensor, TensorType

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def _widened_hazard(operator: Operator, tensors: Tensors) -> None:
    """XNNPACK widens as many elements of a constant as the file says that the result has."""
    source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
    require(
        source.data is None or result.shape == source.shape or not (result.shape or result.has_rank),
        f"its constant of shape {list(source.shape)} cannot become shape {list(result.shape)}",
    )


def _quantization_aborts(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    for index in (*operator.inputs, *operator.outputs):
        tensor = tensors[index]
        several = tensor.quantization is not None and len(tensor.quantization.scales) > 1
        if tensor.type in EIGHT_BIT and not several and scale_of(tensor) < _SMALLEST_NORMAL:
            return f"'{tensor.name}' has scale {scale_of(tensor):g}"
    return None


def _same_bytes_shape(node: ShapeNode) -> list[Shape]:
    node.require(node.is_of_one_size)
    return [node.shape(0)]


# fmt: off
OPS = (
    Op(
        "BITCAST", "x:bytes -> .:bytes", shape=_same_bytes_shape, batch=pointwise, moves="shape",
        gpu=Gpu(1, inputs=(NUMBER,), quantized=False, small=UINT32, notes="between types of one size"),
    ),
    Op(
        "BUCKETIZE", "x -> .", shape=same_shape, batch=pointwise, makes=TensorType.INT32,
        gpu=Gpu(1, inputs=(NUMBER | INTEGERS,), outputs=INT32, quantized=False),
    ),
    Op(
        "CAST", "x -> .:number", shape=same_shape, batch=pointwise, folds="values", makes_option="out_data_type",
        gpu=Gpu(9, inputs=(ANY,), outputs=ANY | INTEGERS, quantized=False,
           
            notes="also of FLOAT64, and to it; to integers toward zero, saturating, "
            "NaN to the largest; constants of 16-bit floats"),
    ),
    Op(
        "DENSIFY", "x -> =x", shape=same_shape, hazard=_widened_hazard, is_seam=True, widens=True,
        without="it is of constants alone, which have no batch", moves="elements",
        gpu=Gpu(1, notes="of sparse constants, which are folded"),
    ),
    Op(
        "DEQUANTIZE", "x -> .", shape=same_shape, batch=pointwise, hazard=_widened_hazard, is_seam=True, widens=True,
        makes=TensorType.FLOAT32, gpu=Gpu(6, quanta="linear", notes="constants are folded"),
    ),
    Op(
        "FAKE_QUANT", "x:float32 -> .  ; num_bits:1..16", shape=same_shape, batch=pointwise,
        gpu=Gpu(2, quantized=False),
    ),
    Op(
        "QUANTIZE", "x -> .", is_seam=True, shape=same_shape, batch=pointwise,
        aborts=_quantization_aborts, aborts_in="xnnpack",
        gpu=Gpu(3, quanta="linear", exact=True, notes="of floats, or from one quantization to another"),
    ),
)
# fmt: on
