"""Where an array lives: each backend is asked for its own memory, and only about what could be on a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.delegate.array_place import backend_of, is_on_gpu

CPU, CUDA, CUDA_MANAGED, METAL = 1, 2, 13, 8  # of DLPack


class Exported:
    """An array of some library, in memory of a DLPack device type."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.kind < 0:
            raise BufferError("not exported")
        return self.kind, 0


class Described:
    def __init__(self) -> None:
        self.__cuda_array_interface__ = {"shape": (1,)}


@pytest.mark.parametrize(
    ("value", "backend"),
    [
        (Exported(CUDA), "cuda"),
        (Exported(CUDA_MANAGED), "cuda"),
        (Described(), "cuda"),
        (Exported(CPU), None),
        (Exported(METAL), None),
        (Exported(-1), None),
        (np.zeros(2), None),
        ([1, 2], None),
        (object(), None),
    ],
)
def test_the_backend_whose_memory_it_is(value: Any, backend: str | None) -> None:
    assert backend_of(value) == backend
    assert is_on_gpu(value) is (backend is not None)


def test_numbers_and_arrays_in_host_memory_load_no_backend() -> None:
    code = """
import sys
import numpy as np
from litegpu.gpu.delegate.array_place import is_on_gpu
assert not any(map(is_on_gpu, (np.zeros(3), np.float32(1), [1.0], 2, 3.5)))
assert not [name for name in sys.modules if name.startswith(("litegpu.gpu.backends.cuda", "cuda", "wgpu"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
