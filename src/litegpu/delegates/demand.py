"""How much memory and work a model asks for, held against the limits before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.errors import ModelError, TensorError
from litegpu.limits import MEMORY_VARIABLE, WORK_VARIABLE, Limits, limits
from litegpu.model.costs import stated_work
from litegpu.model.hazards import MAX_ELEMENTS, MAX_RANK
from litegpu.model.ops import find
from litegpu.model.shapes import Shape, estimated_shapes
from litegpu.model.types import Operator, Subgraph, Tensor


def check_demand(subgraph: Subgraph, inputs: Mapping[int, Shape] | None = None) -> int:
    """Checks that a subgraph's tensors and operators stay within the limits, with `inputs` of these shapes instead of
    those in the file; the bytes that they take at one time.

    Raises:
        ModelError: says which limit is passed, by which tensor or operator, and how to raise it.
    """
    bounds = limits()
    resized = inputs is not None and any(subgraph.tensors[i].shape != shape for i, shape in inputs.items())
    shapes: dict[int, Shape] = dict(inputs or {})
    total = unstated = 0
    for operator in subgraph.operators:
        against = False
        for index, shape in zip(operator.outputs, estimated_shapes(subgraph, operator, shapes), strict=False):
            if index < 0:
                continue
            tensor = subgraph.tensors[index]
            _check_elements(tensor, shape)
            if shape != tensor.shape:
                shapes[index] = shape
                against |= not resized and _is_stated(tensor)
        given = [shapes.get(i, subgraph.tensors[i].shape) for i in operator.inputs if i >= 0]
        results = sum(math.prod(shapes.get(i, subgraph.tensors[i].shape)) for i in operator.outputs if i >= 0)
        _check_shapes(subgraph, operator, given)
        effort = _work(operator, given, results)
        total += effort
        if against or _is_outsized(operator, given, results):
            unstated += effort
        what = f"operator {operator.index} {operator.name}"
        _require(total <= bounds.work, what, total, bounds.work, "operations", WORK_VARIABLE)
        _require(unstated <= bounds.unstated_work, what, unstated, bounds.unstated_work, "operations", WORK_VARIABLE)
    return _check_memory(subgraph, shapes, bounds, resized)


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
    known = find(operator)
    if known is None or known.shape_hazard is None:
        return
    problem = known.shape_hazard(operator, subgraph.tensors, given)
    if problem is not None:
        raise ModelError(f"operator {operator.index} {operator.name}: {problem}")


def _work(operator: Operator, given: Sequence[Shape], results: int) -> int:
    """Elementary operations: products in convolutions and the like, elements touched elsewhere."""
    work = stated_work(operator, given, results)
    return results + sum(math.prod(shape) for shape in given) if work is None else work


def _is_outsized(operator: Operator, given: Sequence[Shape], results: int) -> bool:
    """Whether the options ask for more than anybody means."""
    known = find(operator)
    return known is not None and known.outsized is not None and known.outsized(operator.options, given, results)


def _check_memory(subgraph: Subgraph, shapes: Mapping[int, Shape], bounds: Limits, resized: bool) -> int:
    """Tensors live from the operator that makes them to the last that reads them."""
    last: dict[int, int] = dict.fromkeys((*subgraph.inputs, *subgraph.outputs), len(subgraph.operators))
    for number, operator in enumerate(subgraph.operators):
        for index in operator.inputs:
            last[index] = max(last.get(index, 0), number)
    ends: dict[int, list[int]] = {}
    live = unstated = peak = 0
    sizes: dict[int, int] = {}

    def begin(index: int) -> None:
        nonlocal live, unstated, peak
        tensor = subgraph.tensors[index]
        if tensor.is_constant or index in sizes:
            return
        shape = shapes.get(index, tensor.shape)
        sizes[index] = math.prod(shape) * tensor.type.nbytes
        live += sizes[index]
        peak = max(peak, live)
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
    return peak


def _is_stated(tensor: Tensor) -> bool:
    """Whether the file says how large the tensor is."""
    return bool(tensor.shape) and min(tensor.shape_signature, default=0) >= 0


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
