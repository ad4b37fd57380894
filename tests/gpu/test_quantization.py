"""Quantized models cross the bus as they are stored, and quantization costs no kernels between ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.gpu.build import build_program
from litegpu.gpu.graph import DType
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.gpu.program import Program
from litegpu.model import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

INT8, UINT8, INT16 = TensorType.INT8, TensorType.UINT8, TensorType.INT16
RNG = np.random.default_rng(0)
SHAPES = [(), (1,), (5,), (2, 3), (1, 1001), (2, 3, 5, 3), (1, 4, 4, 4), (3, 2, 2, 17)]


def program_of(content: bytes, target: str = "wgsl", half: bool = False) -> Program:
    graph = read_model(content).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    return build_program(lowered.graph, Features(float16=half), target, half=half)


def chain(shape: tuple[int, ...]) -> bytes:
    """float -> int8 -> uint8 -> int16 -> int8 -> float, every step an output too."""
    b = ModelBuilder()
    last = b.input("x", shape)
    for type_, q in (
        (INT8, quantized(0.05, -7)),
        (UINT8, quantized(0.07, 100)),
        (INT16, quantized(0.001, 0)),
        (INT8, quantized(0.03, 20)),
    ):
        last = b.op("QUANTIZE", [last], shape=shape, type=type_, quantization=q, version=2)
        b.output(last)
    b.output(b.op("DEQUANTIZE", [last], shape=shape, version=2))
    return b.build()


@pytest.mark.parametrize("shape", SHAPES)
def test_quantize_requantize_and_dequantize(shape: tuple[int, ...]) -> None:
    require_gpu()
    content = chain(shape)
    x = np.asarray(RNG.standard_normal(shape) * 3, np.float32)
    gpu, cpu = on_gpu(content), official(content)
    assert gpu.delegation_report().fully_delegated
    for got, want in zip(run(gpu, [x]), run(cpu, [x]), strict=True):
        assert got.dtype == want.dtype
        quantum = 0.0301 if want.dtype.kind == "f" else 60 if want.dtype == np.int16 else 1
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=quantum)


@pytest.mark.parametrize("type_", [INT8, UINT8, INT16])
@pytest.mark.parametrize("shape", SHAPES)
def test_stored_numbers_come_back_as_they_went(shape: tuple[int, ...], type_: TensorType) -> None:
    require_gpu()
    b = ModelBuilder()
    q = quantized(0.1, 3 if type_ is not INT16 else 0)
    x = b.input("x", shape, type_, quantization=q)
    new = b.constant(np.array(shape, np.int32))
    b.output(
        b.op("RELU_N1_TO_1", [x], shape=shape, quantization=q), b.op("RESHAPE", [x, new], shape=shape, quantization=q)
    )
    dtype = np.dtype(DType[type_.name].value)
    limits = np.iinfo(dtype)
    given = RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)
    interpreter = on_gpu(b.build())
    clamped, same = run(interpreter, [given])
    np.testing.assert_array_equal(same, given)
    np.testing.assert_array_equal(clamped, np.clip(given, int(q.zero_points[0]) - 10, int(q.zero_points[0]) + 10))


@pytest.mark.parametrize("type_", [INT8, UINT8, INT16])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 5, 3)])
def test_bytes_that_stand_for_themselves(shape: tuple[int, ...], type_: TensorType) -> None:
    """Without quantization parameters they are integers, which movement and CAST take."""
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", shape, type_)
    moved = b.op("TILE", [x, b.constant(np.array([2] * len(shape), np.int32))], tuple(2 * n for n in shape), type=type_)
    real = b.op("CAST", [x], shape, {"out_data_type": "FLOAT32"}, type=TensorType.FLOAT32)
    half = b.op("MUL", [real, b.constant(np.float32(0.5))], shape)
    b.output(moved, half, b.op("CAST", [half], shape, {"out_data_type": type_.name}, type=type_))
    content = b.build()
    limits = np.iinfo(type_.name.lower())
    given = RNG.integers(limits.min, limits.max + 1, shape).astype(limits.dtype)
    gpu = on_gpu(content)
    assert gpu.delegation_report().fully_delegated
    for got, want in zip(run(gpu, [given]), run(official(content), [given]), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("type_", "nbytes"), [(INT8, 1), (UINT8, 1), (INT16, 2)])
def test_one_element_crosses_the_bus_in_its_own_size(type_: TensorType, nbytes: int) -> None:
    b = ModelBuilder()
    q = quantized(0.1, 0)
    x = b.input("x", (2, 3, 5, 3), type_, quantization=q)
    b.output(b.op("TANH", [x], shape=(2, 3, 5, 3), quantization=q))
    program = program_of(b.build())
    for port in (*program.inputs, *program.outputs):
        assert port.dtype is DType[type_.name] and port.nbytes == 90 * nbytes


def network(kind: TensorType, per_channel: bool = True) -> bytes:
    """Convolutions, a residual sum, a concatenation, pooling, a reshape and a classifier."""
    b = ModelBuilder()
    real = kind is TensorType.FLOAT32
    rng = np.random.default_rng(1)

    def q(scale: float, zero: int = 3) -> dict[str, Any]:
        return {} if real else {"quantization": quantized(scale, zero), "type": kind}

    def weights(shape: tuple[int, ...], axis: int) -> int:
        n = shape[axis] if per_channel else 1
        stored = rng.integers(-127, 128, shape).astype(np.int8)
        scales = rng.uniform(0.002, 0.01, n).astype(np.float32)
        if real:
            return b.constant(stored * scales.reshape([-1 if i == axis and n > 1 else 1 for i in range(len(shape))]))
        return b.constant(stored, quantization=quantized(scales, np.zeros(n, np.int64), axis))

    def bias(n: int) -> int:
        return b.constant(np.zeros(n, np.float32 if real else np.int32))

    window = dict(stride_h=1, stride_w=1, padding="SAME", fused_activation_function="RELU6")
    x = b.input("x", (1, 8, 8, 3), **q(0.02, 0))
    y = b.op("CONV_2D", [x, weights((8, 3, 3, 3), 0), bias(8)], (1, 8, 8, 8), window, **q(0.025))
    z = b.op("DEPTHWISE_CONV_2D", [y, weights((1, 3, 3, 8), 3), bias(8)], (1, 8, 8, 8),
             window | {"depth_multiplier": 1}, **q(0.025))  # fmt: skip
    z = b.op("ADD", [z, y], (1, 8, 8, 8), **q(0.04))
    left = b.op("CONV_2D", [z, weights((4, 1, 1, 8), 0), bias(4)], (1, 8, 8, 4), window, **q(0.03))
    right = b.op("CONV_2D", [z, weights((8, 1, 1, 8), 0), bias(8)], (1, 8, 8, 8), window, **q(0.03))
    joined = b.op("CONCATENATION", [left, right], (1, 8, 8, 12), dict(axis=3), **q(0.03))
    whole = dict(filter_height=8, filter_width=8, stride_h=1, stride_w=1, padding="VALID")
    pooled = b.op("AVERAGE_POOL_2D", [joined], (1, 1, 1, 12), whole, **q(0.03))
    flat = b.op("RESHAPE", [pooled, b.constant(np.array([1, 12], np.int32))], (1, 12), **q(0.03))
    logits = b.op("FULLY_CONNECTED", [flat, weights((5, 12), 0), bias(5)], (1, 5), **q(0.05))
    b.output(b.op("SOFTMAX", [logits], (1, 5), dict(beta=1.0), **q(1 / 256, -128)))
    return b.build()


@pytest.mark.parametrize("target", ["wgsl", "cuda"])
def test_quantization_costs_one_kernel_for_the_input(target: str) -> None:
    half = target == "cuda"
    real, whole = (program_of(network(kind), target, half) for kind in (TensorType.FLOAT32, INT8))
    assert len(whole.dispatches) == len(real.dispatches) + 1


def test_an_int8_network_gives_what_the_cpu_gives() -> None:
    require_gpu()
    content = network(INT8)
    x = RNG.integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
    want = run(official(content), [x])[0].astype(int)
    for half in (False, True):
        gpu = on_gpu(content, precision_loss_allowed=half)
        assert gpu.delegation_report().fully_delegated
        assert np.abs(run(gpu, [x])[0].astype(int) - want).max() <= 2


def test_convolutions_give_the_bits_of_xnnpack() -> None:
    """Sums of quanta are exact, in float16 too, and are scaled and rounded as there."""
    require_gpu()
    b = ModelBuilder()
    window = dict(stride_h=1, stride_w=1, padding="SAME", fused_activation_function="RELU6")
    last = b.input("x", (1, 9, 9, 16), INT8, quantization=quantized(0.03, -5))
    for i in range(6):
        shape, axis = ((1, 3, 3, 16), 3) if i % 2 else ((16, 1, 1, 16), 0)
        scales = RNG.uniform(0.002, 0.01, 16)
        w = b.constant(RNG.integers(-127, 128, shape).astype(np.int8), quantization=quantized(scales, [0] * 16, axis))
        unit = quantized((0.03 if i == 0 else 0.0231) * scales, [0] * 16, 0)  # without it XNNPACK refuses the node
        bias = b.constant(RNG.integers(-500, 500, 16).astype(np.int32), quantization=unit)
        options = window | ({"depth_multiplier": 1} if i % 2 else {})
        op = "DEPTHWISE_CONV_2D" if i % 2 else "CONV_2D"
        last = b.op(op, [last, w, bias], (1, 9, 9, 16), options, quantization=quantized(0.0231, -120))
    b.output(last)
    content = b.build()
    x = RNG.integers(-128, 128, (1, 9, 9, 16)).astype(np.int8)
    want = run(official(content, OpResolverType.BUILTIN), [x])[0]
    assert len(np.unique(want)) > 50
    for half in (False, True):
        np.testing.assert_array_equal(run(on_gpu(content, precision_loss_allowed=half), [x])[0], want)


@pytest.mark.parametrize(("kind", "zero"), [(INT8, -128), (INT8, 3), (UINT8, 0), (UINT8, 120), (INT16, 0)])
@pytest.mark.parametrize(
    ("window", "size", "padding", "act"),
    [
        ((3, 3), 9, "VALID", "NONE"),  # an odd number of quanta has no mean halfway between two
        ((7, 7), 7, "VALID", "NONE"),
        ((3, 3), 9, "SAME", "NONE"),  # at corners there are four of them
        ((4, 4), 9, "VALID", "NONE"),
        ((3, 3), 9, "VALID", "RELU6"),
        ((5, 25), 30, "VALID", "NONE"),
    ],
)
def test_averages_are_rounded_as_the_cpu_does_it(
    window: tuple[int, int], size: int, padding: str, act: str, kind: TensorType, zero: int
) -> None:
    require_gpu()
    b = ModelBuilder()
    scale = quantized(0.03, zero)
    x = b.input("x", (2, size, size, 8), kind, quantization=scale)
    sides = [size if padding == "SAME" else size - n + 1 for n in window]
    options = dict(
        stride_h=1, stride_w=1, filter_height=window[0], filter_width=window[1], padding=padding,
        fused_activation_function=act,
    )  # fmt: skip
    shape = (2, *sides, 8)
    b.output(b.op("AVERAGE_POOL_2D", [x], shape, options, quantization=scale, type=kind, version=3))
    content = b.build()
    dtype = np.dtype({INT8: "int8", UINT8: "uint8", INT16: "int16"}[kind])
    limits = np.iinfo(dtype)
    given = RNG.integers(limits.min, limits.max + 1, (2, size, size, 8)).astype(dtype)
    want = run(official(content, OpResolverType.BUILTIN), [given])[0]
    for half in (False, True)[: 1 if kind is INT16 else 2]:  # halves do not have all numbers of 16 bits
        gpu = on_gpu(content, precision_loss_allowed=half, arithmetic="float")
        assert gpu.delegation_report().fully_delegated
        np.testing.assert_array_equal(run(gpu, [given])[0], want)


def test_concatenation_of_several_scales() -> None:
    """Each input is brought to the output's scale where it is computed, before it is joined."""
    b = ModelBuilder()
    parts = []
    for i, (scale, zero) in enumerate(((0.1, 100), (0.05, 3), (0.2, 0))):
        x = b.input(f"x{i}", (1, 3, 2, 4), UINT8, quantization=quantized(scale, zero))
        parts.append(b.op("LOGISTIC", [x], (1, 3, 2, 4), quantization=quantized(1 / 256, 0)))
        parts.append(x)
    y = b.op("CONCATENATION", parts, (1, 3, 2, 24), dict(axis=3), quantization=quantized(0.1, 100))
    b.output(b.op("RESHAPE", [y, b.constant(np.array([6, 24], np.int32))], (6, 24), quantization=quantized(0.1, 100)))
    content = b.build()
    require_gpu()
    inputs = [RNG.integers(0, 256, (1, 3, 2, 4)).astype(np.uint8) for _ in range(3)]
    got, want = (run(interpreter, inputs)[0].astype(int) for interpreter in (on_gpu(content), official(content)))
    assert np.abs(got - want).max() <= 1


def test_partitions_exchange_stored_numbers() -> None:
    """A node that is left to the CPU in the middle reads and writes int8."""
    require_gpu()
    content = network(INT8)
    x = RNG.integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
    split = on_gpu(content, first_delegate_node_index=3)
    assert 0 < split.delegation_report().delegated < 10
    assert np.abs(run(split, [x])[0].astype(int) - run(official(content), [x])[0].astype(int)).max() <= 2


def test_quantization_can_be_refused() -> None:
    graph = read_model(network(INT8)).main
    reasons = {check_operator(graph, o, quantization=False) for o in graph.operators}
    assert None not in reasons and all("quantization_enabled is False" in str(r) for r in reasons)
    require_gpu()
    report = on_gpu(network(INT8), quantization_enabled=False).delegation_report()
    assert report.delegated == 0 and "quantization_enabled is False" in str(report)
    assert on_gpu(network(TensorType.FLOAT32), quantization_enabled=False).delegation_report().fully_delegated


@pytest.mark.parametrize(
    ("whole", "real"),
    [
        ("mobilenet_v1_1.0_224_random_int8.tflite", "mobilenet_v1_1.0_224_random.tflite"),
        ("vww_96_int8.tflite", "vww_96_float.tflite"),
        ("ad01_int8.tflite", "ad01_fp32.tflite"),
    ],
)
def test_models_have_the_kernels_of_their_float_counterparts(whole: str, real: str, models_dir: Path) -> None:
    """And one more, which makes numbers of the input's bytes, but on CUDA the first convolution does that; there all
    convolutions are native, as theirs are."""
    for target in ("wgsl", "cuda"):
        names = []
        for name in (whole, real):
            graph = read_model((models_dir / name).read_bytes()).main
            lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
            cuda = target == "cuda"
            features = Features(float16=cuda, compute_units=132, native="cuda", capability=90 if cuda else 0)
            program = build_program(lowered.graph, features, target, half=cuda)
            names.append(sorted(program.kernels[d.kernel].name for d in program.dispatches))
        assert len(names[0]) == len(names[1]) + (target == "wgsl")
        assert target == "wgsl" or not {"convolution", "convolution_1x1", "depthwise"} & {*names[0], *names[1]}
