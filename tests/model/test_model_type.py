"""The kind of every model at hand, and of built ones that those do not cover."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from litegpu.model import ModelBuilder, ModelKind, TensorType, model_type, quantized, read_model

KINDS = {
    "ad01_fp32": ModelKind.FLOAT32,
    "ad01_int8": ModelKind.FULL_INTEGER,
    "deeplabv3_257_mv_gpu": ModelKind.FLOAT32,
    "face_landmark": ModelKind.FLOAT32,
    "hair_segmentation": ModelKind.FLOAT32,
    "kws_ref_model": ModelKind.FULL_INTEGER,
    "kws_ref_model_float32": ModelKind.DYNAMIC_RANGE,  # whatever its name says
    "mobilenet_v1_0.25_128_quant": ModelKind.QUANTIZATION_AWARE,
    "mobilenet_v1_0.75_192_quant": ModelKind.QUANTIZATION_AWARE,
    "mobilenet_v1_1.0_224_random": ModelKind.FLOAT32,
    "mobilenet_v1_1.0_224_random_dynamic": ModelKind.DYNAMIC_RANGE,
    "mobilenet_v1_1.0_224_random_f16": ModelKind.FLOAT16_WEIGHTS,
    "mobilenet_v1_1.0_224_random_int8": ModelKind.FULL_INTEGER,
    "mobilenet_v2_1.0_224_quant": ModelKind.QUANTIZATION_AWARE,
    "pose_detection": ModelKind.FLOAT32,
    "posenet_mobilenet_v1_100_257_int8": ModelKind.FULL_INTEGER,
    "pretrainedResnet": ModelKind.FLOAT32,
    "pretrainedResnet_quant": ModelKind.FULL_INTEGER,
    "ssd_mobilenet_v1_coco_quant": ModelKind.QUANTIZATION_AWARE,
    "style_transfer_f16_384": ModelKind.FLOAT16_WEIGHTS,
    "style_transfer_quantized_dynamic": ModelKind.DYNAMIC_RANGE,
    "vww_96_float": ModelKind.FLOAT32,
    "vww_96_int8": ModelKind.FULL_INTEGER,
}


@pytest.mark.parametrize("name", KINDS)
def test_kind(models_dir, name):
    found = model_type(read_model(models_dir / f"{name}.tflite"))
    assert found.kind is KINDS[name], str(found)
    assert found.evidence and found.counts


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("mobilenet_v1_1.0_224_random", ()),
        ("mobilenet_v1_1.0_224_random_dynamic", (1002,)),
        ("mobilenet_v1_1.0_224_random_f16", (1001,)),
        ("mobilenet_v1_1.0_224_random_int8", (1003,)),
        ("deeplabv3_257_mv_gpu", None),
    ],
)
def test_converter_modes(models_dir, name, modes):
    assert model_type(read_model(models_dir / f"{name}.tflite")).converter_modes == modes


def test_damaged_converter_note_is_no_error(small_models):
    builder = ModelBuilder()
    builder.output(builder.op("RELU", [builder.input("x", (1, 4))], (1, 4)))
    builder.metadata("CONVERSION_METADATA", b"\x08\0\0\0garbage that is no flatbuffer")
    found = model_type(read_model(builder.build()))
    assert found.kind is ModelKind.FLOAT32 and found.converter_modes is None


def _fully_connected(builder: ModelBuilder, x: int, weights: int, type_: TensorType, scale: float | None) -> int:
    quantization = None if scale is None else quantized(scale)
    return builder.op("FULLY_CONNECTED", [x, weights, None], (1, 4), type=type_, quantization=quantization)


def test_16x8():
    builder = ModelBuilder()
    x = builder.input("x", (1, 4), TensorType.INT16, quantization=quantized(0.1))
    weights = builder.constant(np.eye(4, dtype=np.int8), quantization=quantized(0.1))
    builder.output(_fully_connected(builder, x, weights, TensorType.INT16, 0.1))
    assert model_type(read_model(builder.build())).kind is ModelKind.INTEGER_16X8


def test_mixed_counts_each():
    builder = ModelBuilder()
    x = builder.input("x", (1, 4), TensorType.INT8, quantization=quantized(0.1))
    weights = builder.constant(np.eye(4, dtype=np.int8), quantization=quantized(0.1))
    y = _fully_connected(builder, x, weights, TensorType.INT8, 0.1)
    y = builder.op("DEQUANTIZE", [y], (1, 4))
    builder.output(
        _fully_connected(builder, y, builder.constant(np.eye(4, dtype=np.float32)), TensorType.FLOAT32, None)
    )
    found = model_type(read_model(builder.build()))
    assert found.kind is ModelKind.MIXED and found.counts == {"integer": 1, "float32": 1}


def test_weights_only_quantization_counts_as_dynamic_range():
    builder = ModelBuilder()
    x = builder.input("x", (1, 4))
    weights = builder.constant(np.eye(4, dtype=np.int8), quantization=quantized(0.1))
    weights = builder.op("DEQUANTIZE", [weights], (4, 4))
    builder.output(_fully_connected(builder, x, weights, TensorType.FLOAT32, None))
    assert model_type(read_model(builder.build())).kind is ModelKind.DYNAMIC_RANGE


@pytest.mark.parametrize(
    "type_", [TensorType.INT8, TensorType.UINT8, TensorType.INT4, TensorType.UINT4, TensorType.INT2]
)
def test_weights_of_few_bits_are_dynamic_range(type_):
    builder = ModelBuilder()
    x = builder.input("x", (1, 4))
    weights = builder.constant(np.eye(4, dtype=np.int8), type=type_, quantization=quantized(0.1))
    builder.output(_fully_connected(builder, x, weights, TensorType.FLOAT32, None))
    assert model_type(read_model(builder.build(), verify=False)).kind is ModelKind.DYNAMIC_RANGE


@pytest.mark.parametrize("integers, kind", [(9, ModelKind.FULL_INTEGER), (8, ModelKind.MIXED)])
def test_nine_of_ten_decide(integers, kind):
    builder = ModelBuilder()
    for count, type_, number in ((integers, TensorType.INT8, np.int8), (10 - integers, TensorType.FLOAT32, np.float32)):
        scale = 0.1 if type_ is TensorType.INT8 else None
        x = builder.input(f"x{count}", (1, 4), type_, quantization=quantized(0.1) if scale else None)
        for _ in range(count):
            weights = builder.constant(np.eye(4, dtype=number), quantization=quantized(0.1) if scale else None)
            x = _fully_connected(builder, x, weights, type_, scale)
        builder.output(x)
    assert model_type(read_model(builder.build())).kind is kind


def _noted(*modes: int) -> bytes:
    """A converter's note with these modes."""
    fixed = struct.pack("<I4HiI4HiII", 12, 8, 8, 0, 4, 8, 12, 6, 8, 4, 0, 8, 4, len(modes))
    return fixed + struct.pack(f"<{len(modes)}i", *modes)


@pytest.mark.parametrize("modes, kind", [
    (None, ModelKind.QUANTIZATION_AWARE), ((), ModelKind.QUANTIZATION_AWARE), ((3001,), ModelKind.QUANTIZATION_AWARE),
    ((1003,), ModelKind.FULL_INTEGER), ((3001, 1003), ModelKind.FULL_INTEGER),
    ((1003, 2000), ModelKind.QUANTIZATION_AWARE),
])  # fmt: skip
def test_a_note_outweighs_names(modes, kind):
    """Of a tensor that is named after fake quantization."""
    builder = ModelBuilder()
    x = builder.input("act_quant/FakeQuantWithMinMaxVars", (1, 4), TensorType.INT8, quantization=quantized(0.1))
    weights = builder.constant(np.eye(4, dtype=np.int8), quantization=quantized(0.1))
    builder.output(_fully_connected(builder, x, weights, TensorType.INT8, 0.1))
    if modes is not None:
        builder.metadata("CONVERSION_METADATA", _noted(*modes))
    found = model_type(read_model(builder.build()))
    assert (found.kind, found.converter_modes) == (kind, modes)
