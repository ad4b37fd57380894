"""Layers that the zoo has no need of, in the ways that converters from PyTorch and Keras write them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litegpu.interpreter import Interpreter
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType
from litegpu.zoo.layers import Layers
from litegpu.zoo.network import NetworkTensor

Builder = Callable[..., bytes]
_TYPES = {"float32": TensorType.FLOAT32, "int32": TensorType.INT32, "bool": TensorType.BOOL}


class StrangeLayers(Layers):
    """The zoo's layers and more. Methods take and return tensors with what they hold for the calibration pictures."""

    def call(
        self, operator: str, operands: Sequence[NetworkTensor | np.ndarray], options: dict[str, Any] | None = None
    ) -> NetworkTensor:
        """Any op with one output and its operands in any order; constants do not depend on the batch."""
        sample = self._run(operator, operands, options or {})
        tensors = [self._constant(x) if isinstance(x, np.ndarray) else x.tensor for x in operands]
        return self._made(self.builder.op(operator, tensors, self.shape_of(sample), options), sample)

    def _run(
        self, operator: str, operands: Sequence[NetworkTensor | np.ndarray], options: dict[str, Any]
    ) -> np.ndarray:
        builder = ModelBuilder()
        tensors: list[int] = []
        given: list[np.ndarray] = []
        for operand in operands:
            if isinstance(operand, np.ndarray):
                tensors.append(builder.constant(operand))
                continue
            tensors.append(builder.input(f"x{len(given)}", operand.sample.shape, _TYPES[operand.sample.dtype.name]))
            given.append(operand.sample)
        builder.output(builder.op(operator, tensors, given[0].shape, options))
        interpreter = Interpreter(model_content=builder.build())
        interpreter.allocate_tensors()
        for detail, array in zip(interpreter.get_input_details(), given, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        result: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        return result

    # ------------------------------------------------------------------------------------------------ movement

    def join(self, *parts: NetworkTensor, axis: int = 3) -> NetworkTensor:
        return self.op("CONCATENATION", list(parts), dict(axis=axis))

    def split(self, x: NetworkTensor, count: int, axis: int = 3) -> list[NetworkTensor]:
        """SPLIT in equal parts."""
        samples = np.split(x.sample, count, axis)
        made = [(self.shape_of(sample), TensorType.FLOAT32) for sample in samples]
        axis_tensor = self.builder.constant(np.int32(axis))
        tensors = self.builder.op_multi("SPLIT", [axis_tensor, x.tensor], made, dict(num_splits=count))
        return [self._made(tensor, sample) for tensor, sample in zip(tensors, samples, strict=True)]

    def span(self, x: NetworkTensor, axis: int, begin: int, size: int) -> NetworkTensor:
        """SLICE along one axis, as PyTorch's `chunk`, `split` and indexing come out."""
        rank = x.sample.ndim
        first = [begin if i == axis else 0 for i in range(rank)]
        sizes = [size if i == axis else -1 for i in range(rank)]
        sample = x.sample.take(range(begin, begin + size), axis)
        return self._emit("SLICE", [x], sample, {}, [np.array(v, np.int32) for v in (first, sizes)])

    def enlarge(self, x: NetworkTensor, times: int = 2) -> NetworkTensor:
        """RESIZE_NEAREST_NEIGHBOR."""
        size = np.array([n * times for n in x.sample.shape[1:3]], np.int32)
        return self.apply("RESIZE_NEAREST_NEIGHBOR", [x], [size], dict(half_pixel_centers=True))

    def smooth(self, x: NetworkTensor, height: int, width: int) -> NetworkTensor:
        """RESIZE_BILINEAR with half-pixel centres."""
        size = np.array([height, width], np.int32)
        return self.apply("RESIZE_BILINEAR", [x], [size], dict(half_pixel_centers=True))

    def shuffled_pixels(self, x: NetworkTensor, times: int) -> NetworkTensor:
        """PixelShuffle of PyTorch: six axes."""
        _, height, width, channels = x.sample.shape
        inner = channels // times**2
        y = self.transpose(self.reshape(x, height, width, inner, times, times), 0, 1, 4, 2, 5, 3)
        return self.reshape(y, height * times, width * times, inner)

    # ------------------------------------------------------------------------------------------------ convolutions

    def depthwise_bare(self, x: NetworkTensor, kernel: int, stride: int = 1) -> NetworkTensor:
        """DEPTHWISE_CONV_2D of a separable convolution, whose batch norm comes after the 1x1 part."""
        weights = self._normal((1, kernel, kernel, x.channels), fan_in=kernel**2)
        options = dict(stride_h=stride, stride_w=stride, padding="SAME", depth_multiplier=1)
        return self.apply("DEPTHWISE_CONV_2D", [x], [weights, np.zeros(x.channels, np.float32)], options)

    def reflected(self, x: NetworkTensor, filters: int, kernel: int = 3, stride: int = 1) -> NetworkTensor:
        """CONV_2D with bias behind a MIRROR_PAD."""
        edges = np.array([[0, 0], [kernel // 2] * 2, [kernel // 2] * 2, [0, 0]], np.int32)
        x = self.apply("MIRROR_PAD", [x], [edges], dict(mode="REFLECT"))
        weights = self._normal((filters, kernel, kernel, x.channels), kernel**2 * x.channels)
        options = dict(stride_h=stride, stride_w=stride, padding="VALID")
        return self.apply("CONV_2D", [x], [weights, self._bias(filters)], options)

    def leaky(self, x: NetworkTensor, alpha: float = 0.2) -> NetworkTensor:
        return self.apply("LEAKY_RELU", [x], options=dict(alpha=alpha))

    def transposed(
        self,
        x: NetworkTensor,
        filters: int,
        kernel: int | tuple[int, int] = 2,
        stride: int | tuple[int, int] = 2,
    ) -> NetworkTensor:
        """TRANSPOSE_CONV with bias."""
        (high, wide), (down, across) = (one if isinstance(one, tuple) else (one, one) for one in (kernel, stride))
        _, height, width, channels = x.sample.shape
        weights = self._normal((filters, high, wide, channels), fan_in=channels * high * wide / (down * across))
        bias = self._bias(filters)
        options = dict(stride_h=down, stride_w=across, padding="SAME")

        def shape(batch: int) -> np.ndarray:
            return np.array([batch, height * down, width * across, filters], np.int32)

        sample = self._run("TRANSPOSE_CONV", [shape(self.pictures), weights, x, bias], options)
        operands = [self.builder.constant(shape(self.batch)), self._constant(weights), x.tensor, self._constant(bias)]
        return self._made(self.builder.op("TRANSPOSE_CONV", operands, self.shape_of(sample), options), sample)

    def along(
        self,
        x: NetworkTensor,
        filters: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        dilation: int = 1,
        padding: str = "VALID",
        activation: str = "NONE",
    ) -> NetworkTensor:
        """Conv1d of [batch, n, d]: a CONV_2D of one row between RESHAPEs, with bias."""
        n, d = x.sample.shape[1:]
        weights = self._normal((filters, 1, kernel, d // groups), fan_in=kernel * d // groups)
        options = dict(stride_h=1, stride_w=stride, padding=padding, fused_activation_function=activation)
        options |= dict(dilation_h_factor=1, dilation_w_factor=dilation) if dilation > 1 else {}
        y = self.apply("CONV_2D", [self.reshape(x, 1, n, d)], [weights, self._bias(filters)], options)
        return self.reshape(y, y.sample.shape[2], filters)

    def transposed_along(self, x: NetworkTensor, filters: int, kernel: int, stride: int) -> NetworkTensor:
        """ConvTranspose1d of [batch, n, d] to [batch, n * stride, filters]: a TRANSPOSE_CONV of one row."""
        n, d = x.sample.shape[1:]
        row = self.reshape(x, 1, n, d)
        return self.reshape(self.transposed(row, filters, (1, kernel), (1, stride)), n * stride, filters)

    def depthwise_along(self, x: NetworkTensor, kernel: int, stride: int = 1) -> NetworkTensor:
        """A depthwise Conv1d of [batch, n, d] with its batch norm folded."""
        n, d = x.sample.shape[1:]
        weights = self._normal((1, 1, kernel, d), fan_in=kernel)
        # both strides are the same: the CPU's kernels for one row ask for it
        options = dict(stride_h=stride, stride_w=stride, padding="SAME", depth_multiplier=1)
        y = self.apply("DEPTHWISE_CONV_2D", [self.reshape(x, 1, n, d)], [weights, self._bias(d)], options)
        return self.reshape(y, y.sample.shape[2], d)

    # ------------------------------------------------------------------------------------------------ norms, gates

    def norm_of_torch(self, x: NetworkTensor, epsilon: float = 1e-6) -> NetworkTensor:
        """Layer norm as ai-edge-torch decomposes it: what is left of the mean, its square, RSQRT, gamma and beta."""
        axis = np.array([x.sample.ndim - 1], np.int32)
        left = self.op("SUB", [x, self.mean(x, axis, keep=True)])
        variance = self.mean(self.op("MUL", [left, left]), axis, keep=True)
        y = self.op("MUL", [left, self.op("RSQRT", [self.scale("ADD", variance, epsilon)])])
        y = self.scale("MUL", y, self.rng.uniform(0.7, 1.3, x.channels))
        return self.scale("ADD", y, self.rng.normal(0, 0.1, x.channels))

    def norm_of_onnx(self, x: NetworkTensor, epsilon: float = 1e-6) -> NetworkTensor:
        """Layer norm as exporters to ONNX decompose it: a power, a root and a division."""
        axis = np.array([x.sample.ndim - 1], np.int32)
        left = self.op("SUB", [x, self.mean(x, axis, keep=True)])
        variance = self.mean(self.apply("POW", [left], [np.array(2, np.float32)]), axis, keep=True)
        y = self.op("DIV", [left, self.op("SQRT", [self.scale("ADD", variance, epsilon)])])
        y = self.scale("MUL", y, self.rng.uniform(0.7, 1.3, x.channels))
        return self.scale("ADD", y, self.rng.normal(0, 0.1, x.channels))

    def group_norm(self, x: NetworkTensor, groups: int, epsilon: float = 1e-5) -> NetworkTensor:
        """Of [batch, n, d], over n and the channels of a group: RESHAPE to four axes and moments over two of them."""
        n, d = x.sample.shape[1:]
        y = self.reshape(x, n, groups, d // groups)
        axes = np.array([1, 3], np.int32)
        left = self.op("SUB", [y, self.mean(y, axes, keep=True)])
        variance = self.mean(self.op("MUL", [left, left]), axes, keep=True)
        y = self.op("MUL", [left, self.op("RSQRT", [self.scale("ADD", variance, epsilon)])])
        y = self.scale("MUL", self.reshape(y, n, d), self.rng.uniform(0.7, 1.3, d))
        return self.scale("ADD", y, self.rng.normal(0, 0.1, d))

    def instance_norm(self, x: NetworkTensor, epsilon: float = 1e-5) -> NetworkTensor:
        """Of pictures, over rows and columns, op by op."""
        axes = np.array([1, 2], np.int32)
        left = self.op("SUB", [x, self.mean(x, axes, keep=True)])
        variance = self.mean(self.op("MUL", [left, left]), axes, keep=True)
        y = self.op("MUL", [left, self.op("RSQRT", [self.scale("ADD", variance, epsilon)])])
        y = self.scale("MUL", y, self.rng.uniform(0.7, 1.3, x.channels))
        return self.scale("ADD", y, self.rng.normal(0, 0.1, x.channels))

    def group_norm_of_keras(self, x: NetworkTensor, groups: int, epsilon: float = 1e-5) -> NetworkTensor:
        """Of pictures: RESHAPE to five axes, moments over three of them, and a factor and a sum of these."""
        _, height, width, channels = x.sample.shape
        inner, axes = channels // groups, np.array([1, 2, 4], np.int32)
        y = self.reshape(x, height, width, groups, inner)
        mean = self.mean(y, axes, keep=True)
        variance = self.mean(self.op("SQUARED_DIFFERENCE", [y, mean]), axes, keep=True)
        gamma, beta = self.rng.uniform(0.7, 1.3, (groups, inner)), self.rng.normal(0, 0.1, (groups, inner))
        factor = self.scale("MUL", self.op("RSQRT", [self.scale("ADD", variance, epsilon)]), gamma)
        shift = self._constant_first("SUB", beta.astype(np.float32), self.op("MUL", [mean, factor]))
        return self.reshape(self.op("ADD", [self.op("MUL", [y, factor]), shift]), height, width, channels)

    def hard_swish_apart(self, x: NetworkTensor) -> NetworkTensor:
        """x * clip(x + 3, 0, 6) / 6, op by op."""
        y = self.scale("MAXIMUM", self.scale("MINIMUM", self.scale("ADD", x, 3), 6), 0)
        return self.op("MUL", [x, self.scale("MUL", y, 1 / 6)])

    def softmax_apart(self, x: NetworkTensor) -> NetworkTensor:
        """The exponentials over their sum, op by op."""
        axis = np.array([x.sample.ndim - 1], np.int32)
        largest = self.apply("REDUCE_MAX", [x], [axis], dict(keep_dims=True))
        y = self.op("EXP", [self.op("SUB", [x, largest])])
        return self.op("DIV", [y, self.apply("SUM", [y], [axis], dict(keep_dims=True))])

    def scale(self, operator: str, x: NetworkTensor, values: object, activation: str = "NONE") -> NetworkTensor:
        """An elementwise op with a constant."""
        if operator in ("MAXIMUM", "MINIMUM"):
            return self.apply(operator, [x], [np.asarray(values, np.float32)])
        return super().scale(operator, x, values, activation)

    def heads(self, x: NetworkTensor, count: int) -> NetworkTensor:
        """[batch, n, d] to [batch, heads, n, d / heads]."""
        n, d = x.sample.shape[1:]
        return self.transpose(self.reshape(x, n, count, d // count), 0, 2, 1, 3)

    def attention_of_torch(
        self,
        x: NetworkTensor,
        heads: int,
        *,
        softmax: Callable[[NetworkTensor], NetworkTensor] | None = None,
        added: Callable[[NetworkTensor], NetworkTensor] = lambda logits: logits,
    ) -> NetworkTensor:
        """One product for queries, keys and values, five axes that are transposed, and three slices of them; queries
        and keys are each multiplied by the root of the factor, as scaled_dot_product_attention decomposes."""
        n, d = x.sample.shape[1:]
        y = self.transpose(self.rows(self.dense(x, 3 * d), n, 3, heads, d // heads), 2, 0, 3, 1, 4)
        q, k, v = (self._part(y, i) for i in range(3))
        root = (d // heads) ** -0.25
        logits = self.op("BATCH_MATMUL", [self.scale("MUL", q, root), self.scale("MUL", self.turned(k), root)])
        logits = added(logits)
        weights = softmax(logits) if softmax else self.op("SOFTMAX", [logits], dict(beta=1.0))
        y = self.transpose(self.op("BATCH_MATMUL", [weights, v]), 0, 2, 1, 3)
        return self.dense(self.rows(y, n, d), d)

    def attend(self, q: NetworkTensor, k: NetworkTensor, v: NetworkTensor, heads: int) -> NetworkTensor:
        """Attention of [batch, n, d] to keys and values of any length [batch, m, d], each [..., d] already projected:
        BATCH_MATMUL with turned keys, the factor as a MUL of the logits, SOFTMAX, BATCH_MATMUL."""
        n, d = q.sample.shape[1:]
        logits = self.op("BATCH_MATMUL", [self.heads(q, heads), self.heads(k, heads)], dict(adj_y=True))
        weights = self.op("SOFTMAX", [self.scale("MUL", logits, (d // heads) ** -0.5)], dict(beta=1.0))
        y = self.op("BATCH_MATMUL", [weights, self.heads(v, heads)])
        return self.reshape(self.transpose(y, 0, 2, 1, 3), n, d)

    def root_norm(self, x: NetworkTensor, epsilon: float = 1e-6) -> NetworkTensor:
        """RMSNorm: over the root of the mean square, op by op, and a factor for each channel."""
        axis = np.array([x.sample.ndim - 1], np.int32)
        square = self.mean(self.op("MUL", [x, x]), axis, keep=True)
        y = self.op("MUL", [x, self.op("RSQRT", [self.scale("ADD", square, epsilon)])])
        return self.scale("MUL", y, self.rng.uniform(0.7, 1.3, x.channels))

    def quick_gelu(self, x: NetworkTensor) -> NetworkTensor:
        """x * sigmoid(1.702 x), op by op."""
        return self.op("MUL", [x, self.op("LOGISTIC", [self.scale("MUL", x, 1.702)])])

    def turned(self, x: NetworkTensor) -> NetworkTensor:
        """The last two axes of four exchanged."""
        return self.transpose(x, 0, 1, 3, 2)

    def transpose(self, x: NetworkTensor, *order: int) -> NetworkTensor:
        """TRANSPOSE; the batch may leave the front and come back."""
        sample = self._run("TRANSPOSE", [x, np.array(order, np.int32)], {})
        shape = [self._real(x)[i] for i in order]
        operands = [x.tensor, self._constant(np.array(order, np.int32))]
        return self._made(self.builder.op("TRANSPOSE", operands, shape), sample)

    def _real(self, x: NetworkTensor) -> tuple[int, ...]:
        return self.builder.graph().tensors[x.tensor].shape

    def _part(self, x: NetworkTensor, index: int) -> NetworkTensor:
        """One of three along the first axis, as SLICE and RESHAPE."""
        shape = self._real(x)[1:]
        rank = len(shape) + 1
        begin = np.array([index] + [0] * (rank - 1), np.int32)
        piece = self.builder.op(
            "SLICE", [x.tensor, self.builder.constant(begin), self.builder.constant(np.array([1, *shape], np.int32))],
            (1, *shape),
        )  # fmt: skip
        self._made(piece, x.sample[index : index + 1])
        full = np.array(shape, np.int32)
        tensor = self.builder.op("RESHAPE", [piece, self.builder.constant(full)], shape, dict(new_shape=tuple(shape)))
        return self._made(tensor, x.sample[index])


def of_pictures(title: str, size: int = 224) -> Callable[[Callable[..., None]], Builder]:
    """Makes a builder of `lay(net, picture, *, option=default, ...)`, with the options seed, precision, batch and
    resolution besides. The picture is [batch, resolution, resolution, 3] in -1..1."""
    return _built(title, dict(resolution=size), lambda net, given: net.image("input", *[given.pop("resolution")] * 2))


def of_torch_pictures(title: str, size: int = 224, pictures: int = 2) -> Callable[[Callable[..., None]], Builder]:
    """The same with the channels in front, as PyTorch has them: [batch, 3, resolution, resolution], and a TRANSPOSE.
    `pictures`: how many the layers are measured on, one for layers of billions of operations."""

    def start(net: StrangeLayers, given: dict[str, Any]) -> NetworkTensor:
        resolution, other = given.pop("resolution"), StrangeLayers("")
        net.pictures = other.pictures = pictures
        picture = other.image("input", resolution, resolution)
        sample = np.ascontiguousarray(picture.sample.transpose(0, 3, 1, 2))
        tensor = net.builder.input("input", (net.batch, *sample.shape[1:]))
        net._inputs["input"] = tensor
        return net.transpose(net._made(tensor, sample), 0, 2, 3, 1)

    return _built(title, dict(resolution=size), start)


def of_tokens(title: str, length: int, vocabulary: int) -> Callable[[Callable[..., None]], Builder]:
    """The same of tokens, int32 [batch, length] below `vocabulary`, which `lay` is told as well."""

    def start(net: StrangeLayers, given: dict[str, Any]) -> NetworkTensor:
        return net.tokens("tokens", given.pop("length"), given["vocabulary"])

    return _built(title, dict(length=length, vocabulary=vocabulary), start)


def of_frames(title: str, length: int, channels: int) -> Callable[[Callable[..., None]], Builder]:
    """The same of frames, float32 [batch, length, channels]."""

    def start(net: StrangeLayers, given: dict[str, Any]) -> NetworkTensor:
        shape = (given.pop("length"), channels)
        tensor = net.builder.input("frames", (net.batch, *shape))
        net._inputs["frames"] = tensor
        return net._made(tensor, net.rng.normal(0, 1, (net.pictures, *shape)).astype(np.float32))

    return _built(title, dict(length=length), start)


def _built(
    title: str, own: dict[str, Any], start: Callable[[StrangeLayers, dict[str, Any]], NetworkTensor]
) -> Callable[[Callable[..., None]], Builder]:
    def decorate(lay: Callable[..., None]) -> Builder:
        options = {
            name: parameter.default
            for name, parameter in inspect.signature(lay).parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        defaults = dict(seed=0, precision="float32", batch=1) | options | own

        def build(**given: Any) -> bytes:
            if unknown := set(given) - set(defaults):
                raise TypeError(f"{lay.__name__}() has no option {', '.join(sorted(unknown))}")
            values = {**defaults, **given}
            net = StrangeLayers(title, **{name: values.pop(name) for name in ("seed", "precision", "batch")})
            x = start(net, values)
            lay(net, x, **values)
            return net.build()

        build.__name__, build.__doc__ = lay.__name__, lay.__doc__
        build.options = defaults  # type: ignore[attr-defined] # for tests, which make them small
        return build

    return decorate
