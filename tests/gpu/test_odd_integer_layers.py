"""Quantized layers that few converters write, in whole numbers: equal to the official CPU, or left to it."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_cuda, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu import GpuDelegate, Interpreter
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import Tensor, TensorType

EACH = 12


@dataclass(frozen=True)
class Kind:
    """`weights`: INT4, or the kind of the data. `zero`: weights have a zero point. `computed`: they are an input.
    `filters`: they may have a scale for each filter. `bias`: its type, None for none."""

    data: TensorType = TensorType.INT8
    weights: TensorType | None = None
    zero: bool = False
    computed: bool = False
    filters: bool = True
    bias: type[np.integer[Any]] | None = np.int32


INT4 = Kind(weights=TensorType.INT4)
COMPUTED = Kind(computed=True, filters=False)
WORDS = Kind(TensorType.INT16, TensorType.INT8, bias=np.int64)
EQUAL = {
    ("CONV_2D", INT4), ("CONV_2D", dataclasses.replace(INT4, filters=False)), ("FULLY_CONNECTED", INT4),
    ("FULLY_CONNECTED", Kind(zero=True, filters=False)), ("FULLY_CONNECTED", COMPUTED),
    ("FULLY_CONNECTED", dataclasses.replace(COMPUTED, bias=None)),
    ("FULLY_CONNECTED", dataclasses.replace(COMPUTED, data=TensorType.UINT8)),
    ("CONV_2D", WORDS), ("DEPTHWISE_CONV_2D", WORDS), ("FULLY_CONNECTED", WORDS),
}  # fmt: skip
LEFT = {
    ("DEPTHWISE_CONV_2D", INT4), ("CONV_2D", COMPUTED), ("FULLY_CONNECTED", Kind(bias=np.int64)),
    ("CONV_2D", Kind(TensorType.INT16, TensorType.INT8)), ("FULLY_CONNECTED", dataclasses.replace(WORDS, bias=None)),
    ("DEPTHWISE_CONV_2D", Kind(TensorType.INT16, TensorType.INT4, bias=np.int64)),
}  # fmt: skip


def name(case: Any) -> str:
    return case if isinstance(case, str) else " ".join(f"{k}={v}" for k, v in vars(case).items())


class Layer:
    """A model of one layer, and its inputs."""

    def __init__(self, op: str, kind: Kind, seed: int) -> None:
        r = random.Random(f"{op} {kind} {seed}")
        n, m = np.random.default_rng(r.getrandbits(32)), ModelBuilder()
        self.builder, self.inputs = m, [np.zeros(0)]
        dtype = np.dtype(kind.data.name.lower())
        limits = np.iinfo(dtype)
        wide = kind.data is TensorType.INT16
        scale, zero = math.exp(r.uniform(-8, 1)), 0 if wide else r.randint(limits.min, limits.max)
        channels, units, side, k = (
            r.choice((1, 4, 7, 16, 20)),
            r.choice((1, 3, 8, 17)),
            r.randint(3, 6),
            r.choice((1, 3)),
        )
        options: dict[str, Any] = {"fused_activation_function": r.choice((0, 0, 1, 3))}
        shape: tuple[int, ...] = (1, side, side, channels)
        weights: tuple[int, ...] = (units, k, k, channels)
        axis, terms = 0, k * k * channels
        if op == "FULLY_CONNECTED":
            channels = r.choice((4, 7, 64, 300))
            shape, weights, terms = (r.choice((1, 3)), channels), (units, channels), channels
        elif op == "DEPTHWISE_CONV_2D":
            units, weights, axis, terms = channels, (1, k, k, channels), 3, k * k
            options["depth_multiplier"] = 1
        if op != "FULLY_CONNECTED":
            options |= dict(padding=0, stride_h=1, stride_w=1, dilation_h_factor=1, dilation_w_factor=1)
        self.inputs[0] = n.integers(limits.min, limits.max + 1, shape).astype(dtype)
        operands = [m.input("x", shape, kind.data, quantization=quantized(scale, zero))]
        each = kind.filters and kind.data is not TensorType.UINT8 and r.random() < 0.7
        scales = np.exp(n.uniform(-7, -3, units if each else 1)).astype(np.float32)
        stored = kind.data if kind.weights is None else kind.weights
        q = quantized(scales, r.randint(-40, 40) if kind.zero else 0, axis if each else 0)
        operands.append(self._weights(n, kind, stored, weights, q))
        spread = 4 if stored is TensorType.INT4 else 73
        size = limits.max * 0.57 * spread * math.sqrt(terms)
        if kind.bias is not None:
            bound = int(size * r.choice((0.1, 1, 2)))
            bias = n.integers(-bound, bound + 1, units).astype(kind.bias)
            sums = np.float32(scale) * np.broadcast_to(scales, units if each else 1)
            operands.append(m.constant(bias, "b", quantization=quantized(sums.astype(np.float32), 0, 0)))
        made = scale * float(scales.mean()) * size / (limits.max * r.choice((0.15, 0.3, 0.6)))
        q = quantized(made, 0 if wide else r.randint(limits.min, limits.max))
        y = m.tensor((*shape[:-1], units), kind.data, "y", quantization=q)
        m.node(op, operands, [y], options)
        m.output(y)
        self.content = m.build()

    def _weights(self, n: np.random.Generator, kind: Kind, stored: TensorType, shape: tuple[int, ...], q: Any) -> int:
        if stored is TensorType.INT4:
            return packed(self.builder, n.integers(-7, 8, shape), q)
        limits = np.iinfo(stored.name.lower())
        w = n.integers(limits.min + (stored is TensorType.INT8), limits.max + 1, shape).astype(stored.name.lower())
        if not kind.computed:
            return self.builder.constant(w, "w", quantization=q)
        self.inputs.append(w)
        return self.builder.input("w", shape, stored, quantization=q)


def packed(builder: ModelBuilder, w: np.ndarray, q: Any) -> int:
    """Constant weights of four bits, two to a byte."""
    flat = np.append(w.reshape(-1), np.zeros(w.size % 2, w.dtype))
    number = builder.constant(((flat[::2] & 15) | ((flat[1::2] & 15) << 4)).astype(np.uint8).view(np.int8), "w")
    tensor: Tensor = builder._tensors[number]
    made = dataclasses.replace(
        tensor, type=TensorType.INT4, shape=w.shape, shape_signature=w.shape, quantization=q
    )  # fmt: skip
    builder._tensors[number] = made
    return number


@pytest.mark.parametrize(("op", "kind"), sorted(EQUAL, key=str), ids=name)
def test_equal_in_numpy(op: str, kind: Kind) -> None:
    for seed in range(EACH):
        layer = Layer(op, kind, seed)
        graph = read_model(layer.content).main
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
        _compare(layer, evaluate_graph(lowered.graph, layer.inputs), seed)


@pytest.mark.parametrize(("op", "kind"), sorted(EQUAL, key=str), ids=name)
def test_equal_on_gpu(op: str, kind: Kind) -> None:
    require_gpu()
    for seed in range(EACH, EACH + 2):
        layer = Layer(op, kind, seed)
        gpu = on_gpu(layer.content, arithmetic="integer")
        assert gpu.delegation_report().fully_delegated
        _compare(layer, run(gpu, layer.inputs), seed)


@pytest.mark.cuda
@pytest.mark.parametrize(("op", "kind"), sorted(EQUAL, key=str), ids=name)
def test_equal_on_cuda(op: str, kind: Kind) -> None:
    require_cuda()
    for seed in range(EACH, EACH + 2):
        layer = Layer(op, kind, seed)
        gpu = on_gpu(layer.content, arithmetic="integer", backend="cuda", precision_loss_allowed=True)
        _compare(layer, run(gpu, layer.inputs), seed)


@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("scales", [(0.01, 0.02), (0.01, 0.01), (3.0, 0.001)])
def test_weights_of_four_bits_on_a_device_with_eight_buffers(scales: tuple[float, float], looked_up: bool) -> None:
    """Shifts to the right, the same for all, and some to the left; and perhaps a table besides."""
    n, m = np.random.default_rng(0), ModelBuilder()
    x = m.input("x", (1, 5, 4, 4), TensorType.INT8, quantization=quantized(0.05, 3))
    each = quantized(np.linspace(*scales, 4), np.zeros(4, int))
    w = m.constant(n.integers(-7, 8, (4, 3, 3, 4)).astype(np.int8), "w", quantization=each, type=TensorType.INT4)
    bias = quantized(np.linspace(*scales, 4) * 0.05, np.zeros(4, int))
    b = m.constant(n.integers(-99, 99, 4).astype(np.int32), "b", quantization=bias)
    y = m.tensor((1, 5, 4, 4), TensorType.INT8, "y", quantization=quantized(0.07, -5))
    m.node("CONV_2D", [x, w, b], [y], dict(stride_h=1, stride_w=1, padding="SAME"))
    if looked_up:
        z = m.tensor((1, 5, 4, 4), TensorType.INT8, "z", quantization=quantized(1 / 256, -128))
        m.node("LOGISTIC", [y], [z])
        y = z
    m.output(y)
    content, numbers = m.build(), n.integers(-128, 128, (1, 5, 4, 4)).astype(np.int8)
    delegate = GpuDelegate(backend="reference", arithmetic="integer")
    gpu = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict")
    gpu.allocate_tensors()
    assert gpu.delegation_report().fully_delegated
    want = run(official(content, OpResolverType.BUILTIN), [numbers])[0]
    np.testing.assert_array_equal(run(gpu, [numbers])[0], want)


def test_sums_of_words_that_may_not_fit_are_left() -> None:
    m = ModelBuilder()
    x = m.input("x", (1, 1000), TensorType.INT16, quantization=quantized(0.001, 0))
    w = m.constant(np.full((2, 1000), 127, np.int8), "w", quantization=quantized(0.01, 0))
    b = m.constant(np.zeros(2, np.int64), "b", quantization=quantized(1e-5, 0))
    y = m.tensor((1, 2), TensorType.INT16, "y", quantization=quantized(0.1, 0))
    m.node("FULLY_CONNECTED", [x, w, b], [y], {})
    m.output(y)
    graph = read_model(m.build()).main
    assert "beyond 32 bits" in str(check_operator(graph, graph.operators[0], integer=True))
    assert check_operator(graph, graph.operators[0]) is None


@pytest.mark.parametrize(("op", "kind"), sorted(LEFT, key=str), ids=name)
def test_left_to_the_cpu(op: str, kind: Kind) -> None:
    graph = read_model(Layer(op, kind, 0).content).main
    assert check_operator(graph, graph.operators[0], integer=True) is not None


def _compare(layer: Layer, got: list[np.ndarray], seed: int) -> None:
    want = run(official(layer.content, OpResolverType.BUILTIN), layer.inputs)[0]
    np.testing.assert_array_equal(got[0].reshape(want.shape), want, err_msg=f"seed {seed}")


@pytest.mark.parametrize("kind", [TensorType.UINT8, TensorType.INT8])
def test_scales_are_multiplied_as_the_reference_kernels_do_it(kind: TensorType) -> None:
    """Those of unsigned bytes as floats: sums next to halves show it."""
    given, of_weights, made = (float(np.float32(s)) for s in (0.0235284827, 0.00683766231, 900.0))
    dtype = np.dtype(kind.name.lower())
    low = int(np.iinfo(dtype).min)
    factors = given * of_weights / made, float(np.float32(given * of_weights)) / made
    assert factors[0] != factors[1]
    halves = np.arange(256)[:, None, None] - 0.5
    sums = np.rint(halves / np.array(factors)[:, None] + np.arange(-2, 3)).reshape(-1).astype(np.int32)
    m = ModelBuilder()
    x = m.input("x", (1, 1, 1, 1), kind, quantization=quantized(given, low))
    w = m.constant(np.full((sums.size, 1, 1, 1), 1, dtype), "w", quantization=quantized(of_weights, 0))
    b = m.constant(sums, "b", quantization=quantized(float(np.float32(given * of_weights)), 0))
    y = m.tensor((1, 1, 1, sums.size), kind, "y", quantization=quantized(made, low))
    m.node("CONV_2D", [x, w, b], [y], dict(stride_h=1, stride_w=1, padding="VALID"))
    m.output(y)
    content, data = m.build(), np.full((1, 1, 1, 1), low, dtype)
    (want,) = run(official(content, OpResolverType.BUILTIN_REF), [data])
    main = read_model(content).main
    plain = lower_partition(main, main.operators, main.inputs, main.outputs, integer=True, xnnpack=False).graph
    np.testing.assert_array_equal(evaluate_graph(plain, [data])[0].reshape(want.shape), want)


@pytest.mark.parametrize("kind", [TensorType.UINT8, TensorType.INT8])
@pytest.mark.parametrize("filters", [True, False])
def test_dense_layers_are_rounded_as_the_reference_kernel_does_it(kind: TensorType, filters: bool) -> None:
    """Once, by multipliers of 31 bits: of sums next to halves, twice, or by floats, some results are others."""
    if filters and kind is TensorType.UINT8:
        pytest.skip("has one scale")
    rng, dtype = np.random.default_rng(1), np.dtype(kind.name.lower())
    limits = np.iinfo(dtype)
    for given in (0.0137, 0.0191, 0.0233, 0.0377):
        m = ModelBuilder()
        x = m.input("x", (128, 256), kind, quantization=quantized(given, limits.min + 133))
        scales = rng.uniform(0.01, 0.02, 256 if filters else 1).astype(np.float32)
        weights = rng.integers(limits.min + 1, limits.max + 1, (256, 256)).astype(dtype)
        w = m.constant(weights, "w", quantization=quantized(scales, 0 if kind is TensorType.INT8 else 128))
        y = m.tensor((128, 256), kind, "y", quantization=quantized(1600 * given * float(scales[0]), limits.min + 128))
        m.node("FULLY_CONNECTED", [x, w, None], [y])
        m.output(y)
        content, data = m.build(), rng.integers(limits.min, limits.max + 1, (128, 256)).astype(dtype)
        (want,) = run(official(content, OpResolverType.BUILTIN_REF), [data])
        main = read_model(content).main
        plain = lower_partition(main, main.operators, main.inputs, main.outputs, integer=True, xnnpack=False).graph
        np.testing.assert_array_equal(evaluate_graph(plain, [data])[0].reshape(want.shape), want)
