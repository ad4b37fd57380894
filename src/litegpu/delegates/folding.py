"""Values that follow from shapes alone: chains of SHAPE, STRIDED_SLICE, PACK and the like become constants."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from litegpu.chatter import quiet
from litegpu.delegates.cpu import OfficialOptions
from litegpu.model.cut import cut
from litegpu.model.ops import find
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType

log = logging.getLogger("litegpu")

_TYPES = frozenset({TensorType.INT32, TensorType.INT64, TensorType.BOOL, TensorType.FLOAT32})
#: Larger values are left to the run.
MOST_ELEMENTS = 1 << 16


def may_fold(subgraph: Subgraph) -> bool:
    """Whether any operator is of a kind that fold() can do away with."""
    return any(
        _folds(o) == "shapes" or (_folds(o) == "values" and _is_known(subgraph, o, {})) for o in subgraph.operators
    )


def fold(model: Model, subgraph: Subgraph, unknown: frozenset[int], options: OfficialOptions) -> Subgraph | None:
    """`subgraph`, whose shapes hold apart from the tensors in `unknown`, with everything that follows from shapes as
    constants; None if there is nothing new.

    The constants are new tensors behind the others, and the operators' inputs name them. What computed them stays,
    now without readers, so that the operators keep their numbers. The official runtime computes the values.
    """
    found: dict[int, Operator] = {}  # tensor -> the operator that gives its value
    operators: list[Operator] = []
    fed: set[int] = set()
    read = {i for o in subgraph.operators for i in o.inputs}
    for operator in subgraph.operators:
        if any(i in unknown or i in subgraph.outputs for i in operator.outputs):
            continue
        of_shapes = _folds(operator) == "shapes" and not any(i in unknown for i in operator.inputs)
        if not of_shapes and not (_folds(operator) == "values" and _is_known(subgraph, operator, found)):
            continue
        tensors = [subgraph.tensors[i] for i in operator.outputs]
        if any(t.type not in _TYPES or math.prod(t.shape) > MOST_ELEMENTS for t in tensors):
            continue
        operators.append(operator)
        found.update(dict.fromkeys(operator.outputs, operator))
        if of_shapes:
            fed.update(i for i in operator.inputs if i not in found and not subgraph.tensors[i].is_constant)
    if not any(i in found for o in subgraph.operators if o not in operators for i in o.inputs):
        return None
    try:
        values = _computed(model, subgraph, operators, sorted(fed), [i for i in found if i in read], options)
    except (RuntimeError, ValueError) as error:
        log.debug("Values that follow from shapes are left to the run: %s", error)
        return None
    return _with_constants(subgraph, values)


def _folds(operator: Operator) -> str:
    """What its results follow from: shapes alone, or values, with which models calculate shapes; "" if it is left."""
    known = find(operator)
    return "" if known is None else known.folds


def _is_known(subgraph: Subgraph, operator: Operator, found: Mapping[int, Operator]) -> bool:
    given = [i for i in operator.inputs if i >= 0]
    return bool(given) and all(i in found or subgraph.tensors[i].is_constant for i in given)


def _computed(
    model: Model, subgraph: Subgraph, operators: list[Operator], inputs: list[int], outputs: list[int],
    options: OfficialOptions,
) -> dict[int, np.ndarray]:  # fmt: skip
    whole = model.with_main(subgraph)
    shapes = {i: subgraph.tensors[i].shape for i in inputs}
    content = cut(whole, whole.entry, [o.index for o in operators], inputs, outputs, shapes=shapes)
    interpreter: Any = options.plain().create(content=content)
    with quiet():
        interpreter.allocate_tensors()
        interpreter.invoke()
    details = interpreter.get_output_details()
    return {t: np.array(interpreter.get_tensor(d["index"])) for t, d in zip(outputs, details, strict=True)}


def _with_constants(subgraph: Subgraph, values: Mapping[int, np.ndarray]) -> Subgraph:
    tensors = list(subgraph.tensors)
    place: dict[int, int] = {}
    for old, value in values.items():
        place[old] = len(tensors)
        source = tensors[old]
        tensors.append(
            Tensor(len(tensors), source.name, source.type, value.shape, value.shape, buffer=0, data=_frozen(value))
        )
    operators = tuple(
        dataclasses.replace(o, inputs=tuple(place.get(i, i) for i in o.inputs)) if place.keys() & set(o.inputs) else o
        for o in subgraph.operators
    )  # fmt: skip
    return dataclasses.replace(subgraph, tensors=tuple(tensors), operators=operators)


def _frozen(value: np.ndarray) -> np.ndarray:
    value.flags.writeable = False
    return value
