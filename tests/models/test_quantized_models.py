"""Real quantized models, wholly on the GPU but for SSD's post-processing, beside the official CPU runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

#: The CPU as its users have it: with XNNPACK.
CPU = OpResolverType.BUILTIN
#: Number of nodes, and by how many quanta any output may differ for noise as input.
OTHERS = {
    "mobilenet_v1_1.0_224_random_int8.tflite": (31, 1),
    "kws_ref_model.tflite": (13, 2),
    "vww_96_int8.tflite": (31, 2),
    "pretrainedResnet_quant.tflite": (16, 2),
    "ad01_int8.tflite": (10, 1),
}


def delegated(path: Path, nodes: int, **options: object) -> Any:
    """The model on the GPU, all `nodes` of it in one partition."""
    gpu = on_gpu(path, **options)
    report = gpu.delegation_report()
    assert report.delegated == len(report.nodes) == nodes, str(report)
    assert len(report.partitions) == 1
    return gpu


def noise(interpreter: Any) -> list[np.ndarray]:
    """Stored numbers of the whole range of each quantized input."""
    rng = np.random.default_rng(0)
    limits = [(d["shape"], np.iinfo(d["dtype"]), d["dtype"]) for d in interpreter.get_input_details()]
    return [rng.integers(i.min, i.max + 1, shape).astype(dtype) for shape, i, dtype in limits]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", OTHERS)
def test_agrees_with_the_cpu_to_few_quanta(name: str, half: bool, models_dir: Path) -> None:
    require_gpu()
    nodes, quanta = OTHERS[name]
    cpu, gpu = official(models_dir / name, CPU), delegated(models_dir / name, nodes, precision_loss_allowed=half)
    inputs = noise(cpu)
    got, want = (run(interpreter, inputs)[0] for interpreter in (gpu, cpu))
    assert got.dtype == want.dtype
    assert np.abs(got.astype(int) - want).max() <= quanta


def test_dynamic_range_mobilenet(models_dir: Path) -> None:
    """The CPU quantizes activations where the GPU does not: the results are as far apart as that makes them."""
    require_gpu()
    name = "mobilenet_v1_1.0_224_random_dynamic.tflite"
    cpu, gpu = official(models_dir / name), delegated(models_dir / name, 31)
    inputs = [np.random.default_rng(0).standard_normal((1, 224, 224, 3)).astype(np.float32)]
    np.testing.assert_allclose(run(gpu, inputs)[0], run(cpu, inputs)[0], rtol=3e-2)
