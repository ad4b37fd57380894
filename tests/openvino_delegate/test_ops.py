"""The table of operators that OpenVINO takes, and whole models, beside the official CPU runtime."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, random_inputs, run
from ai_edge_litert.interpreter import OpResolverType
from openvino_cases import LEFT, case_of, disagreement, operators, require_openvino

import litegpu
from litegpu.model import read_model
from litegpu.model.cut import cut
from litegpu.model.ops import BUILTIN
from litegpu.openvino.translated import TRANSLATED
from litegpu.tools.images import image_to_tensor, load_image
from litegpu.tools.inference_diff.surgery import with_float_weights

KINDS = ("float", "int8", "uint8", "int16")
SEEDS, SEEDS_FULL = range(2), range(2, 30)
FLOAT_MODELS = {
    "ad01_fp32": 10, "deeplabv3_257_mv_gpu": 70, "face_landmark": 97, "mobilenet_v1_1.0_224_random": 31,
    "mobilenet_v1_1.0_224_random_f16": 68, "pose_detection": 136, "pretrainedResnet": 16, "style_transfer_f16_384": 285,
    "vww_96_float": 31,
}  # fmt: skip
DYNAMIC_MODELS = ("kws_ref_model_float32", "mobilenet_v1_1.0_224_random_dynamic", "style_transfer_quantized_dynamic")
QUANTIZED_MODELS = (
    "ad01_int8", "kws_ref_model", "mobilenet_v1_0.25_128_quant", "mobilenet_v1_0.75_192_quant",
    "mobilenet_v1_1.0_224_random_int8", "mobilenet_v2_1.0_224_quant", "pretrainedResnet_quant", "vww_96_int8",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_openvino() -> None:
    require_openvino()


@pytest.mark.parametrize(("op", "kind"), [(op, kind) for kind in KINDS for op in operators(kind)])
def test_sample(op: str, kind: str) -> None:
    _sweep(op, kind, SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "kind"), [(op, kind) for kind in KINDS for op in operators(kind)])
def test_full(op: str, kind: str) -> None:
    _sweep(op, kind, SEEDS_FULL)


def _sweep(op: str, kind: str, seeds: range) -> None:
    taken = 0
    for seed in seeds:
        case = case_of(op, kind, seed, random.Random(f"{op} {seed}"))
        problem = disagreement(case) if case is not None else None
        if problem == LEFT:
            continue
        assert not problem, f"{case and case.name} (seed {seed}): {problem}"
        taken += problem is not None
    if kind not in TRANSLATED.get(op.partition(" of ")[0], "").split():
        assert not taken


def test_the_table_knows_only_operators() -> None:
    assert all(name in BUILTIN and set(kinds.split()) <= set(KINDS) for name, kinds in TRANSLATED.items())
    assert len(TRANSLATED) > 80


def delegated(source: Path | bytes) -> Any:
    content = {"model_content": source} if isinstance(source, bytes) else {"model_path": str(source)}
    interpreter = litegpu.Interpreter(
        **content, experimental_delegates=[litegpu.load_delegate("openvino")], fallback="strict"
    )
    interpreter.allocate_tensors()
    assert len(interpreter.delegation_report().partitions) == 1
    return interpreter


@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_float_models(name: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    cpu = official(path, OpResolverType.BUILTIN)
    with delegated(path) as model:
        assert len(model.delegation_report().nodes) == FLOAT_MODELS[name]
        for seed in range(2):
            inputs = random_inputs(cpu, seed)
            for got, want in zip(run(model, inputs), run(cpu, inputs), strict=True):
                assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


@pytest.mark.parametrize("name", DYNAMIC_MODELS)
def test_models_with_weights_of_8_bits(name: str, models_dir: Path) -> None:
    """Beside a CPU whose weights are floats: the official kernels round the inputs of such ops to 8 bits."""
    path = models_dir / f"{name}.tflite"
    changed, nodes = with_float_weights(read_model(path))
    assert nodes
    content = cut(changed, 0, range(len(changed.main.operators)), changed.main.inputs, changed.main.outputs)
    cpu = official(content, OpResolverType.BUILTIN)
    with delegated(path) as model:
        inputs = random_inputs(cpu)
        for got, want in zip(run(model, inputs), run(cpu, inputs), strict=True):
            assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_quantized_models(name: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    cpu = official(path, OpResolverType.BUILTIN)
    with delegated(path) as model:
        _within_a_quantum(model, cpu)


@pytest.mark.parametrize(
    ("name", "share"), [("posenet_mobilenet_v1_100_257_int8", 0.999), ("ssd_mobilenet_v1_coco_quant", 0.99)]
)
def test_photographs_up_to_where_floats_are_made(name: str, share: float, models_dir: Path, images_dir: Path) -> None:
    """PoseNet grows a rounding that falls the other way, which is why none may: openvino/quanta.py."""
    model = read_model(models_dir / f"{name}.tflite")
    main = model.main
    last = [o for o in main.operators if o.name in ("DEQUANTIZE", "TFLite_Detection_PostProcess")]
    ends = [t for o in last for t in o.inputs if not main.tensors[t].is_constant]
    kept = [o.index for o in main.operators if o not in last]
    content = bytes(cut(model, 0, kept, main.inputs, ends))
    with delegated(content) as interpreter:
        cpu, near = official(content, OpResolverType.BUILTIN), []
        for picture in ("bird.bmp", "cat.bmp", "grace_hopper.bmp", "owl.jpg"):
            x = image_to_tensor(load_image(images_dir / picture), interpreter.get_input_details()[0])[0]
            for got, want in zip(run(interpreter, [x]), run(cpu, [x]), strict=True):
                near.append(np.abs(got.astype(int) - want.astype(int)).ravel() <= 1)
    assert np.concatenate(near).mean() >= share


def _within_a_quantum(model: Any, cpu: Any) -> None:
    near: list[np.ndarray] = []
    for seed in range(4):
        inputs = _noise(cpu, seed)
        for got, want in zip(run(model, inputs), run(cpu, inputs), strict=True):
            assert got.dtype == want.dtype and got.dtype.itemsize == 1
            near.append(np.abs(got.astype(int) - want.astype(int)).ravel() <= 1)
    assert np.concatenate(near).mean() >= 0.99


def _noise(interpreter: Any, seed: int) -> list[np.ndarray]:
    """Floats of a normal distribution, and stored numbers of the whole range."""
    rng = np.random.default_rng(seed)
    found = []
    for detail in interpreter.get_input_details():
        shape, dtype = detail["shape"], np.dtype(detail["dtype"])
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        values = rng.integers(limits.min, limits.max + 1, shape) if limits is not None else rng.normal(size=shape)
        found.append(values.astype(dtype))
    return found


def test_hair_segmentation_is_divided(models_dir: Path) -> None:
    path = models_dir / "hair_segmentation.tflite"
    with litegpu.load(path, "openvino", fallback="silent") as model, litegpu.load(path, "cpu") as cpu:
        owners = [n.owner for n in model.report.nodes]
        assert owners.count("OpenVINO") > 200 and owners.count("CPU") > 5
        x = np.random.default_rng(0).uniform(-1, 1, next(iter(model.inputs.values()))["shape"]).astype(np.float32)
        got, want = model(x), cpu(x)
        assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)
