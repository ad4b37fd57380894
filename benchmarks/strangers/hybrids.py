"""Classifiers that begin with convolutions and end with attention, as ai-edge-torch writes them."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_torch_pictures

Tensor = NetworkTensor


def _attended(net: StrangeLayers, q: Tensor, k: Tensor, v: Tensor, *, bias: bool = True) -> Tensor:
    """Of [batch, heads, n, d] each: [batch, n, heads * depth of v], with a bias for each pair of places."""
    heads, n = q.sample.shape[1:3]
    logits = net.op("BATCH_MATMUL", [net.scale("MUL", q, q.channels**-0.5), net.turned(k)])
    if bias:
        logits = net.scale("ADD", logits, net.rng.normal(0, 0.5, (1, heads, n, k.sample.shape[2])))
    y = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), v])
    return net.rows(net.transpose(y, 0, 2, 1, 3), n, heads * v.channels)


@of_torch_pictures("LeViT-256")
def levit_256(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000, depth: int = 4) -> None:
    """Graham et al. 2021: hard swish, keys of 32 numbers, values of two and four times as many; 18.9 million
    parameters."""
    key = wide(32, width)

    def split(x: Tensor, heads: int, *sizes: int) -> list[Tensor]:
        """What a product gives each head, in parts: [batch, heads, n, size] each."""
        n = x.sample.shape[1]
        y = net.rows(net.dense(x, heads * sum(sizes)), n, heads, sum(sizes))
        begins = np.cumsum([0, *sizes])
        return [net.transpose(net.span(y, 3, int(b), s), 0, 2, 1, 3) for b, s in zip(begins, sizes, strict=False)]

    def attention(x: Tensor, heads: int) -> Tensor:
        q, k, v = split(x, heads, key, key, 2 * key)
        y = _attended(net, q, k, v)
        return net.dense(net.activate(y, "HARD_SWISH"), x.channels, gain=0.3)

    def smaller(x: Tensor, side: int, outward: int) -> Tensor:
        heads, half = x.channels // key, -(-side // 2)
        k, v = split(x, heads, key, 4 * key)
        y = net.rows(net.every_second(net.rows(x, side, side, x.channels), 0, 0), half**2, x.channels)
        (q,) = split(y, heads, key)
        y = _attended(net, q, k, v)
        return net.dense(net.activate(y, "HARD_SWISH"), outward)

    def mixed(x: Tensor) -> Tensor:
        y = net.activate(net.dense(x, 2 * x.channels), "HARD_SWISH")
        return net.add(x, net.dense(y, x.channels, gain=0.3))

    for channels in (32, 64, 128, 256):
        activation = "HARD_SWISH" if channels < 256 else "NONE"
        x = net.conv(x, wide(channels, width), 3, 2, pad=1, activation=activation)
    side = x.sample.shape[1]
    x = net.reshape(x, side**2, x.channels)
    for stage, (channels, heads) in enumerate(((256, 4), (384, 6), (512, 8))):
        if stage:
            x = mixed(smaller(x, side, wide(channels, width)))
            side = -(-side // 2)
        for _ in range(depth):
            x = mixed(net.add(x, attention(x, heads)))
    net.classify(net.mean(x, np.array([1], np.int32)), classes)


@of_torch_pictures("EfficientFormer L1")
def efficientformer_l1(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Li et al. 2022: averages of 3x3 in the place of attention but in the last block, layers that are scaled; 12.3
    million parameters."""

    def scaled(x: Tensor) -> Tensor:
        return net.scale("MUL", x, net.rng.uniform(0.2, 0.5, x.channels))

    def pooled(x: Tensor) -> Tensor:
        return net.add(x, scaled(net.op("SUB", [net.mean_pool(x, 3, 1, "SAME"), x])))

    for channels in (24, 48):
        x = net.conv(x, wide(channels, width), 3, 2, pad=1)
    for stage, (channels, blocks) in enumerate(((48, 3), (96, 2), (224, 6), (448, 4))):
        if stage:
            x = net.conv(x, wide(channels, width), 3, 2, pad=1, activation="NONE")
        for _ in range(blocks - (stage == 3)):
            x = pooled(x)
            y = net.conv(net.conv(x, 4 * x.channels, activation="GELU"), x.channels, activation="NONE")
            x = net.add(x, scaled(y))
    n, heads, key = x.sample[0, :, :, 0].size, 8, 32
    x = net.reshape(x, n, x.channels)
    y = net.norm_of_torch(x)
    y = net.rows(net.dense(y, heads * 6 * key), n, heads, 6 * key)
    q, k, v = (net.transpose(net.span(y, 3, b, s), 0, 2, 1, 3) for b, s in ((0, key), (key, key), (2 * key, 4 * key)))
    x = net.add(x, scaled(net.dense(_attended(net, q, k, v), x.channels)))
    y = net.dense(net.dense(net.norm_of_torch(x), 4 * x.channels, "GELU"), x.channels)
    x = net.norm_of_torch(net.add(x, scaled(y)))
    net.classify(net.mean(x, np.array([1], np.int32)), classes)


@of_torch_pictures("EdgeNeXt small", 256)
def edgenext_small(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Maaz et al. 2022: depthwise windows of 3 to 9, halves that are added one after the other, and attention of
    channels to channels; 5.6 million parameters."""

    def mixed(x: Tensor, past: Tensor) -> Tensor:
        y = net.dense(net.dense(net.norm_of_torch(x), 4 * x.channels, "GELU"), past.channels)
        return net.add(past, net.scale("MUL", y, net.rng.uniform(0.2, 0.5, past.channels)))

    def block(x: Tensor, window: int) -> Tensor:
        return mixed(net.depthwise_plain(x, window), x)

    def across(x: Tensor, heads: int = 8) -> Tensor:
        """Queries and keys are divided by their lengths over all places."""
        n, d = x.sample.shape[1:]
        y = net.transpose(net.rows(net.dense(net.norm_of_torch(x), 3 * d), n, 3, heads, d // heads), 2, 0, 3, 4, 1)
        q, k, v = (net._part(y, i) for i in range(3))

        def unit(y: Tensor) -> Tensor:
            axis = np.array([3], np.int32)
            total = net.apply("SUM", [net.op("MUL", [y, y])], [axis], dict(keep_dims=True))
            return net.op("MUL", [y, net.op("RSQRT", [net.scale("ADD", total, 1e-6)])])

        logits = net.op("BATCH_MATMUL", [unit(q), net.turned(unit(k))])
        logits = net.scale("MUL", logits, net.rng.uniform(0.5, 2, (1, heads, 1, 1)))
        y = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), v])
        y = net.dense(net.rows(net.transpose(y, 0, 3, 1, 2), n, d), d)
        return net.add(x, net.scale("MUL", y, net.rng.uniform(0.2, 0.5, d)))

    def split(x: Tensor, parts: int) -> Tensor:
        size, (height, columns) = -(-x.channels // parts), x.sample.shape[1:3]
        pieces = [net.span(x, 3, i * size, min(size, x.channels - i * size)) for i in range(parts)]
        done = [net.depthwise_plain(pieces[0], 3)]
        for piece in pieces[1:-1]:
            done.append(net.depthwise_plain(net.add(done[-1], piece), 3))
        y = net.join(*done, pieces[-1])
        y = across(net.reshape(y, height * columns, x.channels))
        return mixed(net.reshape(y, height, columns, x.channels), x)

    x = net.norm_of_torch(net.plain(x, wide(48, width), 4, 4))
    windows = (3, 5, 7, 9)
    for stage, (channels, blocks) in enumerate(((48, 3), (96, 3), (160, 9), (304, 3))):
        if stage:
            x = net.plain(net.norm_of_torch(x), wide(channels, width), 2, 2)
        for number in range(blocks):
            last = stage and number == blocks - 1
            x = split(x, (2, 2, 3, 4)[stage]) if last else block(x, windows[stage])
    net.classify(net.norm_of_torch(net.mean(x)), classes)
