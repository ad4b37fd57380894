"""Opening, closing, resizing, streaming and binding again and again leaves nothing behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.gpu.delegate.images import ImageInput
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 8, 16, 4)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
DEVICES = ["cpu", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def content(weights: int = 1) -> bytes:
    """Additions of constants, 2 KiB each."""
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    for i in range(weights):
        x = builder.op("ADD", [x, builder.constant(np.full(SHAPE, i + 1, np.float32))], SHAPE)
        x = builder.op("ABS", [x], SHAPE)
    builder.output(x)
    return builder.build()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "cpu":
        try:
            GpuDelegate(backend=request.param).open_device()
        except litegpu.DeviceError as error:
            pytest.skip(str(error))
    yield request.param
    gc.collect()


def opened(device: str) -> Interpreter:
    delegates = [] if device == "cpu" else [GpuDelegate(backend=device)]
    one = Interpreter(model_content=content(3), experimental_delegates=delegates)
    one.allocate_tensors()
    return one


def closing(device: str) -> None:
    with litegpu.load(content(3), device) as model:
        model(X)


def closing_unused(device: str) -> None:
    opened(device).close()


def forgetting(device: str) -> None:
    model = litegpu.load(content(3), device)
    model(X)
    del model
    one = opened(device)
    one.invoke_async()
    del one


def closing_elsewhere(device: str) -> None:
    model = litegpu.load(content(3), device)
    model(X)
    thread = threading.Thread(target=model.close)
    thread.start()
    thread.join()
    model.close()


def closing_while_it_runs(device: str) -> None:
    model = litegpu.load(content(3), device)
    results = model.stream([X] * 4)
    next(results)
    model.close()
    del results
    one = opened(device)
    one.invoke_async()
    one.close()


def refused(device: str) -> None:
    class Broken(GpuDelegate):
        def _built(self, *arguments: Any) -> Any:
            super()._built(*arguments)
            raise RuntimeError("after all")

    if device == "cpu":
        return
    one = Interpreter(model_content=content(3), experimental_delegates=[Broken(backend=device)], fallback="silent")
    one.allocate_tensors()
    one.close()


class Resizing:
    def __init__(self, device: str) -> None:
        self.model = litegpu.load(content(3), device)
        self.interpreter = opened(device)

    def __call__(self, device: str) -> None:
        index = self.interpreter.get_input_details()[0]["index"]
        for batch in (2, 1):
            self.model(np.repeat(X, batch, axis=0))
            self.interpreter.resize_tensor_input(index, (batch, *SHAPE[1:]))
            self.interpreter.allocate_tensors()
            self.interpreter.invoke()


class Streaming:
    def __init__(self, device: str) -> None:
        self.model = litegpu.load(content(3), device)

    def __call__(self, device: str) -> None:
        assert len(list(self.model.stream([X] * 6))) == 6
        for _ in self.model.stream([X] * 6):
            break


class Binding:
    """Buffers and, as cameras give them, a texture for each frame."""

    def __init__(self, device: str) -> None:
        self.delegate = GpuDelegate(backend=device)
        self.interpreter = Interpreter(model_content=content(), experimental_delegates=[self.delegate])
        self.interpreter.allocate_tensors()
        self.x = self.interpreter.get_input_details()[0]["index"]
        self.y = self.interpreter.get_output_details()[0]["index"]

    def __call__(self, device: str) -> None:
        if device != "webgpu":
            return
        import wgpu

        gpu = self.delegate.wgpu_device
        usage = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        pixels = gpu.create_buffer_with_data(data=bytes(4 * 16 * 8), usage=usage)
        texture = gpu.create_texture(
            size=(16, 8, 1), format="rgba8unorm", usage=wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST
        )
        plain, result = (gpu.create_buffer(size=X.nbytes, usage=usage) for _ in range(2))
        image = ImageInput(size=(16, 8))
        self.delegate.bind_buffer_to_tensor(result, self.y)
        for buffer, how in ((texture, {}), (pixels, {"image": image}), (plain, {}), (pixels, {"image": image})):
            self.delegate.bind_buffer_to_tensor(buffer, self.x, **how)
            self.interpreter.invoke()
        for tensor in (self.x, self.y):
            self.delegate.bind_buffer_to_tensor(None, tensor)
        self.interpreter.invoke()


CYCLES: list[Callable[[str], Any]] = [
    closing, closing_unused, closing_elsewhere, closing_while_it_runs, forgetting, refused,
]  # fmt: skip
STATEFUL: list[type[Any]] = [Resizing, Streaming, Binding]


def cycle_of(kind: Any, device: str) -> Callable[[str], Any]:
    return kind(device) if kind in STATEFUL else kind


def objects(device: str) -> dict[str, int]:
    """What is alive of the device's objects, and threads."""
    gc.collect()
    found = {"threads": sum(t.name == "litegpu inference" for t in threading.enumerate())}
    if device == "webgpu":
        import wgpu

        from litegpu.gpu.backends.webgpu.device import open_device

        open_device().handle._poll()  # what was in use when it was freed
        diagnostics: Any = wgpu.diagnostics  # which has its topics only at run time
        counts = diagnostics.wgpu_native_counts.get_dict()
        found |= {name: entry["count"] for name, entry in counts.items() if name != "total"}
    elif device == "cuda" and os.environ.get("LITEGPU_CUDA_EMULATOR"):
        from cuda_emulator import emulator

        from litegpu.gpu.backends.cuda.opening import open_device as open_cuda

        open_cuda().free_what_was_left()
        found["driver"] = emulator.objects()
    return found


@pytest.mark.parametrize("kind", [*CYCLES, *STATEFUL], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_nothing_is_left(device: str, kind: Any) -> None:
    if kind is Binding and device == "cpu":
        pytest.skip("has no buffers")
    cycle = cycle_of(kind, device)
    for _ in range(3):
        cycle(device)
    before = objects(device)
    for _ in range(5):
        cycle(device)
    settled = threading.Event()
    for _ in range(200):  # threads that were told to end, and work that was under way
        grown = {name: count for name, count in objects(device).items() if count > before[name]}
        if not grown:
            return
        settled.wait(0.02)
    raise AssertionError(f"{grown}; before: {before}")


def resident_mebibytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("kind", [*CYCLES, *STATEFUL], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_memory_is_flat_over_200_cycles(device: str, kind: Any) -> None:
    if kind is Binding and device == "cpu":
        pytest.skip("has no buffers")
    cycle = cycle_of(kind, device)
    for _ in range(50):
        cycle(device)
    gc.collect()
    before = resident_mebibytes()
    for _ in range(200):
        cycle(device)
    gc.collect()
    assert resident_mebibytes() - before < 12
