"""The zoo's networks of the usual catalogues: their sizes, in the official runtime, quantized, and on the GPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, random_inputs, relative_l2, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.errors import ModelError, OptionError
from litegpu.model import read_model, with_batch
from litegpu.model.builder import ModelBuilder
from litegpu.model.costs import op_costs
from litegpu.model.types import Model, TensorType
from litegpu.zoo import CATALOGUE, build_model, draw_scene
from litegpu.zoo.quantize import quantize

#: Millions of parameters and billions of operations (two for a multiplication) as published, at 224 x 224.
PUBLISHED = {
    "resnet50": (25.56, 8.18), "resnext50": (25.03, 8.46), "mobilenet_v2": (3.50, 0.60), "mobilenet_v3": (5.48, 0.434),
    "efficientnet_b0": (5.29, 0.78), "efficientnet_v2_b0": (7.14, 1.44), "densenet121": (7.98, 5.7),
    "vgg16": (138.4, 30.9), "squeezenet": (1.235, 0.70), "vit_tiny": (5.72, 2.5), "mixer_s16": (18.5, 7.57),
    "convnext_tiny": (28.6, 8.9), "swin_tiny": (28.29, 8.98), "shufflenet_v2": (2.28, 0.292),
    "text_encoder": (22.6, 2.87),
}  # fmt: skip
QUICK = {"mobilenet_v2", "mobilenet_v3", "efficientnet_b0", "squeezenet", "vit_tiny"}
SMALL: dict[str, Any] = dict(width=0.25, resolution=64, classes=20, depth=2, length=16, vocabulary=200)
#: Relative error of quantized results, above which something is wrong rather than rounded.
QUANTIZED = 0.4


def small(name: str, **options: object) -> bytes:
    known = CATALOGUE[name].options
    return build_model(name, **{key: value for key, value in SMALL.items() if key in known} | options)


def values(content: bytes, seed: int) -> np.ndarray:
    """Real results for a drawn picture, or random tokens."""
    interpreter = official(content, OpResolverType.BUILTIN)
    (detail,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    if detail["dtype"] == np.int32:
        given = np.random.default_rng(seed).integers(0, SMALL["vocabulary"], detail["shape"]).astype(np.int32)
    else:
        batch, height, width, _ = map(int, detail["shape"])
        given = np.repeat(draw_scene(height, width, seed)[None], batch, axis=0).astype(np.float32) / 127.5 - 1
    if detail["dtype"] == np.int8:
        scale, zero = detail["quantization"]
        given = np.clip(np.rint(given / scale) + zero, -128, 127).astype(np.int8)
    (found,) = run(interpreter, [given])
    if found.dtype == np.int8:
        scale, zero = result["quantization"]
        found = (found.astype(np.float32) - zero) * np.float32(scale)
    return found


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED]
)
def test_parameters_and_operations_are_those_published(name: str) -> None:
    graph = read_model(build_model(name)).main
    parameters = sum(t.data.size for t in graph.tensors if t.data is not None and t.type is TensorType.FLOAT32)
    work = sum(cost.flops for op, cost in zip(graph.operators, op_costs(graph), strict=True) if _multiplies(op.name))
    assert parameters / 1e6 == pytest.approx(PUBLISHED[name][0], rel=0.02)  # tables of biases are expanded
    assert work / 1e9 == pytest.approx(PUBLISHED[name][1], rel=0.05)


def _multiplies(name: str) -> bool:
    return name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL")


@pytest.mark.parametrize("name", PUBLISHED)
def test_results_depend_on_the_input_and_survive_quantization(name: str) -> None:
    content, rounded = small(name), small(name, quantized=True)
    first, second = values(content, 100), values(content, 101)
    assert relative_l2(first, second) > 0.05, "the output hardly depends on the input"
    # A picture that was measured: deep networks without training take what is outside of the ranges badly.
    assert relative_l2(values(rounded, 0), values(content, 0)) < QUANTIZED
    graph = read_model(rounded).main
    floats = [t.name for t in graph.tensors if t.type is TensorType.FLOAT32]
    assert not floats, "everything is quantized"
    assert len(graph.operators) == len(read_model(content).main.operators)
    if name != "text_encoder":
        assert first.min() >= 0 and first.sum() == pytest.approx(1, abs=1e-4) and first.max() > 2 / SMALL["classes"]


@pytest.mark.parametrize("name", ["mobilenet_v3", "vit_tiny"])
def test_batches_and_half_weights(name: str) -> None:
    one, three = values(small(name), 100), values(small(name, batch=3), 100)
    np.testing.assert_allclose(three, np.repeat(one, 3, axis=0), rtol=1e-4, atol=1e-6)
    half = small(name, precision="float16")
    assert len(half) < 0.75 * len(small(name))
    assert 0 < relative_l2(values(half, 100), one) < 0.02


@pytest.mark.parametrize("name", PUBLISHED)
def test_small_variants_on_the_gpu(name: str) -> None:
    require_gpu()
    content = small(name, precision="float16")
    cpu, gpu = official(content), on_gpu(content)
    assert gpu.delegation_report().fully_delegated
    inputs = random_inputs(cpu)
    for got, want in zip(run(gpu, inputs), run(cpu, inputs), strict=True):
        assert_agrees(got, want, FLOAT32, name)


@pytest.mark.cuda
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.skipif(bool(os.environ.get("LITEGPU_CUDA_EMULATOR")), reason="takes minutes on the emulator")
def test_small_variants_on_cuda(name: str, batch: int, half: bool) -> None:
    from litegpu.gpu.backends.cuda.opening import available

    if available() is not None:
        pytest.skip("no CUDA device")
    content = bytes(with_batch(small(name), batch).content)
    cpu, gpu = official(content), on_gpu(content, backend="cuda", precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    inputs = random_inputs(cpu)
    for got, want in zip(run(gpu, inputs), run(cpu, inputs), strict=True):
        assert_agrees(got, want, FLOAT16 if half else FLOAT32, name)


def test_filters_have_scales_and_moved_values_share_one() -> None:
    graph = read_model(small("densenet121", quantized=True)).main
    for op in graph.operators:
        scales = [graph.tensors[i].quantization for i in (*op.inputs, *op.outputs)]
        if op.name == "CONV_2D":
            weights = graph.tensors[op.inputs[1]]
            assert weights.quantization is not None and len(weights.quantization.scales) == weights.shape[0]
            assert weights.data is not None and np.abs(weights.data).max() == 127
            assert graph.tensors[op.inputs[2]].type is TensorType.INT32
        if op.name in ("CONCATENATION", "AVERAGE_POOL_2D"):
            assert len({float(q.scales[0]) for q in scales if q is not None}) == 1
        if op.name == "SOFTMAX":
            assert scales[-1] is not None and scales[-1].scales[0] == 1 / 256


def test_what_was_not_measured_cannot_be_quantized() -> None:
    builder = ModelBuilder()
    x = builder.input("x", (1, 4))
    builder.output(builder.op("ABS", [x], (1, 4)))
    model: Model = builder.model()
    with pytest.raises(ModelError, match="was not measured"):
        quantize(model, {x: (-1.0, 1.0)})


def test_a_quantized_model_has_no_other_precision() -> None:
    with pytest.raises(OptionError, match="leave out the precision 'float16'"):
        small("resnet50", quantized=True, precision="float16")
