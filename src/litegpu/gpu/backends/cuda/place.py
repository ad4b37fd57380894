"""Whether an array lies in CUDA memory, without importing the library that it is of."""

from __future__ import annotations

import sys
from typing import Any

#: Of DLPack: CUDA memory, and managed memory.
_CUDA_DEVICE_TYPES = (2, 13)


def is_in_cuda_memory(value: Any) -> bool:
    """See abilities.ArrayPlace."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.is_cuda)
    try:
        if hasattr(value, "__dlpack_device__"):
            return int(value.__dlpack_device__()[0]) in _CUDA_DEVICE_TYPES
        return getattr(value, "__cuda_array_interface__", None) is not None
    except Exception:  # of the library, about other kinds of its arrays
        return False
