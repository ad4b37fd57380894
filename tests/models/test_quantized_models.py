"""Real quantized models, wholly on the GPU but for SSD's post-processing, beside the official CPU runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.tools.images import image_to_tensor, load_image
from litegpu.tools.predictions import Detection, Pose, interpret

#: The CPU as its users have it: with XNNPACK.
CPU = OpResolverType.BUILTIN
PHOTOGRAPHS = ("bird.bmp", "cat.bmp", "grace_hopper.bmp", "kite_and_cold.jpg", "owl.jpg", "parrot.jpg")
CLASSIFIERS = {
    "mobilenet_v1_0.25_128_quant.tflite": 31,
    "mobilenet_v1_0.75_192_quant.tflite": 31,
    "mobilenet_v2_1.0_224_quant.tflite": 66,
}
#: Number of nodes, and by how many quanta any output may differ for noise as input.
OTHERS = {
    "mobilenet_v1_1.0_224_random_int8.tflite": (31, 1),
    "kws_ref_model.tflite": (13, 1),
    "vww_96_int8.tflite": (31, 1),
    "pretrainedResnet_quant.tflite": (16, 1),
    "ad01_int8.tflite": (10, 1),
}


def delegated(path: Path, nodes: int, **options: object) -> Any:
    """The model on the GPU, all `nodes` of it in one partition."""
    gpu = on_gpu(path, **options)
    report = gpu.delegation_report()
    assert report.delegated == len(report.nodes) == nodes, str(report)
    assert len(report.partitions) == 1
    return gpu


def of_image(interpreter: Any, path: Path) -> list[np.ndarray]:
    return [image_to_tensor(load_image(path), interpreter.get_input_details()[0])[0]]


def noise(interpreter: Any) -> list[np.ndarray]:
    """Stored numbers of the whole range of each quantized input."""
    rng = np.random.default_rng(0)
    limits = [(d["shape"], np.iinfo(d["dtype"]), d["dtype"]) for d in interpreter.get_input_details()]
    return [rng.integers(i.min, i.max + 1, shape).astype(dtype) for shape, i, dtype in limits]


@pytest.mark.sweep
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifies_photographs_as_the_cpu_does(name: str, half: bool, models_dir: Path, images_dir: Path) -> None:
    require_gpu()
    cpu = official(models_dir / name, CPU)
    gpu = delegated(models_dir / name, CLASSIFIERS[name], precision_loss_allowed=half)
    for picture in PHOTOGRAPHS:
        inputs = of_image(cpu, images_dir / picture)
        got, want = (run(interpreter, inputs)[0][0].astype(int) for interpreter in (gpu, cpu))
        assert got.argmax() == want.argmax(), picture
        assert _top(got, want) and _top(want, got), picture
        assert np.abs(got - want).max() <= 2, picture


def _top(scores: np.ndarray, others: np.ndarray) -> bool:
    """Whether the five best of `scores` are among the five best of `others`, equal ones being equally good."""
    best = np.argsort(-scores, kind="stable")[:5]
    return bool((others[best] >= np.sort(others)[-5]).all())


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


def test_posenet_finds_the_keypoints_of_the_cpu(models_dir: Path, images_dir: Path) -> None:
    require_gpu()
    path = models_dir / "posenet_mobilenet_v1_100_257_int8.tflite"
    cpu, gpu = official(path, CPU), delegated(path, 36)
    inputs = of_image(cpu, images_dir / "posenet_people.bmp")
    got, want = (_understood(interpreter, inputs) for interpreter in (gpu, cpu))
    assert isinstance(got, Pose) and isinstance(want, Pose)
    for a, b in zip(got.keypoints, want.keypoints, strict=True):
        assert abs(a.y - b.y) * 257 <= 0.5 and abs(a.x - b.x) * 257 <= 0.5, b.name


def test_ssd_finds_the_boxes_of_the_cpu(models_dir: Path, images_dir: Path) -> None:
    require_gpu()
    path = models_dir / "ssd_mobilenet_v1_coco_quant.tflite"
    cpu, gpu = official(path, CPU), on_gpu(path)
    report = gpu.delegation_report()
    assert report.delegated == len(report.nodes) == 64 and len(report.partitions) == 1, str(report)
    inputs = of_image(cpu, images_dir / "kite_and_cold.jpg")
    got, want = (_understood(interpreter, inputs) for interpreter in (gpu, cpu))
    assert isinstance(got, Detection) and isinstance(want, Detection) and want.boxes
    assert [box.found.index for box in got.boxes] == [box.found.index for box in want.boxes]
    for a, b in zip(got.boxes, want.boxes, strict=True):
        edges = [(getattr(a, edge), getattr(b, edge)) for edge in ("top", "left", "bottom", "right")]
        assert max(abs(x - y) for x, y in edges) <= 0.01, b


def _understood(interpreter: Any, inputs: list[np.ndarray]) -> Any:
    shape = interpreter.get_input_details()[0]["shape"]
    return interpret(run(interpreter, inputs), interpreter.get_output_details(), shape)
