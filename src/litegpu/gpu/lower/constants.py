"""Constant tensors as arrays that the GPU computes with: halves widened, quantized ones real, sparse ones dense."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.errors import DelegateError, ModelError
from litegpu.model.sparse import densified
from litegpu.model.types import Tensor, TensorType

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = {
    TensorType.FLOAT32: np.float32,
    TensorType.FLOAT16: np.float32,
    TensorType.BFLOAT16: np.float32,
    TensorType.FLOAT64: np.float32,
    TensorType.INT32: np.int32,
    TensorType.INT64: np.int32,
    TensorType.BOOL: np.bool_,
    TensorType.INT8: np.int32,
    TensorType.UINT8: np.int32,
    TensorType.INT16: np.int32,
    TensorType.UINT16: np.int32,
    TensorType.UINT32: np.int32,
}
#: Types of constants that stand for real numbers through their quantization parameters, and their bits.
QUANTIZED = {
    TensorType.INT8: 8,
    TensorType.UINT8: 8,
    TensorType.INT16: 16,
    TensorType.INT4: 4,
    TensorType.UINT4: 4,
    TensorType.INT2: 2,
}


class Unsupported(DelegateError):
    """An operator, or a tensor of it, that the GPU cannot take; the text is a reason for the user."""


def as_array(tensor: Tensor, *, decode: bool = True, tensors: Sequence[Tensor] = ()) -> Array:
    """The constant `tensor` as float32, int32 or bool; without `decode` the elements of float arrays are left zero.
    `tensors` of its subgraph have the scales of one that is quantized by blocks.

    Raises Unsupported for encodings that are not known.
    """
    where = f"constant '{tensor.name}'"
    if tensor.data is None:
        raise ValueError(f"{where} has no data")
    if tensor.sparsity is not None:
        tensor = dataclasses.replace(tensor, data=_dense(tensor), sparsity=None)
    q = tensor.quantization
    if tensor.type in QUANTIZED and q is not None and q.block_size:
        scales = _block_scales(tensor, tensors)
        return _by_blocks(tensor, scales) if decode else _placeholder(tensor)
    if tensor.type in QUANTIZED and q is not None and q.scales.size:
        _check_channels(tensor, where)
        return _dequantize(tensor) if decode else _placeholder(tensor)
    if tensor.type not in _DTYPES:
        raise Unsupported(f"{where} has type {tensor.type.name} without quantization parameters")
    dtype = np.dtype(_DTYPES[tensor.type])
    assert tensor.data is not None
    if tensor.type is TensorType.INT64 and tensor.data.size:
        low, high = int(tensor.data.min()), int(tensor.data.max())
        if low < -(2**31) or high >= 2**31:
            raise Unsupported(f"{where} holds 64-bit integers ({low} to {high}): the GPU has 32 bits")
    if dtype == np.float32 and not decode:
        return _placeholder(tensor)
    if tensor.type is TensorType.BFLOAT16:  # the upper half of a float32
        return (tensor.data.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
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
    known = q.zero_points.size == q.scales.size
    return _stored(tensor).astype(np.float32) - (_along(tensor, q.zero_points) if known else np.float32(0))


def _block_scales(tensor: Tensor, tensors: Sequence[Tensor]) -> Array:
    """The scale of each block of `block_size` elements of a row, in order."""
    q = tensor.quantization
    assert q is not None
    blocks = math.prod(tensor.shape) // q.block_size
    data = tensors[q.scales_tensor].data if 0 <= q.scales_tensor < len(tensors) else None
    if data is None or data.dtype.kind != "f" or data.size != blocks or tensor.shape[-1] % q.block_size:
        raise Unsupported(
            f"constant '{tensor.name}' of shape {list(tensor.shape)} is quantized in blocks of {q.block_size}, but has "
            "not one constant scale for each"
        )
    return data.astype(np.float32).reshape(blocks, 1)


def _by_blocks(tensor: Tensor, scales: Array) -> Array:
    """scale * q: the CPU kernels take zero points for zero."""
    rows = _stored(tensor).reshape(scales.size, -1).astype(np.float32)
    return (rows * scales).reshape(tensor.shape)


def _dense(tensor: Tensor) -> Array:
    try:
        return densified(tensor)
    except ModelError as error:
        raise Unsupported(str(error)) from None


def _along(tensor: Tensor, parameter: Array) -> Array:
    """A quantization parameter as float32 that broadcasts to the tensor."""
    assert tensor.quantization is not None
    n = parameter.size
    axis = [n if i == tensor.quantization.dimension and n > 1 else 1 for i in range(len(tensor.shape))]
    return parameter.astype(np.float32).reshape(axis)


def _stored(tensor: Tensor) -> Array:
    """The stored numbers, those of less than a byte unpacked: the lowest bits first."""
    assert tensor.data is not None
    bits, count = QUANTIZED[tensor.type], math.prod(tensor.shape)
    if bits >= 8:
        return tensor.data.reshape(tensor.shape)
    signed = tensor.type is not TensorType.UINT4
    packed = tensor.data.reshape(-1).view(np.int8 if signed else np.uint8)
    parts = np.stack([packed << (8 - bits - at) >> (8 - bits) for at in range(0, 8, bits)], axis=-1)
    return parts.reshape(-1)[:count].reshape(tensor.shape)
