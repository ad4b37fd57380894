"""DLPack in Python alone: what a capsule describes, and capsules of memory of our own (the layout is dlpack.h's)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.errors import TensorError

#: Device types.
CPU, CUDA, CUDA_MANAGED = 1, 2, 13
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_READ_ONLY = 1


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


@dataclass(frozen=True)
class Described:
    """What a capsule holds. `dtype` is "float32", "bfloat16" ...; `strides` count elements, None if row-major."""

    address: int
    device: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    read_only: bool


def describe(capsule: Any) -> Described:
    """The capsule is not used up: as long as it lives, so does its memory."""
    read_only = False
    if _is_valid(id(capsule), b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(id(capsule), b"dltensor_versioned"))
        if versioned.major != 1:
            raise TensorError(f"the array exports DLPack {versioned.major}.{versioned.minor}; 1.x is understood")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif _is_valid(id(capsule), b"dltensor"):
        tensor = _Managed.from_address(_pointer(id(capsule), b"dltensor")).tensor
    else:
        raise TensorError("__dlpack__() gave no capsule of a tensor that is still unused")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    kind = _KINDS.get(tensor.code, f"type{tensor.code}_")
    dtype = kind if kind == "bool" else f"{kind}{tensor.bits}"
    if tensor.lanes != 1:
        dtype += f"x{tensor.lanes}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(address, (tensor.device_type, tensor.device_id), shape, strides, dtype, read_only)


def capsule(address: int, device: tuple[int, int], shape: Sequence[int], dtype: np.dtype[Any], owner: object) -> Any:
    """A capsule of a dense row-major array; `owner` lives until the consumer, or the unused capsule, lets it go."""
    managed = _Managed()
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    tensor = managed.tensor
    tensor.data, (tensor.device_type, tensor.device_id), tensor.ndim = address, device, len(shape)
    tensor.code, tensor.bits, tensor.lanes = _CODES[dtype.kind], 8 * dtype.itemsize, 1
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    where = ctypes.addressof(managed)
    _exported[where] = managed, extents, owner
    return _new(where, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))


# ----------------------------------------------------------------------------------------------

_NAME = b"dltensor"  # the capsule keeps this very pointer
_exported: dict[int, tuple[Any, ...]] = {}

_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _let_go(managed: int) -> None:
    _exported.pop(managed, None)


def _destroy_unused(unused: int) -> None:
    """The capsule's destructor; whoever used the capsule has renamed it and calls the deleter itself."""
    if _is_valid(unused, _NAME):
        _exported.pop(_pointer(unused, _NAME), None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_let_go)
_destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy_unused)
