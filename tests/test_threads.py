"""One LoadedModel in many threads: every call gets its own results, on every device."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_device, require_gpu
from racing import race

import litegpu
from litegpu import GpuDelegate, Interpreter, InvokeError, TensorError
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 32, 32, 12)


def network(shape: tuple[int, ...] = SHAPE) -> bytes:
    """Two inputs and two outputs, so that a mixture of two calls shows."""
    b = ModelBuilder()
    x, y = b.input("x", shape), b.input("y", shape)
    total = b.op("ADD", [x, y], shape, name="total")
    b.output(b.op("NEG", [total], shape, name="negated"), b.op("MUL", [x, y], shape, name="product"))
    return b.build()


def inputs(seed: int, batch: int = 1, shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x, y = generator.integers(-8, 8, (2, batch, *shape[1:])).astype(np.float32)
    return x, y


def is_right(found: Any, x: np.ndarray, y: np.ndarray) -> bool:
    """Small whole numbers: to the bit on every device."""
    return np.array_equal(found["negated"], -(x + y)) and np.array_equal(found["product"], x * y)


@pytest.fixture(params=["cpu", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    require_device(name)
    return name


def test_sixteen_threads_share_a_model(device: str) -> None:
    with litegpu.load(network(), device) as model:
        assert model.device == device

        def work(number: int) -> None:
            for i in range(12):
                x, y = inputs(100 * number + i)
                assert is_right(model(x, y=y), x, y)

        race(work)


#: Of outputs that are large in every sense: they are copied by several threads, and looked at by kernels.
LARGE = (1, 160, 160, 12)


def cycle(interpreter: Interpreter, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    for detail, value in zip(interpreter.get_input_details(), (x, y), strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    found = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    return dict(zip(("negated", "product"), found, strict=True))


@pytest.mark.parametrize("shape", [SHAPE, LARGE], ids=["small", "large"])
def test_sixteen_threads_with_an_interpreter_each(device: str, shape: tuple[int, ...]) -> None:
    """Each with a delegate of its own or one for all, in float16 where it has that, and every result is kept."""
    content, rounds = network(shape), 10 if shape == SHAPE else 3

    def delegate() -> list[GpuDelegate]:
        return [] if device == "cpu" else [GpuDelegate(backend=device, precision="float16")]

    shared = delegate()

    def work(number: int) -> None:
        kept = []
        with Interpreter(model_content=content, experimental_delegates=shared if number % 2 else delegate()) as one:
            one.allocate_tensors()
            for i in range(rounds):
                x, y = inputs(100 * number + i, shape=shape)
                kept.append((cycle(one, x, y), x, y))
        assert all(is_right(*result) for result in kept)

    race(work)


def test_sixteen_threads_and_large_results_of_a_model(device: str) -> None:
    with litegpu.load(network(LARGE), device, "float32" if device == "cpu" else "float16") as model:

        def work(number: int) -> None:
            given = [inputs(100 * number + i, shape=LARGE) for i in range(3)]
            found = [model(x, y) for x, y in given]
            assert all(is_right(f, x, y) for f, (x, y) in zip(found, given, strict=True))

        race(work)


def test_threads_with_different_batches(device: str) -> None:
    with litegpu.load(network(), device) as model:

        def work(number: int) -> None:
            for i in range(4):
                x, y = inputs(100 * number + i, batch=1 + (number + i) % 3)
                assert is_right(model(x, y), x, y)
                assert set(model.inputs) == {"x", "y"} and len(model.outputs) == 2

        race(work, 6)


def test_calls_streams_and_mistakes_at_the_same_time(device: str) -> None:
    with litegpu.load(network(), device) as model:

        def work(number: int) -> None:
            items = [inputs(100 * number + i, batch=1 + number // 6) for i in range(5)]
            if number % 3 == 0:
                found = list(model.stream(items, ahead=2))
                assert all(is_right(f, x, y) for f, (x, y) in zip(found, items, strict=True))
            elif number % 3 == 1:
                for x, y in items:
                    with pytest.raises(TensorError):
                        model(x, y[..., :5])
            else:
                assert all(is_right(model(x, y), x, y) for x, y in items)

        race(work, 9)


def test_close_while_others_call(device: str) -> None:
    """They get their right result, or an InvokeError that says why."""
    for ending in range(3):
        model = litegpu.load(network(), device)
        closed: list[int] = []

        def work(number: int, model: Any = model, ending: int = ending, closed: list[int] = closed) -> None:
            if number == 0:
                x, y = inputs(ending)
                for _ in range(ending):
                    model(x, y)
                model.close()
                return
            for i in range(1000):
                x, y = inputs(100 * number + i)
                try:
                    assert is_right(model(x, y), x, y)
                except InvokeError as error:
                    assert "closed" in str(error)
                    closed.append(number)
                    return

        race(work, 4)
        assert sorted(closed) == [1, 2, 3]


def test_a_broken_off_call_leaves_the_model_usable(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle of a resize, or of the inputs, by Ctrl-C."""
    with litegpu.load(network(), device) as model:
        x, y = inputs(0)
        places: list[tuple[type, str]] = [(Interpreter, "allocate_tensors")]
        if device == "cpu":
            places += [(Interpreter, name) for name in ("set_tensor", "invoke", "get_tensor")]
        elif device == "cuda":
            from litegpu.gpu.backends.cuda.inputs import Inputs
            from litegpu.gpu.backends.cuda.session import CudaSession

            places += [(GpuKernel, "_called"), (Inputs, "send"), (CudaSession, "_run")]
        else:
            places += [(GpuKernel, name) for name in ("write", "_begin", "_collect")]
        for owner, method in places:

            def interrupted(*_: Any) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(owner, method, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    model(*inputs(1, batch=2))
            assert is_right(model(x, y), x, y)
            wide = inputs(2, batch=3)

            def of_others(number: int, wide: Any = wide) -> None:
                assert is_right(model(*wide), *wide)

            race(of_others, 2)


def test_models_that_are_opened_and_closed_in_threads_share_a_device(device: str) -> None:
    """A delegate for all as well as one for each."""
    content = network()
    backend = None if device == "cpu" else device
    shared = [GpuDelegate(backend=backend)] if backend else None

    def work(number: int) -> None:
        for i in range(3):
            x, y = inputs(100 * number + i)
            if number % 2:
                with litegpu.load(content, device) as model:
                    assert is_right(model(x, y), x, y)
                continue
            with Interpreter(model_content=content, experimental_delegates=shared) as interpreter:
                interpreter.allocate_tensors()
                assert is_right(cycle(interpreter, x, y), x, y)

    race(work, 8)


@pytest.mark.cuda
def test_arrays_on_the_gpu_and_on_the_host_in_threads() -> None:
    torch = pytest.importorskip("torch")
    from litegpu.gpu.backends.cuda.opening import available

    if available() is not None:
        pytest.skip("no CUDA device")
    with litegpu.load(network(), "cuda") as model:

        def work(number: int) -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(8):
                    x, y = inputs(100 * number + i, batch=1 + number % 2)
                    if number % 3 == 0:
                        assert is_right(model(x, y), x, y)
                        continue
                    found = model(torch.tensor(x, device="cuda"), torch.tensor(y, device="cuda"))
                    assert is_right({name: value.cpu().numpy() for name, value in found.items()}, x, y)

        race(work)


def test_models_that_are_garbage_in_a_cycle_or_open_at_the_end() -> None:
    """The collector frees the parts of a cycle in any order, as Python does with everything when it ends."""
    require_gpu()
    code = """
import gc, sys
sys.path.insert(0, sys.argv[1])
import litegpu
from test_threads import inputs, is_right, network
x, y = inputs(1)
for i in range(3):
    model = litegpu.load(network(), "webgpu")
    assert is_right(model(x, y), x, y)
    model.interpreter.itself, model.itself = model.interpreter, model
    kernel = model._delegate.prepared[0].kernel()
    kernel.session.inference.arena.session = kernel.session
    del model, kernel
    gc.collect()
left = litegpu.load(network(), "webgpu")
assert is_right(left(x, y), x, y)
running = left.stream([(x, y)] * 5)
next(running)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-1500:]


_LATE = """
    import sys, threading, time
    import numpy as np
    import litegpu

    def work():
        threading.main_thread().join()
        x = np.ones((1, 4), np.float32)
        options = {} if sys.argv[2] == "cpu" else {"serialization_dir": "kept"}
        model = litegpu.load(sys.argv[1], sys.argv[2], **options)
        with model.batcher(2) as batcher:
            results = [model(x), next(model.stream([x])), batcher(x), batcher.submit(x).result()]
        model.interpreter.invoke_async().result()
        print(len(results), "results")

    threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("device", ["cpu", "reference", "webgpu"])
def test_a_thread_that_works_on_when_the_main_thread_has_ended(device: str, tmp_path: Path) -> None:
    """From then on Python starts no pool of threads, and its module cannot be imported any more."""
    require_device(device)
    b = ModelBuilder()
    x = b.input("x", (1, 4))
    large = b.constant(np.ones((4, 2 << 20), np.float32))  # hashed in several pieces
    begin, end, strides = (b.constant(np.array(n, np.int32)) for n in ([0, 0], [1, 4], [1, 1]))
    row = b.op("STRIDED_SLICE", [large, begin, end, strides], (1, 4))
    b.output(b.op("ADD", [x, row], (1, 4)))
    (tmp_path / "m.tflite").write_bytes(b.build())
    command = [sys.executable, "-c", textwrap.dedent(_LATE), str(tmp_path / "m.tflite"), device]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "4 results\n" and "Traceback" not in done.stderr, done.stderr
