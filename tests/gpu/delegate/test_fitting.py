"""Devices with small limits: only what does not fit falls back, is named before anything is built, and stays right."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
from agreement import assert_agrees, official, require_gpu, run

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.delegates.protocol import Partition
from litegpu.gpu import passes
from litegpu.gpu.delegate import fitting
from litegpu.gpu.kernels.builders import _BUILD
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.fold import drop_unused
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

BACKENDS = ["webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


class SmallDelegate(GpuDelegate):
    """A delegate whose device has smaller limits than it has."""

    def __init__(self, backend: str, **limits: Any) -> None:
        super().__init__(backend=backend, max_delegated_partitions=0)
        self.limits = limits

    def _limited(self, features: Features) -> Features:
        return dataclasses.replace(features, **self.limits)


def require(backend: str) -> None:
    if backend == "webgpu":
        require_gpu()
        return
    from litegpu.gpu.backends.cuda.opening import available

    if available() is not None:
        pytest.skip(f"no CUDA device: {available()}")


def wide_in_the_middle() -> bytes:
    """1 KiB of data, 64 KiB between nodes 1 and 2, then little again."""
    b = ModelBuilder()
    x = b.input("x", (1, 4, 4, 16))
    y = b.op("RELU", [x], (1, 4, 4, 16))
    y = b.op("TILE", [y, b.constant(np.array([1, 8, 8, 1], np.int32))], (1, 32, 32, 16))
    y = b.op("MEAN", [y, b.constant(np.array([1, 2], np.int32))], (1, 16))
    y = b.op("SOFTMAX", [y], (1, 16), {"beta": 1.0})
    b.output(y)
    return b.build()


def data(content: bytes, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    details = official(content).get_input_details()
    return [rng.standard_normal(d["shape"]).astype(np.float32) for d in details]


def check(content: bytes, delegate: GpuDelegate, left: set[int], previewed: bool = True) -> Interpreter:
    """Exactly the nodes `left` are on the CPU, as was foretold, and the results are the official ones."""
    with Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent") as interpreter:
        before = interpreter.preview_delegation()
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    report = interpreter.delegation_report()
    assert {n.index for n in report.nodes if n.owner == "CPU"} == left
    if previewed:
        assert [(n.index, n.owner, n.reason) for n in before.nodes] == [
            (n.index, n.owner, n.reason) for n in report.nodes
        ]
    inputs = data(content)
    for got, want in zip(run(interpreter, inputs), run(official(content), inputs), strict=True):
        assert_agrees(got, want, 1e-5)
    return interpreter


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_binding_that_is_too_large(backend: str) -> None:
    require(backend)
    interpreter = check(wide_in_the_middle(), SmallDelegate(backend, max_binding_bytes=1 << 15), {1, 2})
    reason = interpreter.delegation_report().nodes[1].reason or ""
    assert "65536 bytes" in reason and "32768" in reason and "max-storage-buffer-binding-size" in reason
    check(wide_in_the_middle(), SmallDelegate(backend, max_binding_bytes=1 << 16), set())


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_are_too_large(backend: str) -> None:
    require(backend)
    b = ModelBuilder()
    rng = np.random.default_rng(0)
    y = b.op("RELU", [b.input("x", (1, 64))], (1, 64))
    y = b.op("FULLY_CONNECTED", [y, b.constant(rng.standard_normal((256, 64)).astype(np.float32))], (1, 256))
    y = b.op("FULLY_CONNECTED", [y, b.constant(rng.standard_normal((8, 256)).astype(np.float32))], (1, 8))
    b.output(b.op("TANH", [y], (1, 8)))
    check(b.build(), SmallDelegate(backend, max_binding_bytes=1 << 15), {1})


def test_without_a_device_the_limits_of_all_devices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> Any:
        raise litegpu.DeviceError("no device at all")

    delegate = SmallDelegate("webgpu", max_binding_bytes=1 << 15)
    monkeypatch.setattr(delegate, "open_device", nothing)
    with Interpreter(model_content=wide_in_the_middle(), experimental_delegates=[delegate], fallback="silent") as i:
        report = i.preview_delegation()
    assert {n.index for n in report.nodes if n.owner == "CPU"} == {1, 2}
    assert "no device at all" in (report.nodes[1].reason or "")


def test_ordinary_models_ask_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = GpuDelegate()
    monkeypatch.setattr(delegate, "open_device", lambda: pytest.fail("a device was opened"))
    with Interpreter(model_content=wide_in_the_middle(), experimental_delegates=[delegate], fallback="silent") as i:
        assert i.preview_delegation().fully_delegated


# ------------------------------------------------------------------------ what only preparing a partition shows


def two_wide_places() -> bytes:
    """Values of 16 KiB; at nodes 1 and 5 three of them are needed at once, elsewhere two."""
    b = ModelBuilder()
    shape = (1, 16, 16, 16)
    x = b.input("x", shape)
    for _ in range(2):
        y = b.op("AVERAGE_POOL_2D", [x], shape, pooling())
        z = b.op("MAX_POOL_2D", [x], shape, pooling())
        x = b.op("ADD", [y, z], shape)
        x = b.op("MAX_POOL_2D", [x], shape, pooling())
    b.output(b.op("MEAN", [x, b.constant(np.array([1, 2], np.int32))], (1, 16)))
    return b.build()


def pooling() -> dict[str, Any]:
    return dict(filter_height=3, filter_width=3, stride_h=1, stride_w=1, padding="SAME")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_arena_that_is_too_large(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    require(backend)
    content = two_wide_places()
    with caplog.at_level(logging.WARNING, "litegpu"):
        delegate = SmallDelegate(backend, max_buffer_bytes=3 * (1 << 14) - 1)
        interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
        interpreter.allocate_tensors()
    report = interpreter.delegation_report()
    left = {n.index for n in report.nodes if n.owner == "CPU"}
    with Interpreter(model_content=content, experimental_delegates=[delegate]) as preview:
        assert preview.preview_delegation() == report
    assert 0 < len(left) <= 4 and all("max-buffer-size" in (report.nodes[n].reason or "") for n in left)
    assert any("max-buffer-size" in message for message in caplog.messages)
    inputs = data(content)
    assert_agrees(run(interpreter, inputs)[0], run(official(content), inputs)[0], 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_constants_that_are_too_large_together(backend: str) -> None:
    require(backend)
    b = ModelBuilder()
    rng = np.random.default_rng(0)
    y = b.input("x", (1, 8, 8, 16))
    for _ in range(6):  # of 9.25 KiB of constants each, or more
        weights = b.constant((rng.standard_normal((16, 3, 3, 16)) / 12).astype(np.float32))
        bias = b.constant(rng.standard_normal(16).astype(np.float32))
        y = b.op("CONV_2D", [y, weights, bias], (1, 8, 8, 16), {"stride_h": 1, "stride_w": 1, "padding": "SAME"})
    b.output(y)
    room = 30_000 if backend == "webgpu" else 45_000  # CUDA's kernels fill up tiles
    check(b.build(), SmallDelegate(backend, max_buffer_bytes=2 * 6 * room), set())
    check(b.build(), SmallDelegate(backend, max_buffer_bytes=room), {3})


@pytest.mark.parametrize(
    "limits",
    [{"max_shared_bytes": 1024}, {"max_threads": 32}, {"max_buffers": 4}, {"max_groups": 8}, {"max_groups": 64}],
)
def test_other_limits(limits: dict[str, int]) -> None:
    """Kernels keep to them, or their nodes fall back."""
    require_gpu()
    for content in (wide_in_the_middle(), two_wide_places()):
        interpreter = Interpreter(
            model_content=content, experimental_delegates=[SmallDelegate("webgpu", **limits)], fallback="silent"
        )
        interpreter.allocate_tensors()
        inputs = data(content)
        assert_agrees(run(interpreter, inputs)[0], run(official(content), inputs)[0], 1e-5)
        assert interpreter.delegation_report().counts["GPU"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_kernel_that_cannot_be_built(
    backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    require(backend)

    def fails(_: object) -> Any:
        raise TypeError("i32x4 and f32x4")

    softmax = next(op for op in _BUILD if op.__name__ == "Softmax")
    monkeypatch.setitem(_BUILD, softmax, fails)
    with caplog.at_level(logging.WARNING, "litegpu"):
        interpreter = check(wide_in_the_middle(), GpuDelegate(backend=backend), {3}, previewed=False)
    assert "i32x4 and f32x4" in (interpreter.delegation_report().nodes[3].reason or "")
    assert len([m for m in caplog.messages if "i32x4" in m]) == 1


def test_an_error_that_blames_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are tried one by one then."""
    require_gpu()
    original = drop_unused

    def fails(graph: Any) -> Any:
        if any(type(n.op).__name__ == "Softmax" for n in graph.nodes):
            raise ArithmeticError("nobody knows where")
        return original(graph)

    monkeypatch.setattr(passes, "drop_unused", fails)
    check(wide_in_the_middle(), GpuDelegate(backend="webgpu"), {3}, previewed=False)


def test_a_device_that_fails_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    require_gpu()
    delegate = GpuDelegate(backend="webgpu")
    device = delegate.open_device()
    monkeypatch.setattr(delegate, "open_device", lambda: device)
    monkeypatch.setattr(device, "session", lambda *_, **__: (_ for _ in ()).throw(litegpu.DeviceError("out of order")))
    check(wide_in_the_middle(), delegate, {0, 1, 2, 3}, previewed=False)


def test_strict_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    require_gpu()
    with pytest.raises(litegpu.DelegateError, match="max-storage-buffer-binding-size"):
        Interpreter(
            model_content=wide_in_the_middle(),
            experimental_delegates=[SmallDelegate("webgpu", max_binding_bytes=1 << 15)],
            fallback="strict",
        ).allocate_tensors()


def test_a_smaller_shape_is_asked_for_again() -> None:
    """What did not fit falls back for that shape only."""
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", (8, 16, 16, 16))
    b.output(b.op("TANH", [b.op("ABS", [x], (8, 16, 16, 16))], (8, 16, 16, 16)))
    delegate = SmallDelegate("webgpu", max_buffer_bytes=1 << 16)
    interpreter = Interpreter(model_content=b.build(), experimental_delegates=[delegate], fallback="silent")
    interpreter.allocate_tensors()
    assert interpreter.delegation_report().counts["GPU"] == 0
    interpreter.resize_tensor_input(0, [1, 16, 16, 16])
    interpreter.allocate_tensors()
    assert interpreter.delegation_report().fully_delegated


def test_a_quantized_model_too_large_in_float32_only() -> None:
    require_gpu()
    b = ModelBuilder()
    q = quantized(0.1, 0)
    x = b.input("x", (1, 64, 64, 4), TensorType.INT8, quantization=q)
    y = b.op("MAX_POOL_2D", [x], (1, 64, 64, 4), pooling(), type=TensorType.INT8, quantization=q)
    b.output(b.op("RELU", [y], (1, 64, 64, 4), type=TensorType.INT8, quantization=quantized(0.2, 3)))
    with Interpreter(
        model_content=b.build(), experimental_delegates=[SmallDelegate("webgpu", max_binding_bytes=1 << 15)]
    ) as interpreter:
        report = interpreter.preview_delegation()
    assert all("max-storage-buffer-binding-size" in (n.reason or "") for n in report.nodes)


@pytest.mark.parametrize(
    "shape, type_, half, size",
    [
        ((2, 3, 5), TensorType.FLOAT32, False, 2 * 3 * 8 * 4),
        ((2, 3, 5), TensorType.FLOAT32, True, 2 * 3 * 8 * 2),
        ((2, 3, 4), TensorType.FLOAT16, True, 2 * 3 * 4 * 2),
        ((2, 3, 4), TensorType.INT8, True, 2 * 3 * 4 * 2),
        ((2, 3, 4), TensorType.INT8, False, 2 * 3 * 4 * 4),
        ((2, 3, 4), TensorType.INT32, True, 2 * 3 * 4 * 4),
        ((2, 3, 4), TensorType.BOOL, True, 2 * 3 * 4 * 4),
        ((7,), TensorType.FLOAT32, False, 8 * 4),
    ],
)
def test_the_bytes_of_values(shape: tuple[int, ...], type_: TensorType, half: bool, size: int) -> None:
    """By hand: channels by fours, and halves for what can be a half."""
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", shape, type_)], shape, type=type_))
    main = b.model().main
    assert fitting.largest(main, main.operators[0], half)[0] == size


def test_a_tensor_of_exactly_what_is_bound_at_once_fits() -> None:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", (4, 4))], (4, 4)))
    tensor = b.model().main.tensors[0]
    features = Features(max_binding_bytes=64)
    assert fitting.too_large(64, tensor, features, "it") is None
    assert "takes 65 bytes, of which it binds at most 64" in str(fitting.too_large(65, tensor, features, "it"))


@pytest.mark.parametrize("failing, blamed", [((1,), (1,)), ((0, 2), (0, 2)), ((0, 1, 2), ()), ((), ())])
def test_the_culprits_are_those_that_fail_alone(failing: tuple[int, ...], blamed: tuple[int, ...]) -> None:
    """Unless all do."""
    b = ModelBuilder()
    x = b.input("x", (4,))
    for _ in range(3):
        x = b.op("NEG", [x], (4,))
    b.output(x)
    model = b.model()

    def attempt(part: Partition) -> None:
        (operator,) = part.nodes
        assert part.inputs == operator.inputs and part.outputs == operator.outputs
        if operator.index in failing:
            raise ValueError("no")

    main = model.main
    whole = Partition(model, main, main.operators, tuple(main.inputs), tuple(main.outputs))
    assert fitting.culprits(whole, attempt) == blamed
