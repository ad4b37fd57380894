"""The bytes of constants: how values of each type lie in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.model.reader import DTYPES
from litegpu.model.types import TensorType


def packed(values: Any, type_: TensorType | None) -> tuple[np.ndarray, TensorType, np.ndarray]:
    """(the array, its element type, the bytes or array to store)."""
    if type_ is TensorType.STRING:
        strings = np.asarray(values, dtype=object)
        return strings, type_, _packed_strings([bytes(value) for value in strings.reshape(-1)])
    array = np.asarray(values)
    if not isinstance(values, np.ndarray | np.generic):
        array = array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))
    match type_:
        case None:
            found = next((candidate for candidate, dtype in DTYPES.items() if dtype == array.dtype), None)
            if found is None:
                raise ModelError(f"a constant of {array.dtype} has no element type in .tflite; convert it first")
            return array, found, array
        case TensorType.INT4 | TensorType.UINT4:
            return array, type_, _packed_bits(array, 4)
        case TensorType.INT2:
            return array, type_, _packed_bits(array, 2)
        case TensorType.BFLOAT16:
            return array, type_, _bfloat16(array)
        case _ if type_ in DTYPES:
            converted = array.astype(DTYPES[type_])
            return converted, type_, converted
    raise ModelError(f"a constant of {type_.name} cannot be stored")


def _packed_bits(array: np.ndarray, bits: int) -> np.ndarray:
    """Several elements in a byte, the first in its lowest bits."""
    per_byte = 8 // bits
    flat = array.reshape(-1).astype(np.int64) & ((1 << bits) - 1)
    flat = np.pad(flat, (0, -len(flat) % per_byte)).reshape(-1, per_byte)
    packed: np.ndarray = np.bitwise_or.reduce(flat << (bits * np.arange(per_byte)), axis=1).astype(np.uint8)
    return packed


def _bfloat16(array: np.ndarray) -> np.ndarray:
    """The upper half of each float32, rounded to nearest even."""
    bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array.reshape(-1)), 0x7FC0, rounded).astype(np.uint16).view(np.uint8)


def _packed_strings(strings: Sequence[bytes]) -> np.ndarray:
    """The runtime's layout: count, offsets of each string and of the end, then the strings."""
    start = 4 * (len(strings) + 2)
    ends = start + np.cumsum([0, *(len(string) for string in strings)])
    header = np.array([len(strings), *ends], np.int32)
    return np.frombuffer(header.tobytes() + b"".join(strings), np.uint8)
