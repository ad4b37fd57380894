"""Whole models lowered and evaluated in NumPy against the official runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement import FLOAT32, assert_agrees, official, random_inputs, run

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.reader import read_model

SMALL = ("ad01_fp32.tflite", "face_landmark.tflite", "pretrainedResnet.tflite", "vww_96_float.tflite")
LARGE = (
    "deeplabv3_257_mv_gpu.tflite",
    "mobilenet_v1_1.0_224_random.tflite",
    "mobilenet_v1_1.0_224_random_f16.tflite",
    "pose_detection.tflite",
    "style_transfer_f16_384.tflite",
)
DYNAMIC_RANGE = ("kws_ref_model_float32.tflite", "mobilenet_v1_1.0_224_random_dynamic.tflite")


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE)])
def test_agrees_with_the_cpu(name: str, models_dir: Path) -> None:
    _check(models_dir / name, FLOAT32)


@pytest.mark.parametrize("name", DYNAMIC_RANGE)
def test_dynamic_range_models_differ_by_the_cpu_quantizing_activations(name: str, models_dir: Path) -> None:
    _check(models_dir / name, 3e-2)


def test_hair_segmentation_is_taken_with_its_custom_operators(models_dir: Path) -> None:
    graph = read_model((models_dir / "hair_segmentation.tflite").read_bytes()).main
    assert {check_operator(graph, o) for o in graph.operators} == {None}


@pytest.mark.parametrize("name", ["mobilenet_v2_1.0_224_quant.tflite", "pretrainedResnet_quant.tflite"])
def test_quantized_models_are_refused_without_quantization(name: str, models_dir: Path) -> None:
    graph = read_model((models_dir / name).read_bytes()).main
    reasons = {check_operator(graph, o, quantization=False) for o in graph.operators}
    assert None not in reasons
    assert all("quantization_enabled is False" in str(r) for r in reasons)


def _check(path: Path, tolerance: float) -> None:
    graph = read_model(path.read_bytes()).main
    assert {check_operator(graph, o) for o in graph.operators} == {None}
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    cpu = official(path)
    inputs = random_inputs(cpu)
    for got, want in zip(evaluate_graph(lowered.graph, inputs), run(cpu, inputs), strict=True):
        assert_agrees(got.reshape(want.shape), want, tolerance, path.name)
