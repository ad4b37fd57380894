"""Constants of every encoding become the numbers that they stand for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, run

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import Unsupported, check_operator, lower_partition
from litegpu.gpu.lower.constants import as_array
from litegpu.model.reader import read_model
from litegpu.model.types import Quantization, Tensor, TensorType
from litegpu.model.writer import ModelBuilder, quantized

RNG = np.random.default_rng(0)


def convolution(weights: np.ndarray, quantization: Quantization | None = None, dequantize: bool = False,
                version: int | None = None, type: TensorType | None = None) -> bytes:  # fmt: skip
    """A 2 x 2 convolution of [2, 5, 4, 3]; `weights` [O, 2, 2, 3]."""
    b = ModelBuilder()
    x = b.input("x", (2, 5, 4, 3))
    w = b.constant(weights, quantization=quantization, type=type)
    if dequantize:
        w = b.op("DEQUANTIZE", [w], shape=weights.shape)
    bias = b.constant(np.arange(weights.shape[0], dtype=np.float32))
    options = dict(stride_h=1, stride_w=1, padding="SAME")
    b.output(b.op("CONV_2D", [x, w, bias], shape=(2, 5, 4, weights.shape[0]), options=options, version=version))
    return b.build()


def evaluated(content: bytes, x: np.ndarray) -> np.ndarray:
    graph = read_model(content).main
    assert {check_operator(graph, o) for o in graph.operators} == {None}
    return evaluate_graph(lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph, [x])[0]


def agrees_with_float(content: bytes, weights: np.ndarray) -> None:
    """The model computes what one with the float weights does on the CPU."""
    x = RNG.standard_normal((2, 5, 4, 3)).astype(np.float32)
    (want,) = run(official(convolution(weights.astype(np.float32))), [x])
    assert_agrees(evaluated(content, x), want, FLOAT32)


def test_float16_weights_through_dequantize() -> None:
    weights = RNG.standard_normal((5, 2, 2, 3)).astype(np.float16)
    agrees_with_float(convolution(weights, dequantize=True), weights)


def test_dequantized_weights_are_constant_even_if_the_dequantize_is_outside_the_partition() -> None:
    weights = RNG.standard_normal((4, 2, 2, 1)).astype(np.float16)
    b = ModelBuilder()
    x = b.input("x", (1, 5, 4, 2))  # two groups: runtime weights would be refused
    w = b.op("DEQUANTIZE", [b.constant(weights)], shape=weights.shape)
    options = dict(stride_h=1, stride_w=1, padding="SAME")
    y = b.op("CONV_2D", [x, w, b.constant(np.zeros(4, np.float32))], shape=(1, 5, 4, 4), options=options)
    b.output(y)
    graph = read_model(b.build()).main
    lowered = lower_partition(graph, graph.operators[1:], (x, w), (y,))
    assert len(lowered.graph.nodes) == 1
    assert all(lowered.graph.values[v].is_constant for v in lowered.graph.nodes[0].reads[1:])


@pytest.mark.parametrize("version", [2, 5])
@pytest.mark.parametrize("channels", [False, True])
def test_8_bit_weights_with_float_activations(version: int, channels: bool) -> None:
    stored = RNG.integers(-127, 128, (5, 2, 2, 3)).astype(np.int8)
    scales = np.linspace(0.01, 0.05, 5, dtype=np.float32) if channels else np.array(0.02, np.float32)
    weights = stored * (scales.reshape(5, 1, 1, 1) if channels else scales)
    agrees_with_float(convolution(stored, quantized(scales), version=version), weights)


def test_uint8_weights_with_a_zero_point() -> None:
    stored = RNG.integers(0, 256, (5, 2, 2, 3)).astype(np.uint8)
    agrees_with_float(convolution(stored, quantized(0.02, 130)), (stored.astype(np.float32) - 130) * np.float32(0.02))


def test_4_bit_weights() -> None:
    stored = RNG.integers(-8, 8, (5, 2, 2, 3)).astype(np.int8)
    content = convolution(stored, quantized(0.1), type=TensorType.INT4)
    agrees_with_float(content, stored * np.float32(0.1))


def test_4_bit_constants_of_odd_size() -> None:
    b = ModelBuilder()
    b.constant(np.array([-8, 7, 3], np.int8), type=TensorType.INT4, quantization=quantized(1.0))
    (tensor,) = b.graph().tensors
    np.testing.assert_array_equal(as_array(tensor), np.array([-8, 7, 3], np.float32))


def constant(array: np.ndarray, type: TensorType, quantization: Quantization | None = None) -> Tensor:
    return Tensor(0, "w", type, array.shape, array.shape, 1, array, quantization)


def test_large_int64_constants_are_refused() -> None:
    with pytest.raises(Unsupported, match="64-bit integers"):
        as_array(constant(np.array([2**40]), TensorType.INT64))


def test_scales_that_do_not_fit_are_refused_also_when_only_checking() -> None:
    wrong = constant(np.zeros((2, 3), np.int8), TensorType.INT8, quantized([1.0, 2.0], dimension=1))
    for decode in (True, False):
        with pytest.raises(Unsupported, match="2 scales along axis 1"):
            as_array(wrong, decode=decode)


def test_blockwise_quantization_and_raw_integers() -> None:
    """Those without quantization parameters are integers, if they fill bytes."""
    blocks = dataclasses.replace(quantized(1.0), block_size=32)
    with pytest.raises(Unsupported, match="blocks"):
        as_array(constant(np.zeros((2, 3), np.int8), TensorType.INT8, blocks))
    with pytest.raises(Unsupported, match="INT4 without quantization"):
        as_array(constant(np.zeros((3,), np.int8), TensorType.INT4))
    given = np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    found = as_array(constant(given, TensorType.INT8))
    assert found.dtype == np.int32 and found.tolist() == given.tolist()


@pytest.mark.parametrize("value, fits", [
    (2**31 - 1, True), (2**31, False), (2**32 + 5, False), (2**62, False), (-(2**31), True), (-(2**31) - 1, False),
])  # fmt: skip
def test_integers_beyond_32_bits_are_refused(value: int, fits: bool) -> None:
    """Both at the ends and in the middle of the others."""
    for at in range(3):
        data = np.array([1, -2, 3], np.int64)
        data[at] = value
        tensor = Tensor(0, "c", TensorType.INT64, (3,), (3,), 0, data=data)
        if fits:
            assert as_array(tensor).tolist() == data.tolist()
        else:
            with pytest.raises(Unsupported, match="64-bit"):
                as_array(tensor)
