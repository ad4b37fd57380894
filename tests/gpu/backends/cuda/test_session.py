"""Programs of hand-written CUDA C++ on a CUDA device, and what else the process does with it."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from litegpu.errors import DeviceError, OptionError, TensorError
from litegpu.gpu.backends.cuda import overlap
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

pytestmark = pytest.mark.cuda
EMULATED = bool(os.environ.get("LITEGPU_CUDA_EMULATOR"))
real_only = pytest.mark.skipif(EMULATED, reason="the emulator cannot do this")

COUNT = 1000  # elements of every tensor
SLOT = 4096  # bytes between tensors in the arena

AFFINE = (
    PROGRAMMATIC_LAUNCH
    + """
extern "C" __global__ void __launch_bounds__(64) affine(float* x, const float* __restrict__ c, float* y) {
  launch_dependents();
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  const float scale = c[0], offset = c[1];
  wait_for_predecessors();
  if (i < 1000) y[i] = x[i] * scale + offset;
}
"""
)


def port(name: str, slot: int) -> Port:
    return Port(name, slot, (1, 1, 1, COUNT), DType.FLOAT32, SLOT * slot, 4 * COUNT)


def affine_chain(steps: int, scale: float, offset: float, source: str = AFFINE, slots: int = 0) -> Program:
    """`steps` dispatches of x * scale + offset, through `slots` places of the arena in turn (0: one place for each)."""
    slots = slots or steps + 1
    kernel = KernelCode("affine", source, (64, 1, 1), ("read_write", "read", "read_write"))
    dispatches = tuple(
        Dispatch(
            kernel=0,
            groups=(-(-COUNT // 64), 1, 1),
            bindings=(
                Binding("arena", SLOT * (i % slots), 4 * COUNT),
                Binding("constants", 0, 8),
                Binding("arena", SLOT * ((i + 1) % slots), 4 * COUNT),
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
        arena_size=SLOT * slots,
        inputs=(port("x", 0),),
        outputs=(port("last", steps % slots), port("first", 1 % slots)),
        memory=MemoryReport(SLOT * slots, SLOT * (steps + 1), SLOT * 2),
    )


def infer(session: Any, array: np.ndarray) -> list[np.ndarray]:
    session.write(0, array)
    session.run()
    outputs = [np.full((1, 1, 1, COUNT), np.nan, np.float32) for _ in session.program.outputs]
    for i, out in enumerate(outputs):
        session.read(i, out)
    return outputs


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-100, 100, (1, 1, 1, COUNT)).astype(np.float32)


@pytest.mark.parametrize("wait", ["active", "passive", "do_not_wait"])
def test_chain(device: Any, wait: str) -> None:
    session = device.session(affine_chain(3, 2, 1), wait)
    for seed in range(5):
        x = numbers(seed)
        last, first = infer(session, x)
        np.testing.assert_array_equal(last, 8 * x + 7)
        np.testing.assert_array_equal(first, 2 * x + 1)
    session.close()


def test_a_text_that_does_not_wait_is_not_started_early(device: Any) -> None:
    """Kernels of others know nothing of programmatic launch: each begins when what it reads is written."""
    foreign = """extern "C" __global__ void affine(float* x, const float* c, float* y) {
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  if (i < 1000) y[i] = x[i] * c[0] + c[1];
}"""
    program, ours = affine_chain(6, 1, 1, foreign), affine_chain(6, 1, 1)
    assert device.overlap(program).waits == device.programmatic
    for one, waits in ((program, False), (ours, device.overlap(ours).waits)):
        session = device.session(one)
        assert {launch.kernel.waits for launch in session.recorder.launches} == {waits}
        for seed in range(20):
            last, first = infer(session, numbers(seed))
            np.testing.assert_array_equal(first, numbers(seed) + 1)
            np.testing.assert_array_equal(last, numbers(seed) + 6)
        session.close()


def test_what_would_be_spread_unevenly_is_held_to_its_share(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen small workgroups fit on one multiprocessor: where that matters each has one, with so much shared memory
    that no other fits beside it."""
    if not device.programmatic:
        pytest.skip("the driver is one without programmatic launch")
    session = device.session(affine_chain(3, 2, 1))
    assert all(launch.early and not launch.shared_bytes for launch in session.recorder.launches)
    session.close()
    monkeypatch.setattr(overlap, "LITTLE_BYTES", 0)
    session = device.session(affine_chain(3, 2, 1))
    kernel, shared = session.recorder.launches[0].kernel, device.shared_memory
    assert all(launch.early for launch in session.recorder.launches)
    with device.context:
        one, two, all_that_fit = (kernel.shared_bytes_for(n) + shared.reserved for n in (1, 2, kernel.resident))
    assert {launch.shared_bytes + shared.reserved for launch in session.recorder.launches} == {one}
    assert 2 * one > shared.multiprocessor and 3 * two > shared.multiprocessor >= 2 * two
    assert all_that_fit == shared.reserved  # no more do anyway
    for seed in range(20):
        last, _ = infer(session, numbers(seed))
        np.testing.assert_array_equal(last, 8 * numbers(seed) + 7)
    session.close()


def test_what_would_be_spread_unevenly_is_not_started_early(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes long anyway."""
    if not device.programmatic:
        pytest.skip("the driver is one without programmatic launch")
    monkeypatch.setattr(overlap, "LITTLE_BYTES", 0)
    monkeypatch.setattr(overlap, "MOST_HELD_BYTES", 0)
    session = device.session(affine_chain(3, 2, 1))
    assert {launch.early for launch in session.recorder.launches} == {False}
    assert {launch.kernel.waits for launch in session.recorder.launches} == {True}
    last, _ = infer(session, numbers(0))
    np.testing.assert_array_equal(last, 8 * numbers(0) + 7)
    kernels = [launch.kernel for launch in session.recorder.launches]
    monkeypatch.setattr(kernels[0], "resident", 1)
    recorder = session.recorder
    again = [recorder._launch(kernels[:1], dispatch) for dispatch in session.program.dispatches]
    assert all(launch.early for launch in again)
    session.close()


@pytest.mark.skipif(not EMULATED, reason="a GPU does not tell what it was about to read")
def test_the_emulator_notices_what_is_started_early_and_does_not_wait(device: Any) -> None:
    if not device.programmatic:
        pytest.skip("the driver is one without programmatic launch")
    foreign = affine_chain(2, 1, 1, AFFINE.replace("wait_for_predecessors();", "/* wait_for_predecessors(); */"))
    with pytest.raises(DeviceError, match="800"):
        infer(device.session(foreign), numbers(0))


def test_inputs_stay_and_may_be_written_while_an_inference_runs(device: Any) -> None:
    """The arena is used up by every inference, here even the input's own place; what was written last is not."""
    session = device.session(affine_chain(4, 1, 1, slots=2), "do_not_wait")
    x = numbers(0)
    session.write(0, x)
    out = np.empty_like(x)
    for _ in range(3):
        session.run()
        session.read(0, out)
        np.testing.assert_array_equal(out, x + 4)
    for n in range(50):
        session.write(0, x + n)
        session.run()
        session.write(0, x + n + 1)  # does not reach the one that was started
        session.read(0, out)
        np.testing.assert_array_equal(out, x + n + 4)
    session.close()


@pytest.mark.parametrize("programmatic", [True, False])
@pytest.mark.parametrize("slots", [0, 2, 3])
def test_kernels_see_what_those_before_them_wrote(
    device: Any, slots: int, programmatic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overlapping kernels too, where places of the arena are used again and again (also written while still read)."""
    monkeypatch.setattr(device, "programmatic", programmatic and device.found.capability >= 90)
    session = device.session(affine_chain(100, 1, 1, slots=slots))
    for seed in range(2 if EMULATED else 200):
        x = numbers(seed)
        np.testing.assert_array_equal(infer(session, x)[0], x + 100)
    session.close()


def test_wrong_calls(device: Any) -> None:
    session = device.session(affine_chain(1, 1, 1))
    out = np.zeros((1, 1, 1, COUNT), np.float32)
    with pytest.raises(DeviceError, match="before the first run"):
        session.read(0, out)
    with pytest.raises(TensorError, match="float32"):
        session.write(0, out.astype(np.float64))
    with pytest.raises(TensorError, match="does not exist"):
        session.write(1, out)
    session.close()
    session.close()
    with pytest.raises(DeviceError, match="closed"):
        session.run()
    with pytest.raises(OptionError, match="sometimes"):
        device.session(affine_chain(1, 1, 1), "sometimes")


def test_errors_of_the_build_name_the_kernel(device: Any) -> None:
    with pytest.raises(DeviceError, match="kernel 'affine' did not compile"):
        device.session(affine_chain(1, 1, 1, AFFINE.replace("scale +", "scale +!?")))
    with pytest.raises(DeviceError, match="kernel 'affine'"):
        device.session(affine_chain(1, 1, 1, AFFINE.replace(" affine(", " other(")))
    wrong = affine_chain(1, 1, 1)
    huge = dataclasses.replace(wrong.kernels[0], workgroup=(2048, 1, 1))
    with pytest.raises(DeviceError, match=r"kernel 'affine' does not fit .* 2048 threads"):
        device.session(dataclasses.replace(wrong, kernels=(huge,)))


def test_too_little_memory_is_said_with_numbers(device: Any) -> None:
    with pytest.raises(DeviceError, match=r"needs \d+ MiB on .*MiB are free"):
        device.session(dataclasses.replace(affine_chain(1, 1, 1), arena_size=1 << 44))
    assert infer(device.session(affine_chain(1, 1, 1)), numbers(0))


def test_sessions_share_equal_constants(device: Any) -> None:
    """Also of other programs; they are freed with the last session."""
    before = set(device.constants)
    chains = [affine_chain(3, 1, 7), affine_chain(2, 1, 7), affine_chain(2, 1, 8)]
    sessions = [device.session(chain) for chain in chains]
    places = [session.memory.bases["constants"] for session in sessions]
    assert places[0] == places[1] != places[2] and len(set(device.constants) - before) == 2
    sessions[0].close()
    x = numbers(0)
    for session, expected in zip(sessions[1:], (x + 14, x + 16), strict=True):
        session.write(0, x)
        session.run()
        found = np.empty_like(x)
        session.read(0, found)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        session.close()
    del session
    sessions.clear()
    gc.collect()
    assert set(device.constants) == before


def test_no_inputs_no_kernels(device: Any) -> None:
    plain = affine_chain(1, 1, 1)
    copy_only = device.session(dataclasses.replace(plain, dispatches=(), outputs=(port("x", 0),)))
    np.testing.assert_array_equal(infer(copy_only, numbers(1))[0], numbers(1))
    no_input = device.session(dataclasses.replace(plain, inputs=()))
    no_input.run()
    out = np.empty((1, 1, 1, COUNT), np.float32)
    no_input.read(0, out)
    assert (out == 1).all(), "the arena does not begin with zeros"


def test_sessions_share_loaded_kernels_and_free_them(device: Any) -> None:
    gc.collect()
    before = len(device._loaded)
    source = AFFINE + "// shared by two sessions\n"
    a, b = device.session(affine_chain(1, 2, 0, source)), device.session(affine_chain(2, 3, 0, source))
    assert a.recorder.launches[0].kernel is b.recorder.launches[0].kernel
    names = [key[0] for key in device._loaded]
    assert len(names) <= before + 2 and names.count("copy_words") == 1, "one for both, and one for copies"
    a.close()
    np.testing.assert_array_equal(infer(b, numbers(2))[0], 9 * numbers(2))
    b.close()
    del a, b
    gc.collect()
    assert len(device._loaded) == before


def test_a_kernel_that_is_being_unloaded_is_not_taken_again(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another thread that opens the same model meanwhile: the driver's calls give Python's lock away."""
    from cuda.bindings import driver

    unload = driver.cuModuleUnload
    unloaded: list[Any] = []
    taken: list[Any] = []
    other = device.session(affine_chain(1, 2, 0))  # which keeps the kernel that copies
    gc.collect()
    before = set(device._loaded)
    session = device.session(affine_chain(1, 2, 0, AFFINE.replace("c[1]", "(c[1] + 0.125f)")))
    own = set(device._loaded) - before

    def unload_slowly(module: Any) -> Any:
        taken.extend(key for key in own if key in device._loaded)
        unloaded.append(module)
        return unload(module)

    monkeypatch.setattr(driver, "cuModuleUnload", unload_slowly)
    session.close()
    del session
    gc.collect()
    assert len(own) == len(unloaded) == 1 and not taken
    other.close()


@pytest.mark.skipif(
    not EMULATED and "PYTEST_XDIST_WORKER" in os.environ, reason="counts the memory of the whole GPU: run it alone"
)
def test_closed_sessions_leave_nothing_behind(device: Any) -> None:
    from cuda.bindings import driver

    def held() -> int:
        gc.collect()
        if EMULATED:
            from cuda_emulator import emulator

            return emulator.objects()
        with device.context:
            error, free, total = driver.cuMemGetInfo()
        assert int(error) == 0
        return int(total - free)

    big = dataclasses.replace(affine_chain(2, 1, 1), arena_size=64 << 20)
    infer(device.session(big), numbers(0))
    before = held()
    for n in range(20):
        session = device.session(big)
        infer(session, numbers(n))
        session.time_graph(3)
        session.profile()
        if n % 2:
            session.close()  # the others by the garbage collector
        del session
    assert held() <= before + (0 if EMULATED else 32 << 20)


def test_nothing_is_allocated_after_the_build(device: Any) -> None:
    session = device.session(affine_chain(3, 1, 1))
    allocations = session.allocations
    assert allocations == 3
    for seed in range(10):
        infer(session, numbers(seed))
    assert session.allocations == allocations
    assert set(session.stats) >= {"write", "encode", "wait", "read", "compile", "upload"}


def test_many_inferences_leak_no_host_memory(device: Any) -> None:
    session = device.session(affine_chain(2, 1, 1))
    x, out = numbers(0), np.empty((1, 1, 1, COUNT), np.float32)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def many(count: int) -> None:
        for _ in range(count):
            session.write(0, x)
            session.run()
            session.read(0, out)

    many(1000)
    before = resident()
    many(5000 if EMULATED else 100_000)
    assert resident() - before < 2 << 20


def test_sessions_and_threads_side_by_side(device: Any) -> None:
    sessions = [device.session(affine_chain(n + 1, 1, n)) for n in range(4)]
    problems: list[str] = []

    def work(n: int) -> None:
        for seed in range(30):
            x = numbers(seed)
            if not np.array_equal(infer(sessions[n], x)[0], x + n * (n + 1)):
                problems.append(f"session {n}, seed {seed}")
        own = device.session(affine_chain(2, 2, n))
        if not np.array_equal(infer(own, numbers(n))[0], 4 * numbers(n) + 3 * n):
            problems.append(f"a session built in thread {n}")
        own.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems


def test_one_session_in_several_threads(device: Any) -> None:
    session = device.session(affine_chain(2, 1, 1))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for seed in range(50):
                infer(session, numbers(seed))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_the_callers_context_stays_current(device: Any) -> None:
    from cuda.bindings import driver

    def current() -> int:
        error, context = driver.cuCtxGetCurrent()
        assert int(error) == 0
        return int(context)

    results = []

    def work() -> None:  # in a thread that has none
        before = current()
        session = device.session(affine_chain(2, 1, 1))
        infer(session, numbers(0))
        session.time_graph(2)
        session.close()
        with pytest.raises(DeviceError):
            session.run()
        results.append((before, current()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [(0, 0)]


def test_times(device: Any) -> None:
    session = device.session(affine_chain(3, 1, 1))
    x = numbers(0)
    infer(session, x)
    rows = session.profile()
    assert [row.label for row in rows] == ["affine [0]", "affine [1]", "affine [2]"]
    assert [row.sources for row in rows] == [(0,), (1,), (2,)]
    assert all(0 <= row.seconds < 0.1 for row in rows) and any(row.seconds for row in rows)
    assert 0 < session.time_graph(10) < 0.1
    out = np.empty_like(x)
    session.read(0, out)
    np.testing.assert_array_equal(out, x + 3)
    np.testing.assert_array_equal(infer(session, x)[0], x + 3)


def test_kernels_are_timed_with_numbers_that_stay(device: Any) -> None:
    """Each launch of a graph that is timed begins with the same inputs, also where a later kernel writes what an
    inference reads; and kernels that are timed one by one find what those before them made of random numbers."""
    program = affine_chain(2, 3, 1, slots=2)  # the result lies where the input was
    program = dataclasses.replace(program, inputs=(dataclasses.replace(program.inputs[0], uses=((0, 0),)),))
    session = device.session(program)
    infer(session, numbers(0))
    session.time_graph(10)

    def there() -> np.ndarray:
        with device.context:
            session.memory.download(0)
        return session.memory.output(0).view(np.float32).copy()

    first = (there() - 4) / 9
    assert abs(first.mean()) < 0.2 and 0.8 < first.std() < 1.2
    session.time_graph(3)
    np.testing.assert_array_equal((there() - 4) / 9, first)
    session.profile()
    np.testing.assert_allclose((there() - 4) / 9, first, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(infer(session, numbers(1))[0], numbers(1) * 9 + 4)


def test_blocking_launches(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    session = device.session(affine_chain(3, 2, 1))
    np.testing.assert_array_equal(infer(session, numbers(3))[0], 8 * numbers(3) + 7)


@real_only
def test_shared_memory_given_at_launch(device: Any) -> None:
    """More than the 48 KiB that a kernel may declare."""
    source = (
        PROGRAMMATIC_LAUNCH
        + """
extern "C" __global__ void affine(float* x, const float* c, float* y) {
  extern __shared__ float staged[];
  wait_for_predecessors();
  for (unsigned i = threadIdx.x; i < SIZE; i += 64) staged[i] = i < 1000 ? x[i] : 0.0f;
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 1000; i += 64) y[i] = staged[i] * c[0] + staged[SIZE - 1] + c[1];
}
"""
    )
    program = affine_chain(1, 2, 1, source)
    code = dataclasses.replace(program.kernels[0], shared_bytes=60 << 10, options=(f"-DSIZE={(60 << 10) // 4}",))
    session = device.session(dataclasses.replace(program, kernels=(code,)))
    np.testing.assert_array_equal(infer(session, numbers(4))[0], 2 * numbers(4) + 1)
    code = dataclasses.replace(code, shared_bytes=10 << 20)
    with pytest.raises(DeviceError, match="kernel 'affine' cannot have 10485760 bytes of shared memory"):
        device.session(dataclasses.replace(program, kernels=(code,)))


@real_only
def test_pytorch_in_the_same_process(device: Any) -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(1000, device="cuda", dtype=torch.float32)
    session = device.session(affine_chain(2, 1, 1))
    for seed in range(20):
        b = a * 2 + 1
        np.testing.assert_array_equal(infer(session, numbers(seed))[0], numbers(seed) + 2)
        assert torch.equal(b, a + a + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = a + 1
    infer(session, numbers(0))
    session.close()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(c, a + 1)


@real_only
@pytest.mark.parametrize("blocking", [False, True])
def test_a_kernel_that_traps_is_reported(blocking: bool, device: Any) -> None:
    """In a process of its own, as it is the end of the device's context. Run one by one, the kernel has a name."""
    script = """
        import dataclasses
        from gpu.backends.cuda.test_session import AFFINE, affine_chain, infer, numbers
        from litegpu.errors import DeviceError
        from litegpu.gpu.backends.cuda.opening import open_device

        trap = AFFINE.replace("if (i < 1000)", 'asm volatile("trap;"); if (i < 1000)').replace(" affine(", " broken(")
        good, bad = affine_chain(2, 1, 1), affine_chain(1, 1, 1, trap)
        kernels = (good.kernels[0], dataclasses.replace(bad.kernels[0], name="broken"))
        second = dataclasses.replace(good.dispatches[1], kernel=1)
        program = dataclasses.replace(good, kernels=kernels, dispatches=(good.dispatches[0], second))
        session = open_device().session(program)
        for _ in range(2):
            try:
                infer(session, numbers(0))
            except DeviceError as error:
                print(error)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_LAUNCH_BLOCKING": str(int(blocking))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, env=environment
    )
    first, second = done.stdout.strip().splitlines()
    assert ("kernel 'broken' (affine [1])" in first) == blocking, done.stderr
    assert blocking or ("affine, broken" in first and "CUDA_LAUNCH_BLOCKING=1" in first)
    assert "was lost by an earlier error" in second


def test_addresses_are_64_bits_wide() -> None:
    from litegpu.gpu.backends.cuda.graph import make_launch

    kernel: Any = SimpleNamespace(maps=())
    launch = make_launch(kernel, (1, 1, 1), (1, 1, 1), 0, "", [0x7FFF12345678, 1 << 47])
    first, second = (ctypes.c_uint64.from_address(p).value for p in launch.params)
    assert (first, second) == (0x7FFF12345678, 1 << 47)


@pytest.mark.parametrize("wait", ["active", "passive"])
def test_inputs_may_be_written_where_the_copy_reads_them(wait: str, device: Any) -> None:
    session = device.session(affine_chain(3, 2.0, 1.0), wait=wait)
    memory = session.input_memory(0)
    assert memory.dtype == np.float32 and not memory.any()
    want = infer(session, numbers(1))[0]
    session.write(0, numbers(2))
    memory[...] = numbers(1).reshape(-1)
    session.run()
    out = np.empty_like(want)
    session.read(0, out)
    np.testing.assert_array_equal(out, want)
    session.close()
    memory[...] = 1  # still there
    assert memory.sum() == memory.size
    late = device.session(affine_chain(3, 2.0, 1.0), wait="do_not_wait")
    assert late.input_memory(0) is None
    late.close()
