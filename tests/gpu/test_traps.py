"""The mistakes that other GPU delegates shipped, each as a test of the whole way through."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, on_gpu, random_inputs, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

import litegpu
from litegpu.model.writer import ModelBuilder


@pytest.fixture(autouse=True)
def _gpu() -> None:
    require_gpu()


def conv(
    b: ModelBuilder, x: int, shape: tuple[int, ...], channels: int, seed: int = 0, activation: str = "RELU"
) -> int:
    """A 3x3 SAME convolution with seeded weights."""
    rng = np.random.default_rng(seed)
    w = b.constant(rng.standard_normal((channels, 3, 3, shape[3])).astype(np.float32) / 3)
    bias = b.constant(rng.standard_normal(channels).astype(np.float32))
    options = dict(stride_h=1, stride_w=1, padding="SAME", fused_activation_function=activation)
    return b.op("CONV_2D", [x, w, bias], shape=(*shape[:3], channels), options=options)


def small_net(batch: int = 1) -> bytes:
    """Two convolutions, a residual, odd channel counts."""
    b = ModelBuilder()
    x = b.input("x", (batch, 9, 7, 3))
    y = conv(b, x, (batch, 9, 7, 3), 5)
    z = conv(b, y, (batch, 9, 7, 5), 5, seed=1)
    b.output(b.op("ADD", [y, z], shape=(batch, 9, 7, 5), options=dict(fused_activation_function="RELU6")))
    return b.build()


def check(content: bytes, seed: int = 0) -> litegpu.Interpreter:
    """Everything on the GPU, equal to the CPU within tolerance, and not bit-identical where floats were summed."""
    cpu, gpu = official(content), on_gpu(content, max_delegated_partitions=0)
    report = gpu.delegation_report()
    assert report.fully_delegated, str(report)
    inputs = random_inputs(cpu, seed)
    for i, (got, want) in enumerate(zip(run(gpu, inputs), run(cpu, inputs), strict=True)):
        assert_agrees(got, want, FLOAT32, f"output {i}")
    return gpu


@pytest.mark.parametrize("channels", [3, 8])
def test_a_tensor_that_is_an_output_and_is_consumed(channels: int) -> None:
    b = ModelBuilder()
    shape = (1, 9, 7, 3)
    y = conv(b, b.input("x", shape), shape, channels)
    z = conv(b, y, (1, 9, 7, channels), 5, seed=1)
    b.output(y)
    b.output(z)
    check(b.build())


def test_an_input_that_is_also_an_output() -> None:
    b = ModelBuilder()
    shape = (1, 4, 6, 3)
    x = b.input("x", shape)
    b.output(conv(b, x, shape, 5))
    b.output(x)
    check(b.build())


def test_the_same_tensor_twice_among_the_outputs_of_a_partition() -> None:
    b = ModelBuilder()
    shape = (1, 4, 6, 3)
    y = conv(b, b.input("x", shape), shape, 5)
    b.output(y)
    b.output(y)
    check(b.build())


def test_pad_of_rank_3() -> None:
    b = ModelBuilder()
    x = b.input("x", (2, 5, 3))
    pads = b.constant(np.array([[1, 0], [2, 1], [0, 2]], np.int32))
    padded = b.op("PAD", [x, pads], shape=(3, 8, 5))
    b.output(b.op("EXP", [padded], shape=(3, 8, 5)))
    check(b.build())


@pytest.mark.parametrize("batch", [2, 5])
def test_batches(batch: int) -> None:
    check(small_net(batch))


def test_the_second_and_the_hundredth_inference() -> None:
    content = small_net()
    cpu, gpu = official(content), on_gpu(content)
    for seed in range(100):
        inputs = random_inputs(cpu, seed)
        got, want = run(gpu, inputs)[0], run(cpu, inputs)[0]
        assert_agrees(got, want, FLOAT32, f"inference {seed}")


def test_two_interpreters_on_one_device() -> None:
    first, second = small_net(), small_net(3)
    a, b = on_gpu(first), on_gpu(second)
    for seed in range(3):
        for content, gpu in ((first, a), (second, b)):
            cpu = official(content)
            inputs = random_inputs(cpu, seed)
            assert_agrees(run(gpu, inputs)[0], run(cpu, inputs)[0], FLOAT32)


def test_no_gpu_memory_is_allocated_after_the_first_inference() -> None:
    from litegpu.gpu.delegate.delegate import GpuDelegate, GpuKernel

    kernels: list[GpuKernel] = []

    class Watched(GpuDelegate):
        def prepare(self, partition):
            kernel = super().prepare(partition)
            assert isinstance(kernel, GpuKernel)
            kernels.append(kernel)
            return kernel

    gpu = litegpu.Interpreter(model_content=small_net(), experimental_delegates=[Watched()])
    gpu.allocate_tensors()
    inputs = random_inputs(official(small_net()))
    run(gpu, inputs)
    before = kernels[-1].session.allocations
    for _ in range(20):
        run(gpu, inputs)
    assert before > 0 and kernels[-1].session.allocations == before


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_propagate_as_on_the_cpu(special: float) -> None:
    """As on the CPU's default path, XNNPACK: the plain kernels clamp a NaN that comes from inf - inf to a number."""
    content = small_net()
    cpu, gpu = official(content, OpResolverType.AUTO), on_gpu(content)
    inputs = random_inputs(cpu)
    inputs[0][0, 4, 3, 1] = special
    got, want = run(gpu, inputs)[0], run(cpu, inputs)[0]
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert_agrees(got, want, FLOAT32)


def test_a_mixed_graph_reports_what_stayed_on_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    b = ModelBuilder()
    shape = (1, 6, 6, 4)
    y = conv(b, b.input("x", shape), shape, 4)
    long = (1, 1, 1, *shape)
    wide = b.op("BROADCAST_TO", [y, b.constant(np.array(long, np.int32))], long)
    back = b.op("RESHAPE", [wide, b.constant(np.array(shape, np.int32))], shape)
    b.output(conv(b, back, shape, 4, seed=2))
    content = b.build()
    with caplog.at_level(logging.WARNING, "litegpu"):
        gpu = on_gpu(content, max_delegated_partitions=0)
    report = gpu.delegation_report()
    assert (report.delegated, len(report.nodes)) == (2, 4)
    assert [n.op for n in report.nodes if n.reason] == ["BROADCAST_TO", "RESHAPE"]
    assert "cannot be handled by this delegate" in caplog.text and "BROADCAST_TO" in caplog.text
    cpu = official(content)
    inputs = random_inputs(cpu)
    assert_agrees(run(gpu, inputs)[0], run(cpu, inputs)[0], FLOAT32)


def test_without_a_device_the_model_runs_on_the_cpu_with_one_warning(tmp_path) -> None:
    model = tmp_path / "m.tflite"
    model.write_bytes(small_net())
    script = f"""
        import logging, numpy as np, litegpu
        logging.basicConfig(level=logging.WARNING)
        gpu = litegpu.Interpreter({str(model)!r}, experimental_delegates=[litegpu.GpuDelegate(backend="vulkan")])
        gpu.allocate_tensors()
        gpu.set_tensor(gpu.get_input_details()[0]["index"], np.ones((1, 9, 7, 3), np.float32))
        gpu.invoke()
        print(gpu.delegation_report().delegated)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"
    assert done.stderr.count("WARNING") == 1, done.stderr


def test_float16_without_device_support_runs_in_float32_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from litegpu.gpu.delegate.delegate import GpuDelegate

    device = GpuDelegate().open_device()
    monkeypatch.setattr(device, "features", dataclasses.replace(device.features, float16=False))
    content = small_net()
    with caplog.at_level(logging.WARNING, "litegpu"):
        gpu = on_gpu(content, precision_loss_allowed=True)
    assert sum("16-bit" in r.message for r in caplog.records) == 1
    cpu = official(content)
    inputs = random_inputs(cpu)
    assert_agrees(run(gpu, inputs)[0], run(cpu, inputs)[0], FLOAT32)
