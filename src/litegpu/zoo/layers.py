"""The layers of residual networks, gated ones and transformers, as op sequences that converters write from Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litegpu.model.types import TensorType
from litegpu.zoo.network import Network, NetworkTensor, _rounded

_SPATIAL = np.array([1, 2], np.int32)


class Layers(Network):
    """A network of more than convolutions. Tensors may have any rank, with a multiple of the batch in front."""

    def __init__(
        self, description: str, *, seed: int = 0, precision: str = "float32", batch: int = 1, quantized: bool = False
    ) -> None:
        # Two pictures: large networks are built in seconds.
        super().__init__(description, seed=seed, precision=precision, batch=batch, quantized=quantized, pictures=2)

    def apply(
        self,
        operator: str,
        inputs: Sequence[NetworkTensor],
        constants: Sequence[np.ndarray] = (),
        options: dict[str, Any] | None = None,
    ) -> NetworkTensor:
        """Any op with one output: inputs computed by the network, then constants that do not depend on the batch."""
        operands = [*(value.sample for value in inputs), *constants]
        sample = self._measure(operator, operands, options or {}, runtime=len(inputs))
        return self._emit(operator, inputs, sample, options or {}, constants)

    def constant(self, array: np.ndarray) -> NetworkTensor:
        """A constant with the batch in front, the same for all of it."""
        tensor = self._constant(np.repeat(array[None], self.batch, 0))
        return NetworkTensor(tensor, np.repeat(array[None], self.pictures, 0))

    def tokens(self, name: str, length: int, vocabulary: int) -> NetworkTensor:
        """A graph input of int32 numbers [batch, length] below `vocabulary`."""
        tensor = self.builder.input(name, (self.batch, length), TensorType.INT32)
        self._inputs[name] = tensor
        return NetworkTensor(tensor, self.rng.integers(0, vocabulary, (self.pictures, length)).astype(np.int32))

    # ------------------------------------------------------------------------------------------------ elementwise

    def add(self, x: NetworkTensor, y: NetworkTensor, activation: str = "NONE") -> NetworkTensor:
        return self.apply("ADD", [x, y], options=dict(fused_activation_function=activation))

    def scale(self, operator: str, x: NetworkTensor, values: object, activation: str = "NONE") -> NetworkTensor:
        """ADD, SUB or MUL of a constant."""
        constant = np.asarray(values, np.float32)
        return self.apply(operator, [x], [constant], dict(fused_activation_function=activation))

    def activate(self, x: NetworkTensor, activation: str) -> NetworkTensor:
        """HARD_SWISH, GELU and the like are ops; SWISH is a product with LOGISTIC."""
        match activation:
            case "NONE":
                return x
            case "SWISH":
                return self.op("MUL", [x, self.op("LOGISTIC", [x])])
            case "HARD_SIGMOID":
                return self.scale("MUL", self.scale("ADD", x, 3, "RELU6"), 1 / 6)
            case "GELU_TANH":
                return self._tanh_gelu(x)
            case _:
                return self.op(activation, [x])

    def _tanh_gelu(self, x: NetworkTensor) -> NetworkTensor:
        """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), op by op."""
        cube = self.op("MUL", [self.op("MUL", [x, x]), x])
        inner = self.scale("MUL", self.add(x, self.scale("MUL", cube, 0.044715)), (2 / np.pi) ** 0.5)
        gate = self.scale("ADD", self.op("TANH", [inner]), 1)
        return self.op("MUL", [self.scale("MUL", x, 0.5), gate])

    # ------------------------------------------------------------------------------------------------ convolutions

    def conv(
        self, x: NetworkTensor, filters: int, kernel: int | tuple[int, int] = 1, stride: int = 1, **options: Any
    ) -> NetworkTensor:
        """CONV_2D with a folded batch norm and any activation; strided ones are padded as Keras's ZeroPadding2D does
        if `pad` says so: that PAD is an op of its own."""
        fused, after = _split(options.pop("activation", "RELU"))
        if pad := options.pop("pad", 0):
            x, options["padding"] = self.pad(x, pad, pad), "VALID"
        return self.activate(self.convolution(x, filters, kernel, stride, activation=fused, **options), after)

    def separate(self, x: NetworkTensor, stride: int = 1, kernel: int = 3, activation: str = "RELU") -> NetworkTensor:
        """DEPTHWISE_CONV_2D with a folded batch norm and any activation; strided ones after a PAD, as in Keras."""
        fused, after = _split(activation)
        padding = "SAME"
        if stride == 2:
            even = x.sample.shape[1] % 2 == 0
            x, padding = self.pad(x, kernel // 2 - even, kernel // 2), "VALID"
        x = self.depthwise(x, stride, kernel=kernel, activation=fused, padding=padding)
        return self.activate(x, after)

    def pad(self, x: NetworkTensor, before: int, after: int) -> NetworkTensor:
        """PAD of the rows and columns by zeros."""
        return self.apply("PAD", [x], [np.array([[0, 0], [before, after], [before, after], [0, 0]], np.int32)])

    def gate(
        self, x: NetworkTensor, squeezed: int, activation: str = "SWISH", last: str = "LOGISTIC", flat: bool = True
    ) -> NetworkTensor:
        """Squeeze and excite: MEAN, (RESHAPE,) two 1x1 convolutions with bias, and MUL."""
        y = self.mean(x, keep=not flat)
        y = self.reshape(y, 1, 1, x.channels) if flat else y
        y = self.plain(y, squeezed, activation=activation)
        return self.op("MUL", [x, self.plain(y, x.channels, activation=last)])

    def plain(
        self, x: NetworkTensor, filters: int, kernel: int = 1, stride: int = 1, activation: str = "NONE"
    ) -> NetworkTensor:
        """CONV_2D with bias and no batch norm."""
        fused, after = _split(activation)
        weights = self._normal((filters, kernel, kernel, x.channels), fan_in=kernel**2 * x.channels)
        options = dict(stride_h=stride, stride_w=stride, padding="SAME", fused_activation_function=fused)
        return self.activate(self.apply("CONV_2D", [x], [weights, self._bias(filters)], options), after)

    def depthwise_plain(self, x: NetworkTensor, kernel: int) -> NetworkTensor:
        """DEPTHWISE_CONV_2D with bias and neither batch norm nor activation."""
        weights = self._normal((1, kernel, kernel, x.channels), fan_in=kernel**2)
        options = dict(stride_h=1, stride_w=1, padding="SAME", depth_multiplier=1)
        return self.apply("DEPTHWISE_CONV_2D", [x], [weights, self._bias(x.channels)], options)

    def norm_activate(self, x: NetworkTensor) -> NetworkTensor:
        """A batch norm that no convolution precedes, and RELU: MUL, ADD."""
        mean, variance = x.sample.mean(axis=(0, 1, 2)), x.sample.var(axis=(0, 1, 2))
        scale = self.rng.uniform(0.5, 1.2, x.channels) / np.sqrt(
            _rounded(0.2 * variance + 0.8 * variance.mean()) + 1e-3
        )
        shift = self.rng.normal(0.4, 0.3, x.channels) - _rounded(mean) * scale
        return self.scale("ADD", self.scale("MUL", x, scale), shift, "RELU")

    def max_pool(self, x: NetworkTensor, size: int, stride: int, padding: str = "VALID") -> NetworkTensor:
        return self.op("MAX_POOL_2D", [x], _window(size, stride, padding))

    def mean_pool(self, x: NetworkTensor, size: int, stride: int, padding: str = "VALID") -> NetworkTensor:
        return self.op("AVERAGE_POOL_2D", [x], _window(size, stride, padding))

    def mean(self, x: NetworkTensor, axes: np.ndarray = _SPATIAL, keep: bool = False) -> NetworkTensor:
        """MEAN, of the rows and columns by default."""
        return self.apply("MEAN", [x], [axes], dict(keep_dims=keep))

    # ------------------------------------------------------------------------------------------------ transformers

    def dense(
        self, x: NetworkTensor, units: int, activation: str = "NONE", *, flat: bool = False, gain: float = 1.0
    ) -> NetworkTensor:
        """FULLY_CONNECTED with bias over the last dimension; `flat`: to a matrix and back, as older converters do."""
        if flat:
            y = self.dense(self.rows(x, x.channels), units, activation, gain=gain)
            return self.rows(y, *x.sample.shape[1:-1], units)
        fused, after = _split(activation)
        weights = self._normal((units, x.channels), fan_in=x.channels) * np.float32(gain)
        options = dict(fused_activation_function=fused, keep_num_dims=x.sample.ndim > 2)
        return self.activate(self.apply("FULLY_CONNECTED", [x], [weights, self._bias(units)], options), after)

    def classify(self, x: NetworkTensor, classes: int) -> None:
        """The logits of [batch, n] as FULLY_CONNECTED, and their SOFTMAX as the network's output."""
        weights = self._normal((classes, x.channels), fan_in=x.channels)
        raw = x.sample @ weights.T
        centre, scale = _rounded(raw.mean(axis=0)), 3 / _rounded(raw.std() + np.float32(1e-3))
        bias = (self.rng.normal(0, 1.5, classes) - centre * scale).astype(np.float32)
        logits = self.apply("FULLY_CONNECTED", [x], [(weights * scale).astype(np.float32), bias])
        self.output("probabilities", self.op("SOFTMAX", [logits], dict(beta=1.0)).tensor)

    def layer_norm(self, x: NetworkTensor, epsilon: float = 1e-6) -> NetworkTensor:
        """Over the last dimension, by moments: ten ops."""
        axis = np.array([x.sample.ndim - 1], np.int32)
        mean = self.mean(x, axis, keep=True)
        variance = self.mean(self.op("SQUARED_DIFFERENCE", [x, mean]), axis, keep=True)
        inverse = self.op("RSQRT", [self.scale("ADD", variance, epsilon)])
        factor = self.scale("MUL", inverse, self.rng.uniform(0.7, 1.3, x.channels))
        beta = self.rng.normal(0, 0.1, x.channels).astype(np.float32)
        shift = self._constant_first("SUB", beta, self.op("MUL", [mean, factor]))
        return self.op("ADD", [self.op("MUL", [x, factor]), shift])

    def attention(
        self,
        x: NetworkTensor,
        heads: int,
        *,
        flat: bool = False,
        bias_after: bool = False,
        added: Callable[[NetworkTensor], NetworkTensor] = lambda logits: logits,
    ) -> NetworkTensor:
        """Self-attention of [batch, n, d]: three products, BATCH_MATMUL, SOFTMAX, BATCH_MATMUL and a product.

        `bias_after`: biases are added behind the RESHAPE to heads, as Keras's einsums come out. `added`: what is done
        to the logits.
        """
        n, d = x.sample.shape[1:]

        def head(scaled: float = 1.0) -> NetworkTensor:
            y = self.rows(self.dense(self.rows(x, d) if flat else x, d), n, heads, d // heads)
            if bias_after:
                y = self.scale("ADD", y, self._bias(d).reshape(heads, d // heads))
            if scaled != 1:
                y = self.scale("MUL", y, scaled)
            return self.transpose(y, 0, 2, 1, 3)

        query, key, value = head((d // heads) ** -0.5), head(), head()
        logits = added(self.op("BATCH_MATMUL", [query, key], dict(adj_y=True)))
        values = self.op("BATCH_MATMUL", [self.op("SOFTMAX", [logits], dict(beta=1.0)), value])
        values = self.rows(self.transpose(values, 0, 2, 1, 3), n, d)
        return self.dense(values, d, flat=flat)

    def gather(self, table: np.ndarray, rows: NetworkTensor) -> NetworkTensor:
        """GATHER of rows of a constant."""
        sample = table[rows.sample]
        operands = [self._constant(table), rows.tensor]
        return self._made(self.builder.op("GATHER", operands, self.shape_of(sample), dict(axis=0)), sample)

    def transpose(self, x: NetworkTensor, *order: int) -> NetworkTensor:
        return self.apply("TRANSPOSE", [x], [np.array(order, np.int32)])

    def first(self, x: NetworkTensor) -> NetworkTensor:
        """The first of [batch, n, d] along n, as STRIDED_SLICE."""
        bounds = [np.array(v, np.int32) for v in ([0, 0, 0], [0, 1, 0], [1, 1, 1])]
        masks = dict(begin_mask=5, end_mask=5, shrink_axis_mask=2)
        return self.apply("STRIDED_SLICE", [x], bounds, masks)

    def roll(self, x: NetworkTensor, by: int) -> NetworkTensor:
        """Rows and columns moved on by so many, those past the end to the beginning: slices that are joined."""
        for axis in (1, 2):
            size = x.sample.shape[axis]
            parts = [self._span(x, axis, -by % size, size), self._span(x, axis, 0, -by % size)]
            x = self.op("CONCATENATION", parts, dict(axis=axis))
        return x

    def _span(self, x: NetworkTensor, axis: int, begin: int, end: int, step: int = 1) -> NetworkTensor:
        """STRIDED_SLICE along one axis."""
        rank = x.sample.ndim
        bounds = [
            [value if i == axis else other for i in range(rank)] for value, other in ((begin, 0), (end, 0), (step, 1))
        ]
        mask = (1 << rank) - 1 - (1 << axis)
        return self.apply(
            "STRIDED_SLICE", [x], [np.array(b, np.int32) for b in bounds], dict(begin_mask=mask, end_mask=mask)
        )

    def halves(self, x: NetworkTensor) -> list[NetworkTensor]:
        """Of the channels."""
        return [self._span(x, 3, 0, x.channels // 2), self._span(x, 3, x.channels // 2, x.channels)]

    def every_second(self, x: NetworkTensor, row: int, column: int) -> NetworkTensor:
        """Rows and columns from these on."""
        return self._span(self._span(x, 1, row, x.sample.shape[1], 2), 2, column, x.sample.shape[2], 2)

    def rows(self, x: NetworkTensor, *shape: int) -> NetworkTensor:
        """RESHAPE to as many of `shape` as there are."""
        sample = x.sample.reshape(-1, *shape)
        full = np.array(self.shape_of(sample), np.int32)
        return self._emit("RESHAPE", [x], sample, dict(new_shape=tuple(full)), [full])

    def _constant_first(self, operator: str, array: np.ndarray, x: NetworkTensor) -> NetworkTensor:
        """An elementwise op whose first operand is the constant."""
        sample = (array - x.sample).astype(np.float32)
        tensor = self.builder.op(operator, [self._constant(array), x.tensor], self.shape_of(sample))
        return self._made(tensor, sample)

    def _bias(self, units: int) -> np.ndarray:
        return self.rng.normal(0, 0.1, units).astype(np.float32)


def _window(size: int, stride: int, padding: str) -> dict[str, Any]:
    return dict(filter_height=size, filter_width=size, stride_h=stride, stride_w=stride, padding=padding)


def _split(activation: str) -> tuple[str, str]:
    """What the converter fuses into the op, and what it leaves behind it."""
    return (activation, "NONE") if activation in ("NONE", "RELU", "RELU6") else ("NONE", activation)
