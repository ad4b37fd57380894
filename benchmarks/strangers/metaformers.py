"""Classifiers built like transformers with something else in the place of attention, as ai-edge-torch writes them."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_torch_pictures

Tensor = NetworkTensor
_ROWS = np.array([1, 2], np.int32)


def _affine(net: StrangeLayers, x: Tensor, gain: float = 1.0) -> Tensor:
    """A factor and a sum for each channel."""
    y = net.scale("MUL", x, gain * net.rng.uniform(0.7, 1.3, x.channels))
    return net.scale("ADD", y, net.rng.normal(0, 0.1, x.channels))


def _layer_scale(net: StrangeLayers, x: Tensor) -> Tensor:
    return net.scale("MUL", x, net.rng.uniform(0.2, 0.5, x.channels))


@of_torch_pictures("ConvNeXt v2 tiny")
def convnext_v2(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Woo et al. 2023: each channel is scaled by its length over all places, beside that of the others; 28.6 million
    parameters."""

    def respond(x: Tensor) -> Tensor:
        square = net.apply("SUM", [net.op("MUL", [x, x])], [_ROWS], dict(keep_dims=True))
        length = net.op("SQRT", [square])
        mean = net.scale("ADD", net.mean(length, np.array([3], np.int32), keep=True), 1e-6)
        y = net.scale("MUL", net.op("MUL", [x, net.op("DIV", [length, mean])]), net.rng.normal(0, 0.5, x.channels))
        return net.add(x, net.scale("ADD", y, net.rng.normal(0, 0.1, x.channels)))

    x = net.norm_of_torch(net.plain(x, wide(96, width), 4, 4))
    for stage, blocks in enumerate((3, 3, 9, 3)):
        if stage:
            x = net.plain(net.norm_of_torch(x), wide(96, width) << stage, 2, 2)
        for _ in range(blocks):
            y = net.dense(net.norm_of_torch(net.depthwise_plain(x, 7)), 4 * x.channels, "GELU")
            x = net.add(x, net.dense(respond(y), x.channels))
    net.classify(net.norm_of_torch(net.mean(x)), classes)


@of_torch_pictures("PoolFormer s12")
def poolformer_s12(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Yu et al. 2021: averages of 3x3 in the place of attention, norms over all of a picture; 11.9 million
    parameters."""
    axes = np.array([1, 2, 3], np.int32)

    def norm(x: Tensor) -> Tensor:
        left = net.op("SUB", [x, net.mean(x, axes, keep=True)])
        variance = net.mean(net.op("MUL", [left, left]), axes, keep=True)
        y = net.op("MUL", [left, net.op("RSQRT", [net.scale("ADD", variance, 1e-5)])])
        return _affine(net, y)

    for stage, (channels, blocks) in enumerate(((64, 2), (128, 2), (320, 6), (512, 2))):
        padded = net.pad(x, 1, 1) if stage else net.pad(x, 2, 2)
        kernel, stride = (3, 2) if stage else (7, 4)
        weights = net._normal((wide(channels, width), kernel, kernel, x.channels), fan_in=kernel**2 * x.channels)
        options = dict(stride_h=stride, stride_w=stride, padding="VALID")
        x = net.apply("CONV_2D", [padded], [weights, net._bias(len(weights))], options)
        for _ in range(blocks):
            y = norm(x)
            x = net.add(x, _layer_scale(net, net.op("SUB", [net.mean_pool(y, 3, 1, "SAME"), y])))
            y = net.plain(net.plain(norm(x), 4 * x.channels, activation="GELU"), x.channels)
            x = net.add(x, _layer_scale(net, y))
    net.classify(net.norm_of_torch(net.mean(x)), classes)


def _patches(net: StrangeLayers, x: Tensor, channels: int) -> Tensor:
    x = net.plain(x, channels, 16, 16)
    return net.reshape(x, x.sample[0, :, :, 0].size, channels)


@of_torch_pictures("ResMLP-12")
def resmlp_12(net: StrangeLayers, x: Tensor, *, depth: int = 12, classes: int = 1000) -> None:
    """Touvron et al. 2021: places are mixed by one product, and norms are a factor and a sum; 15.4 million
    parameters."""
    x = _patches(net, x, 384)
    for _ in range(depth):
        y = net.transpose(_affine(net, x), 0, 2, 1)
        y = net.transpose(net.dense(y, y.channels), 0, 2, 1)
        x = net.add(x, _layer_scale(net, y))
        y = net.dense(net.dense(_affine(net, x), 4 * x.channels, "GELU"), x.channels)
        x = net.add(x, _layer_scale(net, y))
    net.classify(net.mean(_affine(net, x), np.array([1], np.int32)), classes)


@of_torch_pictures("gMLP-S16")
def gmlp_s16(net: StrangeLayers, x: Tensor, *, depth: int = 30, classes: int = 1000) -> None:
    """Liu et al. 2021: half of the channels, mixed over the places, multiply the other half; 19.4 million
    parameters."""
    x = _patches(net, x, 256)
    for _ in range(depth):
        y = net.dense(net.norm_of_torch(x), 6 * x.channels, "GELU")
        half = y.channels // 2
        one, two = net.span(y, 2, 0, half), net.span(y, 2, half, half)
        two = net.transpose(net.norm_of_torch(two), 0, 2, 1)
        two = net.scale("ADD", net.dense(two, two.channels, gain=0.3), 1)
        x = net.add(x, net.dense(net.op("MUL", [one, net.transpose(two, 0, 2, 1)]), x.channels))
    net.classify(net.mean(net.norm_of_torch(x), np.array([1], np.int32)), classes)
