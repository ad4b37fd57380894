"""Real float models: every op on the GPU in one partition, and the official CPU runtime's results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, random_inputs, require_gpu, run

from litegpu.model import read_model, write_model
from litegpu.model.types import Model, Tensor, TensorType

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
    inputs, same = random_inputs(cpu), []
    for i, (got, want) in enumerate(zip(run(gpu, inputs), run(cpu, inputs), strict=True)):
        assert_agrees(got, want, FLOAT16 if half else FLOAT32, f"{name} output {i}")
        same.append(np.array_equal(got, want))
    assert not all(same), "bit-identical to the CPU: nothing ran on the GPU"


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_int8_weights_compute_as_their_float_view(half: bool, models_dir: Path) -> None:
    """kws_ref_model_float32 has int8 weights whatever its name says. The CPU quantizes its activations too, and its own
    kernels differ by 1e-2 there, so the reference is the CPU on the same model with the weights widened to float32."""
    require_gpu()
    path = models_dir / "kws_ref_model_float32.tflite"
    cpu, gpu = official(_widened(read_model(path))), on_gpu(path, precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    inputs = random_inputs(cpu)
    assert_agrees(run(gpu, inputs)[0], run(cpu, inputs)[0], FLOAT16 if half else FLOAT32)


def _widened(model: Model) -> bytes:
    """The model with its int8 constants as the float32 numbers that they stand for."""

    def widen(tensor: Tensor) -> Tensor:
        if tensor.data is None or tensor.type != TensorType.INT8 or tensor.quantization is None:
            return tensor
        q = tensor.quantization
        along = [1] * len(tensor.shape)
        along[q.dimension] = -1
        scales, zeros = (a.reshape(along) if a.size > 1 else a for a in (q.scales, q.zero_points))
        data = ((tensor.data.astype(np.float32) - zeros) * scales).astype(np.float32)
        return dataclasses.replace(tensor, type=TensorType.FLOAT32, data=data, quantization=None)

    main = model.main
    tensors = tuple(widen(t) for t in main.tensors)
    operators = tuple(dataclasses.replace(o, version=1) for o in main.operators)
    return write_model(
        dataclasses.replace(model, subgraphs=(dataclasses.replace(main, tensors=tensors, operators=operators),))
    )
