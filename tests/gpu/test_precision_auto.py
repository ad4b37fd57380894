"""precision="auto": float16 but for what that would spoil."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT16, assert_agrees, official, on_gpu, relative_l2, require_gpu, run

import litegpu
from litegpu import GpuDelegate, OptionError
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.precision import values_in_float32
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder

SIDE = 12


def constant(b: ModelBuilder, value: float) -> int:
    return b.constant(np.array(value, np.float32))


def conv(b: ModelBuilder, x: int, shape, outputs: int, seed: int, bias: float = 0.0) -> int:
    rng = np.random.default_rng(seed)
    weights = b.constant((rng.standard_normal((outputs, 1, 1, shape[3])) / np.sqrt(shape[3])).astype(np.float32))
    options = {"stride_w": 1, "stride_h": 1, "padding": 0, "fused_activation_function": "NONE"}
    biases = b.constant(np.full(outputs, bias, np.float32))
    return b.op("CONV_2D", [x, weights, biases], (*shape[:3], outputs), options)


def deep_sums() -> bytes:
    """Doubled thirty times, then made small again; between them pools of one pixel, which no kernel joins."""
    b = ModelBuilder()
    shape = (1, SIDE, SIDE, 8)
    first = y = conv(b, b.input("x", shape), shape, 8, 0)
    pool = {"stride_w": 1, "stride_h": 1, "padding": 0, "filter_width": 1, "filter_height": 1}
    for i in range(30):
        y = b.op("ADD", [y, y], shape)
        if i % 10 == 9:
            y = b.op("MAX_POOL_2D", [y], shape, pool)
    y = b.op("MUL", [y, constant(b, 2.0**-30)], shape)
    b.output(b.op("ADD", [y, first], shape))
    return b.build()


def instance_norm(offset: float = 300.0) -> bytes:
    """Of an image whose mean is far larger than its deviation."""
    b = ModelBuilder()
    shape, row = (1, 40, 40, 6), (1, 1, 1, 6)
    y = conv(b, b.input("x", shape), shape, 6, 1, bias=offset)
    axes = b.constant(np.array([1, 2], np.int32))
    mean = b.op("MEAN", [y, axes], row, {"keep_dims": True})
    squares = b.op("SQUARED_DIFFERENCE", [y, mean], shape)
    variance = b.op("MEAN", [squares, axes], row, {"keep_dims": True})
    scale = b.op("RSQRT", [b.op("ADD", [variance, constant(b, 1e-5)], row)], row)
    centred = b.op("SUB", [y, mean], shape)
    b.output(conv(b, b.op("MUL", [centred, scale], shape), shape, 4, 2))
    return b.build()


def attention() -> bytes:
    """Softmax of products in the hundreds that are close to each other."""
    b = ModelBuilder()
    shape = (1, 20, 16)
    x = b.input("x", shape)
    q = b.op("MUL", [x, constant(b, 6.0)], shape)
    k = b.op("ADD", [b.op("MUL", [x, constant(b, 0.02)], shape), constant(b, 9.0)], shape)
    logits = b.op("BATCH_MATMUL", [q, k], (1, 20, 20), {"adj_x": False, "adj_y": True})
    weights = b.op("SOFTMAX", [logits], (1, 20, 20), {"beta": 1.0})
    b.output(b.op("BATCH_MATMUL", [weights, x], shape, {"adj_x": False, "adj_y": False}))
    return b.build()


NETWORKS = {"deep sums": deep_sums, "instance norm": instance_norm, "attention": attention}


def needs_float16() -> None:
    require_gpu()
    if not GpuDelegate().open_device().features.float16:
        pytest.skip("the device has no 16-bit floats")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_float16_spoils(name: str) -> None:
    needs_float16()
    content = NETWORKS[name]()
    reference = official(content)
    x = [np.random.default_rng(0).standard_normal(d["shape"]).astype(np.float32) for d in reference.get_input_details()]
    want = run(reference, x)[0]
    with np.errstate(all="ignore"):
        plain = run(on_gpu(content, precision="float16"), x)[0]
        assert not relative_l2(plain, want) <= FLOAT16  # NaN included
    one = on_gpu(content, precision="auto")
    assert_agrees(run(one, x)[0], want, FLOAT16)
    assert one.delegation_report().notes and all("float32" in note for note in one.delegation_report().notes)
    assert one.delegation_report().as_dict()["notes"]


def test_an_ordinary_network_stays_in_float16(models_dir: Path) -> None:
    limits = {
        "mobilenet_v1_1.0_224_random": 1, "deeplabv3_257_mv_gpu": 0, "pose_detection": 0, "face_landmark": 0,
        "hair_segmentation": 4, "vww_96_float": 1, "pretrainedResnet": 1, "kws_ref_model_float32": 1, "ad01_fp32": 0,
    }  # fmt: skip
    for name, most in limits.items():
        model = read_model(models_dir / f"{name}.tflite").main
        graph = lower_partition(model, model.operators, model.inputs, model.outputs).graph
        kept = values_in_float32(optimise(graph, Features(float16=True), False))
        assert len(kept) <= most, (name, kept)


def network_of(factor: float) -> bytes:
    b = ModelBuilder()
    shape = (1, 6, 6, 4)
    y = conv(b, b.input("x", shape), shape, 4, 0)
    y = conv(b, b.op("MUL", [y, constant(b, factor)], shape), shape, 4, 1)
    b.output(b.op("MUL", [y, constant(b, 1 / factor)], shape))
    return b.build()


@pytest.mark.parametrize("factor", [5e4, 1e-7])
def test_calibration_finds_what_is_too_large_or_too_small(factor: float) -> None:
    needs_float16()
    content = network_of(factor)
    x = [np.random.default_rng(0).standard_normal((1, 6, 6, 4)).astype(np.float32)]
    want = run(official(content), x)[0]
    one = on_gpu(content, precision="auto", calibration=[x])
    assert_agrees(run(one, x)[0], want, FLOAT16)
    assert any("calibration" in note for note in one.delegation_report().notes)


def chain(*scales: float, side: int = 3) -> bytes:
    """Convolutions with weights of these scales."""
    b = ModelBuilder()
    shape = (1, 10, 10, 8)
    y = b.input("x", shape)
    for seed, scale in enumerate(scales):
        weights = np.random.default_rng(seed).standard_normal((8, side, side, 8)) * scale
        options = {"stride_w": 1, "stride_h": 1, "padding": 0, "fused_activation_function": "RELU"}
        y = b.op(
            "CONV_2D", [y, b.constant(weights.astype(np.float32)), b.constant(np.zeros(8, np.float32))], shape, options
        )
    b.output(y)
    return b.build()


@pytest.mark.parametrize("small", [False, True], ids=["", "small calibration"])
@pytest.mark.parametrize(
    "scales",
    [(100, 100, 1e-5), (30, 30, 1e-3), (3e4, 1e-5), (1e-4, 1e-4, 1e5), (1e-6, 1e4), (5, 5, 5, 5, 5, 5, 1e-6)],
    ids=str,
)
def test_weights_tell_what_overflows(scales: tuple[float, ...], small: bool) -> None:
    """Without calibration, and with a sample that stays too small for it to show."""
    needs_float16()
    content = chain(*scales)
    x = [np.random.default_rng(0).standard_normal((1, 10, 10, 8)).astype(np.float32)]
    options = {"calibration": [[x[0] * np.float32(1e-3)]]} if small else {}
    one = on_gpu(content, precision="auto", **options)
    assert_agrees(run(one, x)[0], run(official(content), x)[0], FLOAT16)
    assert any("stays in float32" in note for note in one.delegation_report().notes)


def test_weights_that_are_too_small_for_float16() -> None:
    needs_float16()
    content = chain(1e-7, side=1)
    x = [np.random.default_rng(0).standard_normal((1, 10, 10, 8)).astype(np.float32)]
    one = on_gpu(content, precision="auto")
    assert_agrees(run(one, x)[0], run(official(content), x)[0], FLOAT16)
    assert any("its weights are at most" in note for note in one.delegation_report().notes)


def test_usual_weights_keep_nothing() -> None:
    model = read_model(chain(*(0.15,) * 12)).main
    graph = lower_partition(model, model.operators, model.inputs, model.outputs).graph
    assert not values_in_float32(optimise(graph, Features(float16=True), False))


def test_samples_must_fit() -> None:
    require_gpu()
    content = network_of(2.0)
    wrong: list[list[list[np.ndarray]]] = [[[]], [[np.zeros((1, 2), np.float32)]]]
    for samples in wrong:
        delegate = GpuDelegate(precision="auto", calibration=samples)
        one = litegpu.Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict")
        with pytest.raises(litegpu.DelegateError, match="calibration"):
            one.allocate_tensors()
    with pytest.raises(OptionError, match="calibration is for precision='auto'"):
        GpuDelegate(calibration=[[]])
    with pytest.raises(OptionError, match="precision 'half' is unknown"):
        GpuDelegate(precision="half")
