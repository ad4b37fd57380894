"""What the second-level cache lets go of first."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from agreement import require_cuda

from litegpu.gpu.backends.cuda import access_policy
from litegpu.gpu.backends.cuda.access_policy import LEAST_BYTES, streamed_bindings
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

MB = 1 << 20


def program(*sizes: int, spent: tuple[int | None, ...] = ()) -> Program:
    """Launches that read so many bytes, each for the last time, or what `spent` says; 12 MB of arena, 8 of constants,
    and 10 of input."""
    port = Port("x", 0, (1, 1, 1, 10 * MB // 4), DType.FLOAT32, 0, 10 * MB)
    dispatches = tuple(
        Dispatch(0, (1, 1, 1), (Binding("constants", 0, 64), Binding("arena", 0, size)), "", (), last)
        for size, last in zip(sizes, spent or (1,) * len(sizes), strict=True)
    )
    return Program((), dispatches, np.zeros(8 * MB, np.uint8), 12 * MB, (port,), (), MemoryReport(0, 0, 0))


def test_what_is_read_for_the_last_time_is_streamed_where_the_rest_can_stay() -> None:
    two, found = program(10 * MB, 2 * MB), {0: (1, 10 * MB), 1: (1, 2 * MB)}
    assert streamed_bindings(two, 50 * MB, 128 * MB) == found
    assert streamed_bindings(two, 20 * MB, 128 * MB) == found
    assert streamed_bindings(two, 20 * MB - 1, 128 * MB) == {}  # nothing stays anyway
    assert streamed_bindings(two, 60 * MB - 2, 128 * MB) == found
    assert streamed_bindings(two, 60 * MB, 128 * MB) == {}  # all stays
    assert streamed_bindings(two, 0, 128 * MB) == {}  # not known


def test_devices_have_windows_of_some_size_or_none() -> None:
    one = program(10 * MB)
    assert streamed_bindings(one, 50 * MB, 10 * MB) != {}
    assert streamed_bindings(one, 50 * MB, 10 * MB - 1) == {}
    assert streamed_bindings(one, 50 * MB, 0) == {}


def test_what_is_small_or_read_again_stays() -> None:
    assert streamed_bindings(program(LEAST_BYTES), 50 * MB, 128 * MB) == {0: (1, LEAST_BYTES)}
    assert streamed_bindings(program(LEAST_BYTES - 1, 5 * MB), 50 * MB, 128 * MB) == {1: (1, 5 * MB)}
    assert streamed_bindings(program(5 * MB, 5 * MB, spent=(None, 1)), 50 * MB, 128 * MB) == {1: (1, 5 * MB)}


SOURCE = """extern "C" __global__ void __launch_bounds__(64) copied(const float* x, float* y, const float* z) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  if (i < 1000) y[i] = x[i] + z[i];
}"""
NBYTES = 4000


def sum_program() -> Program:
    """y = x + z; z is small."""
    shape, uses = (1, 1, 1, 1000), ((0, 0),)
    places = tuple(Binding("arena", 4096 * i, NBYTES) for i in range(3))
    return Program(
        kernels=(KernelCode("copied", SOURCE, (64, 1, 1), ("read_write",) * 3),),
        dispatches=(Dispatch(0, (16, 1, 1), places, "add [0]", (0,), 0),),
        constants=np.zeros(0, np.uint8),
        arena_size=3 * 4096,
        inputs=(
            Port("x", 0, shape, DType.FLOAT32, 0, NBYTES, uses),
            Port("z", 1, shape, DType.FLOAT32, 8192, NBYTES, ((0, 2),)),
        ),
        outputs=(Port("y", 2, shape, DType.FLOAT32, 4096, NBYTES, ((0, 1),)),),
        memory=MemoryReport(3 * 4096, 3 * 4096, 3 * 4096),
    )


@pytest.mark.cuda
def test_the_window_follows_the_input_to_the_users_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is right on every launch: where the input lies in the arena, and where an array is bound."""
    require_cuda()
    from litegpu.gpu.backends.cuda.opening import open_device

    device: Any = open_device()
    monkeypatch.setattr(access_policy, "LEAST_BYTES", NBYTES)
    monkeypatch.setattr(device, "features", dataclasses.replace(device.features, cache_bytes=4 * 4096))
    monkeypatch.setattr(device, "access_window_bytes", device.access_window_bytes or 1 << 20)
    session = device.session(sum_program())
    (launch,) = session.recorder.launches
    assert launch.streamed == (0, NBYTES) and launch.arguments[0] == session.memory.place(session.program.inputs[0])
    rng = np.random.default_rng(0)
    x, z = (rng.standard_normal((1, 1, 1, 1000), np.float32) for _ in range(2))
    out = np.empty_like(x)
    session.write(0, x)
    session.write(1, z)
    session.run()
    session.read(0, out)
    np.testing.assert_array_equal(out, x + z)
    shape, twice = (1, 1, 1, 1000), 2 * x
    taken, given = (session.output_buffer(0, shape) for _ in range(2))
    with device.context:
        from cuda.bindings import driver

        driver.cuMemcpyHtoDAsync(taken.memory.address, twice.ctypes.data, NBYTES, session.stream)
    session.bind("input", 0, session.examine(taken, "x", output=False).resource, "x")
    session.bind("output", 0, session.examine(given, "y", output=True).resource, "y")
    for _ in range(3):  # addresses that come again have a graph of their own
        session.run()
        session.read(0, out)
        np.testing.assert_array_equal(out, twice + z)
    (moved,) = session.recorder.known_graph(
        {("input", 0): taken.memory.address, ("output", 0): given.memory.address}
    ).launches
    assert moved.streamed == (0, NBYTES) and moved.arguments[0] == taken.memory.address
    session.close()
