"""Inputs that set_tensor() copies to the GPU's staging memory, and which are the interpreter's tensors all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import require_gpu

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.gpu.backends.webgpu.session import WebGpuSession
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

SHAPE = (2, 5, 4, 3)
A, B, C = (np.random.default_rng(i).integers(-50, 50, SHAPE).astype(np.float32) for i in range(3))


def network(*, both: bool = False) -> bytes:
    """-x and x + y; with `both` also a node that a delegate leaves to the CPU reads x."""
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    outputs = [b.op("NEG", [x], SHAPE), b.op("ADD", [x, y], SHAPE)]
    b.output(*outputs, *([b.op("ABS", [x], SHAPE)] if both else []))
    return b.build()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inputs that sessions are given, in order."""
    require_gpu()
    found: list[int] = []
    write = WebGpuSession.write

    def noted(session: WebGpuSession, index: int, array: np.ndarray) -> None:
        found.append(index)
        write(session, index, array)

    monkeypatch.setattr(WebGpuSession, "write", noted)
    return found


class Opened:
    """An interpreter of network()."""

    def __init__(self, content: bytes | None = None, **options: Any) -> None:
        self.delegate = GpuDelegate(backend="webgpu", **options)
        self.one = Interpreter(model_content=content or network(), experimental_delegates=[self.delegate])
        self.one.allocate_tensors()
        self.x, self.y = (d["index"] for d in self.one.get_input_details())
        self.outputs = [d["index"] for d in self.one.get_output_details()]

    def set(self, x: np.ndarray | None = None, y: np.ndarray | None = None) -> None:
        for index, value in ((self.x, x), (self.y, y)):
            if value is not None:
                self.one.set_tensor(index, value)

    def check(self, x: np.ndarray, y: np.ndarray) -> None:
        self.one.invoke()
        found = [self.one.get_tensor(i) for i in self.outputs]
        for one, wanted in zip(found, (-x, x + y, np.abs(x)), strict=False):
            np.testing.assert_array_equal(one, wanted)


def test_each_is_copied_once(writes: list[int]) -> None:
    opened = Opened()
    opened.set(A, B)
    assert writes == [0, 1]
    for _ in range(3):
        opened.check(A, B)
    assert writes == [0, 1]
    opened.set(x=C)
    opened.check(C, B)
    opened.set(y=A)
    opened.set(y=C)
    opened.check(C, C)
    assert writes == [0, 1, 0, 1, 1]


def test_arrays_may_change_afterwards(writes: list[int]) -> None:
    opened, x = Opened(), A.copy()
    opened.set(x, B)
    x[...] = 77
    opened.check(A, B)
    opened.set(x=np.asfortranarray(C), y=B[::-1])
    opened.check(C, B[::-1])


def test_they_can_be_read(writes: list[int]) -> None:
    opened = Opened()
    np.testing.assert_array_equal(opened.one.get_tensor(opened.x), np.zeros(SHAPE))
    opened.set(A, B)
    np.testing.assert_array_equal(opened.one.get_tensor(opened.x), A)
    opened.check(A, B)
    np.testing.assert_array_equal(opened.one.get_tensor(opened.y), B)
    for index, found in zip(opened.outputs, (-A, A + B), strict=True):
        np.testing.assert_array_equal(opened.one.get_tensor(index), found)
    opened.set(y=C)
    opened.check(A, C)


def test_views(writes: list[int]) -> None:
    opened = Opened()
    opened.set(A, B)
    view = opened.one.tensor(opened.x)()
    np.testing.assert_array_equal(view, A)
    view[...] = C
    opened.set(y=A)
    opened.set(x=B)
    np.testing.assert_array_equal(view, B)
    view[0] = 5
    del view
    opened.check(np.concatenate([np.full_like(B[:1], 5), B[1:]]), A)
    opened.set(x=A)
    opened.check(A, A)


@pytest.mark.parametrize("set_before", [True, False])
def test_bound_buffers(writes: list[int], set_before: bool) -> None:
    """A buffer stands for an input; what was set before counts again afterwards, or what was set meanwhile."""
    import wgpu

    opened = Opened()
    opened.set(A, B)
    device = opened.delegate.wgpu_device
    buffer = device.create_buffer_with_data(data=C.tobytes(), usage=wgpu.BufferUsage.COPY_SRC)
    opened.delegate.bind_buffer_to_tensor(buffer, opened.x)
    opened.check(C, B)
    if not set_before:
        opened.set(x=B)
        opened.check(C, B)
    opened.delegate.bind_buffer_to_tensor(None, opened.x)
    opened.check(A if set_before else B, B)


def test_a_model_s_calls_and_its_interpreter(writes: list[int]) -> None:
    """They share a session, and do not see each other's inputs."""
    with litegpu.load(network(), "webgpu") as model:
        x, y = (d["index"] for d in model.interpreter.get_input_details())
        outputs = [d["index"] for d in model.interpreter.get_output_details()]
        model.interpreter.set_tensor(x, A)
        model.interpreter.set_tensor(y, B)
        first, second = model(C, C).values()
        np.testing.assert_array_equal(first, -C)
        np.testing.assert_array_equal(second, C + C)
        list(model.stream([(B, C)] * 3))
        model.interpreter.invoke()
        np.testing.assert_array_equal(model.interpreter.get_tensor(outputs[0]), -A)
        np.testing.assert_array_equal(model.interpreter.get_tensor(outputs[1]), A + B)


def test_inputs_that_the_cpu_reads_too(writes: list[int]) -> None:
    opened = Opened(network(both=True), last_delegate_node_index=1)
    opened.set(A, B)
    assert writes == [1]
    opened.check(A, B)
    assert sorted(writes) == [0, 1]


def test_other_shapes_and_types(writes: list[int]) -> None:
    opened = Opened()
    opened.set(A, B)
    opened.one.modify_graph_with_delegate(GpuDelegate(backend="reference"))  # which asks for the values
    opened.check(A, B)
    for index in (opened.x, opened.y):
        opened.one.resize_tensor_input(index, (1, *SHAPE[1:]))
    opened.one.allocate_tensors()
    opened.set(A[:1], B[:1])
    opened.check(A[:1], B[:1])
    for kind, dtype in ((TensorType.INT64, np.int64), (TensorType.INT32, np.int32)):
        b = ModelBuilder()
        b.output(b.op("NEG", [b.input("x", SHAPE, kind)], SHAPE))
        del writes[:]
        with Interpreter(model_content=b.build(), experimental_delegates=[GpuDelegate(backend="webgpu")]) as other:
            other.allocate_tensors()
            other.set_tensor(other.get_input_details()[0]["index"], A.astype(dtype))
            other.invoke()
            np.testing.assert_array_equal(other.get_tensor(other.get_output_details()[0]["index"]), -A)


def test_the_second_attempt_sees_them(writes: list[int]) -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    y = b.op("MUL", [x, x], SHAPE)
    window = {"filter_width": 1, "filter_height": 1, "stride_w": 1, "stride_h": 1, "padding": 0}
    b.output(b.op("SQRT", [b.op("AVERAGE_POOL_2D", [y], SHAPE, window)], SHAPE))
    for wait in ("passive", "do_not_wait"):
        delegate = GpuDelegate(backend="webgpu", precision="auto", wait_type=wait)
        with Interpreter(model_content=b.build(), experimental_delegates=[delegate]) as one:
            one.allocate_tensors()
            (i,), (o,) = ([d["index"] for d in s] for s in (one.get_input_details(), one.get_output_details()))
            for factor in (1, 1e4, 2):
                one.set_tensor(i, np.float32(factor) * A)
                one.invoke()
                np.testing.assert_allclose(one.get_tensor(o), factor * np.abs(A), rtol=1e-2, atol=1e-3)
                np.testing.assert_array_equal(one.get_tensor(i), np.float32(factor) * A)
