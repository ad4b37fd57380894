"""Small networks of the kinds whose quantized files are public, as their converters write them: bytes of either sign,
scales for each tensor or each filter, ranges measured on pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from agreement import official, run

from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Tensor, TensorType
from litegpu.zoo.layers import Layers
from litegpu.zoo.network import NetworkTensor


@dataclass(frozen=True)
class Style:
    """How a network is quantized. `filters`: weights have a scale for each filter, else for all."""

    kind: TensorType
    filters: bool = True

    @property
    def limits(self) -> tuple[int, int]:
        limits = np.iinfo(self.dtype)
        return int(limits.min), int(limits.max)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.kind.name.lower())


#: Words of 16 bits, weights of 8 and biases of 64.
WORDS = Style(TensorType.INT16)
STYLES = {
    "int8": Style(TensorType.INT8),
    "int8, a scale a tensor": Style(TensorType.INT8, False),
    "uint8": Style(TensorType.UINT8, False),
}
#: The axis of the filters in the weights, and the places of what they are multiplied with, of them and of the bias.
_WEIGHTED = {
    "CONV_2D": (0, 0, 1, 2),
    "DEPTHWISE_CONV_2D": (3, 0, 1, 2),
    "FULLY_CONNECTED": (0, 0, 1, 2),
    "TRANSPOSE_CONV": (0, 2, 1, 3),
}
#: What these read and write has one scale, and the inputs that are values.
_MOVES = {
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE", "TRANSPOSE", "PAD", "SPACE_TO_DEPTH"), slice(1)),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "STRIDED_SLICE", "SLICE", "GATHER"), slice(1)),
    **dict.fromkeys(("DEPTH_TO_SPACE", "MIRROR_PAD", "TILE", "EXPAND_DIMS"), slice(1)),
    **dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN"), slice(1)),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), slice(2)),
    "PADV2": slice(0, 3, 2),
    "SELECT_V2": slice(1, 3),
    "PACK": slice(None),
    "SPLIT": slice(1, 2),
    "CONCATENATION": slice(None),
}
#: Scale and zero point that the runtime's kernels ask of a result, that of UINT8 128 more.
_FIXED = {
    "SOFTMAX": (1 / 256, -128), "LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0), "L2_NORMALIZATION": (1 / 128, 0),
    "LOG_SOFTMAX": (1 / 16, 127),
}  # fmt: skip


def quantize(model: Model, ranges: dict[int, tuple[float, float]], style: Style) -> Model:
    """The float model in that style; `ranges` are of all that is computed."""
    graph = model.main
    weights = {op.inputs[i] for op in graph.operators if op.name in _WEIGHTED for i in _WEIGHTED[op.name][2:]
               if i < len(op.inputs) and i >= 0}  # fmt: skip
    parents: dict[int, int] = {}

    def root(i: int) -> int:
        while i in parents:
            i = parents[i]
        return i

    for op in graph.operators:
        if op.name in _MOVES and not (op.name == "CONCATENATION" and style.kind is TensorType.UINT8):
            for other in (*op.inputs[_MOVES[op.name]], *op.outputs):
                if (mine := root(other)) != (its := root(op.outputs[0])):
                    parents[mine] = its
    tensors = list(graph.tensors)
    real = {op.inputs[0] for op in graph.operators if op.name == "QUANTIZE"}
    real |= {op.outputs[0] for op in graph.operators if op.name == "DEQUANTIZE"}
    floats = [t for t in tensors if t.type is TensorType.FLOAT32 and t.index not in weights | real]
    found: dict[int, tuple[float, float]] = {}
    for t in floats:
        low, high = ranges[t.index] if t.data is None else (float(t.data.min()), float(t.data.max()))
        before = found.get(root(t.index), (0.0, 0.0))
        found[root(t.index)] = min(before[0], low), max(before[1], high)
    fixed = {root(op.outputs[0]): _FIXED[op.name] for op in graph.operators if op.name in _FIXED}
    for t in floats:
        if (known := fixed.get(root(t.index))) is not None:
            scale, zero = known[0], known[1] + 128 + style.limits[0]
            if style.kind is TensorType.INT16:
                scale, zero = 2.0**-15, 0
        else:
            scale, zero = _placed(*found[root(t.index)], style)
        data = t.data
        if data is not None:
            data = np.clip(np.rint(data / np.float32(scale)) + zero, *style.limits).astype(style.dtype)
        tensors[t.index] = dataclasses.replace(t, type=style.kind, data=data, quantization=quantized(scale, zero))
    for op in graph.operators:
        if op.name in _WEIGHTED:
            _weigh(op, tensors, style)
    return model.with_main(dataclasses.replace(graph, tensors=tuple(tensors)))


def _placed(low: float, high: float, style: Style) -> tuple[float, int]:
    """Scale and zero point for a range with zero in it."""
    least, most = style.limits
    if style.kind is TensorType.INT16:
        return max(-low, high, 1e-3) / most, 0
    scale = max((high - low) / 255, 1e-3)
    return scale, int(np.clip(np.rint(least - low / scale), least, most))


def _weigh(op: Operator, tensors: list[Tensor], style: Style) -> None:
    axis, source, place, bias = _WEIGHTED[op.name]
    weights = tensors[op.inputs[place]]
    assert weights.data is not None
    if style.kind is TensorType.UINT8:  # with a zero point of their own, as files of old have them
        low, high = min(0.0, float(weights.data.min())), max(0.0, float(weights.data.max()))
        scale, zero = _placed(low, high, style)
        values = np.clip(np.rint(weights.data / np.float32(scale)) + zero, 0, 255).astype(np.uint8)
        scales, quantization = np.array([scale], np.float32), quantized(scale, zero)
    else:
        others = tuple(i for i in range(weights.data.ndim) if i != axis) if style.filters else None
        scales = np.atleast_1d(np.maximum(np.abs(weights.data).max(axis=others) / 127, 1e-9)).astype(np.float32)
        along = [-1 if i == axis else 1 for i in range(weights.data.ndim)]
        values = np.clip(np.rint(weights.data / scales.reshape(along if style.filters else 1)), -127, 127)
        values, quantization = values.astype(np.int8), quantized(scales, 0, axis if style.filters else 0)
    kind = TensorType.UINT8 if style.kind is TensorType.UINT8 else TensorType.INT8
    tensors[weights.index] = dataclasses.replace(weights, data=values, type=kind, quantization=quantization)
    if len(op.inputs) <= bias or op.inputs[bias] < 0:
        return
    given, of = tensors[op.inputs[bias]], tensors[op.inputs[source]].quantization
    assert given.data is not None and of is not None
    sums = (scales * of.scales[0]).astype(np.float32)
    counts = np.clip(np.rint(given.data.astype(np.float64) / sums), -(2**30), 2**30).astype(np.int32)
    wide = style.kind is TensorType.INT16
    tensors[given.index] = dataclasses.replace(
        given,
        data=counts.astype(np.int64) if wide else counts,
        type=TensorType.INT64 if wide else TensorType.INT32,
        quantization=quantized(sums, 0, 0),
    )


# ------------------------------------------------------------------------------------------------------- networks


class Net(Layers):
    """A network and the ranges of what it computes."""

    def stored(self, style: Style) -> bytes:
        self.builder.signature("serving_default", self._inputs, self._outputs)
        return write_model(quantize(self.builder.model(), self._ranges, style))

    def give(self, name: str, x: NetworkTensor) -> None:
        self.output(name, x.tensor)

    def converted(self, operator: str, x: NetworkTensor) -> NetworkTensor:
        """QUANTIZE or DEQUANTIZE, of real numbers that the file takes or gives."""
        made = self.builder.op(operator, [x.tensor], self.shape_of(x.sample), type=TensorType.FLOAT32)
        return self._made(made, x.sample)

    def arg_max(self, x: NetworkTensor, axis: int, kind: TensorType) -> int:
        shape = self.shape_of(np.delete(x.sample, np.s_[1:], axis).squeeze(axis))
        where = self.builder.constant(np.array(axis, np.int32))
        return self.builder.op("ARG_MAX", [x.tensor, where], shape, dict(output_type=kind), type=kind)

    def block(self, x: NetworkTensor, wide: int, out: int, stride: int = 1, kernel: int = 3) -> NetworkTensor:
        """An inverted residual block."""
        y = self.conv(x, wide, activation="RELU6")
        y = self.depthwise(y, stride, kernel=kernel, activation="RELU6")
        y = self.conv(y, out, activation="NONE")
        return self.add(x, y) if stride == 1 and out == x.channels else y

    def silu(self, x: NetworkTensor, filters: int, kernel: int = 1, stride: int = 1) -> NetworkTensor:
        return self.activate(self.convolution(x, filters, kernel, stride, activation="NONE"), "SWISH")

    def cut(self, x: NetworkTensor, begin: list[int], end: list[int], strides: list[int]) -> NetworkTensor:
        """STRIDED_SLICE, 0 as an end for all."""
        masks = sum(1 << i for i, e in enumerate(end) if e == 0)
        constants = [np.array(v, np.int32) for v in (begin, end, strides)]
        return self.apply("STRIDED_SLICE", [x], constants, dict(begin_mask=1, end_mask=masks | 1))

    def nearest(self, x: NetworkTensor) -> NetworkTensor:
        size = np.array([2 * x.sample.shape[1], 2 * x.sample.shape[2]], np.int32)
        return self.apply("RESIZE_NEAREST_NEIGHBOR", [x], [size], dict(half_pixel_centers=True))

    def bilinear(self, x: NetworkTensor, high: int, wide: int, half: bool | None = True) -> NetworkTensor:
        """None: neither pixels' centres nor their corners meet, as in old files."""
        options = {True: dict(half_pixel_centers=True), False: dict(align_corners=True), None: {}}[half]
        return self.apply("RESIZE_BILINEAR", [x], [np.array([high, wide], np.int32)], options)

    def join(self, *parts: NetworkTensor, axis: int = 3) -> NetworkTensor:
        return self.op("CONCATENATION", parts, dict(axis=axis, fused_activation_function="NONE"))

    def halves(self, x: NetworkTensor) -> list[NetworkTensor]:
        n = x.channels // 2
        rest = [0] * (x.sample.ndim - 1)
        ones = [1] * x.sample.ndim
        return [self.cut(x, [*rest, 0], [*rest, n], ones), self.cut(x, [*rest, n], [*rest, 0], ones)]


def _ssd(net: Net) -> None:
    """SSD on MobileNet v2: heads joined over the scales, scores by LOGISTIC."""
    x = net.conv(net.image("picture", 64, 64), 16, 3, 2, activation="RELU6")
    x = net.block(x, 48, 24, 2)
    x = net.block(x, 144, 24)
    x = net.block(x, 144, 32, 2)
    boxes, scores = [], []
    for i in range(3):
        side = x.sample.shape[1]
        boxes.append(net.reshape(net.plain(net.depthwise(x), 12), side * side * 3, 4))
        scores.append(net.reshape(net.plain(net.depthwise(x), 27), side * side * 3, 9))
        if i < 2:
            x = net.conv(net.conv(x, 24, activation="RELU6"), 64, 3, 2, activation="RELU6")
    net.give("boxes", net.join(*boxes, axis=1))
    net.give("scores", net.op("LOGISTIC", [net.join(*scores, axis=1)]))


def _efficientnet(net: Net) -> None:
    """EfficientNet-lite: kernels of 3 and 5, RELU6."""
    x = net.conv(net.image("picture", 56, 56), 32, 3, 2, activation="RELU6")
    x = net.conv(net.depthwise(x), 16, activation="NONE")
    x = net.block(x, 96, 24, 2)
    x = net.block(x, 144, 24)
    x = net.block(x, 144, 40, 2, 5)
    x = net.block(x, 240, 40, 1, 5)
    x = net.conv(net.block(x, 240, 80, 2), 320, activation="RELU6")
    x = net.reshape(net.average_pool(x), 320)
    net.give("classes", net.op("SOFTMAX", [net.dense(x, 1000)], dict(beta=1.0)))


def _inception(net: Net) -> None:
    """Inception v3 and v4: branches, padded averages, kernels of a row or a column."""
    x = net.conv(net.image("picture", 75, 75), 32, 3, 2, padding="VALID")
    x = net.conv(net.conv(x, 32, 3, padding="VALID"), 64, 3)
    x = net.join(net.max_pool(x, 3, 2), net.conv(x, 96, 3, 2, padding="VALID"))
    for _ in range(2):
        one = net.conv(x, 64)
        two = net.conv(net.conv(x, 48), 64, 5)
        three = net.conv(net.conv(net.conv(x, 64), 96, (1, 7)), 96, (7, 1))
        four = net.conv(net.mean_pool(x, 3, 1, "SAME"), 32)
        x = net.join(one, two, three, four)
    x = net.join(net.max_pool(x, 3, 2), net.conv(net.conv(x, 64), 96, 3, 2, padding="VALID"))
    x = net.reshape(net.average_pool(x), x.channels)
    net.give("classes", net.op("SOFTMAX", [net.dense(x, 1001)], dict(beta=1.0)))


def _deeplab(net: Net) -> None:
    """DeepLab v3: dilated depthwise layers, a pooled branch that is resized, the class of each pixel."""
    x = net.conv(net.image("picture", 65, 65), 16, 3, 2, activation="RELU6")
    x = net.block(x, 64, 24, 2)
    y = net.depthwise(net.conv(x, 96, activation="RELU6"), dilation=2)
    x = net.add(x, net.conv(y, 24, activation="NONE"))
    y = net.depthwise(net.conv(x, 96, activation="RELU6"), dilation=4)
    x = net.conv(y, 64, activation="NONE")
    side = x.sample.shape[1]
    pooled = net.bilinear(net.conv(net.average_pool(x), 64), side, side, False)
    x = net.conv(net.join(pooled, net.conv(x, 64)), 64)
    x = net.bilinear(net.head(x, 21), 65, 65, False)
    net.give("scores", x)
    net.builder.output(net.arg_max(x, 3, TensorType.INT64))


def _yolo5(net: Net) -> None:
    """YOLOv5: slices side by side, SiLU, cross-stage blocks, pyramids of pools and of scales, decoded boxes."""
    p = net.image("picture", 64, 64)
    x = net.join(*(net.cut(p, [0, i, j, 0], [0, 0, 0, 0], [1, 2, 2, 1]) for j in (0, 1) for i in (0, 1)))
    x = net.silu(net.silu(x, 16, 3), 32, 3, 2)

    def stage(x: NetworkTensor, out: int) -> NetworkTensor:
        y = net.silu(x, out // 2)
        y = net.add(y, net.silu(net.silu(y, out // 2), out // 2, 3))
        return net.silu(net.join(y, net.silu(x, out // 2)), out)

    low = stage(x, 32)
    x = stage(net.silu(low, 64, 3, 2), 64)
    x = net.silu(x, 32)
    pools = [x]
    for _ in range(3):
        pools.append(net.max_pool(pools[-1], 5, 1, "SAME"))
    high = net.silu(net.join(*pools), 64)
    up = net.nearest(net.silu(high, 32))
    low = stage(net.join(up, low), 32)
    outs = []
    for x in (low, high):
        side = x.sample.shape[1]
        y = net.op("LOGISTIC", [net.reshape(net.plain(x, 3 * 9), side * side, 3, 9)])
        grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(1, side * side, 1, 2) / side
        at = net.cut(y, [0, 0, 0, 0], [0, 0, 0, 2], [1, 1, 1, 1])
        at = net.scale("ADD", net.scale("MUL", at, np.full((1, 1, 1, 1), 2 / side)), grid.astype(np.float32))
        size = net.scale("MUL", net.cut(y, [0, 0, 0, 2], [0, 0, 0, 4], [1, 1, 1, 1]), np.full((1, 1, 1, 1), 2.0))
        anchors = np.array([[[0.1, 0.2], [0.3, 0.3], [0.5, 0.4]]], np.float32)[None]
        size = net.scale("MUL", net.op("MUL", [size, size]), anchors)
        rest = net.cut(y, [0, 0, 0, 4], [0, 0, 0, 0], [1, 1, 1, 1])
        outs.append(net.reshape(net.join(at, size, rest), side * side * 3, 9))
    net.give("boxes", net.join(*outs, axis=1))


def _yolo8(net: Net) -> None:
    """YOLOv8: SPLIT, distances by SOFTMAX and a convolution, SUB and ADD of them."""
    x = net.silu(net.silu(net.image("picture", 48, 48), 16, 3, 2), 32, 3, 2)
    first, second = net.halves(x)
    third = net.add(second, net.silu(net.silu(second, 16, 3), 16, 3))
    x = net.silu(net.join(first, second, third), 32)
    side = x.sample.shape[1]
    box = net.reshape(net.plain(net.silu(x, 64, 3), 64), side * side, 4, 16)
    box = net.op("SOFTMAX", [box], dict(beta=1.0))
    weights = np.arange(16, dtype=np.float32).reshape(1, 1, 1, 16)
    far = net.apply("CONV_2D", [box], [weights, np.zeros(1, np.float32)],
                    dict(stride_h=1, stride_w=1, padding="VALID"))  # fmt: skip
    far = net.reshape(far, side * side, 4)
    low, high = net.halves(far)
    centre = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(1, -1, 2).astype(np.float32) + 0.5
    least = net.op("SUB", [net.constant(centre[0]), low], dict(fused_activation_function="NONE"))
    most = net.op("ADD", [net.constant(centre[0]), high], dict(fused_activation_function="NONE"))
    middle = net.scale("MUL", net.add(least, most), np.full((1, 1, 1), 0.5))
    size = net.op("SUB", [most, least], dict(fused_activation_function="NONE"))
    scores = net.op("LOGISTIC", [net.reshape(net.plain(net.silu(x, 16, 3), 10), side * side, 10)])
    boxes = net.scale("MUL", net.join(middle, size, axis=2), np.full((1, 1, 1), 1 / side))
    found = net.join(boxes, scores, axis=2)
    net.give("found", net.apply("TRANSPOSE", [found], [np.array([0, 2, 1], np.int32)]))


def _movenet(net: Net) -> None:
    """MoveNet: a feature pyramid with resizes, heat maps, the most likely place of each joint."""
    x = net.conv(net.image("picture", 64, 64), 16, 3, 2, activation="RELU6")
    a = net.block(x, 48, 24, 2)
    b = net.block(a, 96, 32, 2)
    c = net.block(b, 128, 64, 2)
    x = net.plain(c, 24)
    for lower in (b, a):
        side = lower.sample.shape[1]
        x = net.add(net.bilinear(x, side, side, None if lower is a else True), net.plain(lower, 24))
        x = net.conv(net.depthwise(x), 24)
    heat = net.op("LOGISTIC", [net.plain(net.conv(x, 48, 3), 17)])
    offsets = net.plain(net.conv(x, 48, 3), 34)
    side = x.sample.shape[1]
    weighted = net.op("MUL", [heat, net.constant(net.rng.uniform(0.1, 1, (side, side, 17)).astype(np.float32))])
    flat = net.reshape(weighted, side * side, 17)
    net.builder.output(net.arg_max(flat, 1, TensorType.INT32))
    net.give("heat", heat)
    net.give("offsets", offsets)


def _unet(net: Net) -> None:
    """Encoder and decoder: LEAKY_RELU, PRELU, TRANSPOSE_CONV, PAD, joined scales."""
    p = net.converted("QUANTIZE", net.image("picture", 32, 32))
    a = net.convolution(net.pad(p, 1, 1), 16, 3, activation="NONE", padding="VALID")
    a = net.apply("LEAKY_RELU", [a], options=dict(alpha=0.2))
    b = net.convolution(net.pad(a, 0, 1), 32, 3, 2, activation="NONE", padding="VALID")
    b = net.apply("PRELU", [b], [net.rng.uniform(0.05, 0.4, (1, 1, 32)).astype(np.float32)])
    c = net.apply("LEAKY_RELU", [net.convolution(b, 48, 4, 2, activation="NONE")], options=dict(alpha=0.1))

    def wider(x: NetworkTensor, filters: int, kernel: int) -> NetworkTensor:
        side = 2 * x.sample.shape[1]
        weights = net._normal((filters, kernel, kernel, x.channels), kernel**2 * x.channels // 4)
        options = dict(stride_h=2, stride_w=2, padding="SAME")
        bias = net._bias(filters)
        full = np.array([net.pictures, side, side, filters], np.int32)
        one = ModelBuilder()
        taken = one.input("x", x.sample.shape)
        parts = [one.constant(full), one.constant(weights), taken, one.constant(bias)]
        one.output(one.op("TRANSPOSE_CONV", parts, tuple(map(int, full)), options))
        sample = run(official(one.build()), [x.sample])[0]
        full = np.array([net.batch, side, side, filters], np.int32)
        operands = [net._constant(full), net._constant(weights), x.tensor, net._constant(bias)]
        return net._made(net.builder.op("TRANSPOSE_CONV", operands, net.shape_of(sample), options), sample)

    x = net.join(net.activate(wider(c, 32, 2), "RELU"), b)
    x = net.conv(x, 32, 3, activation="HARD_SWISH")
    x = net.join(wider(x, 16, 3), a)
    x = net.op("TANH", [net.plain(net.conv(x, 16, 3), 3)])
    net.give("mask", net.converted("DEQUANTIZE", x))


def _keywords(net: Net) -> None:
    """DS-CNN: one channel of 49 x 10 numbers."""
    p = net.image("picture", 49, 10)
    x = net.conv(net.cut(p, [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]), 64, (10, 4), 2, activation="RELU")
    for _ in range(3):
        x = net.conv(net.depthwise(x, activation="RELU"), 64, activation="RELU")
    x = net.reshape(net.average_pool(x), 64)
    net.give("words", net.op("SOFTMAX", [net.dense(x, 12)], dict(beta=1.0)))


def _gated(net: Net) -> None:
    """MobileNet v3 and faces: squeeze and excite, HARD_SWISH, embeddings of length one."""
    x = net.conv(net.image("picture", 48, 48), 16, 3, 2, activation="HARD_SWISH")
    y = net.separate(net.conv(x, 64, activation="HARD_SWISH"), 2, 5, "HARD_SWISH")
    y = net.gate(y, 16, "RELU", "HARD_SIGMOID", flat=False)
    x = net.conv(y, 24, activation="NONE")
    y = net.gate(net.separate(net.conv(x, 72)), 24, "RELU", "LOGISTIC")
    x = net.add(x, net.conv(y, 24, activation="NONE"), "RELU")
    x = net.op("MAXIMUM", [x, net.apply("MIRROR_PAD", [net.max_pool(x, 3, 1)],
                                        [np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)],
                                        dict(mode="REFLECT"))])  # fmt: skip
    net.give("embedding", net.op("L2_NORMALIZATION", [net.dense(net.mean(x), 64)]))


def _attention(net: Net) -> None:
    """A block of a vision transformer: products of two computed matrices, SOFTMAX, GELU."""
    x = net.conv(net.image("picture", 32, 32), 48, 4, 4, activation="NONE", padding="VALID")
    x = net.reshape(x, 64, 48)

    def heads(y: NetworkTensor) -> NetworkTensor:
        return net.apply("TRANSPOSE", [net.reshape(y, 64, 3, 16)], [np.array([0, 2, 1, 3], np.int32)])

    q, k, v = (heads(net.dense(x, 48)) for _ in range(3))
    q = net.scale("MUL", q, np.full((1, 1, 1, 1), 0.25))
    logits = net.op("BATCH_MATMUL", [q, k], dict(adj_x=False, adj_y=True))
    y = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), v], dict(adj_x=False, adj_y=False))
    y = net.reshape(net.apply("TRANSPOSE", [y], [np.array([0, 2, 1, 3], np.int32)]), 64, 48)
    x = net.add(x, net.dense(y, 48))
    x = net.add(x, net.dense(net.op("GELU", [net.dense(x, 96)]), 48))
    net.give("classes", net.op("LOG_SOFTMAX", [net.dense(net.mean(x, np.array([1], np.int32)), 10)]))


NETWORKS: dict[str, Callable[[Net], None]] = {
    "ssd": _ssd, "efficientnet": _efficientnet, "inception": _inception, "deeplab": _deeplab, "yolo5": _yolo5,
    "yolo8": _yolo8, "movenet": _movenet, "unet": _unet, "keywords": _keywords, "gated": _gated,
    "attention": _attention,
}  # fmt: skip


def network(name: str, style: Style, batch: int = 1, seed: int = 7) -> bytes:
    net = Net(name, seed=seed, batch=batch)
    NETWORKS[name](net)
    return net.stored(style)
