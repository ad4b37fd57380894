"""What a session was asked for is what it does: validation, waiting, and freeing everything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.backends.webgpu import buffers as webgpu_buffers
from litegpu.gpu.backends.webgpu import commands as webgpu_commands
from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu import record as webgpu_record
from litegpu.gpu.backends.webgpu.device import WebGpuDevice
from litegpu.gpu.backends.webgpu.record import Timer, record
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Arg, DType, Elementwise, GraphBuilder, apply
from litegpu.gpu.program import Port, Program

SHAPE = (1, 2, 2, 4)


def program(device: Any) -> Program:
    b = GraphBuilder()
    x, y = (b.value(SHAPE, DType.FLOAT32) for _ in range(2))
    b.node(Elementwise(), [], y, apply("neg", Arg(0)), [x])
    return build_program(b.graph([x], [y]), device.features, device.target)


@pytest.mark.parametrize("validation", [False, True])
def test_validation_records_every_inference_anew(device: WebGpuDevice, monkeypatch, validation: bool) -> None:
    recorded: list[int] = []

    def noted(*given: Any) -> Any:
        recorded.append(1)
        return record(*given)

    monkeypatch.setattr(webgpu_commands, "record", noted)
    session = device.session(program(device), validation=validation)
    before = len(recorded)
    for _ in range(4):
        session.run()
    session.close()
    assert len(recorded) - before == (4 if validation else 0)


@pytest.mark.parametrize("wait, spins", [("passive", False), ("active", True)])
def test_active_waits_spin(device: WebGpuDevice, wait: str, spins: bool) -> None:
    if device.info.backend == "metal":
        pytest.skip("every wait is active there")
    session = device.session(program(device), wait)
    assert (session._spin_seconds() >= 0.5) == spins
    session.close()


def test_a_session_that_does_not_wait(device: WebGpuDevice, monkeypatch) -> None:
    session = device.session(program(device), "do_not_wait")
    waits: list[int] = []
    given = session._wait

    def noted() -> None:
        waits.append(1)
        given()

    monkeypatch.setattr(session, "_wait", noted)
    session.write(0, np.full(SHAPE, 3, np.float32))
    session.run()
    assert not waits
    out = np.empty(SHAPE, np.float32)
    session.read(0, out)
    assert waits and (out == -3).all()
    session.close()


def test_closing_destroys_every_buffer(device: WebGpuDevice) -> None:
    session = device.session(program(device))
    destroyed: list[str] = []
    made = session._buffers._made
    count = len(made)
    assert count >= 3  # arena, upload, download
    for i, buffer in enumerate(made):
        name = f"{i} {buffer.label}"

        def destroy(name: str = name, buffer: Any = buffer) -> None:
            destroyed.append(name)
            buffer.destroy()

        made[i] = SimpleNamespace(destroy=destroy)
    session.close()
    assert len(destroyed) == count and not made
    session.close()
    assert len(destroyed) == count


def test_closing_closes_what_is_between_a_bound_buffer_and_the_port(device: WebGpuDevice) -> None:
    import wgpu

    session = device.session(program(device))
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    buffers = [device.handle.create_buffer(size=64, usage=usage) for _ in range(2)]
    adapters: list[Any] = []
    for buffer in buffers:
        session.bind("input", 0, buffer, "x", program(device))
        adapters.append(session._bindings.inputs[0].adapter)
    assert adapters[0]._closed and not adapters[1]._closed
    session.close()
    assert adapters[1]._closed


def test_seconds_of_a_timer() -> None:
    """Ticks times the period, which is in nanoseconds; a counter that was reset counts as nothing."""
    ticks = np.array([[1000, 3000], [50, 20], [7, 7]], np.uint64)
    made = SimpleNamespace(count=6)
    handle = SimpleNamespace(create_query_set=lambda **_: made, create_buffer=lambda **_: made, queue=None)
    timer = Timer(SimpleNamespace(handle=handle), 3)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webgpu_record, "read_back", lambda *given: ticks.reshape(-1).view(np.uint8))
        patch.setattr(native, "timestamp_period", lambda queue: 2.5)
        assert timer.seconds() == pytest.approx([5e-6, 0.0, 0.0])


def test_ports_have_places_of_their_own_in_the_staging_buffers() -> None:
    sizes = [4, 20, 16, 3, 64, 1, 17]
    ports = [Port(f"x{i}", i, (1, 1, 1, n), DType.INT8, 0, n) for i, n in enumerate(sizes)]
    offsets, size = webgpu_buffers._staging_layout(ports)
    ends = [offset + n for offset, n in zip(offsets, sizes, strict=True)]
    assert all(end <= offset for end, offset in zip(ends, [*offsets[1:], size], strict=True))
    assert not any(offset % 16 for offset in (*offsets, size))


@pytest.mark.cuda
@pytest.mark.parametrize("validation", [False, True])
def test_validation_launches_kernels_one_by_one(monkeypatch, validation: bool) -> None:
    from litegpu.gpu.backends.cuda.opening import available, open_device

    if available() is not None:
        pytest.skip(f"no CUDA device: {available()}")
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    device = open_device()
    session = device.session(program(device), validation=validation)
    alone: list[int] = []
    given = session.launcher._run_stepwise

    def noted() -> None:
        alone.append(1)
        given()

    monkeypatch.setattr(session.launcher, "_run_stepwise", noted)
    out = np.empty(SHAPE, np.float32)
    session.write(0, np.full(SHAPE, 3, np.float32))
    session.run()
    session.read(0, out)
    session.close()
    assert (out == -3).all() and bool(alone) == validation
