"""Refuses what the official runtime would crash on instead of reporting an error.

Each rule was found by running damaged models on the runtime in a process of its own (tests/model/test_mutations.py does
that still); what the runtime reports by itself is left to it. Rules look at the file only: they cannot know shapes and
values that arise while running.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.model.types import Operator, Tensor, TensorType

Tensors = Sequence[Tensor]


def check_operator(operator: Operator, tensors: Tensors) -> None:
    """Checks an operator whose tensor indices are valid.

    Raises:
        ModelError: says what is wrong with the operator's options, types, quantization or constants.
    """
    if operator.is_custom:
        return
    _check_managed_types(operator, tensors)
    _check_windows(operator)
    _check_made_size(operator, tensors)
    check = _CHECKS.get(operator.name)
    if check is not None:
        check(operator, tensors)


def check_sparsity(tensor: Tensor) -> None:
    """Checks that a sparse constant's encoding stays within its shape and its values.

    Raises:
        ModelError: says what is wrong with it.
    """
    sparsity, rank = tensor.sparsity, len(tensor.shape)
    assert sparsity is not None
    levels = len(sparsity.dimensions)
    _require(
        levels == rank + len(sparsity.block_map)
        and sorted(sparsity.traversal_order) == list(range(levels))
        and all(0 <= dimension < rank for dimension in sparsity.block_map),
        f"tensor {tensor.index} '{tensor.name}' has a sparse encoding whose dimensions do not fit its shape",
    )
    entries = 1
    for form, *arrays in sparsity.dimensions:
        if form == "dense":
            _require(arrays[0] > 0, f"tensor {tensor.index} '{tensor.name}' has a sparse encoding with an empty level")
            entries *= arrays[0]
            continue
        segments, indices = arrays
        _require(
            len(segments) == entries + 1
            and segments[0] == 0
            and segments[-1] == len(indices)
            and bool((segments[1:] >= segments[:-1]).all())
            and bool((indices >= 0).all())
            and (len(indices) == 0 or int(indices.max()) < max(tensor.shape, default=1)),
            f"tensor {tensor.index} '{tensor.name}' has a sparse encoding with indices beyond its shape",
        )
        entries = len(indices)


def _check_managed_types(operator: Operator, tensors: Tensors) -> None:
    """Strings and handles are objects: an operator that takes them for numbers follows wild pointers."""
    for index in (*operator.inputs, *operator.outputs):
        if index >= 0 and tensors[index].type in _MANAGED:
            takers = _MANAGED[tensors[index].type]
            _require(
                operator.name in takers,
                f"tensor {index} '{tensors[index].name}' is of type {tensors[index].type.name}, which {operator.name} "
                "does not take",
            )
    if operator.name in _SAME_TYPE:
        source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
        _require(
            source.type is result.type, f"its input is of type {source.type.name}, its output of {result.type.name}"
        )


def _check_windows(operator: Operator) -> None:
    for name in _WINDOW_OPTIONS.get(operator.name, ()):
        value = operator.options.get(name, 0)
        _require(0 < value < 2**24, f"its option {name} is {value}, which is no size")


def _check_made_size(operator: Operator, tensors: Tensors) -> None:
    """A constant that makes a small tensor huge is damaged: the runtime would fill it all the same."""
    position = _SIZE_INPUTS.get(operator.name)
    if position is None or (sizes := tensors[operator.inputs[position]].data) is None or sizes.dtype.kind not in "iu":
        return
    source, result = tensors[operator.inputs[0]].shape, tensors[operator.outputs[0]].shape
    product = math.prod(int(value) for value in sizes.flat if value > 0)  # as Python integers, which do not overflow
    match operator.name:
        case "BROADCAST_TO" | "FILL":
            made = product
        case "TILE" | "ONE_HOT":
            made = math.prod(source) * product
        case "RESIZE_BILINEAR" | "RESIZE_NEAREST_NEIGHBOR":
            made = product * math.prod(source[:1] + source[3:])
        case _:
            if sizes.shape != (len(source), 2):
                return  # which the runtime reports
            margins = sizes.tolist()
            made = math.prod(extent + sum(margin) for extent, margin in zip(source, margins, strict=True))
    _require(
        made <= LARGE_ELEMENTS or made <= LARGE_RATIO * math.prod(result),
        f"its constant {sizes.tolist()} asks for {made} elements, but its output has shape {list(result)}",
    )


def _check_split(operator: Operator, tensors: Tensors) -> None:
    name = "num" if operator.name == "UNPACK" else "num_splits"
    count = operator.options.get(name, 0)
    _require(
        count == len(operator.outputs), f"its option {name} is {count}, but it has {len(operator.outputs)} outputs"
    )


def _check_addition(operator: Operator, tensors: Tensors) -> None:
    """The runtime rescales both inputs to twice the larger scale with some bits to spare, and back to the output's."""
    used = [tensors[index] for index in (*operator.inputs, *operator.outputs)]
    if not any(tensor.type in _QUANTIZED for tensor in used) or used[-1].type not in _QUANTIZED:
        return
    if used[-1].type is TensorType.INT16 and not any(tensor.quantization for tensor in used):
        return  # plain integers
    first, second, result = (_scale(tensor) for tensor in used)
    doubled = 2 * max(first, second)
    if operator.name == "SQUARED_DIFFERENCE":
        factor = doubled * doubled / (2**14 * result)
    else:
        factor = doubled / (2 ** (15 if used[-1].type is TensorType.INT16 else 20) * result)
    _require(
        1e-30 < factor < 1 and min(first, second) / doubled > 1e-30,
        f"its scales {first:g} and {second:g} do not go with the scale {result:g} of its output",
    )


def _check_comparison(operator: Operator, tensors: Tensors) -> None:
    for index in operator.inputs:
        if tensors[index].type in _EIGHT_BIT:
            scale = _scale(tensors[index])
            _require(scale < 1, f"tensor {index} '{tensors[index].name}' has scale {scale:g}, it must be less than 1")


def _check_quantize(operator: Operator, tensors: Tensors) -> None:
    result = tensors[operator.outputs[0]]
    if result.type in _QUANTIZED and (result.quantization is None or len(result.quantization.scales) == 1):
        _scale(result)


def _check_resize(operator: Operator, tensors: Tensors) -> None:
    image = tensors[operator.inputs[0]]
    _require(0 not in image.shape, f"its input of shape {list(image.shape)} is empty")


def _check_binary(operator: Operator, tensors: Tensors) -> None:
    for index in operator.inputs:
        _require(0 not in tensors[index].shape, f"its input of shape {list(tensors[index].shape)} is empty")


def _check_log_softmax(operator: Operator, tensors: Tensors) -> None:
    shape = tensors[operator.inputs[0]].shape
    _require(len(shape) > 0 and 0 not in shape, f"its input of shape {list(shape)} has no last dimension to go along")


def _check_reverse(operator: Operator, tensors: Tensors) -> None:
    axes = tensors[operator.inputs[1]]
    rank = len(tensors[operator.inputs[0]].shape)
    _require(math.prod(axes.shape) > 0, "it is given no axis")
    if axes.data is not None:
        _require(
            bool(((axes.data >= -rank) & (axes.data < rank)).all()), f"its axes {_values(axes)} exceed rank {rank}"
        )


def _check_local_response(operator: Operator, tensors: Tensors) -> None:
    radius = operator.options.get("radius", 0)
    _require(0 <= radius < 2**20, f"its option radius is {radius}")


def _check_lstm(operator: Operator, tensors: Tensors) -> None:
    """The input gate is there as a whole, or left out as a whole; all other gates are there."""
    if len(operator.inputs) < 20:
        _require(-1 not in operator.inputs, "the basic kernel has no optional inputs")
        return
    names = (*range(2, 5), *range(6, 9), *range(13, 16))
    missing = [position for position in names if operator.inputs[position] < 0]
    _require(not missing, f"it lacks its inputs {missing}")
    gate = [operator.inputs[position] < 0 for position in (1, 5, 12)]
    _require(all(gate) or not any(gate), "it has only a part of its input gate (inputs 1, 5 and 12)")
    peephole = [operator.inputs[position] < 0 for position in (10, 11)]
    _require(all(peephole) or not any(peephole), "it has only a part of its peepholes (inputs 10 and 11)")
    rank = 2 if operator.name == "LSTM" else 3
    shape = tensors[operator.inputs[0]].shape
    _require(len(shape) == rank, f"its input has shape {list(shape)} where rank {rank} is needed")


def _check_broadcast_args(operator: Operator, tensors: Tensors) -> None:
    first, second = (tensors[index].data for index in operator.inputs)
    if first is None or second is None:
        return
    pairs = itertools.zip_longest(first.reshape(-1)[::-1], second.reshape(-1)[::-1], fillvalue=1)
    _require(
        all(a == b or 1 in (a, b) for a, b in pairs),
        f"the shapes {first.tolist()} and {second.tolist()} do not broadcast",
    )


def _check_dilate(operator: Operator, tensors: Tensors) -> None:
    factors = tensors[operator.inputs[1]]
    if factors.data is not None:
        _require(bool((factors.data > 0).all()), f"its dilations {_values(factors)} are not positive")


def _check_projection(operator: Operator, tensors: Tensors) -> None:
    result = tensors[operator.outputs[0]]
    _require(result.type is not TensorType.STRING, "its output is of type STRING, it makes numbers")


def _check_gather(operator: Operator, tensors: Tensors) -> None:
    """STABLEHLO_GATHER, whose attributes are those of the StableHLO specification."""
    operand, indices = (tensors[index].shape for index in operator.inputs)
    result = tensors[operator.outputs[0]].shape
    options = operator.options
    vector = options.get("index_vector_dim", 0)
    _require(0 <= vector <= len(indices), f"its option index_vector_dim is {vector}")
    batch_rank = len(indices) - (vector < len(indices))
    offsets, collapsed = options.get("offset_dims", ()), options.get("collapsed_slice_dims", ())
    _require(
        _distinct_below(offsets, len(result))
        and _distinct_below(collapsed, len(operand))
        and _distinct_below(options.get("start_index_map", ()), len(operand))
        and len(options.get("slice_sizes", ())) == len(operand)
        and len(offsets) + len(collapsed) == len(operand)
        and len(offsets) + batch_rank == len(result),
        "its dimension numbers do not fit the shapes",
    )


def _distinct_below(numbers: Sequence[int], limit: int) -> bool:
    return len(set(numbers)) == len(numbers) and all(0 <= number < limit for number in numbers)


def _scale(tensor: Tensor) -> float:
    """The one scale of a quantized tensor."""
    quantization = tensor.quantization
    _require(
        quantization is not None and len(quantization.scales) == 1,
        f"tensor {tensor.index} '{tensor.name}' of type {tensor.type.name} needs one scale, it has "
        f"{0 if quantization is None else len(quantization.scales)}",
    )
    assert quantization is not None
    scale = float(quantization.scales[0])
    _require(scale >= _SMALLEST_SCALE, f"tensor {tensor.index} '{tensor.name}' has scale {scale:g}, which is too small")
    return scale


def _values(tensor: Tensor) -> Any:
    assert tensor.data is not None
    return tensor.data.reshape(-1)[:8].tolist()


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ModelError(f"{problem}; the file is damaged or its converter is wrong: fetch or convert it again")


# A tensor this large that is this many times larger than what goes with it is not meant.
LARGE_ELEMENTS = 2**26
LARGE_RATIO = 2**12

# The input that says how large the output is.
_SIZE_INPUTS = {
    "BROADCAST_TO": 1,
    "FILL": 0,
    "TILE": 1,
    "ONE_HOT": 1,
    "RESIZE_BILINEAR": 1,
    "RESIZE_NEAREST_NEIGHBOR": 1,
    "PAD": 1,
    "PADV2": 1,
    "MIRROR_PAD": 1,
}

_EIGHT_BIT = frozenset({TensorType.INT8, TensorType.UINT8})
_QUANTIZED = _EIGHT_BIT | {TensorType.INT16}
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)

_CONTROL_FLOW = frozenset(
    {"CALL", "CALL_ONCE", "IF", "WHILE", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "STABLEHLO_CUSTOM_CALL"}
) | {"STABLEHLO_WHILE"}
_STRINGS = frozenset(
    """ASSIGN_VARIABLE BROADCAST_TO CONCATENATION EQUAL EXPAND_DIMS FILL GATHER GATHER_ND HASHTABLE_FIND
    HASHTABLE_IMPORT HASHTABLE_LOOKUP LSH_PROJECTION NOT_EQUAL PACK RANK READ_VARIABLE RESHAPE SELECT SELECT_V2 SHAPE
    SKIP_GRAM SLICE SPLIT SPLIT_V SQUEEZE STRIDED_SLICE TILE TRANSPOSE UNPACK""".split()  # noqa: SIM905
)
_HANDLES = frozenset({"ASSIGN_VARIABLE", "READ_VARIABLE", "VAR_HANDLE"}) | {
    "HASHTABLE",
    "HASHTABLE_FIND",
    "HASHTABLE_IMPORT",
    "HASHTABLE_SIZE",
}
# The operators that take tensors of types which the runtime manages as objects.
_MANAGED: Mapping[TensorType, frozenset[str]] = {
    TensorType.STRING: _CONTROL_FLOW | _STRINGS,
    TensorType.RESOURCE: _CONTROL_FLOW | _HANDLES,
    TensorType.VARIANT: _CONTROL_FLOW | {"RESHAPE", "SHAPE", "ZEROS_LIKE"},
}
_SAME_TYPE = frozenset({"CUMSUM", "EXPAND_DIMS", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE"})

_STRIDES = ("stride_h", "stride_w")
_DILATIONS = ("dilation_h_factor", "dilation_w_factor")
_FILTER = ("filter_height", "filter_width")
_VOLUME = ("stride_d", *_STRIDES, "dilation_d_factor", *_DILATIONS)
_WINDOW_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "CONV_2D": _STRIDES + _DILATIONS,
    "DEPTHWISE_CONV_2D": _STRIDES + _DILATIONS,
    "TRANSPOSE_CONV": _STRIDES,
    "CONV_3D": _VOLUME,
    "CONV_3D_TRANSPOSE": _VOLUME,
    "AVERAGE_POOL_2D": _STRIDES + _FILTER,
    "MAX_POOL_2D": _STRIDES + _FILTER,
    "L2_POOL_2D": _STRIDES + _FILTER,
    "SPACE_TO_DEPTH": ("block_size",),
    "DEPTH_TO_SPACE": ("block_size",),
}

_CHECKS: Mapping[str, Callable[[Operator, Tensors], None]] = {
    "SPLIT": _check_split,
    "SPLIT_V": _check_split,
    "UNPACK": _check_split,
    "ADD": _check_addition,
    "SUB": _check_addition,
    "SQUARED_DIFFERENCE": _check_addition,
    "EQUAL": _check_comparison,
    "NOT_EQUAL": _check_comparison,
    "LESS": _check_comparison,
    "LESS_EQUAL": _check_comparison,
    "GREATER": _check_comparison,
    "GREATER_EQUAL": _check_comparison,
    "QUANTIZE": _check_quantize,
    "RESIZE_BILINEAR": _check_resize,
    "RESIZE_NEAREST_NEIGHBOR": _check_resize,
    "ATAN2": _check_binary,
    "LOG_SOFTMAX": _check_log_softmax,
    "REVERSE_V2": _check_reverse,
    "LOCAL_RESPONSE_NORMALIZATION": _check_local_response,
    "LSTM": _check_lstm,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _check_lstm,
    "BROADCAST_ARGS": _check_broadcast_args,
    "DILATE": _check_dilate,
    "LSH_PROJECTION": _check_projection,
    "STABLEHLO_GATHER": _check_gather,
}
