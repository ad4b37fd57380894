"""Few rows of bytes times a matrix, in CUDA C++, against the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.backends.cuda.kernels.test_specialized import check_sums, layer_of_bytes

from litegpu.gpu.backends.cuda.kernels.byte_matvec import takes
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.graph import Conv2D, DType
from litegpu.gpu.view import packed

KERNEL = "vector_of_bytes"
#: The shapes of input and weights, the layer, its type: all numbers of lanes, and how many bytes can be loaded at once.
CASES = {
    "a row": ((1, 1, 1, 1024), (1000, 1, 1, 1024), Conv2D(zero_point=-128), DType.INT8),
    "eight rows, unsigned": ((2, 1, 4, 272), (20, 1, 1, 272), Conv2D(zero_point=77), DType.UINT8),
    "few channels": ((1, 1, 3, 64), (8, 1, 1, 64), Conv2D(), DType.INT8),
    "eight rows, four lanes": ((2, 2, 2, 52), (24, 1, 1, 52), Conv2D(zero_point=-7), DType.INT8),
    "four at once": ((1, 1, 5, 148), (12, 1, 1, 148), Conv2D(zero_point=5), DType.UINT8),
    "eight at once": ((1, 1, 1, 3000), (36, 1, 1, 3000), Conv2D(zero_point=3), DType.INT8),
    "outputs are no quads": ((1, 1, 1, 640), (10, 1, 1, 640), Conv2D(zero_point=-9), DType.INT8),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_cases(device, case: str) -> None:
    graph, numbers = layer_of_bytes(*CASES[case])
    check_sums(device, graph, numbers, KERNEL)


def test_what_it_takes() -> None:
    def layer(shape: tuple[int, ...], taps: int = 1, zero: int = 0) -> Layer:
        weights = np.full((8, taps, taps, shape[3]), zero, np.int32)
        view = packed(0, shape, DType.INT8)
        return Layer(Conv2D(padding=(taps // 2, taps // 2)), view, weights, (*shape[:3], 8), False, whole_numbers=True)

    assert takes(layer((1, 2, 4, 16)), 75)
    assert not takes(layer((1, 3, 4, 16)), 75)  # rows
    assert not takes(layer((1, 2, 4, 16), taps=3), 75)
    assert not takes(layer((1, 2, 4, 16), zero=200), 75)
    assert not takes(layer((1, 2, 4, 18)), 75)  # no whole words
    assert not takes(layer((1, 2, 4, 16)), 60)
