"""The record of operators: what the package knows about each stands in one entry (record.py), by families.

Whatever treats operators in general (verifier, shapes, batches, demand, folding, the partitioner's CPU, lowering) looks
it up here, and knows no names.
"""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.model.ops import (
    control,
    convert,
    convolution,
    elementwise,
    filling,
    gathering,
    matmul,
    movement,
    ordering,
    perception,
    pooling,
    recurrent,
    reduction,
    resize,
    signals,
    slicing,
    softmax,
    stablehlo,
)
from litegpu.model.ops.record import Gpu, Op, Repeating
from litegpu.model.types import Operator

__all__ = ["BUILTIN", "CUSTOM", "Gpu", "Op", "Repeating", "find"]

_FAMILIES = (
    control, convert, convolution, elementwise, filling, gathering, matmul, movement, ordering, perception, pooling,
    recurrent, reduction, resize, signals, slicing, softmax, stablehlo,
)  # fmt: skip

#: Builtin operators by their names in the schema, custom ones by their custom codes.
BUILTIN: Mapping[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPS if not op.custom}
CUSTOM: Mapping[str, Op] = {op.name: op for family in _FAMILIES for op in family.OPS if op.custom}


def find(operator: Operator) -> Op | None:
    """The entry of an operator of a model; None for a custom one that is not known, or one newer than the record."""
    return (CUSTOM if operator.is_custom else BUILTIN).get(operator.name)
