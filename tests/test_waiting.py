"""What invoke() does until the GPU is done."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import litegpu
from litegpu import GpuDelegate, Interpreter, WaitType
from litegpu.gpu.backends import keep_awake
from litegpu.gpu.backends.keep_awake import KeepAwake
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 6, 5, 3)


def content(on_cpu: bool = False) -> bytes:
    """|x| + 1; then, on the CPU, its COMPLEX_ABS, which no delegate takes."""
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    one = builder.constant(np.ones(1, np.float32))
    y = builder.op("ADD", [builder.op("ABS", [x], SHAPE), one], SHAPE)
    builder.output(builder.op("ROUND", [y], SHAPE) if on_cpu else y)
    return builder.build()


@pytest.fixture
def backend() -> str:
    try:
        GpuDelegate().open_device()
    except litegpu.DeviceError as error:
        pytest.skip(str(error))
    return "auto"


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32) * 4


@pytest.mark.parametrize("wait", WaitType)
@pytest.mark.parametrize("validation", [False, True])
def test_results_are_those_of_the_last_inputs(backend: str, wait: WaitType, validation: bool) -> None:
    delegate = GpuDelegate(wait_type=wait, validation=validation)
    with Interpreter(model_content=content(), experimental_delegates=[delegate], fallback="strict") as one:
        one.allocate_tensors()
        (x,), (y,) = one.get_input_details(), one.get_output_details()
        for seed in range(5):
            one.set_tensor(x["index"], numbers(seed))
            one.invoke()
            if seed % 2:  # before it was read, the input for the next one may be set
                one.set_tensor(x["index"], numbers(100))
            np.testing.assert_array_equal(one.get_tensor(y["index"]), np.abs(numbers(seed)) + 1)
        one.invoke()
        one.invoke()
        np.testing.assert_array_equal(one.get_tensor(y["index"]), np.abs(numbers(4)) + 1)


def test_the_cpu_waits_for_what_it_reads(backend: str) -> None:
    delegate = GpuDelegate(wait_type="do_not_wait", last_delegate_node_index=1)
    with Interpreter(model_content=content(True), experimental_delegates=[delegate], fallback="silent") as one:
        one.allocate_tensors()
        assert one.delegation_report().counts == {"GPU": 2, "CPU": 1}
        (x,), (y,) = one.get_input_details(), one.get_output_details()
        for seed in range(4):
            one.set_tensor(x["index"], numbers(seed))
            one.invoke()
            np.testing.assert_array_equal(one.get_tensor(y["index"]), np.round(np.abs(numbers(seed)) + 1))


def test_closing_while_an_inference_runs(backend: str) -> None:
    for _ in range(5):
        with Interpreter(model_content=content(), experimental_delegates=[GpuDelegate(wait_type="do_not_wait")]) as one:
            one.allocate_tensors()
            one.invoke()


def test_a_gpu_is_kept_awake_only_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_awake, "INTERVAL", 1e-3)
    monkeypatch.setattr(keep_awake, "PATIENCE", 0.05)
    nudges: list[float] = []
    awake = KeepAwake(lambda: nudges.append(time.monotonic()))
    assert not nudges
    awake.used()
    deadline = time.monotonic() + 5
    while not nudges and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert nudges
    time.sleep(0.3)
    count = len(nudges)
    time.sleep(0.1)
    assert len(nudges) == count
    awake.used()
    while len(nudges) == count and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert len(nudges) > count
    awake.stop()
    awake.stop()
    assert not [t for t in threading.enumerate() if t.name == "litegpu keep-awake"]


def test_a_device_that_fails_is_left_alone() -> None:
    def nudge() -> None:
        raise RuntimeError("lost")

    awake = KeepAwake(nudge)
    awake.used()
    time.sleep(0.05)
    awake.used()
    awake.stop()
