"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import QUANTIZED, Tensors, require
from litegpu.model.ops.record import BIAS, FLOAT, STATIC, Gpu, Op, Repeating
from litegpu.model.ops.rules import images, weighed
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.windows import SAME, VALID, output_size, windows
from litegpu.model.types import Operator, TensorType

_SIZE = "1..16777215"
_PLANE = f"stride_h:{_SIZE} stride_w:{_SIZE} dilation_h_factor:{_SIZE} dilation_w_factor:{_SIZE}"
_VOLUME = f"stride_d:{_SIZE} dilation_d_factor:{_SIZE} {_PLANE}"
_VOLUME_OPTIONS = ("stride_{}", "dilation_{}_factor")
_WEIGHTS = "float32|float16|int8|uint8|int4|int2"


def _convolution_shape(node: ShapeNode) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(x) == len(weights) == 4 and weights[3] > 0 and x[3] % weights[3] == 0)
    return [windows(node, x, weights[1:3], weights[0])]


def _depthwise_shape(node: ShapeNode) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(x) == len(weights) == 4 and weights[0] == 1 and x[3] > 0 and weights[3] % x[3] == 0)
    return [windows(node, x, weights[1:3], weights[3])]


def _transposed_shape(node: ShapeNode) -> list[Shape]:
    sizes, weights, x = node.integers(0), node.shape(1), node.shape(2)
    node.require(len(sizes) == len(weights) == len(x) == 4 and weights[3] == x[3] and sizes[3] == weights[0])
    return [sizes]


def _volume_shape(node: ShapeNode) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(x) == len(weights) == 5 and x[4] == weights[3])
    strides, dilations = ([int(node.option(name.format(a), 1)) for a in "dhw"] for name in _VOLUME_OPTIONS)
    padding = int(node.option("padding", SAME))
    node.require(padding in (SAME, VALID) and min(*strides, *dilations, *weights[:3]) > 0)
    sizes = zip(x[1:4], weights[:3], strides, dilations, strict=True)
    places = [output_size(n, k, s, d, padding) for n, k, s, d in sizes]
    node.require(min(places) > 0)
    return [(x[0], *places, weights[4])]


def _volume_transposed_shape(node: ShapeNode) -> list[Shape]:
    sizes, weights, x = node.integers(0), node.shape(1), node.shape(2)
    node.require(len(sizes) == len(weights) == len(x) == 5 and weights[4] == x[4] and sizes[4] == weights[3])
    return [sizes]


def _transposed_batch(node: BatchNode) -> Place:
    place = node.lead(2)
    node.rewrite(0, [node.extent(place)[1], *node.integers(0)[1:]])
    return place


def _weights_hazard(operator: Operator, tensors: Tensors) -> None:
    """Weights of floating-point inputs are floats, or quantized numbers that the kernel widens."""
    source, weights = (tensors[index] for index in operator.inputs[:2])
    if source.type is TensorType.UINT8:
        require(weights.type is TensorType.UINT8, f"its input is of type UINT8, its weights of {weights.type.name}")
    if source.type in QUANTIZED:
        require(
            weights.type not in (TensorType.FLOAT32, TensorType.FLOAT16),
            f"its input is of type {source.type.name}, its weights of {weights.type.name}",
        )


def _taps_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    return results * math.prod(given[1][:-1]) if len(given) > 1 else None


def _transposed_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    return results + math.prod(given[2]) * math.prod(given[1][:-1]) if len(given) > 2 else None


def _convolution_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    channels = [() if shape is None else shape[-1:] for shape in given[:2]]
    return 6 if channels[0] != channels[1] else 1  # groups


def _depthwise_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 1 if options["dilation_w_factor"] == options["dilation_h_factor"] == 1 else 2


def _transposed_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 4 if options["fused_activation_function"] else 3 if len(given) == 4 else 1


# fmt: off
OPS = (
    Op(
        "CONV_2D", f"x w:{_WEIGHTS} b? -> .  ; {_PLANE}", shape=_convolution_shape, work=weighed, batch=images,
        hazard=_weights_hazard, has_weights=True, version=_convolution_version, multiplies=True,
        gpu=Gpu(8, inputs=(FLOAT, FLOAT, BIAS), counts=(2, 3), ranks=(4, 4), quanta="reads",
            notes="strides, dilation, groups; constant or runtime weights (runtime: one group)"),
    ),
    Op(
        "CONV_3D", f"x w b? -> .  ; {_VOLUME}", shape=_volume_shape, work=_taps_work, batch=images,
        has_weights=True, multiplies=True,
        gpu=Gpu(1, inputs=(FLOAT, FLOAT, FLOAT), counts=(2, 3), ranks=(5, 5), quantized=False,
            notes="strides, dilations; constant or runtime weights"),
    ),
    Op(
        "CONV_3D_TRANSPOSE", f"shape{{5}}:int32 w x b? -> .  ; {_VOLUME}", shape=_volume_transposed_shape,
        work=_transposed_work, sizes_from=0, batch=_transposed_batch, has_weights=True, table="Conv3DOptions",
        makes_like=2, multiplies=True,
        gpu=Gpu(1, inputs=(STATIC, FLOAT, FLOAT, FLOAT), outputs=FLOAT, counts=(3, 4), ranks=(5, 5), quantized=False,
            notes="constant output shape; strides, dilation of the depth"),
    ),
    Op(
        "DEPTHWISE_CONV_2D", f"x w:{_WEIGHTS} b~ -> .  ; {_PLANE}", shape=_depthwise_shape, work=_taps_work,
        batch=images, has_weights=True, version=_depthwise_version, multiplies=True,
        gpu=Gpu(7, inputs=(FLOAT, FLOAT, BIAS), counts=(2, 3), ranks=(4, 4), quanta="reads",
            notes="strides, dilation, depth multiplier; constant or runtime weights"),
    ),
    Op(
        "TRANSPOSE_CONV", "shape{4}:int32 w x b? -> .  ; stride_h:1..1024 stride_w:1..1024", shape=_transposed_shape,
        work=_transposed_work, sizes_from=0, batch=_transposed_batch, repeating=Repeating(2), has_weights=True,
        makes_like=2, version=_transposed_version, multiplies=True,
        gpu=Gpu(5, inputs=(STATIC, FLOAT, FLOAT, BIAS), outputs=FLOAT, counts=(3, 4), ranks=(4, 4), quanta="reads",
            notes="constant output shape; bias and fused activation"),
    ),
)
# fmt: on
