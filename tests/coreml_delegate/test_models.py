"""Real models of floats: all of each becomes one ML program, which gives what the official CPU gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agreement import assert_agrees, official, random_inputs, run
from coreml_cases import LEFT_FOLDERS, coremltools_session
from mil_evaluator import MilModel

import litegpu
from litegpu.coreml import delegate as delegate_module
from litegpu.coreml import runtime
from litegpu.coreml.conversion import converted
from litegpu.coreml.delegate import CoreMlDelegate

pytestmark = LEFT_FOLDERS

#: Nodes, and transpositions that are left of two for each operator on images.
MODELS = {
    "ad01_fp32.tflite": (10, 0),
    "vww_96_float.tflite": (31, 2),
    "pretrainedResnet.tflite": (16, 2),
    "face_landmark.tflite": (97, 3),
    "mobilenet_v1_1.0_224_random_f16.tflite": (68, 2),
    "pose_detection.tflite": (136, 5),
    "deeplabv3_257_mv_gpu.tflite": (70, 2),
    "style_transfer_f16_384.tflite": (285, 3),
}


@pytest.fixture(autouse=True)
def _needs_coremltools() -> Iterator[None]:
    yield from coremltools_session()


@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_the_cpu(name: str, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def stand_in(partition: Any, options: Any) -> MilModel:
        made.append(converted(partition, options))
        return MilModel(made[-1])

    monkeypatch.setattr(delegate_module, "converted", stand_in)
    monkeypatch.setattr(runtime, "require_apple", lambda *, neural_engine: None)
    cpu = official(models_dir / name)
    inputs = random_inputs(cpu)
    with litegpu.Interpreter(
        model_path=str(models_dir / name), experimental_delegates=[CoreMlDelegate()], fallback="strict"
    ) as interpreter:
        interpreter.allocate_tensors()
        got = run(interpreter, inputs)
        assert interpreter.delegation_report().delegated == MODELS[name][0]
    for i, (mine, want) in enumerate(zip(got, run(cpu, inputs), strict=True)):
        assert_agrees(mine, want, 1e-5, f"{name} output {i}")
    (model,) = made
    kinds = [o.op_type for o in model._mil_program.functions["main"].operations]
    assert kinds.count("transpose") <= MODELS[name][1], kinds.count("transpose")
