"""Every op over a sample of its parameters, and the real models, on CUDA against the official CPU runtime."""

from __future__ import annotations

import random
from pathlib import Path

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
    from litegpu.gpu.runtime.cuda import available

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
