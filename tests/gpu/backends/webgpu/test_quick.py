"""Inferences that are encoded and awaited in C are those of Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import wgpu
from gpu.backends.webgpu.test_session import COUNT, affine_chain, infer
from interrupts import Interruptions

from litegpu import native
from litegpu.errors import DeviceError
from litegpu.gpu.backends.webgpu import quick, replay
from litegpu.gpu.backends.webgpu.device import WebGpuDevice
from litegpu.gpu.backends.webgpu.native import ffi
from litegpu.gpu.backends.webgpu.replay import Answers

STEPS, WAITS = 5, ("passive", "active", "do_not_wait")


@pytest.fixture(params=["C", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whoever encodes; sessions that are made in the test are of that kind."""
    if request.param == "Python":
        monkeypatch.setattr(quick, "find", lambda: None)
    elif native.build() is None:
        pytest.skip(native.problem())
    yield str(request.param)


def expected(x: np.ndarray) -> np.ndarray:
    for _ in range(STEPS):
        x = x * np.float32(2) + np.float32(1)
    return x


@pytest.mark.parametrize("wait", WAITS)
def test_inferences(way: str, device: WebGpuDevice, wait: str) -> None:
    session = device.session(affine_chain(STEPS, 2.0, 1.0), wait)
    assert (session.commands.replay._quick is not None) == (way == "C")
    for i in range(20):
        x = np.full((1, 1, 1, COUNT), i, np.float32)
        last, first, copied = infer(session, x)
        np.testing.assert_array_equal(last, expected(x))
        np.testing.assert_array_equal(first, 2 * x + 1)
        np.testing.assert_array_equal(copied, x)
    session.close()


def test_threads(way: str, device: WebGpuDevice) -> None:
    """With a session each, and one for all."""
    shared, right = device.session(affine_chain(STEPS, 2.0, 1.0), "active"), []
    guard = threading.Lock()

    def work(number: int) -> None:
        own = device.session(affine_chain(STEPS, 2.0, 1.0), WAITS[number % 3])
        for i in range(30):
            x = np.full((1, 1, 1, COUNT), 100 * number + i, np.float32)
            if i % 3:
                right.append(np.array_equal(infer(own, x)[0], expected(x)))
            else:
                with guard:
                    right.append(np.array_equal(infer(shared, x)[0], expected(x)))
        own.close()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(right) == 16 * 30 and all(right)
    shared.close()


def test_interrupted_anywhere(way: str, device: WebGpuDevice) -> None:
    session = device.session(affine_chain(STEPS, 2.0, 1.0))
    x, y = (np.full((1, 1, 1, COUNT), value, np.float32) for value in (1, 2))
    counted = Interruptions()
    counted.during(lambda: infer(session, x))
    interrupted = 0
    for place in range(1, counted.count, max(1, counted.count // 60)):
        one = Interruptions(place)
        try:
            one.during(lambda: infer(session, x))
        except KeyboardInterrupt:
            interrupted += 1
        np.testing.assert_array_equal(infer(session, y)[0], expected(y), err_msg=one.where)
    assert interrupted > 20
    session.close()


def test_commands_that_are_refused(way: str, device: WebGpuDevice) -> None:
    """What the library says of them while they are encoded is found."""
    session = device.session(affine_chain(1, 2.0, 1.0))
    replay = session.commands.replay
    if replay._quick is None:
        replay._downloads = [(0, 0, 1 << 40)]
    else:
        download = (0, 0, 1 << 40)
        given = replay._device, replay._arena, replay._upload, replay._download
        replay._quick_commands = quick.QuickCommands(given, replay._steps, replay._uploads, [download])
    with pytest.raises(DeviceError, match="refused the commands"):
        replay.finish(replay.encode())
    session.close()


def test_requests_that_are_not_granted() -> None:
    library = native.build()
    if library is None:
        pytest.skip(native.problem())
    answers = Answers()
    found = quick.find()
    assert found is not None and answers._quick is found
    message = ffi.new("WGPUStringView *")
    for status in (1, 3):
        found.mapped(status, message[0], ffi.cast("void *", answers._counts.ctypes.data), ffi.NULL)
    assert answers._counts.tolist() == [2, 1]
    with pytest.raises(DeviceError, match="lost"):
        answers.wait(ffi.NULL, 2)


_LONG = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) i: vec3<u32>) {
  var sum = x[i.x];
  for (var k = 0u; k < ROUNDS; k = k + 1u) { sum = sum * 0.9999 + 0.5; }
  x[i.x] = sum;
}"""


def long_work(device: Any, rounds: int) -> tuple[Answers, object]:
    """Submit so much of it, and ask for the result; also what must outlive that."""
    size, handle = 1 << 12, device.handle
    x = handle.create_buffer(size=size, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
    result = handle.create_buffer(size=size, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST)
    module = handle.create_shader_module(code=_LONG.replace("ROUNDS", f"{rounds}u"))
    pipeline = handle.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": 0, "resource": {"buffer": x}}]
    group = handle.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = handle.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(16)
    work.end()
    encoder.copy_buffer_to_buffer(x, 0, result, 0, size)
    handle.queue.submit([encoder.finish()])
    answers = Answers()
    answers.ask([(result._internal, int(wgpu.MapMode.READ), size)])
    return answers, (x, result)


def test_a_device_that_works_for_long_is_not_lost(
    way: str, device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_PATIENCE", 0.02)
    for rounds in (1 << 20, 1 << 22, 1 << 24, 1 << 26):  # a software device is slower than a GPU
        start = time.monotonic()
        answers, _kept = long_work(device, rounds)
        answers.wait(device.handle._internal, 1)
        if time.monotonic() - start > 0.5:
            return


def test_a_result_that_does_not_come(way: str, device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_PATIENCE", 0.02)
    answers, _kept = long_work(device, 1)
    with pytest.raises(DeviceError, match="without giving the results"):
        answers.wait(device.handle._internal, 2)
