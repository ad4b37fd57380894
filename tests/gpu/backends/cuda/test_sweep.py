"""Every op over a sample of its parameters, and the real models, on CUDA against the official CPU runtime."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, random_inputs, run
from op_cases import CASES, SPECIAL_VALUES, OpCase

import litegpu

pytestmark = pytest.mark.cuda
PER_OP, PER_OP_FULL = 4, 60
MODELS = (
    "mobilenet_v1_1.0_224_random", "mobilenet_v1_1.0_224_random_f16", "deeplabv3_257_mv_gpu", "pose_detection",
    "face_landmark", "style_transfer_f16_384", "vww_96_float", "pretrainedResnet", "ad01_fp32",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    from litegpu.gpu.backends.cuda.opening import available

    reason = available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("op", CASES)
def test_sample(op: str, half: bool) -> None:
    _sweep(op, range(PER_OP) if not half else range(PER_OP, PER_OP + 1), half)


@pytest.mark.parametrize("name", SPECIAL_VALUES)
def test_nan_and_infinity(name: str) -> None:
    _check(SPECIAL_VALUES[name](), half=False)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("op", CASES)
def test_full(op: str, half: bool) -> None:
    _sweep(op, range(PER_OP + 1, PER_OP_FULL), half)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, half: bool, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    cpu = official(path)
    inputs = random_inputs(cpu)
    wanted = run(cpu, inputs)
    precision = "float16" if half else "float32"
    with litegpu.load(path, "cuda", precision) as model:
        assert model.device == "cuda" and model.report.fully_delegated
        for _ in range(2):
            found = model(*inputs)
            outputs = list(found.values()) if isinstance(found, dict) else [found]
            for i, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
                assert_agrees(got, want, FLOAT16 if half else FLOAT32, f"{name} {precision} output {i}")


def test_auto_takes_cuda() -> None:
    device = litegpu.GpuDelegate().open_device()
    assert device.target == "cuda" and litegpu.GpuDelegate(backend="cuda", device="cuda:0").open_device() is device
    with pytest.raises(litegpu.DeviceError, match="there is no CUDA device"):
        litegpu.GpuDelegate(backend="cuda", device="99").open_device()


def _sweep(op: str, seeds: range, half: bool) -> None:
    for seed in seeds:
        _check(CASES[op](random.Random(f"{op} {seed}")), half, f" (seed {seed})")


def _check(case: OpCase, half: bool, seed: str = "") -> None:
    gpu = on_gpu(case.content, precision_loss_allowed=half, max_delegated_partitions=0, backend="cuda")
    report = gpu.delegation_report()
    assert report.fully_delegated, f"{case.name}: {report.summary()}"
    wanted = run(official(case.content), case.inputs)
    for i, (got, want) in enumerate(zip(run(gpu, case.inputs), wanted, strict=True)):
        assert_agrees(got, want, FLOAT16 if half else FLOAT32, f"{case.name}{seed} output {i}")


def test_inputs_are_set_in_pinned_memory_and_copied_once() -> None:
    """set_tensor writes to where the GPU copies from, through every way to set an input and after a resize."""
    from litegpu.gpu.delegate.delegate import GpuKernel
    from litegpu.model.builder import ModelBuilder

    builder = ModelBuilder()
    x = builder.input("x", (1, 4, 4, 3))
    builder.output(builder.op("ABS", [x], (1, 4, 4, 3)))
    with litegpu.Interpreter(
        model_content=builder.build(), experimental_delegates=[litegpu.GpuDelegate(backend="cuda")]
    ) as gpu:
        for shape in ((1, 4, 4, 3), (2, 3, 5, 3)):
            gpu.resize_tensor_input(0, shape)
            gpu.allocate_tensors()
            assert gpu.plan is not None
            (kernel,) = gpu.plan.kernels
            assert isinstance(kernel, GpuKernel) and kernel._lent[0] is gpu.plan.inputs[0]
            for value in (-1.5, -2.5):
                gpu.set_tensor(0, np.full(shape, value, np.float32))
                gpu.invoke()
                gpu.invoke()
                np.testing.assert_array_equal(gpu.get_tensor(gpu.get_output_details()[0]["index"]), -value)
            gpu.tensor(0)()[...] = -7
            gpu.invoke()
            np.testing.assert_array_equal(gpu.get_tensor(gpu.get_output_details()[0]["index"]), 7)
        view = gpu.tensor(0)()
    view[...] = 3  # outlives the interpreter
    assert (view == 3).all()
