"""Constant tensors as arrays that the GPU computes with: 16-bit floats widened, 8- and 4-bit integers dequantized."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.errors import DelegateError
from litegpu.model.types import Tensor, TensorType

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = {
    TensorType.FLOAT32: np.float32,
    TensorType.FLOAT16: np.float32,
    TensorType.FLOAT64: np.float32,
    TensorType.INT32: np.int32,
    TensorType.INT64: np.int32,
    TensorType.BOOL: np.bool_,
}
#: Types of constants that stand for real numbers through their quantization parameters.
QUANTIZED = {
    TensorType.INT8: 8,
    TensorType.UINT8: 8,
    TensorType.INT16: 16,
    TensorType.INT4: 4,
}


class Unsupported(DelegateError):
    """An operator, or a tensor of it, that the GPU cannot take; the text is a reason for the user."""


def as_array(tensor: Tensor, *, decode: bool = True) -> Array:
    """The constant `tensor` as float32, int32 or bool; without `decode` the elements of float arrays are left zero.

    Raises Unsupported for encodings that are not known.
    """
    where = f"constant '{tensor.name}'"
    if tensor.data is None:
        raise ValueError(f"{where} has no data")
    if tensor.sparsity is not None:
        raise Unsupported(f"{where} is stored in the sparse encoding, which the GPU does not read")
    if tensor.type in QUANTIZED and tensor.quantization is not None and tensor.quantization.scales.size:
        if tensor.quantization.block_size:
            raise Unsupported(f"{where} is quantized by blocks, which the GPU does not read")
        _check_channels(tensor, where)
        return _dequantize(tensor) if decode else _placeholder(tensor)
    if tensor.type not in _DTYPES:
        raise Unsupported(f"{where} has type {tensor.type.name} without quantization parameters")
    dtype = np.dtype(_DTYPES[tensor.type])
    if tensor.type is TensorType.INT64 and tensor.data.size:
        low, high = int(tensor.data.min()), int(tensor.data.max())
        if low < -(2**31) or high >= 2**31:
            raise Unsupported(f"{where} holds 64-bit integers ({low} to {high}): the GPU has 32 bits")
    if dtype == np.float32 and not decode:
        return _placeholder(tensor)
    with np.errstate(over="ignore"):
        return tensor.data.reshape(tensor.shape).astype(dtype, copy=False)


def _placeholder(tensor: Tensor) -> Array:
    return np.broadcast_to(np.float32(0), tensor.shape)


def _check_channels(tensor: Tensor, where: str) -> None:
    assert tensor.quantization is not None
    q = tensor.quantization
    along = tensor.shape[q.dimension : q.dimension + 1] if q.dimension >= 0 else ()
    if q.scales.size > 1 and along != (q.scales.size,):
        raise Unsupported(f"{where} of shape {list(tensor.shape)} has {q.scales.size} scales along axis {q.dimension}")


def quanta(tensor: Tensor, axis: int, *, decode: bool = True) -> tuple[Array, Array] | None:
    """The constant `tensor` as quanta, float32, and the scales [1] or [n] along `axis` by which they become real; None
    if it is not quantized so. Without `decode` the quanta are left zero."""
    q = tensor.quantization
    if tensor.data is None or tensor.type not in QUANTIZED or q is None or not q.scales.size:
        return None
    if tensor.sparsity is not None or q.block_size or (q.scales.size > 1 and q.dimension != axis):
        return None
    _check_channels(tensor, f"constant '{tensor.name}'")
    return _quanta(tensor) if decode else _placeholder(tensor), q.scales.astype(np.float32)


def _dequantize(tensor: Tensor) -> Array:
    """scale * (q - zero_point), per tensor or along one axis."""
    assert tensor.quantization is not None
    return _quanta(tensor) * _along(tensor, tensor.quantization.scales)


def _quanta(tensor: Tensor) -> Array:
    """q - zero_point."""
    assert tensor.quantization is not None and tensor.data is not None
    q = tensor.quantization
    stored = _unpack(tensor.data, tensor.shape) if tensor.type is TensorType.INT4 else tensor.data.reshape(tensor.shape)
    known = q.zero_points.size == q.scales.size
    return stored.astype(np.float32) - (_along(tensor, q.zero_points) if known else np.float32(0))


def _along(tensor: Tensor, parameter: Array) -> Array:
    """A quantization parameter as float32 that broadcasts to the tensor."""
    assert tensor.quantization is not None
    n = parameter.size
    axis = [n if i == tensor.quantization.dimension and n > 1 else 1 for i in range(len(tensor.shape))]
    return parameter.astype(np.float32).reshape(axis)


def _unpack(data: Array, shape: tuple[int, ...]) -> Array:
    """Signed 4-bit integers, two per byte, the low half first."""
    pairs = data.reshape(-1).view(np.int8)
    halves = np.stack([(pairs << 4) >> 4, pairs >> 4], axis=-1)
    return halves.reshape(-1)[: int(np.prod(shape))].reshape(shape)
