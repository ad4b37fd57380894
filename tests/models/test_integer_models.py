"""Every quantized model of the shared ones in whole numbers: equal to the official CPU on all elements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

#: The models, and how many of their nodes stay on the CPU.
MODELS = {
    "ad01_int8.tflite": 0,
    "kws_ref_model.tflite": 0,
    "mobilenet_v1_0.25_128_quant.tflite": 0,
    "mobilenet_v1_0.75_192_quant.tflite": 0,
    "mobilenet_v1_1.0_224_random_int8.tflite": 0,
    "mobilenet_v2_1.0_224_quant.tflite": 0,
    "posenet_mobilenet_v1_100_257_int8.tflite": 0,
    "pretrainedResnet_quant.tflite": 0,
    "ssd_mobilenet_v1_coco_quant.tflite": 0,
    "vww_96_int8.tflite": 0,
}


def noise(interpreter: Any) -> list[np.ndarray]:
    """The whole range of each quantized input, and real numbers from -1 to 1."""
    rng = np.random.default_rng(0)
    found = []
    for detail in interpreter.get_input_details():
        shape, dtype = detail["shape"], np.dtype(detail["dtype"])
        if dtype.kind == "f":
            found.append(rng.uniform(-1, 1, shape).astype(np.float32))
        else:
            limits = np.iinfo(dtype)
            found.append(rng.integers(limits.min, limits.max + 1, shape).astype(dtype))
    return found


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_cpu(name: str, half: bool, models_dir: Path) -> None:
    """Whatever type floats have."""
    require_gpu()
    cpu = official(models_dir / name, OpResolverType.BUILTIN)
    gpu = on_gpu(models_dir / name, arithmetic="integer", precision_loss_allowed=half)
    report = gpu.delegation_report()
    assert len(report.nodes) - report.delegated == MODELS[name], str(report)
    inputs = noise(cpu)
    for got, want in zip(run(gpu, inputs), run(cpu, inputs), strict=True):
        if want.dtype.kind == "f":  # the corners of boxes, by exponentials
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, want)
