"""Quantized tensors on CUDA: every op in int8, and the real models."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from agreement import official, on_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from quantized_cases import WEIGHTS, compare, operators, quantized_case

import litegpu
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

pytestmark = pytest.mark.cuda
MODELS = {
    "mobilenet_v1_0.25_128_quant": 1, "mobilenet_v1_0.75_192_quant": 1, "mobilenet_v2_1.0_224_quant": 2,
    "mobilenet_v1_1.0_224_random_int8": 1, "kws_ref_model": 1, "vww_96_int8": 1, "pretrainedResnet_quant": 1,
    "ad01_int8": 1,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _device() -> None:
    from litegpu.gpu.backends.cuda.opening import available

    reason = available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")


@pytest.mark.parametrize(
    ("op", "half"), [*((op, False) for op in operators("int8")), *((op, True) for op in (*WEIGHTS, "ADD", "SOFTMAX"))]
)
def test_sample(op: str, half: bool) -> None:
    case = quantized_case(op, "int8", 7 + half)
    if case is not None:
        gpu = on_gpu(case.content, precision_loss_allowed=half, backend="cuda")
        assert gpu.delegation_report().fully_delegated, case.name
        compare("int8", op, case, run(gpu, case.inputs), 7 + half, half=half)


@pytest.mark.parametrize("type_", ["INT8", "UINT8", "INT16"])
@pytest.mark.parametrize("shape", [(1,), (5,), (1, 1001), (2, 3, 5, 3), (1, 4, 4, 4)])
def test_stored_numbers_cross_the_bus(shape: tuple[int, ...], type_: str) -> None:
    """Also those that do not fill a word, through the memory that set_tensor writes to."""
    b = ModelBuilder()
    q = quantized(0.1, 0)
    x = b.input("x", shape, TensorType[type_], quantization=q)
    b.output(b.op("RELU", [x], shape=shape, quantization=q))
    gpu = on_gpu(b.build(), backend="cuda")
    limits = np.iinfo(type_.lower())
    for seed in range(2):
        given = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
        np.testing.assert_array_equal(run(gpu, [given])[0], np.maximum(given, 0))


@pytest.mark.skipif(bool(os.environ.get("LITEGPU_CUDA_EMULATOR")), reason="takes minutes on the emulator")
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, precision: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    cpu = official(path, OpResolverType.BUILTIN)
    detail = cpu.get_input_details()[0]
    limits = np.iinfo(detail["dtype"])
    x = np.random.default_rng(0).integers(limits.min, limits.max + 1, detail["shape"]).astype(limits.dtype)
    (want,) = run(cpu, [x])
    with litegpu.load(path, "cuda", precision) as model:
        assert model.device == "cuda" and model.report.fully_delegated
        for _ in range(2):
            assert np.abs(model(x).astype(int) - want).max() <= MODELS[name]
