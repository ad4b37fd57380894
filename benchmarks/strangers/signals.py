"""Networks of points, fields, frames and samples: PointNet, a recommender, LSTMs and dilated windows along time."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_frames, of_tokens
from strangers.sequences import lstm_layer

Tensor = NetworkTensor


@of_frames("PointNet", 1024, 3)
def pointnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 40) -> None:
    """Qi et al. 2016 without the nets that turn the points: the same layers for each of 1024, and their largest values;
    0.8 million parameters."""
    for channels in (64, 64, 64, 128, 1024):
        x = net.dense(x, wide(channels, width), "RELU")
    x = net.apply("REDUCE_MAX", [x], [np.array([1], np.int32)])
    for channels in (512, 256):
        x = net.dense(x, wide(channels, width), "RELU")
    net.classify(x, classes)


@of_tokens("recommender", 26, 20000)
def recommender(net: StrangeLayers, fields: Tensor, *, vocabulary: int, width: float = 1.0) -> None:
    """In the manner of Wide & Deep (Cheng et al. 2016): 26 fields' rows of a table, side by side, and wide layers."""
    table = net.rng.normal(0, 1, (vocabulary, 64)).astype(np.float32)
    x = net.reshape(net.gather(table, fields), 26 * 64)
    for units in (1024, 512, 256):
        x = net.dense(x, wide(units, width), "RELU")
    net.output("chance", net.op("LOGISTIC", [net.dense(x, 1)]).tensor)


@of_frames("LSTM", 128, 64)
def lstm(net: StrangeLayers, x: Tensor, *, units: int = 256, classes: int = 32) -> None:
    """Two layers of 256 along 128 frames, and a class for each frame; 0.86 million parameters."""
    x = lstm_layer(net, lstm_layer(net, x, units), units)
    net.output("classes", net.op("SOFTMAX", [net.dense(x, classes)], dict(beta=1.0)).tensor)


@of_frames("WaveNet-like", 4096, 1)
def wavenet(net: StrangeLayers, x: Tensor, *, width: int = 64, depth: int = 10, repeats: int = 2) -> None:
    """Van den Oord et al. 2016: causal convolutions of two taps whose distance doubles, gated by tanh and a sigmoid, a
    residual and a skipping sum; samples of eight bits."""

    def conv(x: Tensor, filters: int, dilation: int) -> Tensor:
        n, d = x.sample.shape[1:]
        x = net.apply("PAD", [x], [np.array([[0, 0], [dilation, 0], [0, 0]], np.int32)])
        weights = net._normal((filters, 1, 2, d), fan_in=2 * d)
        options = dict(stride_h=1, stride_w=1, padding="VALID", dilation_w_factor=dilation, dilation_h_factor=1)
        y = net.apply("CONV_2D", [net.reshape(x, 1, n + dilation, d)], [weights, net._bias(filters)], options)
        return net.reshape(y, n, filters)

    x = conv(x, width, 1)
    skip: Tensor | None = None
    for layer in range(repeats * depth):
        both = conv(x, 2 * width, 1 << layer % depth)
        one, two = net.span(both, 2, 0, width), net.span(both, 2, width, width)
        y = net.op("MUL", [net.op("TANH", [one]), net.op("LOGISTIC", [two])])
        past = net.dense(y, 2 * width)
        skip = net.add(skip, past) if skip is not None else past
        x = net.add(x, net.dense(y, width))
    assert skip is not None
    y = net.dense(net.activate(skip, "RELU"), 256, "RELU")
    net.output("samples", net.dense(y, 256).tensor)
