"""Kernels that become one: which may, and what becomes of their texts, buffers and numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.kernels.side_by_side import can_join, side_by_side
from litegpu.gpu.kernels.context import Launch, NativeBuffer, NativeKernel

TEXT = """#define THREADS 64
#define SPLIT 1
#define VALUE {value}
#define NAME fill
constexpr int OWN = VALUE;
extern "C" __global__ void __launch_bounds__(THREADS{resident}) NAME(int* y) {{ y[blockIdx.x] = OWN; }}
"""


def launch(value: int, groups: int = 3, resident: str = "", **options) -> Launch:
    kernel = NativeKernel(
        "fill", TEXT.format(value=value, resident=resident), (64, 1, 1), (groups, 1, 1),
        (NativeBuffer("y", "read_write"),), 16 * value, (f"-D{value}", "-common"),
    )  # fmt: skip
    return Launch(dataclasses.replace(kernel, **options), {"y": np.zeros(value)}, "label", f"v{value}", rounds=("y",))


def test_one_of_two() -> None:
    joined = side_by_side([launch(1, 3, ", 2"), launch(2, 5)])
    kernel = joined.kernel
    assert isinstance(kernel, NativeKernel)
    assert kernel.dispatch == (8, 1, 1) and kernel.workgroup == (64, 1, 1) and kernel.shared_bytes == 32
    assert kernel.options == ("-D1", "-common", "-D2")
    assert [b.name for b in kernel.buffers] == ["part0_y", "part1_y"] == list(joined.operands)
    assert [np.size(np.asarray(v)) for v in joined.operands.values()] == [1, 2] and list(joined.rounds) == [
        "part0_y",
        "part1_y",
    ]
    assert kernel.source.count("__global__") == 1 and kernel.source.count("#undef VALUE") == 2
    assert "(blockIdx.x - 3u)" in kernel.source and "LAUNCH_RESIDENT = 2" in kernel.source
    assert joined.label == "label" and joined.variant == "v1 | v2"


@pytest.mark.parametrize("other", [
    launch(2, workgroup=(32, 1, 1)), launch(2, dispatch=(1, 2, 1)),
    launch(2, source=TEXT.format(value=2, resident="").replace("SPLIT 1", "SPLIT 2")),
    launch(2, source=TEXT.format(value=2, resident="").replace("blockIdx.x", "gridDim.x")),
    launch(2, source=TEXT.format(value=2, resident="").replace("__launch_bounds__(THREADS)", "")),
])  # fmt: skip
def test_what_stays_apart(other: Launch) -> None:
    """Other sizes, workgroups in two dimensions or in clusters, and what asks how many there are."""
    assert can_join([launch(1), launch(2)])
    assert not can_join([launch(1), other]) and not can_join([other, launch(1)])
