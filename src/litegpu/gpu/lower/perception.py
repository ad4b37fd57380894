"""Custom operators of MediaPipe's models."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.gpu.custom.landmarks import CropMatrix, TransformPoints, TurnedCropMatrix
from litegpu.gpu.custom.operation import decode_flexbuffer
from litegpu.gpu.custom.pooling import MaxUnpool, WindowArgmax
from litegpu.gpu.custom.sampling import Resample, TransformImage
from litegpu.gpu.graph import RESULT, Custom, Definition, Pool2D, TransposeConv2D
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.activation import activate
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.product import product
from litegpu.gpu.lower.registry import lowers, lowers_as
from litegpu.model.ops.windows import SAME, VALID, before, output_size

Pair = tuple[int, int]

#: TfLitePadding, which TfLitePoolParams and TfLiteTransposeConvParams begin with, as the schema numbers it.
_PADDING = {1: SAME, 2: VALID}
#: A place in the window is stored with this added, so that truncation gives it back (max_pool_argmax.cc).
_INDEX_MARGIN = 0.1


@lowers("MaxPoolingWithArgmax2D")
def max_pooling_with_argmax(ctx: OpContext) -> None:
    ctx.require(len(ctx.outputs) == 2, f"{len(ctx.outputs)} outputs where the operator has 2")
    padding, stride, window, activation = _pool_params(ctx)
    ctx.require(padding in _PADDING, f"padding {padding} is neither SAME (1) nor VALID (2)")
    b, h, w, c = ctx.shape(0)
    out = [output_size(n, k, s, 1, _PADDING[padding]) for n, k, s in zip((h, w), window, stride, strict=True)]
    for output in ctx.outputs:
        ctx.check_shape((b, *out, c), output)
    front = [
        before(n, k, s, 1, o) if _PADDING[padding] == SAME else 0
        for n, k, s, o in zip((h, w), window, stride, out, strict=True)
    ]
    x, padded = ctx.value(0), (front[0], front[1])
    values, places = ctx.outputs
    ctx.add(Pool2D("max", window, stride, padded), [x], ctx.output_value(values), activate(RESULT, activation))
    margin = fn("add", fn("to_float32", RESULT), _INDEX_MARGIN)
    ctx.add(Custom(WindowArgmax(window, stride, padded)), [x], ctx.output_value(places), margin)


@lowers("MaxUnpooling2D")
def max_unpooling(ctx: OpContext) -> None:
    _, stride, window, _ = _pool_params(ctx)
    values, places, out = ctx.shape(0), ctx.shape(1), tuple(ctx.output.shape)
    ctx.require(values == places, f"values of shape {list(values)} with places of shape {list(places)}")
    ctx.require(
        len(out) == 4 and (out[0], out[3]) == (values[0], values[3]),
        f"values of shape {list(values)} cannot give an output of shape {list(out)}",
    )
    front = [max(0, (n - 1) * s + k - o) // 2 for n, s, k, o in zip(values[1:3], stride, window, out[1:3], strict=True)]
    op = MaxUnpool(window, stride, (front[0], front[1]))
    ctx.add(Custom(op), [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers("Convolution2DTransposeBias")
def convolution_transpose_bias(ctx: OpContext) -> None:
    padding, stride_w, stride_h = _integers(ctx, 3)
    x, weights = ctx.shape(0), ctx.shape(1)
    ctx.require(len(weights) == 4 and weights[3] == x[3], f"weights of shape {list(weights)} for {x[3]} input channels")
    stride = (stride_h, stride_w)
    ctx.require(min(stride) > 0, f"strides {list(stride)} are not positive")
    ctx.require(padding in (0, 1, 2), f"padding {padding} is neither SAME (1) nor VALID (2)")
    cut = [  # of the whole result: MediaPipe reckons it from the input's size
        max(0, k - (n - 1) % s - 1) if padding == 1 else 0 for n, k, s in zip(x[1:3], weights[1:3], stride, strict=True)
    ]
    out = [(n - 1) * s + k - t for n, s, k, t in zip(x[1:3], stride, weights[1:3], cut, strict=True)]
    ctx.check_shape((x[0], *out, weights[0]))
    p = product(ctx, weights[0])
    op = TransposeConv2D(stride, (cut[0] // 2, cut[1] // 2))
    ctx.add(op, [p.data, p.weights()], ctx.output_value(), p.epilogue, p.operands)


def _pool_params(ctx: OpContext) -> tuple[int, Pair, Pair, int]:
    """Padding, stride, window and activation of a TfLitePoolParams."""
    padding, stride_w, stride_h, width, height, activation = _integers(ctx, 6)
    stride, window = (stride_h, stride_w), (height, width)
    ctx.require(min(*window, *stride) > 0, f"window {list(window)} or strides {list(stride)} are not positive")
    return padding, stride, window, activation


def _integers(ctx: OpContext, count: int) -> tuple[int, ...]:
    """The first int32 fields of the C struct that the options are the image of."""
    options = ctx.operator.custom_options
    if len(options) < 4 * count:
        raise Unsupported(f"custom options of {len(options)} bytes: the operator needs at least {4 * count}")
    return struct.unpack_from(f"<{count}i", options)


@lowers("Resampler")
def resampler(ctx: OpContext) -> None:
    image, warp = ctx.shape(0), ctx.shape(1)
    ctx.require(
        len(warp) == 4 and warp[0] == image[0] and warp[3] >= 2,
        f"a warp of shape {list(warp)} for an image of shape {list(image)}",
    )
    ctx.check_shape((*warp[:3], image[3]))
    ctx.add(Custom(Resample()), [ctx.value(0), ctx.value(1)], ctx.output_value())


@lowers_as(TransformTensor=False, TransformTensorBilinear=True)
def transform_tensor(ctx: OpContext, centred: bool) -> None:
    options = _Options(ctx)
    if centred:
        size = (options.integer("output_height"), options.integer("output_width"))
    else:
        mode = options.get("mode")
        ctx.require(mode == "bilinear", f"mode {mode!r}: only 'bilinear' is known")
        size = options.pair("output_size")
    image = ctx.shape(0)
    ctx.require(image[0] == 1, f"a batch of {image[0]} images: the operator takes one")
    ctx.check_shape((1, *size, image[3]))
    ctx.add(Custom(TransformImage(centred)), [ctx.value(0), _matrix(ctx, 1)], ctx.output_value())


@lowers("TransformLandmarks")
def transform_landmarks(ctx: OpContext) -> None:
    shape = ctx.shape(0)
    ctx.check_shape(shape)
    dimensions, scale = shape[-1], 1.0
    if ctx.operator.version == 1:
        options = _Options(ctx)
        dimensions, scale = options.integer("dimensions"), options.number("scale")
    ctx.require(dimensions in (2, 3), f"landmarks of {dimensions} dimensions: 2 or 3 are known")
    ctx.require(shape[-1] % dimensions == 0, f"{shape[-1]} channels are not landmarks of {dimensions} dimensions")
    ctx.require(scale != 0, "scale is 0")
    each = (math.prod(shape) // dimensions, dimensions)
    points = ctx.reshaped(ctx.value(0), each)
    ctx.finish(Custom(TransformPoints(scale)), [points, _matrix(ctx, 1)], each)


@lowers_as(Landmarks2TransformMatrix=1, Landmarks2TransformMatrixV2=2)
def landmarks_to_transform_matrix(ctx: OpContext, edition: int) -> None:
    edition = max(edition, ctx.operator.version)  # models tell the second by the version or by the name
    options, elements = _Options(ctx), math.prod(ctx.shape(0))
    ctx.require(elements % 3 == 0, f"{elements} numbers are not landmarks of 3 dimensions")
    left, right = options.integer("left_rotation_idx"), options.integer("right_rotation_idx")
    definition: Definition
    if edition == 1:
        dimensions, extent = options.integer("dimensions"), options.number("landmarks_range")
        ctx.require(dimensions == 3, f"landmarks of {dimensions} dimensions: 3 are known")
        ctx.require(extent > 0, f"landmarks_range {extent} is not positive")
        subset = options.integers("subset")
        sizes = options.pair("input_hw"), options.pair("output_hw")
        ctx.require(min(sizes[0]) > 0 and min(sizes[1]) > 1, f"input_hw or output_hw, {sizes}, are too small")
        definition = CropMatrix(*sizes, extent, options.number("bbox_size_multiplier"), left, right)
    else:
        subset = options.integers("subset_idxs")
        size = options.integer("output_height"), options.integer("output_width")
        ctx.require(min(size) > 0, f"the output's size {size} is not positive")
        scale = options.number("scale_x"), options.number("scale_y")
        definition = TurnedCropMatrix(size, scale, options.number("target_rotation_radians"), left, right)
    ctx.require(
        len(subset) > 0 and all(0 <= i < elements // 3 for i in (left, right, *subset)),
        f"landmarks {left}, {right} and {list(subset)} are asked for, of {elements // 3}",
    )
    ctx.require(math.prod(ctx.output.shape) == 16, f"output of shape {list(ctx.output.shape)}, not a matrix of 4 x 4")
    landmarks = ctx.reshaped(ctx.value(0), (elements,))
    chosen = ctx.builder.constant(np.array(subset, np.int32))
    ctx.finish(Custom(definition), [landmarks, chosen], (4, 4))


def _matrix(ctx: OpContext, i: int) -> int:
    """Input i, a matrix of 4 x 4, as [1,1,1,16]."""
    shape = ctx.shape(i)
    ctx.require(math.prod(shape) == 16, f"input {i} has shape {list(shape)}: a matrix of 4 x 4 is taken")
    return ctx.reshaped(ctx.value(i), (16,))


class _Options:
    """The FlexBuffers map of an operator; what is missing or of the wrong kind is a reason to refuse it."""

    def __init__(self, ctx: OpContext) -> None:
        try:
            found = decode_flexbuffer(ctx.operator.custom_options, ctx.operator.name)
        except ModelError as error:
            raise Unsupported(str(error)) from None
        if not isinstance(found, dict):
            raise Unsupported("the options are not a map of names to values")
        self._found: dict[str, Any] = found

    def get(self, name: str) -> Any:
        if name not in self._found:
            raise Unsupported(f"the option {name} is missing")
        return self._found[name]

    def number(self, name: str) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Unsupported(f"the option {name} is {value!r}, not a number")
        return float(value)

    def integer(self, name: str) -> int:
        return int(self.number(name))

    def integers(self, name: str) -> tuple[int, ...]:
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(v, int) for v in value):
            raise Unsupported(f"the option {name} is {value!r}, not a list of whole numbers")
        return tuple(value)

    def pair(self, name: str) -> Pair:
        values = self.integers(name)
        if len(values) != 2:
            raise Unsupported(f"the option {name} is {list(values)}, not two numbers")
        return values[0], values[1]
