"""Programs of hand-written WGSL on a WebGPU device."""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgpu

from litegpu.errors import DeviceError, OptionError, TensorError
from litegpu.gpu.backends.webgpu.adapters import choose_adapter
from litegpu.gpu.backends.webgpu.device import WebGpuDevice, WebGpuSession
from litegpu.gpu.backends.webgpu.replay import Answers, Replay
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

Build = Callable[..., WebGpuSession]

COUNT = 1000  # elements of every tensor
SLOT = 4096  # bytes between tensors in the arena; a multiple of every device's storage alignment

AFFINE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> c: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn affine(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < 1000u) { y[id.x] = x[id.x] * c[0] + c[1]; }
}
"""


def affine_chain(steps: int, scale: float, offset: float, source: str = AFFINE) -> Program:
    """`steps` dispatches of x * scale + offset. Outputs: the last tensor, the first one computed, and the input."""
    kernel = KernelCode("affine", source, (64, 1, 1), ("read_write", "read", "read_write"))
    dispatches = tuple(
        Dispatch(
            kernel=0,
            groups=(-(-COUNT // 64), 1, 1),
            bindings=(
                Binding("arena", SLOT * i, 4 * COUNT),
                Binding("constants", 0, 8),
                Binding("arena", SLOT * (i + 1), 4 * COUNT),
            ),
            label=f"affine [{i}]",
            sources=(i,),
        )
        for i in range(steps)
    )
    return Program(
        kernels=(kernel,),
        dispatches=dispatches,
        constants=np.array([scale, offset], np.float32).view(np.uint8),
        arena_size=SLOT * (steps + 1),
        inputs=(port("x", 0),),
        outputs=(port("last", steps), port("first", min(1, steps)), port("x", 0)),
        memory=MemoryReport(SLOT * (steps + 1), SLOT * (steps + 1), SLOT * 2),
    )


def port(name: str, slot: int) -> Port:
    return Port(name, slot, (1, 1, 1, COUNT), DType.FLOAT32, SLOT * slot, 4 * COUNT)


def infer(session: WebGpuSession, array: np.ndarray) -> list[np.ndarray]:
    """All outputs of one inference."""
    session.write(0, array)
    session.run()
    outputs = [np.full((1, 1, 1, COUNT), np.nan, np.float32) for _ in session.program.outputs]
    for i, out in enumerate(outputs):
        session.read(i, out)
    return outputs


@pytest.fixture
def session(device: WebGpuDevice) -> Iterator[Callable[..., WebGpuSession]]:
    """Builds sessions, and closes them after the test."""
    made: list[WebGpuSession] = []

    def build(program: Program, **options: Any) -> WebGpuSession:
        made.append(device.session(program, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_chain_gives_every_output(session: Build) -> None:
    x = np.random.default_rng(0).standard_normal(COUNT, np.float32)
    last, first, same = infer(session(affine_chain(3, 2.0, 1.0)), x)
    np.testing.assert_allclose(first.ravel(), 2 * x + 1, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(last.ravel(), 8 * x + 7, rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(same.ravel(), x)


def test_program_without_dispatches_returns_its_inputs(session: Build) -> None:
    program = dataclasses.replace(affine_chain(0, 1.0, 0.0), kernels=(), constants=np.zeros(0, np.uint8))
    x = np.arange(COUNT, dtype=np.float32)
    for out in infer(session(program), x):
        np.testing.assert_array_equal(out.ravel(), x)


def test_program_without_inputs(session: Build) -> None:
    program = dataclasses.replace(affine_chain(1, 2.0, 3.0), inputs=())
    one = session(program)
    one.run()
    out = np.empty(COUNT, np.float32)
    one.read(0, out)
    np.testing.assert_array_equal(out, np.full(COUNT, 3, np.float32))  # a fresh arena holds zeros


@pytest.mark.parametrize("wait", ["passive", "active"])
def test_hundred_inferences_use_new_inputs_and_allocate_nothing(session: Build, wait: str) -> None:
    one = session(affine_chain(4, 1.0, 1.0), wait=wait)
    infer(one, np.zeros(COUNT, np.float32))
    allocations = one.allocations
    assert allocations == 4  # arena, constants, inputs, outputs
    for i in range(100):
        x = np.full(COUNT, i, np.float32)
        last = infer(one, x)[0]
        np.testing.assert_array_equal(last.ravel(), x + 4)
    assert one.allocations == allocations


def test_input_survives_when_the_arena_reuses_its_place(session: Build) -> None:
    """The second dispatch writes over the input's bytes; a second run without a write must see the input again."""
    program = affine_chain(2, 1.0, 1.0)
    x_slot = program.inputs[0].offset
    first, second = program.dispatches
    back = dataclasses.replace(second, bindings=(*second.bindings[:2], Binding("arena", x_slot, 4 * COUNT)))
    program = dataclasses.replace(program, dispatches=(first, back), outputs=(port("x", 0),))
    one = session(program)
    one.write(0, np.zeros(COUNT, np.float32))
    out = np.empty(COUNT, np.float32)
    for _ in range(3):
        one.run()
        one.read(0, out)
        np.testing.assert_array_equal(out, np.full(COUNT, 2, np.float32))


def test_caller_may_change_the_array_after_write(session: Build) -> None:
    one = session(affine_chain(1, 1.0, 0.0))
    x = np.ones(COUNT, np.float32)
    one.write(0, x)
    x[:] = 5
    one.run()
    out = np.empty(COUNT, np.float32)
    one.read(0, out)
    np.testing.assert_array_equal(out, np.ones(COUNT, np.float32))


def test_nan_and_infinity_pass_through(session: Build) -> None:
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), COUNT)
    last, _, same = infer(session(affine_chain(0, 1.0, 0.0)), x)
    np.testing.assert_array_equal(last.ravel(), x)
    np.testing.assert_array_equal(same.ravel(), x)


def test_two_sessions_on_one_device_share_pipelines_but_not_memory(session: Build, device: WebGpuDevice) -> None:
    one, two = session(affine_chain(3, 1.0, 1.0)), session(affine_chain(3, 1.0, -1.0))
    assert device.pipelines(one.program.kernels)[0] is device.pipelines(two.program.kernels)[0]
    x, y = np.full(COUNT, 10, np.float32), np.full(COUNT, 20, np.float32)
    one.write(0, x)
    two.write(0, y)
    one.run()
    two.run()
    out = np.empty(COUNT, np.float32)
    one.read(0, out)
    np.testing.assert_array_equal(out, x + 3)
    two.read(0, out)
    np.testing.assert_array_equal(out, y - 3)


@pytest.mark.parametrize("wait", ["passive", "active"])
def test_sessions_in_threads(session: Build, wait: str) -> None:
    failures: list[str] = []

    def work(offset: float, one: WebGpuSession) -> None:
        for i in range(40):
            x = np.full(COUNT, i, np.float32)
            last = infer(one, x)[0].ravel()
            if not np.array_equal(last, x + 3 * offset):
                failures.append(f"offset {offset}, inference {i}: got {last[:3]}")

    threads = [
        threading.Thread(target=work, args=(offset, session(affine_chain(3, 1.0, offset), wait=wait)))
        for offset in (1.0, 2.0, 3.0, 4.0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_one_session_used_by_threads(session: Build) -> None:
    """Calls interleave, so only what each call promises is checked: no error, and outputs of one whole inference."""
    one = session(affine_chain(2, 1.0, 1.0))
    failures: list[object] = []

    def work(value: float) -> None:
        try:
            for _ in range(30):
                last = infer(one, np.full(COUNT, value, np.float32))[0].ravel()
                if last[0] not in (3.0, 4.0) or not np.all(last == last[0]):
                    failures.append(last)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_shader_error_names_the_kernel_and_shows_the_message(session: Build) -> None:
    broken = affine_chain(1, 1.0, 0.0, source=AFFINE.replace("x[id.x] * c[0]", "undefined_name"))
    with pytest.raises(DeviceError, match=r"kernel 'affine' did not compile(.|\n)*undefined_name"):
        session(broken)


def test_missing_entry_point_names_the_kernel(session: Build) -> None:
    with pytest.raises(DeviceError, match="kernel 'affine' did not compile"):
        session(affine_chain(1, 1.0, 0.0, source=AFFINE.replace("fn affine", "fn other")))


def test_one_broken_kernel_of_many_is_named(session: Build) -> None:
    program = affine_chain(1, 1.0, 0.0)
    broken = KernelCode("broken", "fn (", (64, 1, 1), ("read_write",))
    with pytest.raises(DeviceError, match="kernel 'broken' did not compile"):
        session(dataclasses.replace(program, kernels=(*program.kernels, broken)))


def _changed(program: Program, **changes: Any) -> Program:
    return dataclasses.replace(program, dispatches=(dataclasses.replace(program.dispatches[0], **changes),))


def test_impossible_programs_are_refused_with_the_kernels_name(session: Build, device: WebGpuDevice) -> None:
    program, limit = affine_chain(1, 1.0, 0.0), device.features
    x, c, y = program.dispatches[0].bindings
    huge = limit.max_binding_bytes + 4
    cases = {
        "workgroups": _changed(program, groups=(limit.max_groups + 1, 1, 1)),
        "bindings for": _changed(program, bindings=(x, c)),
        "aligned": _changed(program, bindings=(dataclasses.replace(x, offset=4), c, y)),
        "out of bounds": _changed(program, bindings=(x, c, dataclasses.replace(y, offset=SLOT * 100))),
        "bound read_write": _changed(program, bindings=(x, y, y)),
        "too large": dataclasses.replace(
            _changed(program, bindings=(x, c, Binding("arena", 0, huge))), arena_size=huge + SLOT
        ),
        "threads per workgroup": dataclasses.replace(
            program, kernels=(dataclasses.replace(program.kernels[0], workgroup=(limit.max_threads + 1, 1, 1)),)
        ),
    }
    for message, case in cases.items():
        with pytest.raises(DeviceError, match=f"(?s)'affine'.*{message}"):
            session(case)


def test_arena_larger_than_a_buffer_may_be(session: Build, device: WebGpuDevice) -> None:
    program = dataclasses.replace(affine_chain(1, 1.0, 0.0), arena_size=device.max_buffer_bytes + 4)
    with pytest.raises(DeviceError, match=r"arena .*bytes"):
        session(program)


def test_arrays_must_fit_the_port(session: Build) -> None:
    one = session(affine_chain(1, 1.0, 0.0))
    good = np.zeros(COUNT, np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    for bad in (good[:-1], good.astype(np.int32), np.zeros(2 * COUNT, np.float32)[::2], good.astype(np.float64)):
        with pytest.raises(TensorError, match=r"input 0 \(x\)"):
            one.write(0, bad)
    for index in (-1, 1):
        with pytest.raises(TensorError, match="does not exist"):
            one.write(index, good)
    infer(one, good)
    for bad in (good[:-1], frozen):
        with pytest.raises(TensorError, match=r"output 0 \(last\)"):
            one.read(0, bad)


def test_read_before_run(session: Build) -> None:
    with pytest.raises(DeviceError, match="before the first run"):
        session(affine_chain(1, 1.0, 0.0)).read(0, np.empty(COUNT, np.float32))


def test_close_may_be_repeated_and_ends_the_session(session: Build) -> None:
    one = session(affine_chain(1, 1.0, 0.0))
    infer(one, np.zeros(COUNT, np.float32))
    one.close()
    one.close()
    array = np.zeros(COUNT, np.float32)
    for call in (lambda: one.write(0, array), one.run, lambda: one.read(0, array), one.profile):
        with pytest.raises(DeviceError, match="closed"):
            call()


def test_passive_waits_spin_where_the_last_one_was_short(
    session: Build, device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, spun = session(affine_chain(1, 2, 1), wait="passive"), []
    real = Replay.wait

    def wait(replay: Replay, answers: Answers, spin: float, expected: float) -> None:
        spun.append(spin)
        real(replay, answers, spin, expected)

    monkeypatch.setattr(Replay, "wait", wait)
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, is_software=False))
    one.run()
    one._stats["wait"] = 1e-4
    one.run()
    one._stats["wait"] = 0.1
    one.run()
    monkeypatch.setattr(device, "info", dataclasses.replace(device.info, is_software=True))
    one._stats["wait"] = 1e-4
    one.run()
    assert spun[0] == spun[2] == spun[3] == 0 < spun[1] < 0.01


def test_unknown_wait(device: WebGpuDevice) -> None:
    with pytest.raises(OptionError, match="wait 'later'"):
        device.session(affine_chain(1, 1.0, 0.0), wait="later")


def test_profile_names_and_times_every_dispatch(session: Build, device: WebGpuDevice) -> None:
    if not device.features.timestamps:
        pytest.skip("the device has no timestamps")
    one = session(affine_chain(5, 1.0, 1.0))
    one.write(0, np.zeros(COUNT, np.float32))
    times = one.profile()
    assert [time.label for time in times] == [f"affine [{i}]" for i in range(5)]
    assert [time.sources for time in times] == [(i,) for i in range(5)]
    assert all(0 <= time.seconds < 10 for time in times)
    assert sum(time.seconds for time in times) > 0
    out = np.empty(COUNT, np.float32)
    one.read(0, out)  # a profile is an inference
    np.testing.assert_array_equal(out, np.full(COUNT, 5, np.float32))
    allocations = one.allocations
    one.profile()
    assert infer(one, np.ones(COUNT, np.float32))[0].ravel()[0] == 6
    assert one.allocations == allocations


def test_the_whole_is_timed_in_one_pass(session: Build, device: WebGpuDevice) -> None:
    if not device.features.timestamps:
        pytest.skip("the device has no timestamps")
    one = session(affine_chain(5, 1.0, 1.0))
    one.write(0, np.zeros(COUNT, np.float32))
    one.profile()
    seconds = one.time_graph(repeats=3)
    assert 0 < seconds < 10
    out = np.empty(COUNT, np.float32)
    one.read(0, out)
    np.testing.assert_array_equal(out, np.full(COUNT, 5, np.float32))
    assert len(one.profile()) == 5  # the two ways have timers of their own


def test_profile_of_more_dispatches_than_a_query_set_holds(session: Build, device: WebGpuDevice) -> None:
    if not device.features.timestamps:
        pytest.skip("the device has no timestamps")
    program = affine_chain(1, 1.0, 0.0)
    many = dataclasses.replace(program, dispatches=program.dispatches * 2100)
    assert len(session(many).profile()) == 2100


def test_stats(session: Build) -> None:
    one = session(affine_chain(1, 1.0, 0.0))
    infer(one, np.zeros(COUNT, np.float32))
    stats = one.stats
    assert set(stats) >= {"write", "encode", "wait", "read", "compile", "upload"}
    assert all(math.isfinite(seconds) and 0 < seconds < 60 for seconds in stats.values())


def test_constants_larger_than_one_upload_piece(session: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("litegpu.gpu.backends.webgpu.buffers._UPLOAD_BYTES", 64)
    values = np.arange(COUNT, dtype=np.float32)
    source = AFFINE.replace("x[id.x] * c[0] + c[1]", "x[id.x] + c[id.x]")
    program = dataclasses.replace(affine_chain(1, 1.0, 0.0, source=source), constants=values.view(np.uint8))
    x, _, y = program.dispatches[0].bindings
    program = _changed(program, bindings=(x, Binding("constants", 0, 4 * COUNT), y))
    np.testing.assert_array_equal(infer(session(program), np.ones(COUNT, np.float32))[0].ravel(), values + 1)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _native_objects() -> dict[str, int]:
    diagnostics: Any = wgpu.diagnostics  # which has its topics only at run time
    counts = diagnostics.wgpu_native_counts.get_dict()
    return {name: counts[name]["count"] for name in ("Buffer", "CommandBuffer", "BindGroup")}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow(session: Build) -> None:
    one = session(affine_chain(3, 1.0, 1.0))
    x = np.zeros(COUNT, np.float32)

    def settled() -> dict[str, int]:
        one._stats["wait"] = 1.0  # after so long an inference the next one's commands are not finished ahead
        infer(one, x)
        gc.collect()
        return _native_objects()

    for _ in range(200):
        infer(one, x)
    objects, grown = settled(), []
    for _ in range(3):  # what leaks does so each time; what this process did before has its after-effects once
        before = _resident_bytes()
        for _ in range(1000):
            infer(one, x)
        gc.collect()
        grown.append(_resident_bytes() - before)
    assert min(grown) < 512 << 10
    now = settled()
    assert all(now[name] <= objects[name] for name in objects), (objects, now)  # fewer: of sessions before this one


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_closed_sessions_leave_no_memory(device: WebGpuDevice) -> None:
    program = dataclasses.replace(affine_chain(1, 1.0, 0.0), constants=np.zeros(8 << 20, np.uint8))
    x = np.zeros(COUNT, np.float32)

    def use(close: bool) -> None:
        one = device.session(program)
        infer(one, x)
        if close:
            one.close()

    for _ in range(3):
        use(close=True)
    before = _resident_bytes()
    for i in range(20):
        use(close=i % 2 == 0)  # a session that is only forgotten frees itself
    gc.collect()
    assert _resident_bytes() - before < 40 << 20


def test_device_loss_is_an_error_and_reopening_works(device: WebGpuDevice) -> None:
    lost = WebGpuDevice(choose_adapter(device.info.backend, device.info.name))
    one = lost.session(affine_chain(2, 1.0, 1.0))
    other = lost.session(affine_chain(1, 1.0, 1.0))
    x = np.zeros(COUNT, np.float32)
    infer(one, x)
    lost.handle.destroy()
    with pytest.raises(DeviceError, match="lost"):
        one.run()
    for call in (one.run, other.run, lambda: one.write(0, x), lambda: other.profile()):
        with pytest.raises(DeviceError, match="lost"):
            call()
    one.close()
    other.close()
    fresh = device.session(affine_chain(2, 1.0, 1.0))
    np.testing.assert_array_equal(infer(fresh, x)[0].ravel(), x + 2)
    fresh.close()
