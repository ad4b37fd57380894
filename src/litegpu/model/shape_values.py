"""What follows from shapes alone, as constants: the chains of SHAPE, STRIDED_SLICE, PACK and the like that converters
write for sizes that were open, in front of RESHAPE, BROADCAST_TO, FILL, TILE ..."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.model.shapes import Shape, estimated_shapes
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

_INTEGERS = {TensorType.INT32: np.int32, TensorType.INT64: np.int64}
#: Elements of a value, above which it is none of sizes.
_MOST = 64


def with_known_shapes(graph: Subgraph) -> Subgraph:
    """The graph with constants for what follows from its shapes, and without the operators that computed it; tensors
    keep their numbers, and get the shapes that follow. A graph without SHAPE is given back as it is."""
    if not any(operator.name in ("SHAPE", "RANK") for operator in graph.operators):
        return graph
    tensors = list(graph.tensors)
    operators: list[Operator] = []
    for operator in graph.operators:
        current = dataclasses.replace(graph, tensors=tuple(tensors))
        values = _values(current, operator)
        if values is not None and not set(operator.outputs) & set(graph.outputs):
            for output, value in zip(operator.outputs, values, strict=True):
                tensors[output] = _constant(tensors[output], value)
            continue
        for i, shape in zip(operator.outputs, estimated_shapes(current, operator, {}), strict=False):
            tensors[i] = _shaped(tensors[i], shape)
        operators.append(dataclasses.replace(operator, index=len(operators)))
    return dataclasses.replace(graph, tensors=tuple(tensors), operators=tuple(operators))


def _constant(tensor: Tensor, value: np.ndarray) -> Tensor:
    data = np.array(value, _INTEGERS[tensor.type], order="C")
    return dataclasses.replace(tensor, data=data, shape=data.shape, shape_signature=data.shape)


def _shaped(tensor: Tensor, shape: Shape) -> Tensor:
    """With a shape that was found; what the file leaves open stays open."""
    if tensor.shape == tuple(shape):
        return tensor
    signature = tensor.shape_signature if len(tensor.shape_signature) == len(shape) else tuple(shape)
    kept = tuple(-1 if old == -1 else new for old, new in zip(signature, shape, strict=True))
    return dataclasses.replace(tensor, shape=tuple(shape), shape_signature=kept)


def _values(graph: Subgraph, operator: Operator) -> list[np.ndarray] | None:
    """What the operator gives, if that are whole numbers that follow from shapes and constants."""
    if any(output < 0 or graph.tensors[output].type not in _INTEGERS for output in operator.outputs):
        return None
    source = graph.tensors[operator.inputs[0]] if operator.inputs else None
    if source is None:
        return None
    if operator.name == "SHAPE":
        return [np.array(source.shape)]
    if operator.name == "RANK":
        return [np.array(len(source.shape))]
    rule = _RULES.get(operator.name)
    given = [graph.tensors[i].data if i >= 0 else None for i in operator.inputs]
    if rule is None or any(array is None or array.size > _MOST for array in given):
        return None
    try:
        found = rule([np.asarray(array) for array in given if array is not None], operator.options)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    parts = found if isinstance(found, list) else [found]
    known = [part for part in parts if part is not None and part.size <= _MOST]
    return known if len(known) == len(operator.outputs) else None


def _strided(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray | None:
    """Of one axis."""
    x, begin, end, step = given
    if x.ndim != 1 or begin.size != 1 or any(options.get(name) for name in ("ellipsis_mask", "new_axis_mask")):
        return None
    first = None if options.get("begin_mask", 0) & 1 else int(begin[0])
    if options.get("shrink_axis_mask", 0) & 1:
        return np.asarray(x[first or 0])
    last = None if options.get("end_mask", 0) & 1 else int(end[0])
    return x[slice(first, last, int(step[0]))]


def _packed(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    return np.stack(given, int(options.get("axis", 0)))


def _joined(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate(given, int(options.get("axis", 0)))


def _gathered(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray | None:
    x, indices = given
    plain = x.ndim == 1 and not options.get("batch_dims") and (indices >= 0).all()
    return x[indices] if plain else None


def _sliced(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray | None:
    x, begin, size = given
    if x.ndim != 1:
        return None
    return x[int(begin[0]) :] if size[0] < 0 else x[int(begin[0]) : int(begin[0]) + int(size[0])]


def _product(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(np.prod(given[0], keepdims=bool(options.get("keep_dims"))))


def _reshaped(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    return given[0].reshape([int(n) for n in given[1].reshape(-1)])


def _broadcast(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    return np.array(np.broadcast_shapes(*(tuple(map(int, shape)) for shape in given)))


def _split(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> list[np.ndarray]:
    axis, x = given
    return np.split(x, int(options["num_splits"]), int(axis.reshape(-1)[0]))


def _split_by_sizes(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> list[np.ndarray]:
    x, sizes, axis = given
    at = int(axis.reshape(-1)[0])
    rest = x.shape[at] - int(sizes[sizes > 0].sum())  # of the one that is -1
    return np.split(x, np.cumsum(np.where(sizes < 0, rest, sizes))[:-1], at)


def _unpacked(given: Sequence[np.ndarray], options: Mapping[str, Any]) -> list[np.ndarray]:
    return list(np.moveaxis(given[0], int(options.get("axis", 0)), 0))


_Rule = Callable[[Sequence[np.ndarray], Mapping[str, Any]], np.ndarray | list[np.ndarray] | None]


def _elementwise(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> _Rule:
    return lambda given, options: np.asarray(function(given[0], given[1]))


_RULES: dict[str, _Rule] = {
    "STRIDED_SLICE": _strided, "PACK": _packed, "CONCATENATION": _joined, "GATHER": _gathered, "SLICE": _sliced,
    "REDUCE_PROD": _product, "RESHAPE": _reshaped, "BROADCAST_ARGS": _broadcast,
    "SPLIT": _split, "SPLIT_V": _split_by_sizes, "UNPACK": _unpacked,
    "CAST": lambda given, options: given[0],
    "SQUEEZE": lambda given, options: given[0].reshape(-1) if given[0].size > 1 else given[0].reshape(()),
    "EXPAND_DIMS": lambda given, options: np.expand_dims(given[0], int(given[1].reshape(-1)[0])),
    "ADD": _elementwise(np.add), "SUB": _elementwise(np.subtract), "MUL": _elementwise(np.multiply),
    "FLOOR_DIV": _elementwise(np.floor_divide), "MAXIMUM": _elementwise(np.maximum),
    "MINIMUM": _elementwise(np.minimum),
}  # fmt: skip
