"""Arrays whose elements have two parts, COMPLEX64 and INT64, as values have them: another last axis, of the parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from litegpu.gpu.graph.expression import Shape

Array = np.ndarray[Any, np.dtype[Any]]


def has_parts(shape: Shape, tensor: Shape) -> bool:
    """Whether a value of `shape` has both parts of the elements of a tensor."""
    return math.prod(shape) == 2 * math.prod(tensor)


def as_parts(array: Array) -> Array:
    """[...] as [..., 2]: real and imaginary part as float32, or the low and the high word as int32."""
    part = np.float32 if array.dtype.kind == "c" else np.int32
    return np.ascontiguousarray(array).reshape(-1).view(part).reshape(*array.shape, 2)


def of_parts(parts: Array, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """The array of `shape` whose elements have these parts, contiguous; the same memory."""
    return parts.reshape(-1).view(dtype).reshape(shape)


def as_typed(array: Array, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """A value's array as that of its tensor, the same memory where that is possible."""
    if has_parts(array.shape, shape):
        return of_parts(np.ascontiguousarray(array), shape, dtype)
    array = array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)
