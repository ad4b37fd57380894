"""Builds networks whose seeded weights keep the activations in a healthy range.

Every layer is measured on a few drawn pictures while the network is built: its op is run alone by the CPU runtime, the
per-channel mean and variance become those of a batch norm with random gamma and beta, and the batch norm is folded into
the weights and bias. Without that, activations of a deep random network saturate, or all pictures give one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.interpreter import Interpreter, OpResolverType
from litegpu.model.builder import ModelBuilder
from litegpu.model.serialize import write_model
from litegpu.zoo.quantize import Range, quantize
from litegpu.zoo.scene import draw_scene

PRECISIONS = ("float32", "float16")

_EPSILON = 1e-3


@dataclass(frozen=True, eq=False)
class NetworkTensor:
    """A tensor of the network, and what it holds for the calibration pictures (batch first)."""

    tensor: int
    sample: np.ndarray

    @property
    def channels(self) -> int:
        return int(self.sample.shape[-1])


class Network:
    """A model under construction; layers take and return `NetworkTensor`s. Call `output` for each result, then `build`.

    Args:
        description: stored in the file.
        precision: "float32", or "float16": weights and biases stored as float16, each with a DEQUANTIZE.
        batch: the first dimension of every tensor.
        quantized: int8 activations, inputs and outputs among them, and int8 weights (`quantize`).
        pictures: how many the layers are measured on.
    """

    def __init__(
        self,
        description: str,
        *,
        seed: int = 0,
        precision: str = "float32",
        batch: int = 1,
        quantized: bool = False,
        pictures: int = 4,
    ) -> None:
        if precision not in PRECISIONS:
            raise OptionError(f"precision {precision!r} is unknown: use one of {', '.join(PRECISIONS)}")
        if batch < 1:
            raise OptionError(f"batch is {batch}; it must be 1 or more")
        if quantized and precision != "float32":
            raise OptionError(f"a quantized model has weights of 8 bits: leave out the precision {precision!r}")
        self.builder = ModelBuilder(description=description)
        self.precision = precision
        self.batch = batch
        self.quantized = quantized
        self.pictures = pictures
        self.rng = np.random.default_rng(seed)
        self._inputs: dict[str, int] = {}
        self._outputs: dict[str, int] = {}
        self._ranges: dict[int, Range] = {}

    def image(self, name: str, height: int, width: int) -> NetworkTensor:
        """A graph input of RGB pictures in -1..1."""
        sample = np.stack([draw_scene(height, width, seed) for seed in range(self.pictures)])
        tensor = self.builder.input(name, (self.batch, height, width, 3))
        self._inputs[name] = tensor
        self._ranges[tensor] = (-1.0, 1.0)
        return NetworkTensor(tensor, sample.astype(np.float32) / 127.5 - 1)

    def output(self, name: str, tensor: int) -> None:
        """Make a tensor a graph output, under a name in the signature."""
        self.builder.output(tensor)
        self._outputs[name] = tensor

    def build(self) -> bytes:
        """The bytes of the .tflite file, with the signature "serving_default"."""
        self.builder.signature("serving_default", self._inputs, self._outputs)
        if self.quantized:
            return write_model(quantize(self.builder.model(), self._ranges))
        return self.builder.build()

    def convolution(
        self,
        x: NetworkTensor,
        filters: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        *,
        activation: str = "RELU6",
        padding: str = "SAME",
        groups: int = 1,
        dilation: int = 1,
    ) -> NetworkTensor:
        """CONV_2D with a folded batch norm; `kernel` is its height and width, or one number for both."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        channels = x.channels // groups
        weights = self._normal((filters, high, wide, channels), fan_in=high * wide * channels)
        options = dict(stride_h=stride, stride_w=stride, padding=padding)
        options |= dict(dilation_h_factor=dilation, dilation_w_factor=dilation) if dilation > 1 else {}
        return self._normalized("CONV_2D", x, weights, 0, options, activation)

    def depthwise(
        self,
        x: NetworkTensor,
        stride: int = 1,
        dilation: int = 1,
        *,
        kernel: int = 3,
        activation: str = "RELU6",
        padding: str = "SAME",
    ) -> NetworkTensor:
        """DEPTHWISE_CONV_2D with multiplier 1 and a folded batch norm."""
        weights = self._normal((1, kernel, kernel, x.channels), fan_in=kernel**2)
        options = dict(stride_h=stride, stride_w=stride, padding=padding, depth_multiplier=1)
        options |= dict(dilation_h_factor=dilation, dilation_w_factor=dilation)
        return self._normalized("DEPTHWISE_CONV_2D", x, weights, 3, options, activation)

    def head(
        self, x: NetworkTensor, filters: int, *, mean: float = 0.0, deviation: float = 1.0, spread: float | None = None
    ) -> NetworkTensor:
        """A last CONV_2D 1x1 without batch norm.

        Before it is centred per channel, its result has the standard deviation given; what remains is what differs from
        place to place and picture to picture. Biases spread around the mean, by a quarter of the deviation if not told.
        """
        spread = deviation / 4 if spread is None else spread
        weights = self._normal((filters, 1, 1, x.channels), fan_in=x.channels)
        options = dict(stride_h=1, stride_w=1, padding="SAME")
        raw = self._measure("CONV_2D", [x.sample, weights, np.zeros(filters, np.float32)], options)
        centre, scale = _rounded(raw.mean(axis=(0, 1, 2))), deviation / _rounded(raw.std())
        bias = (mean - centre * scale + self.rng.normal(0, spread, filters)).astype(np.float32)
        sample = raw * scale + bias
        return self._emit("CONV_2D", [x], sample, options, [weights * scale, bias])

    def op(
        self, operator: str, inputs: Sequence[NetworkTensor], options: dict[str, Any] | None = None
    ) -> NetworkTensor:
        """Any op whose inputs are all runtime tensors."""
        sample = self._measure(operator, [value.sample for value in inputs], options or {}, runtime=len(inputs))
        return self._emit(operator, inputs, sample, options or {})

    def average_pool(self, x: NetworkTensor) -> NetworkTensor:
        """AVERAGE_POOL_2D of the whole picture: [batch, 1, 1, channels]."""
        height, width = x.sample.shape[1:3]
        return self.op(
            "AVERAGE_POOL_2D",
            [x],
            dict(filter_height=height, filter_width=width, stride_h=height, stride_w=width, padding="VALID"),
        )

    def resize(self, x: NetworkTensor, height: int, width: int) -> NetworkTensor:
        """RESIZE_BILINEAR with aligned corners."""
        size, options = np.array([height, width], np.int32), dict(align_corners=True)
        sample = self._measure("RESIZE_BILINEAR", [x.sample, size], options)
        return self._emit("RESIZE_BILINEAR", [x], sample, options, [size])

    def reshape(self, x: NetworkTensor, *shape: int) -> NetworkTensor:
        """RESHAPE to [batch, *shape]."""
        sample = x.sample.reshape(self.pictures, *shape)
        full = self.shape_of(sample)
        return self._emit("RESHAPE", [x], sample, dict(new_shape=full), [np.array(full, np.int32)])

    def _normal(self, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
        return self.rng.normal(0, fan_in**-0.5, shape).astype(np.float32)

    def _normalized(
        self,
        operator: str,
        x: NetworkTensor,
        weights: np.ndarray,
        channel_axis: int,
        options: dict[str, Any],
        activation: str,
    ) -> NetworkTensor:
        channels = weights.shape[channel_axis]
        raw = self._measure(operator, [x.sample, weights, np.zeros(channels, np.float32)], options)
        mean, variance = raw.mean(axis=(0, 1, 2)), raw.var(axis=(0, 1, 2))
        # A channel that hardly varies is not blown up to unit variance: it would carry mostly rounding errors.
        variance = 0.2 * variance + 0.8 * variance.mean()
        gamma, beta = self.rng.uniform(0.5, 1.2, channels), self.rng.normal(0.8, 0.3, channels)
        scale = (gamma / np.sqrt(_rounded(variance) + _EPSILON)).astype(np.float32)
        bias = (beta - _rounded(mean) * scale).astype(np.float32)
        sample = _ACTIVATIONS[activation](raw * scale + bias)
        along = [1] * weights.ndim
        along[channel_axis] = channels
        options = options | dict(fused_activation_function=activation)
        return self._emit(operator, [x], sample, options, [weights * scale.reshape(along), bias])

    def _emit(
        self,
        operator: str,
        inputs: Sequence[NetworkTensor],
        sample: np.ndarray,
        options: dict[str, Any],
        constants: Sequence[np.ndarray] = (),
    ) -> NetworkTensor:
        operands = [value.tensor for value in inputs] + [self._constant(array) for array in constants]
        return self._made(self.builder.op(operator, operands, self.shape_of(sample), options), sample)

    def shape_of(self, sample: np.ndarray) -> tuple[int, ...]:
        """Of the tensor that has this for the calibration pictures, with a multiple of the batch in front."""
        return (len(sample) * self.batch // self.pictures, *sample.shape[1:])

    def _made(self, tensor: int, sample: np.ndarray) -> NetworkTensor:
        self._ranges[tensor] = (float(sample.min()), float(sample.max()))
        return NetworkTensor(tensor, sample)

    def _constant(self, array: np.ndarray) -> int:
        if array.dtype != np.float32 or array.size == 1 or self.precision == "float32":
            return self.builder.constant(array)
        half = self.builder.constant(array.astype(np.float16))
        return self.builder.op("DEQUANTIZE", [half], array.shape)

    def _measure(
        self, operator: str, operands: Sequence[np.ndarray], options: dict[str, Any], runtime: int = 1
    ) -> np.ndarray:
        """What the CPU runtime gives for one op; the first `runtime` operands are fed, the others are constants."""
        builder = ModelBuilder()
        tensors = [builder.input(f"x{i}", array.shape) for i, array in enumerate(operands[:runtime])]
        tensors += [builder.constant(array) for array in operands[runtime:]]
        builder.output(builder.op(operator, tensors, operands[0].shape, options))
        interpreter = Interpreter(
            model_content=builder.build(),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        interpreter.allocate_tensors()
        for detail, array in zip(interpreter.get_input_details(), operands, strict=False):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        result: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        return result


def _rounded(values: np.ndarray) -> np.ndarray:
    """Float32 with 10 significant bits, so that last-bit differences between CPUs do not reach the file."""
    fraction, exponent = np.frexp(values)
    rounded: np.ndarray = np.ldexp(np.round(fraction * 1024) / 1024, exponent).astype(np.float32)
    return rounded


_ACTIVATIONS = {
    "NONE": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
}
