"""What an operator takes and gives: how many operands, of which types and ranks, and the ranges of its options.

A line of the operator's entry says it, such as "x w b? -> .  ; stride_h:1..16". It states what the official kernels
rely on without asking, so that a model which breaks it would crash the process; what they report by themselves is left
to them. So an operand without a type may be of any numeric type, and a result `.` is one whose type the kernel sets or
checks itself.

    operands -> results  ; options

operand  `x` one tensor, `b~` may be absent (-1), `b^` may be left out, `b?` either, `x+` one or more, `x*` any number.
         Then, each if it matters: `[4]` or `[1-8]` its rank, `{8}` at most so many elements, `:int32|int64` its types,
         `:any` numbers and strings, `:object` anything, `:=x` the type of another operand.
result   the same; `=x` is short for a tensor of the type of operand x.
option   `stride_h:1..16777215`, an inclusive range that the value must lie in.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.model.types import TensorType


@dataclass(frozen=True)
class OperandRule:
    """One place, or the last one, which may `repeat`."""

    name: str
    optional: bool = False  # may be -1
    omissible: bool = False  # may be left out at the end
    repeat: bool = False
    ranks: tuple[int, int] | None = None
    most: int | None = None  # elements
    types: frozenset[TensorType] | None = None  # None for any type at all
    like: str = ""  # the operand whose type it must have


@dataclass(frozen=True)
class OpSignature:
    """What an operator takes and gives."""

    inputs: tuple[OperandRule, ...]
    outputs: tuple[OperandRule, ...]
    options: Mapping[str, tuple[float, float]]

    def input(self, position: int) -> OperandRule | None:
        return _at(self.inputs, position)

    def output(self, position: int) -> OperandRule | None:
        return _at(self.outputs, position)


def count(operands: tuple[OperandRule, ...]) -> tuple[int, int | None]:
    """The least and the most operands, None for no limit."""
    least = sum(not o.omissible for o in operands)
    return least, None if any(o.repeat for o in operands) else len(operands)


@functools.cache
def signature(line: str) -> OpSignature:
    """What a line says."""
    operands, _, options = line.partition(";")
    given, _, results = operands.partition("->")
    return OpSignature(
        tuple(_operand(word) for word in given.split()),
        tuple(_operand(word) for word in results.split()),
        dict(_option(word) for word in options.split()),
    )


def _at(operands: tuple[OperandRule, ...], position: int) -> OperandRule | None:
    if position < len(operands):
        return operands[position]
    return operands[-1] if operands and operands[-1].repeat else None


_WORD = re.compile(r"(?P<name>[a-z_0-9]+|\.|=[a-z_0-9]+)(?P<count>[~?^+*]?)(?:\[(?P<ranks>[0-9-]+)\])?"
                   r"(?:\{(?P<most>[0-9]+)\})?(?::(?P<types>[a-z0-9=_|]+))?")  # fmt: skip


def _operand(word: str) -> OperandRule:
    found = _WORD.fullmatch(word)
    assert found, word
    name, many, types = found["name"], found["count"], found["types"] or ""
    if name.startswith("="):
        name, types = ".", name
    low, _, high = (found["ranks"] or "").partition("-")
    return OperandRule(
        name,
        optional=many in ("~", "?"),
        omissible=many in ("?", "^", "*"),
        repeat=many in ("+", "*"),
        ranks=(int(low), int(high or low)) if low else None,
        most=int(found["most"]) if found["most"] else None,
        types=None if types == "object" or types.startswith("=") or (name == "." and not types) else _types(types),
        like=types[1:] if types.startswith("=") else "",
    )


def _types(names: str) -> frozenset[TensorType]:
    found: set[TensorType] = set()
    for name in (names or "number").split("|"):
        found |= _CLASSES[name] if name in _CLASSES else {TensorType[name.upper()]}
    return frozenset(found)


def _option(word: str) -> tuple[str, tuple[float, float]]:
    name, _, span = word.partition(":")
    low, _, high = span.partition("..")
    return name, (float(low), float(high))


#: What the runtime manages as objects: an operator that takes them for numbers follows wild pointers.
OBJECTS = frozenset({TensorType.STRING, TensorType.RESOURCE, TensorType.VARIANT})
NUMBERS = frozenset(TensorType) - OBJECTS
_CLASSES = {
    "number": NUMBERS,
    "any": NUMBERS | {TensorType.STRING},
    "bytes": NUMBERS - {TensorType.INT4, TensorType.UINT4, TensorType.INT2},  # at least one for an element
}
