"""What contract.py asks of every backend in the registry, and what abilities.py asks of those that can.

CUDA needs a GPU, or LITEGPU_CUDA_EMULATOR=1; the last test runs the suite on the emulated driver, in another process.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu.backends.programs import COUNT, affine, counter, negation

import litegpu
from litegpu import GpuDelegate
from litegpu.errors import DeviceError, LiteGpuError, OptionError, TensorError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import Binder, InputKeeper, InputLender, WholeTimer
from litegpu.gpu.backends.contract import Device, Session
from litegpu.gpu.kernels.tuner import Tuner
from litegpu.gpu.program import Binding, KernelCode, Program
from litegpu.model.builder import ModelBuilder

Build = Callable[..., Session]
X = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
WAITS = (None, "passive", "active", "do_not_wait")

BACKENDS = [pytest.param(name, marks=[pytest.mark.cuda] if name == "cuda" else []) for name in registry.ENTRIES]


@pytest.fixture(scope="module", params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    """A backend that has a device here."""
    found: str = request.param
    try:
        registry.open_device(found)
    except DeviceError as error:
        if found != "cuda" and os.environ.get("LITEGPU_REQUIRE_GPU"):
            raise
        pytest.skip(f"no device of {found}: {error}")
    return found


@pytest.fixture(scope="module")
def device(name: str) -> Device:
    return registry.open_device(name)


@pytest.fixture
def session(device: Device) -> Iterator[Build]:
    """Builds sessions, and closes them after the test."""
    made: list[Session] = []

    def build(program: Program, *arguments: Any, **options: Any) -> Session:
        made.append(device.session(program, *arguments, **options))
        return made[-1]

    yield build
    for one in made:
        one.close()


def output(one: Session, index: int = 0, dtype: Any = np.float32) -> np.ndarray:
    found = np.full(COUNT, 77, dtype)
    one.read(index, found)
    return found


def infer(one: Session, x: np.ndarray) -> np.ndarray:
    one.write(0, x)
    one.run()
    return output(one, 0, x.dtype)


# ------------------------------------------------------------------------------------------------ the device


def test_what_a_device_is(name: str, device: Device) -> None:
    entry = registry.ENTRIES[name]
    assert registry.name_of(device) == name and device.target == entry.language
    assert device.info.backend in (name, *entry.apis) and device.info.name and device.lost is False
    assert device.features.max_threads >= 256 and device.features.storage_alignment <= 256
    assert registry.open_device(name) is device
    device.nudge()
    with pytest.raises(DeviceError):
        registry.open_device(name, "no device has this name")


def test_tuners(device: Device) -> None:
    assert device.tuner("off") is None
    found: Tuner | None = device.tuner("fast")
    assert found is None or found.most > 0


def test_images_are_taken_again(device: Device, session: Build) -> None:
    program = affine(device)
    images = device.images(program)
    assert all(isinstance(image, bytes) for image in images)
    device.adopt(program, images)
    np.testing.assert_array_equal(infer(session(program), X), 2 * X + 1)
    device.adopt(program, [])  # as of another driver: compiled anew
    np.testing.assert_array_equal(infer(session(program), X), 2 * X + 1)


# ------------------------------------------------------------------------------------------------ inferences


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("validation", [False, True])
def test_write_run_read(device: Device, session: Build, wait: str | None, validation: bool) -> None:
    one = session(affine(device, 3), wait, validation=validation)
    for scale in (1, -2):
        np.testing.assert_allclose(infer(one, scale * X), 8 * scale * X + 7, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(output(one, 1), 2 * (scale * X) + 1)
    assert {"write", "encode", "wait", "read", "compile", "upload"} <= set(one.stats)
    assert all(seconds >= 0 for seconds in one.stats.values())


def test_integers(device: Device, session: Build) -> None:
    x = np.arange(-100, COUNT - 100, dtype=np.int32)
    np.testing.assert_array_equal(infer(session(negation(device)), x), -x)


def test_inputs_last_until_they_are_written_again(device: Device, session: Build) -> None:
    one = session(affine(device, 2, in_place=True))
    one.run()
    np.testing.assert_array_equal(output(one), np.full(COUNT, 3, np.float32))  # inputs are zeros at first
    given = X.copy()
    one.write(0, given)
    given[:] = 9
    for _ in range(3):
        one.run()
        np.testing.assert_allclose(output(one), 4 * X + 3, rtol=1e-6, atol=1e-6)


def test_shapes_of_arrays_do_not_matter(device: Device, session: Build) -> None:
    one = session(affine(device))
    one.write(0, X.reshape(4, -1))
    one.run()
    found = np.empty((2, COUNT // 2), np.float32)
    one.read(0, found)
    np.testing.assert_array_equal(found.ravel(), 2 * X + 1)


def test_nothing_is_allocated_by_inferences(device: Device, session: Build) -> None:
    one = session(affine(device))
    infer(one, X)
    before = one.allocations
    for _ in range(20):
        infer(one, X)
    assert one.allocations == before > 0


def test_variables(device: Device, session: Build) -> None:
    one = session(counter(device))
    ones = np.ones(COUNT, np.float32)
    assert [infer(one, ones)[0] for _ in range(3)] == [1, 2, 3]
    one.reset_variables()
    assert [infer(one, 2 * ones)[0] for _ in range(2)] == [2, 4]
    other = session(counter(device))
    assert infer(other, ones)[-1] == 1
    session(affine(device)).reset_variables()  # has none


def test_profile(device: Device, session: Build) -> None:
    one = session(counter(device))
    ones = np.ones(COUNT, np.float32)
    infer(one, ones)
    if not device.features.timestamps:
        with pytest.raises(DeviceError, match="timestamp"):
            one.profile()
        return
    times = one.profile()
    assert [(t.label, t.sources) for t in times] == [("counter [0]", (0,))] and times[0].seconds >= 0
    assert infer(one, ones)[0] == 2  # variables are as they were
    many = session(affine(device, 3))
    expected = infer(many, X)
    assert [t.label for t in many.profile()] == [f"affine [{i}]" for i in range(3)]
    many.run()
    np.testing.assert_array_equal(output(many), expected)


# ------------------------------------------------------------------------------------------------ wrong arguments


@pytest.mark.parametrize("wrong", [
    (1, X), (-1, X), (0, X.astype(np.float64)), (0, X.view(np.int32)), (0, X[:-1]), (0, np.repeat(X, 2)[::2]),
], ids=["index", "negative", "float64", "int32", "short", "strided"])  # fmt: skip
def test_arrays_that_do_not_fit(device: Device, session: Build, wrong: tuple[int, np.ndarray]) -> None:
    one = session(negation(device) if wrong[0] else affine(device))
    with pytest.raises(TensorError):
        one.write(*wrong)
    one.run()
    index, array = wrong
    with pytest.raises(TensorError):
        one.read(index, array.copy() if array.flags.c_contiguous else array)


def test_other_mistakes_of_callers(device: Device, session: Build) -> None:
    one = session(affine(device))
    with pytest.raises(DeviceError, match="before the first run"):
        output(one)
    one.run()
    kept = np.zeros(COUNT, np.float32)
    kept.flags.writeable = False
    with pytest.raises(TensorError, match="read-only"):
        one.read(0, kept)
    with pytest.raises(OptionError, match="unknown wait 'sometimes'"):
        session(affine(device), "sometimes")
    np.testing.assert_array_equal(infer(one, X), 2 * X + 1)


def changed(program: Program, **changes: Any) -> Program:
    return dataclasses.replace(program, dispatches=(dataclasses.replace(program.dispatches[0], **changes),))


def test_programs_that_do_not_fit(device: Device, session: Build) -> None:
    program = affine(device)
    x, c, y = program.dispatches[0].bindings
    most = device.features.max_threads + 1
    for wrong in (
        changed(program, bindings=(x, c)),
        changed(program, bindings=(x, c, Binding("arena", 1024, 4096))),
        changed(program, bindings=(Binding("arena", 4, 1020), c, y)),
        changed(program, bindings=(x, Binding("arena", 0, 16), y)),
        changed(program, groups=(device.features.max_groups + 1, 1, 1)),
        dataclasses.replace(program, kernels=(dataclasses.replace(program.kernels[0], workgroup=(most, 1, 1)),)),
    ):
        with pytest.raises(DeviceError, match=r"kernel 'doubled'.* does not fit") as raised:
            session(wrong)
        assert raised.value.__dict__["nodes"] == (0,)
    outside = dataclasses.replace(program.outputs[0], offset=4096)
    with pytest.raises(DeviceError, match="are not in the arena"):
        session(dataclasses.replace(program, outputs=(outside,)))


def test_a_kernel_that_is_no_program_is_named(device: Device, session: Build) -> None:
    program = affine(device)
    broken = KernelCode("broken", "this is no program {", (64, 1, 1), ("read_write",))
    for wrong in (
        dataclasses.replace(program, kernels=(*program.kernels, broken)),
        dataclasses.replace(program, kernels=(dataclasses.replace(program.kernels[0], source="nor this"),)),
    ):
        with pytest.raises(DeviceError, match=r"kernel '(broken|doubled)'"):
            session(wrong)
    np.testing.assert_array_equal(infer(session(program), X), 2 * X + 1)


# ------------------------------------------------------------------------------------------------ threads, ends


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """What `work(i)` raised in threads."""
    failures: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    return failures


def test_sessions_in_threads(device: Device, session: Build) -> None:
    ones = [session(affine(device, 2, float(i))) for i in range(4)]

    def work(i: int) -> None:
        for step in range(10):
            np.testing.assert_allclose(infer(ones[i], X + step), 4 * (X + step) + 3 * i, rtol=1e-5, atol=1e-5)

    assert not in_threads(4, work)


def test_one_session_in_threads(device: Device, session: Build) -> None:
    """Calls interleave: every output is of one whole inference."""
    one = session(affine(device))
    infer(one, np.zeros(COUNT, np.float32))

    def work(i: int) -> None:
        for _ in range(10):
            found = infer(one, np.full(COUNT, i, np.float32))
            assert found[0] in (1, 3, 5) and (found == found[0]).all()

    assert not in_threads(3, work)


CALLS: dict[str, Callable[[Session], object]] = {
    "write": lambda one: one.write(0, X),
    "run": lambda one: one.run(),
    "read": output,
    "reset": lambda one: one.reset_variables(),
    "profile": lambda one: one.profile(),
}


@pytest.mark.parametrize("wait", [True, False])
def test_close(device: Device, session: Build, wait: bool) -> None:
    for waits in WAITS:
        one = session(affine(device), waits)
        one.write(0, X)
        one.run()
        one.close(wait=wait)
        one.close(wait=not wait)
        for call in CALLS.values():
            with pytest.raises(DeviceError):
                call(one)
    session(affine(device), "do_not_wait").close(wait=wait)
    np.testing.assert_array_equal(infer(session(affine(device)), X), 2 * X + 1)


@pytest.mark.parametrize("wait", [True, False])
def test_close_while_it_runs(device: Device, session: Build, wait: bool) -> None:
    one = session(affine(device, 4))
    begun = threading.Event()

    def work(i: int) -> None:
        if i == 0:
            begun.wait(60)
            one.close(wait=wait)
            return
        for _ in range(100_000):
            infer(one, X)
            begun.set()

    failures = in_threads(2, work)
    assert len(failures) == 1 and isinstance(failures[0], DeviceError) and "closed" in str(failures[0])


def test_what_nobody_closes(device: Device) -> None:
    for wait in ("passive", "do_not_wait"):
        one = device.session(affine(device), wait)
        one.write(0, X)
        one.run()
        del one
    gc.collect()
    np.testing.assert_array_equal(infer(device.session(affine(device)), X), 2 * X + 1)


LOSS = """
    import os, sys
    import numpy as np, pytest
    if os.environ.get("LITEGPU_CUDA_EMULATOR"):
        from cuda_emulator import emulator
        emulator.install()
    from litegpu.errors import DeviceError
    from litegpu.gpu.backends import registry
    from gpu.backends.programs import COUNT, affine
    name, x = sys.argv[1], np.ones(COUNT, np.float32)
    device = registry.open_device(name)
    one = device.session(affine(device))
    late = device.session(affine(device), "do_not_wait")
    for session in (one, late):
        session.write(0, x)
        session.run()
    device.lost = True
    assert device.lost
    calls = (lambda: one.write(0, x), one.run, lambda: one.read(0, x), one.reset_variables, late.run,
             lambda: late.read(0, x), lambda: device.session(affine(device)))
    for call in calls:
        with pytest.raises(DeviceError, match="lost"):
            call()
    for _ in range(2):
        one.close()
        late.close(wait=False)
    try:
        again = registry.open_device(name)
    except DeviceError as error:  # what is lost here cannot be had again by this process
        assert "lost" in str(error)
    else:
        if again.lost:
            with pytest.raises(DeviceError, match="lost"):
                again.session(affine(again))
        else:
            fresh = again.session(affine(again))
            fresh.write(0, np.ones(COUNT, np.float32))
            fresh.run()
            fresh.read(0, x)
            assert (x == 3).all()
    print("done")
"""


def test_loss(name: str) -> None:
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parents[2]), str(Path(litegpu.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, *filter(None, sys.path)])}
    command = [sys.executable, "-c", textwrap.dedent(LOSS), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr


# ------------------------------------------------------------------------------------------------ abilities


def test_users_buffers(device: Device, session: Build) -> None:
    first, second = session(affine(device, 2)), session(affine(device, 1, 5.0))
    if not isinstance(first, Binder) or not isinstance(second, Binder):
        pytest.skip(f"{device.info.name} takes no buffers")
    infer(first, X)
    expected = output(first)
    buffer = first.output_buffer(0, (1, 1, 1, COUNT))
    found = first.examine(buffer, "output 0", output=True)
    assert found.nbytes >= 4 * COUNT and not first.is_bound("output", 0)
    first.bind("output", 0, found.resource, "output 0")
    assert first.is_bound("output", 0) and not first.is_bound("input", 0)
    first.fill_bound_output(0)
    second.bind("input", 0, second.examine(buffer, "input 0", output=False).resource, "input 0")
    second.run()
    np.testing.assert_allclose(output(second), 2 * expected + 5, rtol=1e-6)
    np.testing.assert_allclose(infer(first, 3 * X), 12 * X + 3, rtol=1e-5, atol=1e-5)  # bound outputs can be read
    second.run()
    np.testing.assert_allclose(output(second), 2 * (12 * X + 3) + 5, rtol=1e-5, atol=1e-5)
    for one, kind in ((first, "output"), (second, "input")):
        one.bind(kind, 0, None, "")
        assert not one.is_bound(kind, 0)
    np.testing.assert_array_equal(infer(second, X), 2 * X + 5)
    for wrong in ("text", 3, np.zeros(COUNT, np.float32), [1.0]):
        with pytest.raises((TensorError, DeviceError), match="output 0"):
            first.examine(wrong, "output 0", output=True)


def test_variables_do_not_notice_that_buffers_are_bound(device: Device, session: Build) -> None:
    """Nor that they are not any more: commands that were prepared for the next inference are not what it does then."""
    one, ones = session(counter(device)), np.ones(COUNT, np.float32)
    if not isinstance(one, Binder):
        pytest.skip(f"{device.info.name} takes no buffers")
    assert [infer(one, ones)[0] for _ in range(3)] == [1, 2, 3]
    buffer = one.examine(one.output_buffer(0, (1, 1, 1, COUNT)), "output 0", output=True).resource
    for resource, wanted in ((buffer, [4, 5]), (None, [6, 7]), (buffer, [8])):
        one.bind("output", 0, resource, "output 0")
        assert [infer(one, ones)[0] for _ in wanted] == wanted


def test_the_last_results_stay_when_buffers_are_bound(device: Device, session: Build) -> None:
    """Bound or not, and while an input is bound."""
    one, other = session(affine(device, 3, in_place=True)), session(affine(device, 3))
    if not isinstance(one, Binder) or not isinstance(other, Binder):
        pytest.skip(f"{device.info.name} takes no buffers")
    given, made = (one.examine(s.output_buffer(0, (1, 1, 1, COUNT)), "", output=True).resource for s in (other, one))
    other.bind("output", 0, given, "")
    infer(other, X)
    one.bind("input", 0, given, "")
    for _ in range(3):
        one.run()
    wanted = 8 * (8 * X + 7) + 7
    np.testing.assert_allclose(output(one), wanted, rtol=1e-5, atol=1e-5)
    one.bind("output", 0, made, "")
    one.fill_bound_output(0)
    np.testing.assert_allclose(output(one), wanted, rtol=1e-5, atol=1e-5)
    one.bind("output", 0, None, "")
    one.bind("input", 0, None, "")
    np.testing.assert_allclose(infer(one, X), 8 * X + 7, rtol=1e-5, atol=1e-5)


def test_inputs_in_the_session_s_memory(device: Device, session: Build) -> None:
    one = session(affine(device), "passive")
    if isinstance(one, InputLender):
        memory = one.input_memory(0)
        assert memory is not None and memory.shape == (COUNT,)
        memory[...] = X
        one.run()
        np.testing.assert_array_equal(output(one), 2 * X + 1)
        late = session(affine(device), "do_not_wait")
        assert isinstance(late, InputLender) and late.input_memory(0) is None
    if isinstance(one, InputKeeper):
        one.write(0, 3 * X)
        np.testing.assert_array_equal(one.given(0).ravel(), 3 * X)


def test_time_of_the_whole(device: Device, session: Build) -> None:
    one = session(counter(device))
    infer(one, np.ones(COUNT, np.float32))
    if isinstance(one, WholeTimer) and device.features.timestamps:
        assert one.time_graph() >= 0
        assert infer(one, np.ones(COUNT, np.float32))[0] == 2


# ------------------------------------------------------------------------------------------------ models


def model(rows: int = 1) -> bytes:
    b = ModelBuilder()
    x = b.input("x", (rows, 4))
    b.output(b.op("MUL", [b.op("ADD", [x, x], (rows, 4)), b.constant(np.array([1, 2, 3, 4], np.float32))], (rows, 4)))
    return b.build()


@pytest.mark.parametrize("options", [
    {}, {"precision": "float16"}, {"precision": "auto"}, {"wait_type": "AGGRESSIVE"}, {"wait_type": "DO_NOT_WAIT"},
    {"validation": True}, {"tuning": "fast"},
], ids=str)  # fmt: skip
def test_models(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    weights, x = np.array([1, 2, 3, 4], np.float32), np.array([[1, -2, 0.5, 8]], np.float32)
    cache: dict[str, Any] = {"serialization_dir": tmp_path / "cache"}
    for cached in ({}, cache, cache):
        delegate = GpuDelegate(backend=name, **options, **cached)
        one = litegpu.Interpreter(model_content=model(), experimental_delegates=[delegate], fallback="strict")
        one.allocate_tensors()
        index, result = one.get_input_details()[0]["index"], one.get_output_details()[0]["index"]
        for rows in (1, 3):
            one.resize_tensor_input(index, (rows, 4))
            one.allocate_tensors()
            assert one.delegation_report().fully_delegated
            for scale in (1, 4):
                one.set_tensor(index, np.repeat(scale * x, rows, axis=0))
                one.invoke()
                np.testing.assert_array_equal(one.get_tensor(result), np.repeat(2 * scale * x * weights, rows, axis=0))
        one.close()


def test_a_loaded_model(name: str) -> None:
    weights, x = np.array([1, 2, 3, 4], np.float32), np.ones((1, 4), np.float32)
    with litegpu.load(model(), device=name) as one:
        assert one.device == name
        for i, found in enumerate(one.stream(i * x for i in range(8))):
            np.testing.assert_array_equal(found, 2 * i * weights[None])

        def work(i: int) -> None:
            for _ in range(10):
                np.testing.assert_array_equal(one(i * x), 2 * i * weights[None])

        assert not in_threads(4, work)
    with pytest.raises(LiteGpuError):
        one(x)


# ------------------------------------------------------------------------------------------------ the emulated driver


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="needs g++ on Linux")
def test_cuda_on_the_emulated_driver() -> None:
    if os.environ.get("LITEGPU_CUDA_EMULATOR"):
        return  # this is it
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    here = Path(__file__).resolve()
    environment = {**os.environ, "LITEGPU_CUDA_EMULATOR": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cuda", str(here)]
    done = subprocess.run(command, env=environment, cwd=here.parents[3], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-2000:]
