"""Every option of the GPU delegate arrives where it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice

from litegpu import GpuDelegate, GpuDelegateOptions, Interpreter
from litegpu.gpu.backends.cuda import opening as cuda
from litegpu.gpu.backends.webgpu import device as webgpu
from litegpu.gpu.build import build_program
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType

SHAPE = (1, 2, 3, 4)


def noting(given: list[dict[str, Any]]) -> Callable[..., Program]:
    """build_program, which adds its named arguments to `given`."""

    def noted(*arguments: Any, **named: Any) -> Program:
        given.append(named)
        return build_program(*arguments, **named)

    return noted


def content(quantized_too: bool = False) -> bytes:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    b.output(b.op("ABS", [x], SHAPE))
    if quantized_too:
        q = b.input("q", SHAPE, TensorType.INT8, quantization=quantized(0.5, 3))
        b.output(b.op("ABS", [q], SHAPE, type=TensorType.INT8, quantization=quantized(0.5, 3)))
    return b.build()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    found = FakeDevice()
    monkeypatch.setattr(GpuDelegate, "open_device", lambda self: found)
    return found


def prepared(device: FakeDevice, **options: Any) -> Interpreter:
    one = Interpreter(model_content=content(), experimental_delegates=[GpuDelegate(**options)], fallback="strict")
    one.allocate_tensors()
    return one


@pytest.mark.parametrize("options, level", [
    ({}, "off"), ({"tuning": "fast"}, "fast"), ({"tuning": "full"}, "full"),
    ({"inference_preference": "SUSTAINED_SPEED"}, "fast"),
    ({"inference_preference": "SUSTAINED_SPEED", "tuning": "full"}, "full"),
])  # fmt: skip
def test_tuning(device: FakeDevice, options: dict[str, Any], level: str) -> None:
    prepared(device, **options)
    assert device.levels == [level]


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("wait, asked", [
    ("passive", "passive"), ("active", "active"), ("do_not_wait", "do_not_wait"), ("aggressive", "active"),
])  # fmt: skip
def test_validation_and_waiting(device: FakeDevice, wait: str, asked: str, validation: bool) -> None:
    one = prepared(device, wait_type=wait, validation=validation)
    (session,) = device.sessions
    assert session.wait == asked and session.validation is validation
    one.close()
    assert session.closed


def test_sessions_of_a_stream_are_validated_too(device: FakeDevice) -> None:
    b = GpuDelegate(validation=True)
    one = Interpreter(model_content=content(), experimental_delegates=[b], fallback="strict")
    one.allocate_tensors()
    another: Any = b.prepared[0].kernel().another()  # type: ignore[union-attr]
    assert another.session.validation and another.session.wait == "do_not_wait"
    assert another.session is not device.sessions[0]


@pytest.mark.parametrize("options, half, auto", [
    ({}, False, False), ({"precision_loss_allowed": True}, True, False), ({"precision": "float16"}, True, False),
    ({"precision": "float32"}, False, False), ({"precision": "auto"}, True, True),
    ({"inference_priority1": "MIN_LATENCY"}, True, False),
])  # fmt: skip
def test_precision(device: FakeDevice, monkeypatch, options: dict[str, Any], half: bool, auto: bool) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr("litegpu.gpu.build.build_program", noting(given))
    prepared(device, **options)
    assert given[0]["half"] is half and given[0]["auto"] is auto and not given[0]["ranges"]


def test_calibration_reaches_the_program(device: FakeDevice, monkeypatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr("litegpu.gpu.build.build_program", noting(given))
    sample = np.linspace(-3, 5, 24, dtype=np.float32).reshape(SHAPE)
    prepared(device, precision="auto", calibration=[[sample]])
    assert given[0]["ranges"] == {0: (-3.0, 5.0), 1: (pytest.approx(np.abs(sample).min()), 5.0)}


def test_without_float16_one_warning_and_float32(device: FakeDevice, monkeypatch, caplog) -> None:
    device.features = Features(float16=False)
    given: list[dict[str, Any]] = []
    monkeypatch.setattr("litegpu.gpu.build.build_program", noting(given))
    delegate = GpuDelegate(precision_loss_allowed=True)
    for _ in range(2):
        one = Interpreter(model_content=content(), experimental_delegates=[delegate], fallback="strict")
        one.allocate_tensors()
    assert [named["half"] for named in given] == [False, False]
    assert sum("16-bit floats" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("options, taken", [
    ({}, 2), ({"quantization_enabled": False}, 1), ({"experimental_flags": 0}, 1),
])  # fmt: skip
def test_quantized_nodes(options: dict[str, Any], taken: int) -> None:
    model = read_model(content(quantized_too=True))
    delegate = GpuDelegate(**options)
    reasons = [delegate.check(model, model.main, operator) for operator in model.main.operators]
    assert sum(reason is None for reason in reasons) == taken, reasons


def test_what_the_partitioner_asks() -> None:
    given: dict[str, Any] = {
        "max_delegated_partitions": 3, "min_nodes_per_partition": 4, "first_delegate_node_index": 5,
        "last_delegate_node_index": 6,
    }  # fmt: skip
    delegate = GpuDelegate(**given)
    assert {name: getattr(delegate, name) for name in given} == given


@pytest.mark.parametrize("backend, name, opened", [
    ("auto", None, ["cuda None", "webgpu auto None"]), ("cuda", "1", ["cuda 1"]), ("webgpu", "x", ["webgpu auto x"]),
    ("vulkan", None, ["webgpu vulkan None"]), ("gl", "y", ["webgpu gl y"]),
])  # fmt: skip
def test_backend_and_device(monkeypatch, backend: str, name: str | None, opened: list[str]) -> None:
    from litegpu.errors import DeviceError

    asked: list[str] = []

    def refuse(what: str) -> Any:
        def open_device(*given: object, **_: object) -> None:
            asked.append(" ".join(map(str, (what, *given))))
            raise DeviceError("there is none")

        return open_device

    monkeypatch.setattr(cuda, "open_device", refuse("cuda"))
    monkeypatch.setattr(cuda, "warn_unusable", lambda error: None)
    monkeypatch.setattr(webgpu, "open_device", refuse("webgpu"))
    with pytest.raises(DeviceError):
        GpuDelegate(backend=backend, device=name).open_device()
    assert asked == opened


def test_no_option_is_forgotten() -> None:
    """Those that this file does not look at are looked at elsewhere: a new one has to be added here or there."""
    here = {"precision_loss_allowed", "precision", "calibration", "wait_type", "quantization_enabled",
            "inference_preference", "inference_priority1", "experimental_flags", "backend", "device", "tuning",
            "validation", "max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index",
            "last_delegate_node_index"}  # fmt: skip
    elsewhere = {"inference_priority2", "inference_priority3", "serialization_dir", "model_token", "arithmetic"}
    assert {f.name for f in fields(GpuDelegateOptions)} == here | elsewhere
