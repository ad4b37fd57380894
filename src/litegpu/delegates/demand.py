"""How much memory and work a model asks for, held against the limits before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.delegates.demand_rules import RULES
from litegpu.delegates.shape_rules import Computed, Node, Shape, Unexpected, shapes_of_results
from litegpu.errors import ModelError, TensorError
from litegpu.limits import MEMORY_VARIABLE, WORK_VARIABLE, Limits, limits
from litegpu.model.hazards import MAX_ELEMENTS, MAX_RANK
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

_BITS: Mapping[TensorType, int] = {
    **dict.fromkeys(TensorType, 8),
    **dict.fromkeys((TensorType.FLOAT32, TensorType.INT32, TensorType.UINT32), 32),
    **dict.fromkeys((TensorType.FLOAT16, TensorType.BFLOAT16, TensorType.INT16, TensorType.UINT16), 16),
    **dict.fromkeys((TensorType.FLOAT64, TensorType.INT64, TensorType.UINT64, TensorType.COMPLEX64), 64),
    TensorType.COMPLEX128: 128,
    TensorType.STRING: 64,
}

#: Elements of the largest window that is believed to move in steps smaller than its input.
_LARGEST_MOVING_WINDOW = 1 << 14


def check_demand(subgraph: Subgraph, inputs: Mapping[int, Shape] | None = None) -> None:
    """Checks that a subgraph's tensors and operators stay within the limits, with `inputs` of these shapes instead of
    those in the file.

    Raises:
        ModelError: says which limit is passed, by which tensor or operator, and how to raise it.
    """
    bounds = limits()
    resized = inputs is not None and any(subgraph.tensors[i].shape != shape for i, shape in inputs.items())
    shapes: dict[int, Shape] = dict(inputs or {})
    total = unstated = 0
    for operator in subgraph.operators:
        against = False
        for index, shape in zip(operator.outputs, _results(subgraph, operator, shapes), strict=False):
            if index < 0:
                continue
            tensor = subgraph.tensors[index]
            _check_elements(tensor, shape)
            if shape != tensor.shape:
                shapes[index] = shape
                against |= not resized and _is_stated(tensor)
        given = [shapes.get(i, subgraph.tensors[i].shape) for i in operator.inputs if i >= 0]
        results = [shapes.get(i, subgraph.tensors[i].shape) for i in operator.outputs if i >= 0]
        _check_shapes(subgraph, operator, given)
        effort = _work(operator, given, results)
        total += effort
        if against or _is_odd(operator.name, operator.options, given, results):
            unstated += effort
        what = f"operator {operator.index} {operator.name}"
        _require(total <= bounds.work, what, total, bounds.work, "operations", WORK_VARIABLE)
        _require(unstated <= bounds.unstated_work, what, unstated, bounds.unstated_work, "operations", WORK_VARIABLE)
    _check_memory(subgraph, shapes, bounds, resized)


def check_input_shape(shape: Any) -> None:
    """Checks that a shape which the caller gives an input is one that the runtimes have memory and indices for.

    Raises:
        TensorError: it is no vector of integers, or has too many dimensions or elements.
    """
    try:
        extents = [int(extent) for extent in np.asarray(shape).tolist()]
    except (TypeError, ValueError, OverflowError):
        return  # which the official runtime has its own words for
    if len(extents) > MAX_RANK:
        raise TensorError(
            f"The shape {extents[:20]} has {len(extents)} dimensions; the runtimes know at most {MAX_RANK}"
        )
    if math.prod(max(0, extent) for extent in extents) > MAX_ELEMENTS:
        raise TensorError(f"The shape {extents} has more than {MAX_ELEMENTS} elements, which the runtimes cannot count")


def _check_shapes(subgraph: Subgraph, operator: Operator, given: Sequence[Shape]) -> None:
    """Refuses shapes on which the official kernels go beyond their tensors, whatever the file or the caller says."""
    if operator.is_custom:
        return
    what = f"operator {operator.index} {operator.name}"
    if operator.name == "ATAN2" and given[0] != given[1]:
        raise ModelError(
            f"{what}: its inputs have the shapes {list(given[0])} and {list(given[1])}, which have to be one"
        )
    if operator.name == "REVERSE_V2" and 0 in given[0][1:]:
        axes, rank = subgraph.tensors[operator.inputs[1]].data, len(given[0])
        first = 0 if axes is None or not axes.size else min(int(axis) % rank for axis in axes.reshape(-1))
        if 0 in given[0][first + 1 :]:
            raise ModelError(f"{what}: its input of shape {list(given[0])} has no elements to reverse")


def _results(subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> Sequence[Shape]:
    """The shapes of the results; none where values decide, or the runtime will have something to say."""
    try:
        if operator.name in RULES and not operator.is_custom:
            return [tuple(max(0, extent) for extent in RULES[operator.name](Node(subgraph, operator, shapes)))]
        return shapes_of_results(subgraph, operator, shapes) or ()
    except (Computed, Unexpected, ArithmeticError, LookupError, ValueError):
        return ()


def _work(operator: Operator, given: Sequence[Shape], made: Sequence[Shape]) -> int:
    """Elementary operations: products in convolutions and the like, elements touched elsewhere."""
    results = sum(math.prod(shape) for shape in made)
    inputs = sum(math.prod(shape) for shape in given)
    name, options = operator.name, operator.options
    if name in ("CONV_2D", "CONV_3D", "FULLY_CONNECTED") and len(given) > 1:
        return results * math.prod(given[1][1:] if name != "CONV_3D" else given[1][:-1])
    if name == "DEPTHWISE_CONV_2D" and len(given) > 1:
        return results * math.prod(given[1][:-1])
    if name in ("TRANSPOSE_CONV", "CONV_3D_TRANSPOSE") and len(given) > 2:
        return results + math.prod(given[2]) * math.prod(given[1][:-1])
    if name.endswith("POOL_2D"):
        return results * int(options.get("filter_height", 1)) * int(options.get("filter_width", 1))
    if name == "BATCH_MATMUL" and given and given[0]:
        return results * given[0][-2 if options.get("adj_x") and len(given[0]) > 1 else -1]
    if name == "LOCAL_RESPONSE_NORMALIZATION":
        return results * (2 * int(options.get("radius", 0)) + 1)
    return results + inputs


def _check_memory(subgraph: Subgraph, shapes: Mapping[int, Shape], bounds: Limits, resized: bool) -> None:
    """Tensors live from the operator that makes them to the last that reads them."""
    last: dict[int, int] = dict.fromkeys((*subgraph.inputs, *subgraph.outputs), len(subgraph.operators))
    for number, operator in enumerate(subgraph.operators):
        for index in operator.inputs:
            last[index] = max(last.get(index, 0), number)
    ends: dict[int, list[int]] = {}
    live = unstated = 0
    sizes: dict[int, int] = {}

    def begin(index: int) -> None:
        nonlocal live, unstated
        tensor = subgraph.tensors[index]
        if tensor.is_constant or index in sizes:
            return
        shape = shapes.get(index, tensor.shape)
        sizes[index] = math.prod(shape) * _BITS[tensor.type] // 8
        live += sizes[index]
        ends.setdefault(last.get(index, -1), []).append(index)
        if shape != tensor.shape and not resized and _is_stated(tensor):
            unstated += sizes[index]
        name = f"tensor {index} '{tensor.name}' of shape {list(shape)}"
        _require(live <= bounds.memory, name, live, bounds.memory, "bytes", MEMORY_VARIABLE)
        _require(unstated <= bounds.unstated_memory, name, unstated, bounds.unstated_memory, "bytes", MEMORY_VARIABLE)

    for index in subgraph.inputs:
        begin(index)
    for number, operator in enumerate(subgraph.operators):
        for index in operator.outputs:
            if index >= 0:
                begin(index)
        live -= sum(sizes[index] for index in ends.pop(number, ()))


def _is_stated(tensor: Tensor) -> bool:
    """Whether the file says how large the tensor is."""
    return bool(tensor.shape) and min(tensor.shape_signature, default=0) >= 0


def _is_odd(name: str, options: Mapping[str, object], given: list[Shape], made: list[Shape]) -> bool:
    """Whether a window is far larger than what it moves over, which no output shows, or moves though it is larger than
    any image needs."""
    if not name.endswith("POOL_2D") or len(given[0]) != 4:
        return False
    height, width = (int(options.get(option, 1)) for option in ("filter_height", "filter_width"))  # type: ignore[call-overload]
    moves = bool(made) and math.prod(made[0]) > given[0][0] * given[0][3]
    larger = height > 2 * given[0][1] + 64 or width > 2 * given[0][2] + 64
    return larger or (moves and height * width > _LARGEST_MOVING_WINDOW)


def _check_elements(tensor: Tensor, shape: Shape) -> None:
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS:
        raise ModelError(
            f"tensor {tensor.index} '{tensor.name}' gets shape {list(shape)}, which has {elements} elements, more than "
            f"the runtimes can count ({MAX_ELEMENTS}); the file says {list(tensor.shape)}"
        )


def _require(condition: bool, what: str, amount: int, limit: int, unit: str, variable: str) -> None:
    if not condition:
        raise ModelError(
            f"the model asks for {amount:,} {unit} as of {what}, where {limit:,} are allowed; if that is meant, set "
            f"the environment variable {variable} to {amount} or more (see litegpu.limits)"
        )
