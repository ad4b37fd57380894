"""Refuses what the official runtime would crash on instead of reporting an error.

Each rule was found by running damaged models on the runtime in a process of its own (tests/model/test_mutations.py does
that still); what the runtime reports by itself is left to it. Rules look at the file only: they cannot know shapes and
values that arise while running. Scales that only the official kernels abort on are delegates/aborts.py's: an operator
that a delegate runs may have them.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.model import flexbuffer, operands
from litegpu.model.operands import OBJECTS, Operand, Signature
from litegpu.model.types import Operator, Tensor, TensorType

Tensors = Sequence[Tensor]


def check_operator(operator: Operator, tensors: Tensors) -> None:
    """Checks an operator whose tensor indices are valid.

    Raises:
        ModelError: says what is wrong with the operator's options, types, quantization or constants.
    """
    if not is_of_xnnpack(operator):
        check_as_on_the_cpu(operator, tensors)


def is_of_xnnpack(operator: Operator) -> bool:
    """Whether it is a custom operator that the official runtime's default delegate alone has. litegpu's own kernels
    take more of them: they are checked where that delegate is about to get them (delegates/aborts.py)."""
    return operator.is_custom and operator.name in _WINDOW_OPTIONS


def check_as_on_the_cpu(operator: Operator, tensors: Tensors) -> None:
    """The same for the official runtime's kernel, whatever the operator."""
    signature = operands.signature(_row(operator), operator.is_custom)
    if signature is None:
        return  # a custom operator that the official runtime has no kernel for, or one newer than this table
    _check_count("inputs", operator.inputs, signature.inputs)
    _check_count("outputs", operator.outputs, signature.outputs)
    _check_operands(operator, tensors, signature)
    _check_ranges(_custom_options(operator) if operator.is_custom else operator.options, signature.options)
    check = _CHECKS.get(operator.name)
    if check is not None:
        check(operator, tensors)


def check_strings(tensor: Tensor) -> None:
    """Checks that a constant of strings holds as many as its shape says, within its bytes: their count, where each
    begins and the last one ends, then the characters.

    Raises:
        ModelError: says that it does not.
    """
    assert tensor.data is not None
    content = tensor.data.tobytes()
    count = math.prod(tensor.shape)
    fits = len(content) >= 4 * (count + 2) and int.from_bytes(content[:4], "little") == count
    if fits:
        places = np.frombuffer(content, "<i4", count + 1, 4)
        ordered = bool((places[1:] >= places[:-1]).all())
        fits = ordered and int(places[0]) >= 4 * (count + 2) and int(places[-1]) <= len(content)
    _require(fits, f"tensor {tensor.index} '{tensor.name}' of {count} strings has bytes that hold others")


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
    limits = _level_limits(tensor)
    entries = 1
    for level, (form, *arrays) in enumerate(sparsity.dimensions):
        limit = limits[sparsity.traversal_order[level]]
        if form == "dense":
            _require(
                arrays[0] == limit,
                f"tensor {tensor.index} '{tensor.name}' has sparse levels of {arrays[0]} where its shape has {limit}",
            )
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
            and (len(indices) == 0 or int(indices.max()) < limit),
            f"tensor {tensor.index} '{tensor.name}' has a sparse encoding with indices beyond its shape",
        )
        entries = len(indices)


def _level_limits(tensor: Tensor) -> list[int]:
    """How far indices go along each dimension of a sparse tensor, and then along each of those of its blocks."""
    sparsity, rank = tensor.sparsity, len(tensor.shape)
    assert sparsity is not None
    sizes = dict(zip(sparsity.traversal_order, sparsity.dimensions, strict=True))
    blocks = [sizes[rank + number] for number in range(len(sparsity.block_map))]
    _require(
        all(form == "dense" and arrays[0] > 0 for form, *arrays in blocks),
        f"tensor {tensor.index} '{tensor.name}' has a sparse encoding whose blocks have no size",
    )
    limits = list(tensor.shape)
    for axis, (_, size) in zip(sparsity.block_map, blocks, strict=True):
        _require(
            limits[axis] % size == 0, f"tensor {tensor.index} '{tensor.name}' is no whole number of sparse blocks long"
        )
        limits[axis] //= size
    return [*limits, *(size for _, size in blocks)]


def _row(operator: Operator) -> str:
    """Which line of the table an operator is held against."""
    return "LSTM_BASIC" if operator.name == "LSTM" and len(operator.inputs) < 20 else operator.name


def _check_count(what: str, indices: Sequence[int], places: tuple[Operand, ...]) -> None:
    low, high = operands.count(places)
    wanted = f"{low}" if high == low else f"at least {low}" if high is None else f"{low} to {high}"
    _require(
        low <= len(indices) <= (len(indices) if high is None else high),
        f"it has {len(indices)} {what}, but takes {wanted}",
    )


def _check_operands(operator: Operator, tensors: Tensors, signature: Signature) -> None:
    """Types, ranks and sizes as the table has them."""
    by_name: dict[str, Tensor] = {}
    given = {tensors[index].type for index in operator.inputs if index >= 0}
    objects = any(o.types is None or TensorType.STRING in o.types for o in signature.inputs)
    for what, indices, place in (
        ("input", operator.inputs, signature.input),
        ("output", operator.outputs, signature.output),
    ):
        for position, index in enumerate(indices):
            operand = place(position)
            assert operand is not None
            if index < 0:
                _require(operand.optional, f"it lacks its {what} {position}, which is not optional")
                continue
            tensor = tensors[index]
            by_name.setdefault(operand.name, tensor)
            name = f"its {what} {position}, tensor {index} '{tensor.name}',"
            if operand.like:
                like = by_name.get(operand.like)
                _require(
                    like is None or tensor.type is like.type,
                    f"{name} is of type {tensor.type.name} where the type of tensor {like and like.index}, "
                    f"{like and like.type.name}, is needed",
                )
            elif operand.types is not None:
                _require(tensor.type in operand.types, f"{name} is of type {tensor.type.name}, which it does not take")
            elif what == "output" and operator.name in _PASSING and TensorType.STRING in given:
                _require(tensor.type is TensorType.STRING, f"{name} is of type {tensor.type.name}, but gets strings")
            elif operand.name == "." and not objects:
                _require(tensor.type not in OBJECTS, f"{name} is of type {tensor.type.name}, which it does not give")
            if operand.ranks is not None:
                low, high = operand.ranks
                _require(
                    low <= len(tensor.shape) <= high, f"{name} has shape {list(tensor.shape)}, it needs rank {low}"
                )
            if operand.most is not None:
                _require(
                    math.prod(tensor.shape) <= operand.most,
                    f"{name} has {math.prod(tensor.shape)} elements where {operand.most} can be",
                )
            if what == "output":
                _require(not tensor.is_variable, f"{name} is a variable, which only its own operator may change")
            else:
                _require(
                    not (tensor.is_variable and tensor.type in (TensorType.INT32, TensorType.INT64)),
                    f"{name} is a variable of integers, which no operator ever sets",
                )


def _check_ranges(options: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]]) -> None:
    for name, (low, high) in ranges.items():
        value = options.get(name, 0)
        _require(low <= value <= high, f"its option {name} is {value}, it must be {low:.0f} to {high:.0f}")


def _custom_options(operator: Operator) -> Mapping[str, Any]:
    """The options of a custom operator that the official runtime has a kernel for; it reads them as they are."""
    content = operator.custom_options
    if operator.name in _WINDOW_OPTIONS:
        names = _WINDOW_OPTIONS[operator.name]
        _require(
            len(content) >= 4 * len(names), f"its options have {len(content)} bytes where {4 * len(names)} are needed"
        )
        return dict(zip(names, struct.unpack_from(f"<{len(names)}i", content), strict=True))
    try:
        return flexbuffer.numbers(content)
    except ValueError as error:
        raise ModelError(f"its options are no FlexBuffers map: {error}; {_CONVERT}") from None


def _check_split(operator: Operator, tensors: Tensors) -> None:
    name = "num" if operator.name == "UNPACK" else "num_splits"
    count = operator.options.get(name, 0)
    _require(
        count == len(operator.outputs), f"its option {name} is {count}, but it has {len(operator.outputs)} outputs"
    )


def _check_resize(operator: Operator, tensors: Tensors) -> None:
    image = tensors[operator.inputs[0]]
    _require(0 not in image.shape[1:3], f"its input of shape {list(image.shape)} has no pixels")


def _check_nearest(operator: Operator, tensors: Tensors) -> None:
    _check_resize(operator, tensors)
    size = tensors[operator.inputs[1]].data
    _require(size is None or bool(np.all(size > 0)), f"it resizes to {[] if size is None else size.tolist()}")


def _check_log_softmax(operator: Operator, tensors: Tensors) -> None:
    shape = tensors[operator.inputs[0]].shape
    _require(len(shape) > 0 and shape[-1] > 0, f"its input of shape {list(shape)} has no last dimension to go along")


def _check_reverse(operator: Operator, tensors: Tensors) -> None:
    axes = tensors[operator.inputs[1]]
    rank = len(tensors[operator.inputs[0]].shape)
    _require(math.prod(axes.shape) > 0, "it is given no axis")
    if axes.data is not None:
        _require(
            bool(((axes.data >= -rank) & (axes.data < rank)).all()), f"its axes {_values(axes)} exceed rank {rank}"
        )


def _check_lstm(operator: Operator, tensors: Tensors) -> None:
    if len(operator.inputs) < 20:
        _require(-1 not in operator.inputs, "the basic kernel has no optional inputs")
        _check_state_types(operator, tensors, 1, 4)
        return
    _check_layer(operator.inputs, 0)
    _check_state_types(operator, tensors, 18, 19)
    quantized = tensors[operator.inputs[0]].type is TensorType.INT8
    computed = [i for i in operator.inputs[1:18] if i >= 0 and not tensors[i].is_constant]
    _require(not (quantized and computed), f"its weights {computed} are no constants, which the integer kernel sums up")
    rank = 2 if operator.name == "LSTM" else 3
    shape = tensors[operator.inputs[0]].shape
    _require(len(shape) == rank, f"its input has shape {list(shape)} where rank {rank} is needed")


def _check_bidirectional_lstm(operator: Operator, tensors: Tensors) -> None:
    _check_layer(operator.inputs, 0)
    _check_layer(operator.inputs, 17)
    _check_state_types(operator, tensors, 35, 36, 37, 38)
    shape = tensors[operator.inputs[0]].shape
    _require(len(shape) == 3, f"its input has shape {list(shape)} where rank 3 is needed")
    auxiliary = [index for index in operator.inputs[40:] if index >= 0]
    _require(
        operator.inputs[39] >= 0 or not auxiliary, "it has weights of an auxiliary input (40 to 47), but not that (39)"
    )


def _check_svdf(operator: Operator, tensors: Tensors) -> None:
    _check_state_types(operator, tensors, 4)


def _check_state_types(operator: Operator, tensors: Tensors, *positions: int) -> None:
    """States are of the type that the kernel for the input writes, which does not ask."""
    source = tensors[operator.inputs[0]]
    types = {TensorType.FLOAT32} if source.type is TensorType.FLOAT32 else _QUANTIZED
    for index in (operator.inputs[position] for position in positions):
        _require(
            index < 0 or tensors[index].type in types,
            f"its input is of type {source.type.name}, its state, tensor {index} "
            f"'{tensors[index].name}', of {tensors[index].type.name}",
        )


def _check_layer(inputs: Sequence[int], first: int) -> None:
    """The input gate is there as a whole, or left out as a whole; all other gates are there."""
    names = (*range(2, 5), *range(6, 9), *range(13, 16))
    missing = [first + position for position in names if inputs[first + position] < 0]
    _require(not missing, f"it lacks its inputs {missing}")
    gate = [inputs[first + position] < 0 for position in (1, 5, 12)]
    _require(all(gate) or not any(gate), f"it has only a part of its input gate (1, 5 and 12 from input {first} on)")
    peephole = [inputs[first + position] < 0 for position in (10, 11)]
    _require(all(peephole) or not any(peephole), f"it has only a part of its peepholes (10 and 11 from {first} on)")


def _check_broadcast_args(operator: Operator, tensors: Tensors) -> None:
    first, second = (tensors[index].data for index in operator.inputs)
    if first is None or second is None:
        return
    pairs = itertools.zip_longest(first.reshape(-1)[::-1], second.reshape(-1)[::-1], fillvalue=1)
    _require(
        all(a == b or 1 in (a, b) for a, b in pairs),
        f"the shapes {first.tolist()} and {second.tolist()} do not broadcast",
    )


def _check_random(operator: Operator, tensors: Tensors) -> None:
    """The kernel fills its result even if the runtime could not make one of that shape."""
    shape = tensors[operator.inputs[0]]
    if shape.data is not None:
        _require(bool((shape.data >= 0).all()), f"its shape is {_values(shape)}")


def _check_dilate(operator: Operator, tensors: Tensors) -> None:
    factors = tensors[operator.inputs[1]]
    if factors.data is not None:
        _require(bool((factors.data > 0).all()), f"its dilations {_values(factors)} are not positive")


def _check_softmax(operator: Operator, tensors: Tensors) -> None:
    source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
    _require(
        result.type is source.type or (source.type in _EIGHT_BIT and result.type is TensorType.INT16),
        f"its input is of type {source.type.name}, its output of {result.type.name}",
    )
    empty = source.type is TensorType.FLOAT32 and source.shape[-1:] == (0,)
    _require(not empty, f"its input of shape {list(source.shape)} has rows of no elements")


def _check_product(operator: Operator, tensors: Tensors) -> None:
    """The output is of the operands' type, or holds the sums of bytes."""
    first, second = (tensors[index] for index in operator.inputs)
    result = tensors[operator.outputs[0]]
    _require(
        result.type is first.type
        or (first.type is TensorType.INT8 and second.type is TensorType.INT8 and result.type is TensorType.INT32),
        f"its inputs are of types {first.type.name} and {second.type.name}, its output of {result.type.name}",
    )


def _check_weights(operator: Operator, tensors: Tensors) -> None:
    """Weights of floating-point inputs are floats, or quantized numbers that the kernel widens."""
    source, weights = (tensors[index] for index in operator.inputs[:2])
    if source.type is TensorType.UINT8:
        _require(weights.type is TensorType.UINT8, f"its input is of type UINT8, its weights of {weights.type.name}")
    if source.type in _QUANTIZED:
        _require(
            weights.type not in (TensorType.FLOAT32, TensorType.FLOAT16),
            f"its input is of type {source.type.name}, its weights of {weights.type.name}",
        )


def _check_embedding(operator: Operator, tensors: Tensors) -> None:
    """Rows are handed out as they are, or widened to floats."""
    rows, result = tensors[operator.inputs[1]], tensors[operator.outputs[0]]
    _require(
        result.type is rows.type
        or (result.type is TensorType.FLOAT32 and rows.type not in (TensorType.INT32, TensorType.INT16)),
        f"its rows are of type {rows.type.name}, its output of {result.type.name}",
    )


def _check_strided_slice(operator: Operator, tensors: Tensors) -> None:
    options, source = operator.options, tensors[operator.inputs[0]]
    begin, end, strides = (tensors[index] for index in operator.inputs[1:])
    count, rank = math.prod(begin.shape), len(source.shape)
    new = options.get("new_axis_mask", 0)
    _require(0 <= new < 1 << count, f"its option new_axis_mask is {new}, but it has {count} indices")
    _require(
        count <= rank + bin(new).count("1") <= MAX_RANK or not source.has_rank,
        f"it has {count} indices and new_axis_mask {new} for an input of shape {list(source.shape)}",
    )
    if not options.get("offset", False):
        return
    # The second index is a size then, which is added to the first and never held against the extent.
    masks = [name for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask") if options.get(name, 0)]
    _require(not masks, f"its option offset is set beside {', '.join(masks)}")
    _require(count == rank or not source.has_rank, f"its option offset goes with {rank} indices, it has {count}")
    if end.data is None or source.shape_signature != source.shape:
        return
    sizes = end.data.reshape(-1).tolist()
    least = 0 if options.get("shrink_axis_mask", 0) else -(2**31)
    starts = [0] * count if begin.data is None else begin.data.reshape(-1).tolist()
    steps = [1] * count if strides.data is None else strides.data.reshape(-1).tolist()
    _require(
        len(sizes) == len(starts) == len(steps) == count
        and min(sizes, default=0) >= least
        and all(
            step > 0 and -extent <= start and (start + extent if start < 0 else start) + size <= extent
            for start, size, step, extent in zip(starts, sizes, steps, source.shape, strict=False)
        ),
        f"it takes {sizes} elements from {starts} on by steps of {steps} from shape {list(source.shape)}",
    )


def _check_widened(operator: Operator, tensors: Tensors) -> None:
    """XNNPACK widens as many elements of a constant as the file says that the result has."""
    source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
    _require(
        source.data is None or result.shape == source.shape or not (result.shape or result.has_rank),
        f"its constant of shape {list(source.shape)} cannot become shape {list(result.shape)}",
    )


def _check_diagonal(operator: Operator, tensors: Tensors) -> None:
    matrix, diagonal = (tensors[index].shape for index in operator.inputs)
    _require(
        len(matrix) >= 2 and diagonal == (*matrix[:-2], min(matrix[-2:])),
        f"its diagonal of shape {list(diagonal)} is not that of matrices of shape {list(matrix)}",
    )


def _check_table(operator: Operator, tensors: Tensors) -> None:
    """Of numbers of 16 bits the kernel makes a table by their scale, without asking whether they have one."""
    source = tensors[operator.inputs[0]]
    _require(
        source.type is not TensorType.INT16 or source.quantization is not None,
        f"its input, tensor {source.index} '{source.name}', of type INT16 has no scale",
    )


def _check_reduce_window(operator: Operator, tensors: Tensors) -> None:
    """The kernel divides by what it is given for each dimension."""
    source = tensors[operator.inputs[0]]
    for name, index in zip(("window", "strides", "dilations"), operator.inputs[2:], strict=True):
        sizes = tensors[index]
        _require(
            sizes.data is not None and math.prod(sizes.shape) == len(source.shape) and bool(np.all(sizes.data > 0)),
            f"its {name} is not made of constant sizes for shape {list(source.shape)}",
        )


def _check_reverse_sequence(operator: Operator, tensors: Tensors) -> None:
    """The kernel reverses as many elements as it is told, however many there are."""
    source, lengths = (tensors[index] for index in operator.inputs)
    axis = operator.options.get("seq_dim", 0)
    if lengths.data is not None and 0 <= axis < len(source.shape):
        _require(
            bool(np.all((lengths.data >= 0) & (lengths.data <= source.shape[axis]))),
            f"its lengths {_values(lengths)} exceed shape {list(source.shape)} along {axis}",
        )


def _check_sparse_lookup(operator: Operator, tensors: Tensors) -> None:
    """The kernel writes where the indices say, however large the result is."""
    indices, shape = tensors[operator.inputs[1]].data, tensors[operator.inputs[2]].data
    if indices is None or shape is None or indices.ndim != 2 or indices.shape[1] != shape.size:
        return
    _require(
        bool(np.all((shape >= 0) & (shape < 2**24)) and np.all((indices >= 0) & (indices < shape.reshape(1, -1)))),
        f"its indices exceed the shape {shape.tolist()}",
    )


def _check_alike(operator: Operator, tensors: Tensors) -> None:
    """The kernel goes through both inputs by the shape of the first."""
    first, second = (tensors[index] for index in operator.inputs)
    stated = all(t.shape_signature == t.shape and (t.shape or t.has_rank) for t in (first, second))
    _require(
        not stated or first.shape == second.shape,
        f"its inputs have the shapes {list(first.shape)} and {list(second.shape)}, which have to be one",
    )


def _check_states(operator: Operator, tensors: Tensors) -> None:
    """The kernel writes to the hidden states without asking whether it may."""
    for position in (4, 8):
        tensor = tensors[operator.inputs[position]]
        _require(tensor.is_variable, f"its state, tensor {tensor.index} '{tensor.name}', is no variable")


def _check_detection(operator: Operator, tensors: Tensors) -> None:
    """The kernel reads an anchor for each box, and scores of all classes and perhaps of the background."""
    boxes, scores, anchors = (tensors[index] for index in operator.inputs)
    _require(
        boxes.shape[2] >= 4
        and len(anchors.shape) == 2
        and anchors.shape[1] == 4
        and anchors.shape[0] >= boxes.shape[1],
        f"its anchors of shape {list(anchors.shape)} are not those of boxes of shape {list(boxes.shape)}",
    )
    options = _custom_options(operator)
    made = options.get("max_detections", 0) * options.get("max_classes_per_detection", 0)
    _require(made <= 2**24, f"its options ask for {made:.0f} detections")
    _require(
        0 <= scores.shape[2] - options.get("num_classes", 0) <= 1 and scores.shape[1] == boxes.shape[1],
        f"its scores of shape {list(scores.shape)} are not those of {options.get('num_classes', 0):.0f} classes "
        f"and boxes of shape {list(boxes.shape)}",
    )


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
    places = [extent for axis, extent in enumerate(indices) if axis != vector]
    sizes = [size for axis, size in enumerate(options["slice_sizes"]) if axis not in collapsed]
    _require(
        [extent for axis, extent in enumerate(result) if axis not in offsets] == places
        and [result[axis] for axis in sorted(offsets)] == sizes
        and len(options["start_index_map"]) == (indices[vector] if vector < len(indices) else 1)
        and all(0 < size <= extent for size, extent in zip(options["slice_sizes"], operand, strict=True)),
        f"its slices of {list(options['slice_sizes'])} at {list(indices)} do not make shape {list(result)}",
    )


def _distinct_below(numbers: Sequence[int], limit: int) -> bool:
    return len(set(numbers)) == len(numbers) and all(0 <= number < limit for number in numbers)


def _values(tensor: Tensor) -> Any:
    assert tensor.data is not None
    return tensor.data.reshape(-1)[:8].tolist()


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ModelError(f"{problem}; {_CONVERT}")


_CONVERT = "the file is damaged or its converter is wrong: fetch or convert it again"


# A tensor this large that is this many times larger than what goes with it is not meant.
LARGE_ELEMENTS = 2**26
LARGE_RATIO = 2**12

MAX_RANK = 8  # the official kernels' limit; some index beyond it without asking
MAX_ELEMENTS = 2**31 - 1  # the official runtime and the GPU kernels count elements in int32
#: Operators that hand on what they are given: their results hold strings if that does.
_PASSING = frozenset(
    {
        "BROADCAST_TO",
        "CONCATENATION",
        "FILL",
        "GATHER",
        "GATHER_ND",
        "PACK",
        "SELECT",
        "SELECT_V2",
        "SPLIT",
        "SPLIT_V",
        "UNPACK",
    }
)
_EIGHT_BIT = frozenset({TensorType.INT8, TensorType.UINT8})
_QUANTIZED = _EIGHT_BIT | {TensorType.INT16}

# The options of MediaPipe's operators, as they lie in memory.
_STRIDES = ("padding", "stride_width", "stride_height")
_WINDOW_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "MaxPoolingWithArgmax2D": (*_STRIDES, "filter_width", "filter_height"),
    "MaxUnpooling2D": (*_STRIDES, "filter_width", "filter_height"),
    "Convolution2DTransposeBias": _STRIDES,
}

_CHECKS: Mapping[str, Callable[[Operator, Tensors], None]] = {
    "SPLIT": _check_split,
    "SPLIT_V": _check_split,
    "UNPACK": _check_split,
    "RESIZE_BILINEAR": _check_resize,
    "RESIZE_NEAREST_NEIGHBOR": _check_nearest,
    "LOG_SOFTMAX": _check_log_softmax,
    "REVERSE_V2": _check_reverse,
    "LSTM": _check_lstm,
    "SVDF": _check_svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _check_lstm,
    "BROADCAST_ARGS": _check_broadcast_args,
    "DILATE": _check_dilate,
    "RANDOM_STANDARD_NORMAL": _check_random,
    "RANDOM_UNIFORM": _check_random,
    "SOFTMAX": _check_softmax,
    "DEQUANTIZE": _check_widened,
    "DENSIFY": _check_widened,
    "MATRIX_SET_DIAG": _check_diagonal,
    "ATAN2": _check_alike,
    "EMBEDDING_LOOKUP_SPARSE": _check_sparse_lookup,
    "REVERSE_SEQUENCE": _check_reverse_sequence,
    "REDUCE_WINDOW": _check_reduce_window,
    "SQRT": _check_table,
    "RSQRT": _check_table,
    "LOG": _check_table,
    "BIDIRECTIONAL_SEQUENCE_RNN": _check_states,
    "BIDIRECTIONAL_SEQUENCE_LSTM": _check_bidirectional_lstm,
    "BATCH_MATMUL": _check_product,
    "CONV_2D": _check_weights,
    "EMBEDDING_LOOKUP": _check_embedding,
    "STRIDED_SLICE": _check_strided_slice,
    "TFLite_Detection_PostProcess": _check_detection,
    "STABLEHLO_GATHER": _check_gather,
}
