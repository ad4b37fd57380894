"""Refuses what the official runtime would crash on instead of reporting an error.

Each rule was found by running damaged models on the runtime in a process of its own (tests/model/test_mutations.py does
that still); what the runtime reports by itself is left to it. An operator is held against the operands that its entry
(model/ops) states, and then the entry's hazard is asked, which looks at the file only: it cannot know shapes and values
that arise while running. Scales that only the official kernels abort on are delegates/aborts.py's: an operator that a
delegate runs may have them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.model.ops import Op, find
from litegpu.model.ops.checks import MAX_RANK, Tensors, flexbuffer_options, require
from litegpu.model.ops.operands import OBJECTS, OperandRule, OpSignature, count, signature
from litegpu.model.types import Operator, Tensor, TensorType

__all__ = ["LARGE_ELEMENTS", "LARGE_RATIO", "MAX_ELEMENTS", "MAX_RANK"]

# A tensor this large that is this many times larger than what goes with it is not meant.
LARGE_ELEMENTS = 2**26
LARGE_RATIO = 2**12

MAX_ELEMENTS = 2**31 - 1  # the official runtime and the GPU kernels count elements in int32


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
    known = find(operator)
    return known is not None and known.of_xnnpack


def check_as_on_the_cpu(operator: Operator, tensors: Tensors) -> None:
    """The same for the official runtime's kernel, whatever the operator."""
    known = find(operator)
    line = None if known is None else known.line(len(operator.inputs))
    if known is None or line is None:
        return  # a custom operator that the official runtime has no kernel for, or one newer than the record
    stated = signature(line)
    _check_count("inputs", operator.inputs, stated.inputs)
    _check_count("outputs", operator.outputs, stated.outputs)
    _check_operands(operator, tensors, known, stated)
    _check_ranges(_custom_options(operator, known) if operator.is_custom else operator.options, stated.options)
    if known.hazard is not None:
        known.hazard(operator, tensors)


def _check_count(what: str, indices: Sequence[int], places: tuple[OperandRule, ...]) -> None:
    low, high = count(places)
    wanted = f"{low}" if high == low else f"at least {low}" if high is None else f"{low} to {high}"
    require(
        low <= len(indices) <= (len(indices) if high is None else high),
        f"it has {len(indices)} {what}, but takes {wanted}",
    )


def _check_operands(operator: Operator, tensors: Tensors, known: Op, stated: OpSignature) -> None:
    """Types, ranks and sizes as the entry has them."""
    by_name: dict[str, Tensor] = {}
    given = {tensors[index].type for index in operator.inputs if index >= 0}
    objects = any(o.types is None or TensorType.STRING in o.types for o in stated.inputs)
    for what, indices, place in (
        ("input", operator.inputs, stated.input),
        ("output", operator.outputs, stated.output),
    ):
        for position, index in enumerate(indices):
            operand = place(position)
            assert operand is not None
            if index < 0:
                require(operand.optional, f"it lacks its {what} {position}, which is not optional")
                continue
            tensor = tensors[index]
            by_name.setdefault(operand.name, tensor)
            name = f"its {what} {position}, tensor {index} '{tensor.name}',"
            if operand.like:
                like = by_name.get(operand.like)
                require(
                    like is None or tensor.type is like.type,
                    f"{name} is of type {tensor.type.name} where the type of tensor {like and like.index}, "
                    f"{like and like.type.name}, is needed",
                )
            elif operand.types is not None:
                require(tensor.type in operand.types, f"{name} is of type {tensor.type.name}, which it does not take")
            elif what == "output" and known.passes_strings and TensorType.STRING in given:
                require(tensor.type is TensorType.STRING, f"{name} is of type {tensor.type.name}, but gets strings")
            elif operand.name == "." and not objects:
                require(tensor.type not in OBJECTS, f"{name} is of type {tensor.type.name}, which it does not give")
            if operand.ranks is not None:
                low, high = operand.ranks
                require(low <= len(tensor.shape) <= high, f"{name} has shape {list(tensor.shape)}, it needs rank {low}")
            if operand.most is not None:
                require(
                    math.prod(tensor.shape) <= operand.most,
                    f"{name} has {math.prod(tensor.shape)} elements where {operand.most} can be",
                )
            if what == "output":
                require(not tensor.is_variable, f"{name} is a variable, which only its own operator may change")
            else:
                require(
                    not (tensor.is_variable and tensor.type in (TensorType.INT32, TensorType.INT64)),
                    f"{name} is a variable of integers, which no operator ever sets",
                )


def _check_ranges(options: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]]) -> None:
    for name, (low, high) in ranges.items():
        value = options.get(name, 0)
        require(low <= value <= high, f"its option {name} is {value}, it must be {low:.0f} to {high:.0f}")


def _custom_options(operator: Operator, known: Op) -> Mapping[str, Any]:
    """The options of a custom operator that the official runtime has a kernel for; it reads them as they are."""
    if not known.struct:
        return flexbuffer_options(operator)
    content, needed = operator.custom_options, 4 * len(known.struct)
    require(len(content) >= needed, f"its options have {len(content)} bytes where {needed} are needed")
    return dict(zip(known.struct, struct.unpack_from(f"<{len(known.struct)}i", content), strict=True))
