"""Real float models: every op on the GPU in one partition, and the official CPU runtime's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, random_inputs, require_gpu, run

MODELS = {
    "mobilenet_v1_1.0_224_random.tflite": 31,
    "mobilenet_v1_1.0_224_random_f16.tflite": 68,
    "deeplabv3_257_mv_gpu.tflite": 70,
    "pose_detection.tflite": 136,
    "face_landmark.tflite": 97,
    "style_transfer_f16_384.tflite": 285,
    "vww_96_float.tflite": 31,
    "pretrainedResnet.tflite": 16,
    "ad01_fp32.tflite": 10,
}


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_the_cpu(name: str, half: bool, models_dir: Path) -> None:
    require_gpu()
    cpu = official(models_dir / name)
    gpu = on_gpu(models_dir / name, precision_loss_allowed=half)
    report = gpu.delegation_report()
    assert report.delegated == len(report.nodes) == MODELS[name], str(report)
    assert len(report.partitions) == 1
    inputs = random_inputs(cpu)
    for i, (got, want) in enumerate(zip(run(gpu, inputs), run(cpu, inputs), strict=True)):
        assert_agrees(got, want, FLOAT16 if half else FLOAT32, f"{name} output {i}")
        assert not np.array_equal(got, want), "bit-identical to the CPU: nothing ran on the GPU"
