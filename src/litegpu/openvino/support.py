"""Which operators OpenVINO takes, and why not the others. `translated.py` has those that were tried; here is what of
them its front end reads otherwise than the official runtime does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from litegpu.model.types import Operator, Subgraph, Tensor, TensorType
from litegpu.openvino.translated import TRANSLATED

FLOAT = "float"  # and integers and booleans that are not quantized
QUANTIZED = {TensorType.INT8: "int8", TensorType.UINT8: "uint8", TensorType.INT16: "int16"}
_PLAIN = frozenset({TensorType.FLOAT32, TensorType.INT32, TensorType.BOOL})
_CONSTANTS = _PLAIN | {TensorType.FLOAT16, TensorType.INT64, *QUANTIZED}


def reason_against(subgraph: Subgraph, operator: Operator, *, quantization: bool = True) -> str | None:
    """Why a node is not OpenVINO's, as a sentence; None if it is."""
    tensors = [subgraph.tensors[t] for t in (*operator.inputs, *operator.outputs) if t >= 0]
    kinds = TRANSLATED.get(operator.name)
    if operator.is_custom or kinds is None:
        return "OpenVINO's front end for .tflite files has no translation of it, or none that agrees with the CPU."
    reason = next(filter(None, map(_against_tensor, tensors)), None)
    if reason is not None:
        return reason
    kind = kind_of(tensors)
    if kind != FLOAT and not quantization:
        return "The node is quantized, and quantization_enabled is False."
    if kind not in kinds.split():
        return f"Of {operator.name} OpenVINO does not compute {kind} as the CPU does."
    rule = _RULES.get(operator.name)
    return rule(subgraph, operator, kind) if rule is not None else None


def kind_of(tensors: list[Tensor]) -> str:
    """What a node computes on: the name of a quantized type, or FLOAT."""
    found = {QUANTIZED[t.type] for t in tensors if not t.is_constant and t.type in QUANTIZED}
    return min(found) if found else FLOAT


def _against_tensor(tensor: Tensor) -> str | None:
    what = f"'{tensor.name}'"
    if tensor.is_constant:
        if tensor.type not in _CONSTANTS:
            return f"The constant {what} is {tensor.type.name}, which the front end does not unpack."
        if tensor.sparsity is not None:
            return f"The constant {what} is sparse."
    elif tensor.type not in _PLAIN and tensor.type not in QUANTIZED:
        return f"{what} is {tensor.type.name}, and OpenVINO computes float32, int32, bool and quantized tensors alike."
    quantization = tensor.quantization
    if tensor.type in QUANTIZED and not tensor.is_constant and (quantization is None or len(quantization.scales) != 1):
        return f"{what} is {tensor.type.name} without a scale of its own."
    if quantization is not None and quantization.block_size:
        return f"{what} is quantized in blocks."
    if math.prod(tensor.shape) == 0 and not tensor.is_constant:
        return f"{what} is empty."
    return None


_Rule = Callable[[Subgraph, Operator, str], str | None]


def _transpose_conv(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if operator.options.get("fused_activation_function", 0):
        return "The front end overlooks the activation that is fused into a TRANSPOSE_CONV."
    return None


def _nearest(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if operator.options.get("half_pixel_centers", False):
        return "With half_pixel_centers the front end takes other neighbours than the CPU does."
    return None


def _reduction(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    axes = subgraph.tensors[operator.inputs[1]]
    if axes.data is None:
        return "The axes are computed, not constant."
    if axes.data.size == 0:
        return "OpenVINO does not reduce along no axis."
    return None


def _reverse(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if math.prod(subgraph.tensors[operator.inputs[1]].shape) != 1:
        return "The front end reverses along one axis only."
    return None


def _strided_slice(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if operator.options.get("offset", False):
        return "The front end overlooks that the end of a STRIDED_SLICE counts from its beginning."
    return None


def _gather(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if operator.options.get("batch_dims", 0) and kind != FLOAT:
        return "OpenVINO does not gather bytes from batches reliably: some come out as others."
    if operator.options.get("batch_dims", 0) and operator.options.get("axis", 0) < 0:
        return "The front end counts a negative axis otherwise where batches are gathered from."
    return None


def _fully_connected(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if operator.options.get("weights_format", 0):
        return "The front end does not know shuffled weights."
    return None


def _comparison(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    if kind != FLOAT:
        return "OpenVINO compares the real numbers of quantized tensors, the CPU rescaled stored ones."
    return None


def _padded(subgraph: Subgraph, operator: Operator, kind: str) -> str | None:
    value = subgraph.tensors[operator.inputs[2]]
    if not value.is_constant:
        return "The value to pad with is computed, not constant."
    return None


_RULES: Mapping[str, _Rule] = {
    "TRANSPOSE_CONV": _transpose_conv,
    "RESIZE_NEAREST_NEIGHBOR": _nearest,
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), _reduction),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), _comparison),
    "REVERSE_V2": _reverse,
    "STRIDED_SLICE": _strided_slice,
    "GATHER": _gather,
    "FULLY_CONNECTED": _fully_connected,
    "PADV2": _padded,
}
