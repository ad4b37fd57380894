"""Random quantized layers in whole numbers, with odd scales, zero points and sizes: equal to the official CPU."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_cuda, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import lower_partition
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType

KINDS = (TensorType.INT8, TensorType.UINT8)
OPS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
EACH, EACH_FULL = 12, 400


class Layer:
    """A model of one layer, and an input for it."""

    def __init__(self, op: str, kind: TensorType, seed: int) -> None:
        self.r, self.n = random.Random(f"{op} {kind} {seed}"), np.random.default_rng(seed)
        self.op, self.kind, self.m = op, kind, ModelBuilder()
        self.dtype: Any = np.int8 if kind is TensorType.INT8 else np.uint8
        getattr(self, op.lower())()
        self.content = self.m.build()

    def conv_2d(self) -> None:
        r = self.r
        inputs, outputs = r.choice((1, 3, 4, 5, 16, 24, 33)), r.choice((1, 3, 8, 17, 32))
        window, stride, dilation = self.window()
        x = self.data((r.choice((1, 1, 3)), self.size(window, dilation), self.size(window, dilation), inputs))
        options = self.placed(stride, dilation)
        self.layer(x, (outputs, *window, inputs), 0, (1, 2, 3), options, self.out(x, window, stride, dilation, outputs))

    def depthwise_conv_2d(self) -> None:
        r = self.r
        inputs, multiplier = r.choice((1, 3, 4, 8, 20)), r.choice((1, 1, 1, 2, 3))
        window, stride, dilation = self.window()
        stride = (stride[0], stride[0])
        x = self.data((r.choice((1, 1, 3)), self.size(window, dilation), self.size(window, dilation), inputs))
        outputs = inputs * multiplier
        options = {**self.placed(stride, dilation), "depth_multiplier": multiplier}
        self.layer(x, (1, *window, outputs), 3, (1, 2), options, self.out(x, window, stride, dilation, outputs))

    def fully_connected(self) -> None:
        r = self.r
        inputs, outputs, batch = r.choice((1, 7, 64, 1000, 5000)), r.choice((1, 5, 16, 100)), r.choice((1, 1, 4))
        x = self.data((batch, inputs))
        self.layer(x, (outputs, inputs), 0, (1,), {}, (batch, outputs))

    def transpose_conv(self) -> None:
        r = self.r
        inputs, outputs, stride = r.choice((1, 3, 8, 17)), r.choice((1, 3, 8, 17)), r.choice((1, 2, 3))
        window, size = (r.choice((stride, stride + 1, 4)),) * 2, r.choice((1, 3, 6))
        window = (max(window[0], stride),) * 2
        same = r.random() < 0.5
        reach = size * stride if same else (size - 1) * stride + window[0]
        x = self.data((1, size, size, inputs))
        shape = (1, reach, reach, outputs)
        sizes = self.m.constant(np.array(shape, np.int32), "sizes")
        options = {"padding": 0 if same else 1, "stride_h": stride, "stride_w": stride}
        self.layer(x, (outputs, *window, inputs), 0, (1, 2, 3), options, shape, before=[sizes])

    # ------------------------------------------------------------------------------------------------- parts

    def window(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        r = self.r
        window = r.choice(((1, 1), (1, 1), (3, 3), (3, 3), (1, 3), (5, 2)))
        dilation = r.choice((1, 1, 2))
        stride = (1, 1) if dilation > 1 else (r.choice((1, 2, 3)), r.choice((1, 2)))
        return window, stride, (dilation, dilation)

    def size(self, window: tuple[int, int], dilation: tuple[int, int]) -> int:
        return (max(window) - 1) * dilation[0] + self.r.randint(1, 9)

    def placed(self, stride: tuple[int, int], dilation: tuple[int, int]) -> dict[str, int]:
        self.padding = self.r.choice((0, 1))
        return {
            "padding": self.padding, "stride_h": stride[0], "stride_w": stride[1],
            "dilation_h_factor": dilation[0], "dilation_w_factor": dilation[1],
        }  # fmt: skip

    def out(self, x: int, window: Any, stride: Any, dilation: Any, outputs: int) -> tuple[int, ...]:
        b, *size, _ = self.inputs.shape
        reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
        same = self.padding == 0
        found = [-(-n // s) if same else (n - k) // s + 1 for n, k, s in zip(size, reach, stride, strict=True)]
        return (b, *found, outputs)

    def zero(self) -> int:
        low = -128 if self.kind is TensorType.INT8 else 0
        return low + self.r.choice((0, 255, 128, self.r.randint(0, 255), self.r.randint(0, 255)))

    def data(self, shape: tuple[int, ...]) -> int:
        limits = np.iinfo(self.dtype)
        self.inputs = self.n.integers(limits.min, limits.max + 1, shape).astype(self.dtype)
        self.scale = math.exp(self.r.uniform(-8, 2))
        return self.m.input("x", shape, self.kind, quantization=quantized(self.scale, self.zero()))

    def layer(
        self, x: int, weights: tuple[int, ...], axis: int, summed: tuple[int, ...], options: dict[str, Any],
        shape: tuple[int, ...], before: list[int] | None = None,
    ) -> None:  # fmt: skip
        r, n, m = self.r, self.n, self.m
        outputs, terms = weights[axis], math.prod(weights[a] for a in summed)
        if self.kind is TensorType.INT8:
            per_channel = r.random() < 0.7
            scales = np.exp(n.uniform(-7, -3, outputs if per_channel else 1)).astype(np.float32)
            w = n.integers(-127, 128, weights).astype(np.int8)
            q = quantized(scales, 0, axis if per_channel else 0)
        else:
            scales, zero = np.exp(n.uniform(-7, -3, 1)).astype(np.float32), r.choice((0, 128, r.randint(0, 255), 255))
            w = n.integers(0, 256, weights).astype(np.uint8)
            q = quantized(scales, zero)
        size = 73 * 73 * math.sqrt(terms)
        if r.random() < 0.2:  # sums beyond 2**24
            w[...] = np.where(n.random(weights) < 0.95, np.iinfo(self.dtype).max, w)
            size = 127 * 127 * terms
        operands = [m.constant(w, "w", quantization=q), x] if before else [x, m.constant(w, "w", quantization=q)]
        if r.random() < 0.7 or "CONV_2D" in self.op:
            bound = min(int(size * r.choice((0.1, 1, 100))), 2**31 - 1)
            bias = n.integers(-bound, bound + 1, outputs).astype(np.int32)
            s = np.float32(self.scale) * np.broadcast_to(scales, outputs if scales.size > 1 else 1)
            operands.append(m.constant(bias, "b", quantization=quantized(s, 0, 0)))
        made = self.scale * float(scales.mean()) * size / r.choice((10, 40, 100))
        y = m.tensor(shape, self.kind, "y", quantization=quantized(made, self.zero()))
        code = 0 if self.op == "TRANSPOSE_CONV" else r.choice((0, 0, 1, 2, 3))
        m.node(self.op, [*(before or []), *operands], [y], {**options, "fused_activation_function": code})
        m.output(y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_in_numpy(op: str, kind: TensorType) -> None:
    for seed in range(EACH):
        layer = Layer(op, kind, seed)
        graph = read_model(layer.content).main
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
        _compare(layer, evaluate_graph(lowered.graph, [layer.inputs]), seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_on_gpu(op: str, kind: TensorType) -> None:
    _sweep(op, kind, range(EACH // 2))


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_on_cuda(op: str, kind: TensorType) -> None:
    require_cuda()
    _sweep(op, kind, range(EACH // 2), backend="cuda", precision_loss_allowed=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_full(op: str, kind: TensorType) -> None:
    _sweep(op, kind, range(EACH, EACH_FULL))


@pytest.mark.parametrize("zeros", [(0, 0), (3, 5), (100, 77)])
@pytest.mark.parametrize("count", [6, 14, 28])
@pytest.mark.parametrize("op", ["MEAN", "SUM"])
def test_halves_of_means_and_sums(op: str, count: int, zeros: tuple[int, int]) -> None:
    """Most of the results lie between two quanta; by how the factor is rounded, or beside it."""
    require_gpu()
    m = ModelBuilder()
    x = m.input("x", (500, count, 1, 8), TensorType.INT8, quantization=quantized(0.1, zeros[0]))
    made = quantized(0.1 if op == "MEAN" else 0.2, zeros[1])
    y = m.tensor((500, 8), TensorType.INT8, "y", quantization=made)
    m.node(op, [x, m.constant(np.array([1, 2], np.int32), "axes")], [y], {"keep_dims": False})
    m.output(y)
    content = m.build()
    near = zeros[0] + np.random.default_rng(count).integers(-8, 9, (500, count, 1, 8))
    given = [np.clip(near, -128, 127).astype(np.int8)]
    want = run(official(content, OpResolverType.BUILTIN), given)[0]
    np.testing.assert_array_equal(run(on_gpu(content, arithmetic="integer"), given)[0], want)


def _sweep(op: str, kind: TensorType, seeds: range, **options: Any) -> None:
    if not options:
        require_gpu()
    for seed in seeds:
        layer = Layer(op, kind, seed)
        gpu = on_gpu(layer.content, arithmetic="integer", **options)
        assert gpu.delegation_report().fully_delegated
        _compare(layer, run(gpu, [layer.inputs]), seed)


def _compare(layer: Layer, got: list[np.ndarray], seed: int) -> None:
    want = run(official(layer.content, OpResolverType.BUILTIN), [layer.inputs])[0]
    np.testing.assert_array_equal(got[0].reshape(want.shape), want, err_msg=f"{layer.op} {layer.kind} (seed {seed})")
