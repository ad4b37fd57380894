"""Reads the FlexBuffers maps of numbers that custom operators keep their options in, trusting no offset in them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

_INT, _UINT, _FLOAT, _MAP, _BOOL = 1, 2, 3, 9, 26
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
_FORMS = {_INT: "bhiq", _UINT: "BHIQ", _FLOAT: " efd", _BOOL: "BHIQ"}


def numbers(content: bytes) -> Mapping[str, float]:
    """The numbers of a map by their keys; other values are left out, and a root that is no map is an empty one.

    Raises:
        ValueError: an offset leads outside, so that the official decoder would follow it there.
    """
    if len(content) < 3:
        raise ValueError(f"{len(content)} bytes are too few")
    width, packed = content[-1], content[-2]
    place = len(content) - 2 - width
    if width not in (1, 2, 4, 8) or place < 0:
        raise ValueError(f"a value of {width} bytes in {len(content)}")
    if packed >> 2 != _MAP:
        return {}
    return _map(content, _target(content, place, width), 1 << (packed & 3))


def _map(content: bytes, values: int, width: int) -> Mapping[str, float]:
    keys = _target(content, values - 3 * width, width)
    key_width = _number(content, values - 2 * width, width, _UINT)
    if key_width not in (1, 2, 4, 8):
        raise ValueError(f"keys of {key_width} bytes")
    key_width = int(key_width)
    count = int(_number(content, values - width, width, _UINT))
    if _number(content, keys - key_width, key_width, _UINT) != count or values + count * (width + 1) > len(content):
        raise ValueError(f"a map of {count} entries")
    found: dict[str, float] = {}
    for entry in range(count):
        start = _target(content, keys + entry * key_width, key_width)
        end = content.find(0, start)
        if end < 0:
            raise ValueError("a key without an end")
        packed = content[values + count * width + entry]
        kind, place = packed >> 2, values + entry * width
        if kind in _FORMS:
            found[content[start:end].decode("utf-8", "replace")] = _number(content, place, width, kind)
        elif kind:  # 0 is null, everything else lies elsewhere
            target = _target(content, place, width)
            if kind in _INDIRECT:
                value = _number(content, target, 1 << (packed & 3), _INDIRECT[kind])
                found[content[start:end].decode("utf-8", "replace")] = value
    return found


def _target(content: bytes, place: int, width: int) -> int:
    target = place - int(_number(content, place, width, _UINT))
    if not 0 <= target < len(content):
        raise ValueError(f"the offset at byte {place} leads to byte {target} of {len(content)}")
    return target


def _number(content: bytes, place: int, width: int, kind: int) -> float:
    if place < 0 or place + width > len(content):
        raise ValueError(f"a value at byte {place} of {len(content)}")
    form = _FORMS[kind][width.bit_length() - 1]
    return 0.0 if form == " " else float(struct.unpack_from("<" + form, content, place)[0])
