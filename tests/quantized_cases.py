"""One-operator models of quantized tensors, made of the float ones of op_cases.py with the ranges that those have."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
from agreement import official, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import CASES, OpCase

from litegpu.model import read_model, write_model
from litegpu.model.ops import BUILTIN
from litegpu.model.types import Operator, Quantization, Tensor, TensorType

KINDS = {"int8": TensorType.INT8, "uint8": TensorType.UINT8, "int16": TensorType.INT16}
_DTYPES: dict[TensorType, type[np.integer]] = {
    TensorType.INT8: np.int8,
    TensorType.UINT8: np.uint8,
    TensorType.INT16: np.int16,
}

#: Inputs that hold weights, and the axis of their output channels; the bias is the input after the data and weights.
WEIGHTS = {"CONV_2D": (1, 0), "DEPTHWISE_CONV_2D": (1, 3), "FULLY_CONNECTED": (1, 0), "TRANSPOSE_CONV": (1, 0)}
#: Operators whose CPU kernels want the same quantization of inputs and outputs.
SAME = frozenset({
    *("AVERAGE_POOL_2D", "BATCH_TO_SPACE_ND", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER"),
    *("MAXIMUM", "MAX_POOL_2D", "MINIMUM", "MIRROR_PAD", "PACK", "PAD", "PADV2", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE"),
    *("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SELECT", "SELECT_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPLIT"),
    *("SPACE_TO_DEPTH", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
    *("BROADCAST_TO", "GATHER_ND", "ONE_HOT", "REVERSE_V2", "TOPK_V2"),
    *("DYNAMIC_UPDATE_SLICE", "EMBEDDING_LOOKUP", "REVERSE_SEQUENCE"),
})  # fmt: skip
#: Scale and zero point of outputs that CPU kernels insist on, for int8; uint8 has the zero point 128 higher.
FIXED = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "TANH": (1 / 128, 0),
    "L2_NORMALIZATION": (1 / 128, 0),
    "LOG_SOFTMAX": (16 / 256, 127),
}


#: Operators without kernels of the type in the official runtime, or without real numbers.
_NO_KERNEL = {
    *("ADD_N", "ATAN2", "CEIL", "COS", "CUMSUM", "FLOOR", "L2_POOL_2D", "LOCAL_RESPONSE_NORMALIZATION", "POW", "ROUND"),
    *("SIGN", "SIN", "SQUARE", "BITCAST", "BUCKETIZE", "CONV_3D", "CONV_3D_TRANSPOSE", "FAKE_QUANT"),
    "SEGMENT_SUM",
    *("UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_SUM"),
}
_NO_REALS = {
    *("LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "CAST", "FLOOR_DIV", "FLOOR_MOD", "REDUCE_ALL", "REDUCE_ANY"),
    *("SCATTER_ND", "ZEROS_LIKE", "SHAPE", "RANK"),
}
_NO_INT8 = {"REVERSE_SEQUENCE"}
_NO_INT16 = {
    *("ARG_MAX", "ARG_MIN", "DEPTH_TO_SPACE", "ELU", "HARD_SWISH", "L2_NORMALIZATION", "RELU_0_TO_1", "RELU_N1_TO_1"),
    *("SPACE_TO_DEPTH", "SQUARED_DIFFERENCE", "PRELU", "LOG_SOFTMAX", "ONE_HOT"),
    *("REVERSE_SEQUENCE", "SPARSE_TO_DENSE"),
}
_NO_UINT8 = {
    *("ABS", "BATCH_MATMUL", "ELU", "EXP", "LOG", "NEG", "REDUCE_PROD", "RELU_0_TO_1", "RSQRT", "SELECT", "SQRT"),
    "SQUARED_DIFFERENCE",
}
#: Where the official kernels look int16 up in coarse tables or round product after product, the reference is the float
#: op, and one quantum may be missing; as it may where the official sums of int16 go beyond 24 bits.
AGAINST_FLOAT = {
    *(("int16", op) for op in ("DIV", "EXP", "GELU", "LOGISTIC", "LOG", "RSQRT", "SOFTMAX", "TANH")),
    *((kind, "REDUCE_PROD") for kind in KINDS),
}
#: XNNPACK declines a TRANSPOSE_CONV whose window is smaller than its stride, and the runtime's own kernel rounds twice.
NEAR = AGAINST_FLOAT | {
    *((kind, "TRANSPOSE_CONV") for kind in KINDS),
    ("int16", "FULLY_CONNECTED"),
    *(("int16", op) for op in ("ADD", "BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D")),
    *(("int16", "SQRT"), ("int8", "SQRT"), ("uint8", "L2_NORMALIZATION")),
}


def operators(kind: str) -> list[str]:
    missing = {"int8": _NO_INT8, "int16": _NO_INT16, "uint8": _NO_UINT8}[kind]
    left_out = _NO_KERNEL | _NO_REALS | missing
    return [op for op in CASES if op not in left_out and _takes_reals(op)]


def _takes_reals(operator: str) -> bool:
    gpu = BUILTIN[operator].gpu
    return gpu is not None and gpu.quantized


ALL = [(kind, op) for kind in KINDS for op in operators(kind)]


def quantized_case(operator: str, kind: str, seed: int, **draft: Any) -> OpCase | None:
    """The float case of that seed (or one after it that has float inputs) in quantized form, None if the official
    runtime would refuse it: a bias beside weights that are not constant, scales that HARD_SWISH does not like. `draft`
    is as for the cases of op_cases.py."""
    for attempt in range(20):
        case = CASES[operator](random.Random(f"{operator} {seed + 1000 * attempt}"), **draft)
        if any(a.dtype == np.float32 for a in case.inputs):
            if _has_float_bias(case):
                return None
            found = _quantize(case, KINDS[kind])
            return None if operator == "HARD_SWISH" and _is_refused(found) else found
    raise ValueError(f"{operator} takes no real numbers")


def compare(kind: str, op: str, case: OpCase, got: list[np.ndarray], seed: int, *, half: bool = False) -> None:
    wanted = (
        real_case(case)
        if (kind, op) in AGAINST_FLOAT
        else run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    )
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        difference = np.abs(a.reshape(b.shape).astype(np.float64) - b.astype(np.float64))
        allowed = 1 if b.dtype in (np.int8, np.uint8, np.int16) and (half or (kind, op) in NEAR) else 0
        assert difference.max(initial=0) <= allowed, f"{case.name} (seed {seed}) output {i}"


def _is_refused(case: OpCase) -> bool:
    try:
        official(case.content)
    except RuntimeError:
        return True
    return False


def _has_float_bias(case: OpCase) -> bool:
    main = read_model(case.content).main
    (operator,) = main.operators
    if operator.name not in WEIGHTS:
        return False
    place, _ = WEIGHTS[operator.name]
    return main.tensors[operator.inputs[place]].data is None and len(operator.inputs) > 2


def real_case(case: OpCase) -> list[np.ndarray]:
    """What the operator of a quantized case gives in float32 on the CPU, as stored numbers."""
    model = read_model(case.content)
    tensors = [_real(t) for t in model.main.tensors]
    changed = dataclasses.replace(model.main, tensors=tuple(tensors))
    content = write_model(dataclasses.replace(model, subgraphs=(changed,)))
    pairs = [(model.main.tensors[t], array) for t, array in zip(model.main.inputs, case.inputs, strict=True)]
    results = run(official(content), [_dequantized(array, t) if t.type in _DTYPES else array for t, array in pairs])
    outputs = [model.main.tensors[t] for t in model.main.outputs]
    return [
        _store(a, t.quantization, t.type) if t.type in _DTYPES else a for a, t in zip(results, outputs, strict=True)
    ]


def _real(tensor: Tensor) -> Tensor:
    if tensor.type not in _DTYPES:
        return tensor
    data = None if tensor.data is None else _dequantized(tensor.data, tensor)
    return dataclasses.replace(tensor, type=TensorType.FLOAT32, quantization=None, data=data)


def _dequantized(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    q = tensor.quantization
    assert q is not None
    return ((array.astype(np.float64) - q.zero_points[0]) * q.scales[0]).astype(np.float32)


def _quantize(case: OpCase, type_: TensorType) -> OpCase:
    model = read_model(case.content)
    main = model.main
    (operator,) = main.operators
    arrays = dict(zip(main.inputs, case.inputs, strict=True))
    arrays |= dict(zip(main.outputs, run(official(case.content), case.inputs), strict=True))
    arrays |= {t.index: t.data for t in main.tensors if t.data is not None}
    places = [t for t in (*operator.inputs, *operator.outputs) if t >= 0 and main.tensors[t].type is TensorType.FLOAT32]
    chosen = {t: _quantization(arrays[t], type_) for t in places}
    if operator.name in SAME:
        shared = _quantization(np.concatenate([arrays[t].reshape(-1) for t in places]), type_)
        chosen = dict.fromkeys(places, shared)
    elif operator.name in FIXED:
        chosen[operator.outputs[0]] = _fixed(operator.name, type_)
        if operator.name == "TANH" and type_ is TensorType.INT16:
            chosen[operator.inputs[0]] = _parameters(2.0**-12, 0)
        if operator.name == "LOGISTIC" and type_ is TensorType.INT16:
            chosen[operator.inputs[0]] = _parameters(2.0**-12, 0)
    tensors = list(main.tensors)
    for t in chosen:
        tensors[t] = _stored(tensors[t], chosen[t], type_)
    if operator.name in WEIGHTS:
        _quantize_weights(operator, main.tensors, tensors, type_)
    inputs = [
        _store(array, chosen[t], type_) if t in chosen else array
        for t, array in zip(main.inputs, case.inputs, strict=True)
    ]
    changed = dataclasses.replace(main, tensors=tuple(tensors))
    return OpCase(f"{type_.name} {case.name}", write_model(dataclasses.replace(model, subgraphs=(changed,))), inputs)


def _quantize_weights(operator: Operator, given: tuple[Tensor, ...], tensors: list[Tensor], type_: TensorType) -> None:
    """Constant weights per channel and symmetric (uint8: per tensor), and the bias as whole numbers."""
    place, axis = WEIGHTS[operator.name]
    data, bias = (2, 3) if operator.name == "TRANSPOSE_CONV" else (0, 2)
    w = given[operator.inputs[place]]
    if w.data is None:
        return
    if type_ is not TensorType.UINT8:
        largest = np.abs(w.data).max(axis=tuple(i for i in range(w.data.ndim) if i != axis))
        q = Quantization(np.maximum(largest / 127, 1e-6).astype(np.float32), np.zeros(largest.size, np.int64), axis)
        tensors[w.index] = _stored(w, q, TensorType.INT8)
    if len(operator.inputs) > bias and operator.inputs[bias] >= 0:
        b = given[operator.inputs[bias]]
        left, right = (tensors[operator.inputs[i]].quantization for i in (data, place))
        assert b.data is not None and left is not None and right is not None
        scale = left.scales.astype(np.float64) * right.scales.astype(np.float64)
        wide = TensorType.INT64 if type_ is TensorType.INT16 else TensorType.INT32
        values = np.rint(b.data.astype(np.float64) / scale).astype(np.int64 if type_ is TensorType.INT16 else np.int32)
        q = Quantization(scale.astype(np.float32), np.zeros(scale.size, np.int64), 0)
        tensors[b.index] = dataclasses.replace(b, type=wide, data=values, quantization=q)


def _quantization(array: np.ndarray, type_: TensorType) -> Quantization:
    """For the range of the array and zero; symmetric for int16."""
    low, high = min(float(array.min(initial=0)), 0.0), max(float(array.max(initial=0)), 0.0)
    limits = np.iinfo(_DTYPES[type_])
    if type_ is TensorType.INT16:
        return _parameters(max(-low, high, 0.1) / limits.max, 0)
    scale = max(high - low, 0.1) / (limits.max - limits.min)
    return _parameters(scale, int(np.clip(np.rint(limits.min - low / scale), limits.min, limits.max)))


def _fixed(operator: str, type_: TensorType) -> Quantization:
    if type_ is TensorType.INT16:
        return _parameters(2.0**-15, 0)
    scale, zero = FIXED[operator]
    return _parameters(scale, zero + (128 if type_ is TensorType.UINT8 else 0))


def _parameters(scale: float, zero: int) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([zero], np.int64))


def _stored(tensor: Tensor, q: Quantization, type_: TensorType) -> Tensor:
    data = None if tensor.data is None else _store(tensor.data, q, type_)
    return dataclasses.replace(tensor, type=type_, quantization=q, data=data)


def _store(array: np.ndarray, q: Quantization | None, type_: TensorType) -> np.ndarray:
    assert q is not None
    axis = [-1 if i == q.dimension and q.scales.size > 1 else 1 for i in range(array.ndim)]
    scales, zeros = (a.reshape(axis) if a.size > 1 else a.reshape(()) for a in (q.scales, q.zero_points))
    limits = np.iinfo(_DTYPES[type_])
    return np.clip(np.rint(array / scales) + zeros, limits.min, limits.max).astype(_DTYPES[type_])
