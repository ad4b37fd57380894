"""The user's own CUDA memory as inputs and outputs, by fake libraries that share it; with PyTorch and CuPy if there."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import DelegateError, DeviceError, GpuDelegate, Interpreter, TensorError
from litegpu.gpu.delegate.images import ImageInput
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType
from litegpu.model.writer import write_model

pytestmark = pytest.mark.cuda
SHAPE = (1, 5, 7, 3)
EMULATED = bool(os.environ.get("LITEGPU_CUDA_EMULATOR"))


@pytest.fixture(autouse=True, scope="module")
def device(device: Any) -> Any:
    return device


class Memory:
    """An array in CUDA memory; what other libraries would have. Remembers the streams that it was asked about."""

    def __init__(self, device: Any, array: np.ndarray) -> None:
        from cuda.bindings import driver

        self.device, self.driver = device, driver
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        with device.context:
            error, self.address = driver.cuMemAlloc(array.nbytes)
            assert not int(error)
        self.address = int(self.address)
        self.set(array)

    def set(self, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        with self.device.context:
            _, stream = self.driver.cuStreamCreate(0)
            self.driver.cuMemcpyHtoDAsync(self.address, array.ctypes.data, array.nbytes, stream)
            self.driver.cuStreamSynchronize(stream)
            self.driver.cuStreamDestroy(stream)

    def get(self) -> np.ndarray:
        from litegpu.gpu.backends.cuda.copy import Pinned

        pinned = np.asarray(Pinned(self.device, self.nbytes))
        with self.device.context:
            _, stream = self.driver.cuStreamCreate(0)
            assert not int(self.driver.cuMemcpyDtoHAsync(pinned.ctypes.data, self.address, self.nbytes, stream)[0])
            self.driver.cuStreamSynchronize(stream)
            self.driver.cuStreamDestroy(stream)
        return pinned.copy().view(self.dtype).reshape(self.shape)

    def free(self) -> None:
        with self.device.context:
            self.driver.cuMemFree(self.address)


class ByDLPack(Memory):
    kind, index = 2, 0

    def __init__(self, device: Any, array: np.ndarray) -> None:
        super().__init__(device, array)
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.index

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        from litegpu.gpu.backends.cuda import dlpack

        self.asked.append(stream)
        return dlpack.capsule(self.address, (self.kind, self.index), self.shape, self.dtype, self)


class ByInterface(Memory):
    strides: Any = None
    read_only = False
    stream: Any = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, self.read_only), "version": 3,
            "strides": self.strides, "stream": self.stream,
        }  # fmt: skip


def neg() -> bytes:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", SHAPE)], SHAPE, name="y"))
    return b.build()


def _zero(type_: TensorType) -> int:
    return 0 if type_ is TensorType.INT16 else 3


def relu8(type_: TensorType = TensorType.INT8) -> bytes:
    b = ModelBuilder()
    q = quantized(0.5, _zero(type_))
    b.output(b.op("RELU", [b.input("x", SHAPE, type_, quantization=q)], SHAPE, quantization=q, name="y"))
    return b.build()


@pytest.fixture
def opened() -> Iterator[Any]:
    made: list[Interpreter] = []

    def open_(content: bytes, **options: Any) -> tuple[Interpreter, GpuDelegate, int, int]:
        delegate = GpuDelegate(backend="cuda", **options)
        interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict")
        made.append(interpreter)
        interpreter.allocate_tensors()
        x, y = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
        return interpreter, delegate, x, y

    yield open_
    for interpreter in made:
        interpreter.close()


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


@pytest.mark.parametrize("kind", [ByDLPack, ByInterface])
@pytest.mark.parametrize("wait", ["passive", "do_not_wait"])
@pytest.mark.parametrize("validation", [False, True])
def test_both_sides(device: Any, opened: Any, kind: Any, wait: str, validation: bool) -> None:
    interpreter, delegate, x, y = opened(neg(), wait_type=wait, validation=validation)
    source, target = kind(device, numbers(0)), kind(device, numbers(1))
    delegate.bind_buffer_to_tensor(source, x)
    delegate.bind_buffer_to_tensor(target, y)
    for seed in range(3):
        source.set(numbers(seed))
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), -numbers(seed))
        np.testing.assert_array_equal(target.get(), -numbers(seed))
    interpreter.set_tensor(x, numbers(7))  # is not looked at
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), -numbers(2))
    delegate.bind_buffer_to_tensor(None, x)
    interpreter.set_tensor(x, numbers(8))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), -numbers(8))
    np.testing.assert_array_equal(target.get(), -numbers(8))
    delegate.bind_buffer_to_tensor(None, y)
    interpreter.set_tensor(x, numbers(9))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), -numbers(9))
    np.testing.assert_array_equal(target.get(), -numbers(8))


LARGE = (1, 96, 96, 4)  # of float32: kernels look at such results


def amplifier() -> bytes:
    """Two 1x1 convolutions; what is between them does not fit float16 for inputs of 2e4 and more."""
    b = ModelBuilder()
    y = b.input("x", LARGE)
    for factor in (4.0, 0.25):
        weights = b.constant(factor * np.eye(4, dtype=np.float32).reshape(4, 1, 1, 4))
        options = {"stride_w": 1, "stride_h": 1, "padding": 0}
        y = b.op("CONV_2D", [y, weights, b.constant(np.zeros(4, np.float32))], LARGE, options)
    b.output(y)
    return b.build()


def test_outputs_that_stay_on_the_gpu_are_not_looked_at(
    device: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks whether they are finite, and to read 128 KB or 500 MB again takes its time."""
    from litegpu.gpu.backends.cuda.graph import GraphLaunch

    launched, enqueue = [], GraphLaunch.enqueue

    def noted(launch: Any, *args: Any, **options: Any) -> None:
        launched.append(launch.label)
        enqueue(launch, *args, **options)

    interpreter, delegate, x, y = opened(amplifier(), precision="auto")
    interpreter.set_allow_buffer_handle_output(True)
    target = ByDLPack(device, np.zeros(LARGE, np.float32))
    monkeypatch.setattr(GraphLaunch, "enqueue", noted)
    interpreter.set_tensor(x, np.ones(LARGE, np.float32))
    for _ in range(2):
        interpreter.invoke()
    assert any(label.startswith("look at") for label in launched)
    delegate.bind_buffer_to_tensor(target, y)
    launched.clear()
    for _ in range(3):
        interpreter.invoke()
    assert not any(label.startswith("look at") for label in launched)
    np.testing.assert_array_equal(target.get(), np.ones(LARGE, np.float32))


def test_inferences_after_an_output_was_bound_are_looked_at_again(device: Any, opened: Any) -> None:
    interpreter, delegate, x, y = opened(amplifier(), precision="auto")
    interpreter.set_allow_buffer_handle_output(True)
    delegate.bind_buffer_to_tensor(ByDLPack(device, np.zeros(LARGE, np.float32)), y)
    interpreter.set_tensor(x, np.ones(LARGE, np.float32))
    interpreter.invoke()
    delegate.bind_buffer_to_tensor(None, y)
    interpreter.set_tensor(x, np.full(LARGE, 3e4, np.float32))
    interpreter.invoke()
    np.testing.assert_allclose(interpreter.get_tensor(y), np.full(LARGE, 3e4), rtol=1e-5)


def chain() -> bytes:
    """Whose input is read twice, and then its place used again."""
    b, shape = ModelBuilder(), (1, 4, 8, 4)
    x = b.input("x", shape)
    pooled = b.op(
        "MAX_POOL_2D", [b.op("NEG", [x], shape)], shape,
        dict(padding=0, stride_h=1, stride_w=1, filter_height=3, filter_width=3),
    )  # fmt: skip
    y = b.op("SUB", [x, pooled], shape)
    b.output(b.op("SOFTMAX", [y], shape, dict(beta=1.0), name="y"))
    return b.build()


def samples(interpreter: Interpreter, x: int, y: int, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs of a chain, and what it makes of them with nothing bound."""
    values = [np.random.default_rng(i).normal(size=(1, 4, 8, 4)).astype(np.float32) for i in range(count)]
    expected = []
    for one in values:
        interpreter.set_tensor(x, one)
        interpreter.invoke()
        expected.append(interpreter.get_tensor(y).copy())
    return values, expected


def test_inputs_that_are_read_in_place(device: Any, opened: Any) -> None:
    interpreter, delegate, x, y = opened(chain())
    values, expected = samples(interpreter, x, y, 8)
    pairs = [(ByDLPack(device, v), ByDLPack(device, v)) for v in values]
    for i in (*range(8), *range(8), 0, 0, 1, 1, 0, 1):
        source, target = pairs[i]
        delegate.bind_buffer_to_tensor(source, x)
        delegate.bind_buffer_to_tensor(target, y)
        interpreter.invoke()
        np.testing.assert_array_equal(target.get(), expected[i])
        np.testing.assert_array_equal(source.get(), values[i], "inputs are only read")
    session = delegate.prepared[0].kernel().session
    graph = session.recorder._bound_graphs[-1][1]
    assert any(pairs[1][0].address in launch.arguments for launch in graph.launches), "it was copied"


def test_outputs_that_are_written_in_place(device: Any, opened: Any) -> None:
    """Kernels write to arrays that come again; the interpreter has the result all the same, whatever is bound next."""
    interpreter, delegate, x, y = opened(chain())
    values, expected = samples(interpreter, x, y, 5)
    target, other = (ByDLPack(device, np.zeros_like(values[0])) for _ in range(2))
    delegate.bind_buffer_to_tensor(target, y)
    for i in range(4):
        interpreter.set_tensor(x, values[i])
        interpreter.invoke()
        np.testing.assert_array_equal(target.get(), expected[i])
        np.testing.assert_array_equal(interpreter.get_tensor(y), expected[i])
    session = delegate.prepared[0].kernel().session
    graph = session.recorder._bound_graphs[-1][1]
    assert graph.elsewhere == {0: target.address} and session.memory.result(0) == target.address
    assert any(target.address in launch.arguments for launch in graph.launches), "it is copied"
    delegate.bind_buffer_to_tensor(other, y)  # takes the last result
    np.testing.assert_array_equal(interpreter.get_tensor(y), expected[3])
    delegate.bind_buffer_to_tensor(target, y)
    interpreter.set_tensor(x, values[4])
    interpreter.invoke()
    delegate.bind_buffer_to_tensor(None, y)
    np.testing.assert_array_equal(interpreter.get_tensor(y), expected[4])
    for i in range(3):  # nothing is bound any more
        interpreter.set_tensor(x, values[i])
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), expected[i])
        np.testing.assert_array_equal(target.get(), expected[4])


def test_one_array_for_input_and_output(device: Any, opened: Any) -> None:
    """And arrays that overlap: nothing is written where something is still read."""
    interpreter, delegate, x, y = opened(chain())
    (value,), (expected,) = samples(interpreter, x, y, 1)
    for offset in (0, 64, 512):
        whole = ByDLPack(device, np.zeros((2, 4, 8, 4), np.float32))
        source, target = (ByDLPack(device, value) for _ in range(2))
        source.address, target.address = whole.address, whole.address + offset
        delegate.bind_buffer_to_tensor(source, x)
        delegate.bind_buffer_to_tensor(target, y)
        for _ in range(4):
            source.set(value)
            interpreter.invoke()
            np.testing.assert_array_equal(target.get(), expected)
        session = delegate.prepared[0].kernel().session
        assert bool(session.recorder._bound_graphs[-1][1].elsewhere) == (offset == 512)


def test_two_outputs_of_one_value(device: Any) -> None:
    """Each has its array, of which kernels can write one at most."""
    b, shape = ModelBuilder(), (1, 4, 8, 4)
    y = b.op("NEG", [b.input("x", shape)], shape)
    b.output(y, b.op("RESHAPE", [y, b.constant(np.array([8, 16], np.int32))], (8, 16)), b.op("ABS", [y], shape))
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    delegate = GpuDelegate(backend="cuda")
    with Interpreter(model_content=b.build(), experimental_delegates=[delegate], fallback="strict") as interpreter:
        interpreter.allocate_tensors()
        arrays = [ByDLPack(device, np.zeros(d["shape"], np.float32)) for d in interpreter.get_output_details()]
        for array, detail in zip(arrays, interpreter.get_output_details(), strict=True):
            delegate.bind_buffer_to_tensor(array, detail["index"])
        for turn in range(4):
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], value + turn)
            interpreter.invoke()
            first, second, third = (array.get() for array in arrays)
            np.testing.assert_array_equal(first, -(value + turn))
            np.testing.assert_array_equal(second, first.reshape(8, 16))
            np.testing.assert_array_equal(third, abs(first))


def test_arrays_that_come_again(device: Any, opened: Any) -> None:
    """Arrays that come again are copied by graphs of their own, of which only some are kept."""
    interpreter, delegate, x, y = opened(neg())
    pairs = [(ByDLPack(device, numbers(i)), ByDLPack(device, numbers(i))) for i in range(7)]
    order = [*range(7), *range(7), *range(7), 0, 0, 0, 6, 6, 6, 3, 0, 3]
    for turn, i in enumerate(order):
        source, target = pairs[i]
        source.set(numbers(100 + turn))
        delegate.bind_buffer_to_tensor(source, x)
        delegate.bind_buffer_to_tensor(target, y)
        interpreter.invoke()
        np.testing.assert_array_equal(target.get(), -numbers(100 + turn))
    session = delegate.prepared[0].kernel().session
    assert any(None not in ways.values() for ways, _ in session.recorder._bound_graphs), "no graph copies for itself"
    assert len(session.recorder._bound_graphs) <= 4


@pytest.mark.parametrize("offset", [0, 4, 8])
def test_addresses_between_boundaries(device: Any, opened: Any, offset: int) -> None:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", (3, 7))], (3, 7), name="y"))
    interpreter, delegate, x, y = opened(b.build())
    values = np.random.default_rng(offset).normal(size=(3, 7)).astype(np.float32)
    whole = [ByDLPack(device, np.zeros((3, 9), np.float32)) for _ in range(2)]
    source, target = (ByDLPack(device, np.zeros((3, 7), np.float32)) for _ in range(2))
    source.address, target.address = (w.address + offset for w in whole)
    source.set(values)
    delegate.bind_buffer_to_tensor(source, x)
    delegate.bind_buffer_to_tensor(target, y)
    for _ in range(4):
        interpreter.invoke()
        np.testing.assert_array_equal(target.get(), -values)
    assert not whole[1].get().reshape(-1)[21 + offset // 4 :].any(), "written beyond the end"


class Tensor(ByDLPack):
    """As PyTorch's tensors answer."""

    is_cuda = True

    def get_device(self) -> int:
        return 0

    def is_contiguous(self) -> bool:
        return True

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What litegpu uses of PyTorch; `streams`: the devices whose stream was asked for, `stream`: what the answer is."""
    from litegpu.gpu.backends.cuda import array as cuda_array

    names = ("float32", "float16", "uint8", "int8", "int16", "int32", "int64", "float64", "bool")
    module = SimpleNamespace(Tensor=Tensor, **{name: np.dtype(name) for name in names}, streams=[], stream=0)
    module.empty = lambda shape, dtype, device: Tensor(device, np.zeros(shape, dtype))

    def current_stream(index: int) -> int:
        module.streams.append(index)
        return int(module.stream)

    module._C = SimpleNamespace(_cuda_getCurrentRawStream=current_stream)
    module.cuda = SimpleNamespace()
    caches = (cuda_array._torch_types, cuda_array.torch_type, cuda_array.torch_stream)
    monkeypatch.setitem(sys.modules, "torch", module)
    for cache in caches:
        cache.cache_clear()
    yield module
    for cache in caches:
        cache.cache_clear()


def test_pytorch_tensors_are_read_directly(device: Any, torch: Any) -> None:
    with litegpu.load(neg(), "cuda") as model:
        for seed in (*range(3), 1, 1):
            given: Any = Tensor(device, numbers(seed))
            result: Any = model(given)
            assert type(result) is Tensor and not given.asked, "DLPack was used"
            np.testing.assert_array_equal(result.get(), -numbers(seed))
        assert torch.streams and set(torch.streams) == {0}
        twice = np.concatenate([numbers(0), numbers(1)])
        given = Tensor(device, twice)
        result = model(given)
        np.testing.assert_array_equal(result.get(), -twice)
        np.testing.assert_array_equal(model(numbers(6)), -numbers(6))


def test_tensors_like_those_before_take_little_of_python(device: Any, torch: Any) -> None:
    """The same memory for inputs and outputs, as an allocator that keeps blocks has it: then inferences are launched
    and nothing else; in every other case it is as before."""
    targets = [Tensor(device, np.zeros(SHAPE, np.float32)) for _ in range(2)]
    torch.empty = lambda shape, dtype, device: targets[0] if shape == SHAPE else Tensor(device, np.zeros(shape, dtype))
    given, other = Tensor(device, numbers(0)), Tensor(device, numbers(1))
    with litegpu.load(neg(), "cuda") as model:
        model(given)
        session: Any = model.delegate.prepared[0].kernel().session  # type: ignore[union-attr]
        runs: list[int] = []
        run = session.run

        def noted(**how: Any) -> None:
            runs.append(1)
            run(**how)

        session.run = noted

        def called(tensor: Tensor, slow: bool) -> None:
            del runs[:]
            result: Any = model(tensor)
            np.testing.assert_array_equal(result.get(), -tensor.get())
            assert bool(runs) == slow

        for _ in range(3):
            model(given)
        for seed in range(4):
            given.set(numbers(seed))
            called(given, slow=False)
        called(other, slow=True)
        called(given, slow=False)
        targets.reverse()  # the next output is another one
        called(given, slow=True)
        targets.reverse()
        given.is_neg = lambda: True  # type: ignore[method-assign]
        called(given, slow=True)
        del given.is_neg
        np.testing.assert_array_equal(model(numbers(6)), -numbers(6))
        called(given, slow=True)
        called(given, slow=False)
        interpreter = model.interpreter
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_array_equal(found, -given.get())
    with pytest.raises(litegpu.InvokeError, match="closed"):
        model(given)


def test_inferences_on_the_gpu_alone_are_queued(device: Any, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for one before the next is begun, and nothing is copied to the host."""
    interpreter, delegate, x, y = opened(neg(), wait_type="do_not_wait", precision_loss_allowed=True)
    source, target = ByDLPack(device, numbers(0)), ByDLPack(device, numbers(0))
    delegate.bind_buffer_to_tensor(source, x)
    delegate.bind_buffer_to_tensor(target, y)
    interpreter.set_allow_buffer_handle_output(True)
    interpreter.invoke()
    kernel = delegate.prepared[0].kernel()
    session, calls = kernel.session, []
    with monkeypatch.context() as patch:
        for name in ("settle", "_finish", "_await", "read", "give"):
            patch.setattr(session, name, lambda *_, name=name: calls.append(name))
        for _ in range(3):
            interpreter.invoke()
    assert not calls
    interpreter.ensure_tensor_data_is_readable(y)
    np.testing.assert_allclose(target.get(), -numbers(0), rtol=1e-2)


def test_outputs_stay_on_the_gpu_until_they_are_asked_for(device: Any, opened: Any) -> None:
    interpreter, delegate, x, y = opened(neg())
    source, target = ByDLPack(device, numbers(0)), ByDLPack(device, numbers(0))
    delegate.bind_buffer_to_tensor(source, x)
    delegate.bind_buffer_to_tensor(target, y)
    interpreter.set_allow_buffer_handle_output(True)
    kernel = delegate.prepared[0].kernel()
    assert kernel.session.copies == {"host": 0, "device": 2}
    reads: list[int] = []
    read, give = kernel.session.read, kernel.session.give

    def noted(index: int, out: np.ndarray) -> None:
        reads.append(index)
        read(index, out)

    def noted_too(index: int) -> np.ndarray:
        reads.append(index)
        return give(index)

    kernel.session.read, kernel.session.give = noted, noted_too
    interpreter.invoke()
    np.testing.assert_array_equal(target.get(), -numbers(0))
    assert interpreter.get_output_buffer(y) is target and not reads
    interpreter.ensure_tensor_data_is_readable(y)
    assert reads == [0]
    np.testing.assert_array_equal(interpreter.get_tensor(y), -numbers(0))
    assert reads == [0], "once is enough"
    source.set(numbers(1))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), -numbers(1))
    interpreter.set_allow_buffer_handle_output(False)
    interpreter.invoke()
    assert reads == [0, 0, 0]


def test_an_output_buffer_of_our_own(device: Any, opened: Any) -> None:
    from litegpu.gpu.backends.cuda import dlpack

    interpreter, _, x, y = opened(neg())
    interpreter.set_tensor(x, numbers(0))
    interpreter.invoke()
    buffer = interpreter.get_output_buffer(y)
    assert interpreter.get_output_buffer(y) is buffer
    for seed in (0, 1):
        interpreter.set_tensor(x, numbers(seed))
        if seed:
            interpreter.invoke()
        capsule = buffer.__dlpack__(stream=-1)
        found = dlpack.describe(capsule)
        assert found.shape == SHAPE and found.dtype == "float32" and found.device == (2, 0)
        interface = buffer.__cuda_array_interface__
        assert interface["data"] == (found.address, False) and interface["shape"] == SHAPE
        if EMULATED:  # the memory is the host's
            import ctypes

            memory = (ctypes.c_float * math.prod(SHAPE)).from_address(found.address)
            np.testing.assert_array_equal(np.array(memory).reshape(SHAPE), -numbers(seed))
    interpreter.close()
    assert dlpack.describe(capsule).address == buffer.memory.address, "buffers outlive the interpreter"


@pytest.mark.parametrize("type_", [TensorType.INT8, TensorType.UINT8, TensorType.INT16])
def test_quantized_tensors_take_their_own_type_and_float32(device: Any, opened: Any, type_: TensorType) -> None:
    interpreter, delegate, x, y = opened(relu8(type_))
    zero = np.float32(_zero(type_))
    dtype = np.dtype(type_.name.lower())
    stored = np.random.default_rng(0).integers(-20 if dtype.kind == "i" else 0, 40, SHAPE).astype(dtype)
    interpreter.set_tensor(x, stored)
    interpreter.invoke()
    expected = interpreter.get_tensor(y)
    real = (stored.astype(np.float32) - zero) * np.float32(0.5)
    for given in (stored, real):
        for wanted in (expected, (expected.astype(np.float32) - zero) * np.float32(0.5)):
            source, target = ByDLPack(device, given), ByInterface(device, np.zeros_like(wanted))
            delegate.bind_buffer_to_tensor(source, x)
            delegate.bind_buffer_to_tensor(target, y)
            interpreter.invoke()
            np.testing.assert_array_equal(target.get(), wanted)
            np.testing.assert_array_equal(interpreter.get_tensor(y), expected)


def test_streams(device: Any, opened: Any) -> None:
    """One known stream is worked on itself; unknown ones are asked for, and others waited for."""
    from cuda.bindings import driver

    interpreter, delegate, x, y = opened(neg())
    kernel = delegate.prepared[0].kernel()
    with device.context:
        streams = [driver.cuStreamCreate(0)[1] for _ in range(2)]
    source, target = ByInterface(device, numbers(0)), ByInterface(device, numbers(0))
    source.stream = target.stream = int(streams[0])
    delegate.bind_buffer_to_tensor(source, x)
    delegate.bind_buffer_to_tensor(target, y)
    interpreter.invoke()
    assert int(kernel.session.launcher.working) == int(streams[0])
    delegate.bind_buffer_to_tensor(target, y, stream=streams[1])
    interpreter.invoke()
    assert int(kernel.session.launcher.working) == kernel.session.stream
    np.testing.assert_array_equal(target.get(), -numbers(0))
    asked = ByDLPack(device, numbers(3))
    delegate.bind_buffer_to_tensor(asked, x)
    assert asked.asked == [kernel.session.stream]
    interpreter.invoke()
    assert asked.asked == [kernel.session.stream] * 2
    interpreter.close()
    with device.context:
        for stream in streams:
            driver.cuStreamDestroy(stream)


def test_wrong_bindings_name_the_tensor(device: Any, opened: Any) -> None:
    delegate = GpuDelegate(backend="cuda")
    good = ByDLPack(device, numbers(0))
    with pytest.raises(DelegateError, match="tensor 0 cannot be bound before"):
        delegate.bind_buffer_to_tensor(good, 0)
    _, delegate, x, _ = opened(neg())

    def refused(kind: type[Exception], match: str, buffer: Any, index: int = x) -> None:
        with pytest.raises(kind, match=match):
            delegate.bind_buffer_to_tensor(buffer, index)

    refused(TensorError, "tensor 99 does not exist", good, 99)
    refused(TensorError, r"tensor 0 \('x'\).*list object", [1.0])
    refused(DeviceError, r"tensor 0 \('x'\).*host memory", numbers(0))
    refused(TensorError, r"tensor 0 \('x'\).*\[1, 5, 7, 3\].*\[1, 5, 7, 2\]", ByDLPack(device, numbers(0)[..., :2]))
    refused(TensorError, r"tensor 0 \('x'\).*float32.*float64", ByDLPack(device, numbers(0).astype(np.float64)))
    other = ByDLPack(device, numbers(0))
    other.index = 1
    refused(DeviceError, r"tensor 0 \('x'\).*cuda:1", other)
    transposed = ByInterface(device, numbers(0))
    transposed.strides = (420, 12, 60, 4)
    refused(TensorError, r"tensor 0 \('x'\).*strides.*contiguous", transposed)
    freed = ByDLPack(device, numbers(0))
    freed.free()
    if EMULATED:
        refused(TensorError, r"tensor 0 \('x'\).*was the array freed", freed)
    constant = ByInterface(device, numbers(0))
    constant.read_only = True
    delegate.bind_buffer_to_tensor(constant, x)
    refused(TensorError, r"tensor 1 \('y'\).*read-only", constant, 1)


def test_a_delegate_of_two_models(device: Any) -> None:
    delegate = GpuDelegate(backend="cuda")
    with Interpreter(model_content=neg(), experimental_delegates=[delegate]) as one:
        one.allocate_tensors()
        with Interpreter(model_content=relu8(), experimental_delegates=[delegate]) as two:
            two.allocate_tensors()
            with pytest.raises(DelegateError, match="several"):
                delegate.bind_buffer_to_tensor(ByDLPack(device, numbers(0)), 0)
        delegate.bind_buffer_to_tensor(ByDLPack(device, numbers(0)), 0)


def test_an_image(device: Any, opened: Any) -> None:
    from litegpu.gpu.delegate.images import image_reading

    interpreter, delegate, x, y = opened(neg())
    rgba = np.random.default_rng(0).integers(0, 256, (9, 11, 4), np.uint8)
    image = ImageInput(crop=(1, 2, 8, 6), mean=(1, 2, 3), scale=0.25)
    delegate.bind_buffer_to_tensor(ByDLPack(device, rgba), x, image=image)
    interpreter.invoke()
    model = image_reading(delegate.prepared[0].partition.subgraph.tensors[x], 11, 9, image)
    reference = Interpreter(model_content=bytes(write_model(model)))
    reference.allocate_tensors()
    reference.set_tensor(0, rgba[None])
    reference.invoke()
    expected = reference.get_tensor(reference.get_output_details()[0]["index"])
    np.testing.assert_allclose(interpreter.get_tensor(y), -expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(TensorError, match=r"tensor 0 \('x'\).*crop"):
        delegate.bind_buffer_to_tensor(ByDLPack(device, rgba), x, image=ImageInput(crop=(5, 0, 8, 6)))


class Library(ByDLPack):
    """What a library with from_dlpack() calls its arrays."""


def from_dlpack(array: Any) -> Any:
    """This module is the library `Library` is of."""
    from litegpu.gpu.backends.cuda import dlpack

    found = dlpack.describe(array.__dlpack__(stream=1))
    made = Library.__new__(Library)
    made.__dict__.update(device=array.memory.device, driver=_driver(), address=found.address, shape=found.shape)
    made.__dict__.update(dtype=np.dtype(found.dtype), nbytes=array.nbytes, asked=[], keep=array)
    return made


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def test_a_loaded_model_answers_in_kind(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, Library.__module__.partition(".")[0], sys.modules[__name__])

    def given(array: np.ndarray) -> Any:
        return Library(device, array)

    with litegpu.load(neg(), "cuda") as model:
        np.testing.assert_array_equal(model(numbers(5)), -numbers(5))
        results: list[Any] = []
        for seed in range(3):
            results.append(model(given(numbers(seed))))
            assert type(results[-1]) is Library
        assert len({r.address for r in results}) == 3, "results belong to the caller"
        for seed, result in enumerate(results):
            np.testing.assert_array_equal(result.get(), -numbers(seed))
        np.testing.assert_array_equal(model(numbers(6)), -numbers(6))
        twice = np.concatenate([numbers(0), numbers(1)])
        np.testing.assert_array_equal(model(given(twice)).get(), -twice)
        address = results[0].address
        del results, result
        reused = [model(given(twice[:1])).address for _ in range(2)]
        assert address in reused or len(set(reused)) == 1
        with pytest.raises(TensorError, match="float64"):
            model(given(numbers(0).astype(np.float64)))
    with litegpu.load(neg(), "cpu") as model, pytest.raises(TensorError, match="memory of a GPU"):
        model(given(numbers(0)))


def test_batches_that_come_again_in_either_memory(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open for another batch holds no array of the user's, and has none in place of the host's."""
    monkeypatch.setitem(sys.modules, Library.__module__.partition(".")[0], sys.modules[__name__])
    with litegpu.load(neg(), "cuda") as model:
        interpreters = set()
        for seed, (count, on_gpu) in enumerate(itertools.product((1, 3, 1, 2, 3), (False, True, True, False))):
            x = np.concatenate([numbers(10 * seed + i) for i in range(count)])
            found = model(Library(device, x)) if on_gpu else model(x)
            np.testing.assert_array_equal(found.get() if on_gpu else found, -x)
            interpreters.add(model.interpreter)
            for variant in model._variants:
                assert not any(kernel.bound for kernel in variant.interpreter.plan.kernels)  # type: ignore[union-attr]
        assert len(interpreters) == 3


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.skipif(EMULATED, reason="needs a GPU")
def test_real_libraries(library: str) -> None:
    xp = pytest.importorskip(library)
    stream = xp.cuda.Stream() if library == "torch" else xp.cuda.Stream(non_blocking=True)
    with litegpu.load(neg(), "cuda") as model:
        for seed in range(20):
            array = numbers(seed)
            if library == "torch":
                with xp.cuda.stream(stream):
                    big = xp.randn(2000, 2000, device="cuda")
                    x = xp.from_numpy(array).cuda() + (big @ big @ big).sum() * 0
                    y = model(x)
                    assert isinstance(y, xp.Tensor) and y.device == x.device
                    # Inside: PyTorch orders nothing between its streams, and .cpu() works on the current one.
                    result = (y * 2).cpu().numpy()
            else:
                with stream:
                    x = xp.asarray(array)
                    y = model(x)
                    assert isinstance(y, xp.ndarray)
                    result = (y * 2).get()
            np.testing.assert_array_equal(result, -2 * array)


@pytest.mark.skipif(EMULATED, reason="needs a GPU")
def test_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    with litegpu.load(neg(), "cuda") as model:
        for seed in range(5):
            y = model(jax.numpy.asarray(numbers(seed)))
            assert isinstance(y, jax.Array) and y.devices() == jax.numpy.asarray(0).devices()
            np.testing.assert_array_equal(np.asarray(y * 2), -2 * numbers(seed))
