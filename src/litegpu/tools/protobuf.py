"""Writes protocol buffers: the few kinds of fields that the official tools' result files have."""

from __future__ import annotations

import struct
from collections.abc import Iterable

#: A field: its number, and an int (varint), a float (as `Single` or `Double`), or the fields of a message.
Field = tuple[int, "int | Single | Double | Message"]


class Single(float):
    """A `float`."""


class Double(float):
    """A `double`."""


class Message(tuple[Field, ...]):
    """Fields in order; a number that comes several times is a repeated field."""


def message(*fields: Field | None) -> Message:
    """A message; None stands for a field that is not set."""
    return Message(field for field in fields if field is not None)


def encode(fields: Iterable[Field]) -> bytes:
    """The bytes of a message."""
    parts = []
    for number, value in fields:
        match value:
            case Message():
                content = encode(value)
                parts.append(_varint(number << 3 | 2) + _varint(len(content)) + content)
            case Single():
                parts.append(_varint(number << 3 | 5) + struct.pack("<f", value))
            case Double():
                parts.append(_varint(number << 3 | 1) + struct.pack("<d", value))
            case int():
                parts.append(_varint(number << 3) + _varint(value & (1 << 64) - 1))
            case _:
                raise TypeError(f"field {number} is a {type(value).__name__}")
    return b"".join(parts)


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
