"""Small networks of many families with random weights, for judging which device is chosen: none of them was used to fit
what `litegpu.choosing.predict` expects. Each has a batch of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import Quantization, TensorType


@dataclass(frozen=True)
class Value:
    """A tensor and its shape."""

    tensor: int
    shape: tuple[int, ...]


class Layers:
    """Builds a network layer by layer. `int8`: activations and weights are stored in 8 bits."""

    def __init__(self, int8: bool = False) -> None:
        self.builder = ModelBuilder()
        self.random = np.random.default_rng(7)
        self.type = TensorType.INT8 if int8 else TensorType.FLOAT32

    @property
    def _scale(self) -> Quantization | None:
        return quantized(0.05) if self.type == TensorType.INT8 else None

    def input(self, *shape: int) -> Value:
        return Value(self.builder.input("x", shape, self.type, quantization=self._scale), shape)

    def done(self, *values: Value) -> bytes:
        self.builder.output(*(value.tensor for value in values))
        return self.builder.build()

    def op(
        self, name: str, inputs: Sequence[Value | int], shape: Sequence[int], options: dict[str, Any] | None = None
    ) -> Value:
        operands = [one.tensor if isinstance(one, Value) else one for one in inputs]
        tensor = self.builder.op(name, operands, tuple(shape), options, type=self.type, quantization=self._scale)
        return Value(tensor, tuple(shape))

    def weights(self, *shape: int) -> int:
        values = self.random.standard_normal(shape) / math.sqrt(max(1, math.prod(shape[1:])))
        if self.type == TensorType.FLOAT32:
            return self.builder.constant(values.astype(np.float32))
        stored = np.clip(values * 100, -127, 127).astype(np.int8)
        return self.builder.constant(stored, quantization=quantized(0.01))

    def bias(self, count: int) -> int:
        if self.type == TensorType.FLOAT32:
            return self.builder.constant(np.zeros(count, np.float32))
        return self.builder.constant(np.zeros(count, np.int32), quantization=quantized(0.05 * 0.01))

    def sizes(self, *values: int) -> int:
        return self.builder.constant(np.array(values, np.int32))

    def convolution(
        self, x: Value, filters: int, kernel: tuple[int, int] | int = 3, stride: int = 1, activation: str = "RELU"
    ) -> Value:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        _, rows, columns, channels = x.shape
        shape = (1, -(-rows // stride), -(-columns // stride), filters)
        options = {"stride_h": stride, "stride_w": stride, "padding": "SAME", "fused_activation_function": activation}
        weights = self.weights(filters, height, width, channels)
        return self.op("CONV_2D", [x, weights, self.bias(filters)], shape, options)

    def depthwise(self, x: Value, kernel: int = 3, stride: int = 1, activation: str = "RELU6") -> Value:
        _, rows, columns, channels = x.shape
        shape = (1, -(-rows // stride), -(-columns // stride), channels)
        options = {"stride_h": stride, "stride_w": stride, "padding": "SAME", "depth_multiplier": 1}
        options |= {"fused_activation_function": activation}
        weights = self.weights(1, kernel, kernel, channels)
        return self.op("DEPTHWISE_CONV_2D", [x, weights, self.bias(channels)], shape, options)

    def dense(self, x: Value, units: int, activation: str = "NONE") -> Value:
        shape = (*x.shape[:-1], units)
        options = {"fused_activation_function": activation, "keep_num_dims": len(shape) > 2}
        weights = self.weights(units, x.shape[-1])
        return self.op("FULLY_CONNECTED", [x, weights, self.bias(units)], shape, options)

    def pool(self, x: Value, kind: str = "MAX_POOL_2D", size: int = 2) -> Value:
        shape = (1, x.shape[1] // size, x.shape[2] // size, x.shape[3])
        options = {"filter_height": size, "filter_width": size, "stride_h": size, "stride_w": size, "padding": "VALID"}
        return self.op(kind, [x], shape, options)

    def mean(self, x: Value) -> Value:
        return self.op("MEAN", [x, self.sizes(1, 2)], (1, x.shape[3]))

    def add(self, x: Value, y: Value, activation: str = "NONE") -> Value:
        return self.op("ADD", [x, y], x.shape, {"fused_activation_function": activation})

    def join(self, *values: Value) -> Value:
        channels = sum(value.shape[-1] for value in values)
        return self.op("CONCATENATION", list(values), (*values[0].shape[:-1], channels), {"axis": 3})

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.op("RESHAPE", [x, self.sizes(*shape)], shape, {"new_shape": shape})

    def transpose(self, x: Value, *order: int) -> Value:
        return self.op("TRANSPOSE", [x, self.sizes(*order)], [x.shape[i] for i in order])

    def norm(self, x: Value) -> Value:
        """Of the last axis to mean 0 and variance 1."""
        reduced, axis = (*x.shape[:-1], 1), self.sizes(len(x.shape) - 1)
        mean = self.op("MEAN", [x, axis], reduced, {"keep_dims": True})
        square = self.op("SQUARED_DIFFERENCE", [x, mean], x.shape)
        variance = self.op("MEAN", [square, axis], reduced, {"keep_dims": True})
        small = self.builder.constant(np.float32(1e-3))
        scale = self.op("RSQRT", [self.op("ADD", [variance, small], reduced)], reduced)
        return self.op("MUL", [self.op("SUB", [x, mean], x.shape), scale], x.shape)


def perceptron(width: int, depth: int) -> bytes:
    net = Layers()
    x = net.input(1, width)
    for _ in range(depth):
        x = net.dense(x, width, "RELU")
    return net.done(net.op("SOFTMAX", [net.dense(x, 10)], (1, 10), {"beta": 1.0}))


def plain(size: int, width: int, *, int8: bool = False) -> bytes:
    """In the manner of VGG."""
    net = Layers(int8)
    x = net.input(1, size, size, 3)
    for stage in range(3):
        x = net.convolution(net.convolution(x, width << stage), width << stage)
        x = net.pool(x)
    x = net.reshape(x, 1, math.prod(x.shape))
    return net.done(net.dense(net.dense(x, 64, "RELU"), 10))


def residual(size: int, width: int, blocks: int) -> bytes:
    net = Layers()
    x = net.convolution(net.input(1, size, size, 3), width, 7, 2)
    for _ in range(blocks):
        y = net.convolution(net.convolution(x, width // 2, 1), width // 2)
        x = net.add(x, net.convolution(y, width, 1, activation="NONE"), "RELU")
    return net.done(net.dense(net.mean(x), 100))


def hourglass(size: int, width: int) -> bytes:
    """In the manner of U-Net."""
    net, kept = Layers(), []
    x = net.convolution(net.input(1, size, size, 3), width)
    for _ in range(3):
        kept.append(x)
        x = net.convolution(net.pool(x), 2 * x.shape[3])
    for skip in reversed(kept):
        _, height, wide, channels = skip.shape
        x = net.op("RESIZE_NEAREST_NEIGHBOR", [x, net.sizes(height, wide)], (1, height, wide, x.shape[3]))
        x = net.convolution(net.join(x, skip), channels)
    return net.done(net.op("LOGISTIC", [net.convolution(x, 1, 1, activation="NONE")], (1, size, size, 1)))


def attention(tokens: int, width: int, heads: int, blocks: int) -> bytes:
    """An encoder in the manner of BERT and ViT."""
    net = Layers()
    x = net.input(1, tokens, width)
    for _ in range(blocks):
        z = net.norm(x)
        split = [net.reshape(net.dense(z, width), 1, tokens, heads, width // heads) for _ in range(3)]
        q, k, v = (net.transpose(one, 0, 2, 1, 3) for one in split)
        scores = net.op("BATCH_MATMUL", [q, k], (1, heads, tokens, tokens), {"adj_y": True})
        scores = net.op("SOFTMAX", [scores], scores.shape, {"beta": 1.0})
        values = net.transpose(net.op("BATCH_MATMUL", [scores, v], q.shape), 0, 2, 1, 3)
        x = net.add(x, net.dense(net.reshape(values, 1, tokens, width), width))
        z = net.dense(net.norm(x), 4 * width)
        x = net.add(x, net.dense(net.op("GELU", [z], z.shape), width))
    return net.done(x)


def mixer(tokens: int, width: int, blocks: int) -> bytes:
    net = Layers()
    x = net.input(1, tokens, width)
    for _ in range(blocks):
        across = net.dense(net.dense(net.transpose(net.norm(x), 0, 2, 1), 2 * tokens, "RELU"), tokens)
        x = net.add(x, net.transpose(across, 0, 2, 1))
        x = net.add(x, net.dense(net.dense(net.norm(x), 2 * width, "RELU"), width))
    return net.done(x)


def mobile(size: int, width: int, blocks: int) -> bytes:
    """Inverted bottlenecks with squeeze and excitation."""
    net = Layers()
    x = net.convolution(net.input(1, size, size, 3), width, 3, 2)
    for _ in range(blocks):
        y = net.depthwise(net.convolution(x, 4 * width, 1), 5)
        gate = net.op("MEAN", [y, net.sizes(1, 2)], (1, 1, 1, 4 * width), {"keep_dims": True})
        gate = net.convolution(net.convolution(gate, width, 1), 4 * width, 1, activation="NONE")
        y = net.op("MUL", [y, net.op("HARD_SWISH", [gate], gate.shape)], y.shape)
        x = net.add(x, net.convolution(y, width, 1, activation="NONE"))
    return net.done(net.dense(net.mean(x), 20))


def dense_blocks(size: int, growth: int, layers: int) -> bytes:
    net = Layers()
    x = net.convolution(net.input(1, size, size, 3), 2 * growth)
    for _ in range(layers):
        x = net.join(x, net.convolution(x, growth))
    return net.done(net.dense(net.mean(net.pool(x, "AVERAGE_POOL_2D")), 10))


def shuffled(size: int, width: int, blocks: int) -> bytes:
    """In the manner of ShuffleNet: halves, one worked on, channels interleaved."""
    net = Layers()
    x = net.convolution(net.input(1, size, size, 3), width, 3, 2)
    _, rows, columns, _ = x.shape
    half = (1, rows, columns, width // 2)
    for _ in range(blocks):
        ends = [net.sizes(1, rows, columns, at) for at in (width // 2, width)]
        starts = [net.sizes(0, 0, 0, at) for at in (0, width // 2)]
        ones = net.sizes(1, 1, 1, 1)
        left, right = (net.op("STRIDED_SLICE", [x, a, b, ones], half) for a, b in zip(starts, ends, strict=True))
        right = net.convolution(net.depthwise(net.convolution(right, width // 2, 1)), width // 2, 1)
        mixed = net.transpose(net.reshape(net.join(left, right), 1, rows, columns, 2, width // 2), 0, 1, 2, 4, 3)
        x = net.reshape(mixed, 1, rows, columns, width)
    return net.done(net.mean(x))


def finer(size: int, width: int, factor: int) -> bytes:
    """Super-resolution: pixels from channels."""
    net = Layers()
    x = net.convolution(net.input(1, size, size, 3), width, 5)
    x = net.convolution(net.convolution(x, width), 3 * factor**2, activation="NONE")
    shape = (1, factor * size, factor * size, 3)
    return net.done(net.op("DEPTH_TO_SPACE", [x], shape, {"block_size": factor}))


def generator(size: int, width: int) -> bytes:
    """Transposed convolutions from a vector to a picture."""
    net = Layers()
    x = net.reshape(net.dense(net.input(1, 64), 16 * width, "RELU"), 1, 4, 4, width)
    while x.shape[1] < size:
        rows, channels = 2 * x.shape[1], max(8, x.shape[3] // 2)
        shape = (1, rows, rows, channels)
        options = {"stride_h": 2, "stride_w": 2, "padding": "SAME"}
        x = net.op("TRANSPOSE_CONV", [net.sizes(*shape), net.weights(channels, 4, 4, x.shape[3]), x], shape, options)
        x = net.op("LEAKY_RELU", [x], shape, {"alpha": 0.2})
    return net.done(net.op("TANH", [net.convolution(x, 3, activation="NONE")], (*x.shape[:3], 3)))


def sounds(steps: int, width: int, layers: int) -> bytes:
    """Convolutions along one axis, as for speech."""
    net = Layers()
    x = net.input(1, 1, steps, 40)
    for _ in range(layers):
        x = net.convolution(x, width, (1, 9))
    return net.done(net.dense(net.mean(x), 30))


def modern(size: int, width: int, blocks: int) -> bytes:
    """In the manner of ConvNeXt: wide depthwise kernels, layer norm, GELU."""
    net = Layers()
    x = net.convolution(net.input(1, size, size, 3), width, 4, 4, "NONE")
    for _ in range(blocks):
        y = net.norm(net.depthwise(x, 7, activation="NONE"))
        y = net.convolution(y, 4 * width, 1, activation="NONE")
        x = net.add(x, net.convolution(net.op("GELU", [y], y.shape), width, 1, activation="NONE"))
    return net.done(net.dense(net.mean(x), 100))


def elementwise(count: int, length: int) -> bytes:
    """A formula over a vector."""
    net = Layers()
    x = y = net.input(1, length)
    for i in range(count):
        name = ("MUL", "TANH", "ADD", "LOGISTIC", "SUB", "ABS")[i % 6]
        y = net.op(name, [y, x] if name in ("MUL", "ADD", "SUB") else [y], x.shape)
    return net.done(y)


#: Name -> what builds it.
NETWORKS: dict[str, Callable[[], bytes]] = {
    "perceptron_small": partial(perceptron, 64, 3),
    "perceptron_large": partial(perceptron, 1024, 6),
    "plain_32": partial(plain, 32, 8),
    "plain_96": partial(plain, 96, 32),
    "plain_32_int8": partial(plain, 32, 8, int8=True),
    "plain_96_int8": partial(plain, 96, 32, int8=True),
    "residual_64": partial(residual, 64, 32, 4),
    "residual_160": partial(residual, 160, 128, 8),
    "hourglass_64": partial(hourglass, 64, 8),
    "hourglass_128": partial(hourglass, 128, 16),
    "attention_small": partial(attention, 16, 64, 4, 2),
    "attention_large": partial(attention, 128, 256, 8, 6),
    "mixer": partial(mixer, 64, 128, 4),
    "mobile_48": partial(mobile, 48, 16, 3),
    "mobile_192": partial(mobile, 192, 32, 8),
    "dense_blocks": partial(dense_blocks, 32, 12, 8),
    "shuffled": partial(shuffled, 64, 48, 6),
    "finer": partial(finer, 64, 32, 3),
    "generator": partial(generator, 64, 128),
    "sounds_small": partial(sounds, 50, 32, 3),
    "sounds_large": partial(sounds, 400, 128, 6),
    "modern": partial(modern, 96, 64, 4),
    "elementwise_small": partial(elementwise, 12, 256),
    "elementwise_large": partial(elementwise, 24, 100_000),
}  # fmt: skip
