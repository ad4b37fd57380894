"""Writes protocol buffers: the wire format of the few kinds of fields that the official tools' messages have."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def integer(field: int, value: int) -> bytes:
    """An int32, int64, bool or enum."""
    return _tag(field, 0) + varint(value)


def float32(field: int, value: float) -> bytes:
    return _tag(field, 5) + struct.pack("<f", value)


def double(field: int, value: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", value)


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def message(field: int, content: bytes) -> bytes:
    """A message, or bytes, or a packed field."""
    return _tag(field, 2) + varint(len(content)) + content


def packed(field: int, values: Iterable[int]) -> bytes:
    """Integers in one packed field; nothing if there are none."""
    content = b"".join(varint(v) for v in values)
    return message(field, content) if content else b""


def varint(value: int) -> bytes:
    """An integer on the wire; negative ones as 64 bits of two's complement."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _tag(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)
