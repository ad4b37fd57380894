"""ViT tiny/16 (Dosovitskiy et al. 2020), MLP-Mixer S/16 (Tolstikhin et al. 2021), ConvNeXt tiny (Liu et al. 2022) and a
text encoder of the size of MiniLM-L6 (Wang et al. 2020)."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.network import NetworkTensor

_PATCH = 16
_CONVNEXT = ((96, 3), (192, 3), (384, 9), (768, 3))  # (channels, blocks)


@classifier("ViT tiny/16 {resolution}")
def vit_tiny(net: Layers, picture: NetworkTensor, classes: int, *, depth: int = 12) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 5.7 million parameters."""
    x = _patches(net, picture, 192)
    token = net.constant(net.rng.normal(0, 1, (1, 192)).astype(np.float32))
    x = net.op("CONCATENATION", [token, x], dict(axis=1))
    x = net.scale("ADD", x, net.rng.normal(0, 0.3, (1, *x.sample.shape[1:])))
    for _ in range(depth):
        x = net.add(x, net.attention(net.layer_norm(x), 3, flat=True))
        y = net.dense(net.layer_norm(x), 768, "GELU", flat=True)
        x = net.add(x, net.dense(y, 192, flat=True))
    net.classify(net.first(net.layer_norm(x)), classes)


@classifier("MLP-Mixer S/16 {resolution}")
def mixer_s16(net: Layers, picture: NetworkTensor, classes: int, *, depth: int = 8) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 18.5 million parameters."""
    x = _patches(net, picture, 512)
    tokens = x.sample.shape[1]
    for _ in range(depth):
        y = net.transpose(net.layer_norm(x), 0, 2, 1)
        y = net.dense(net.dense(y, 256, "GELU"), tokens)
        x = net.add(x, net.transpose(y, 0, 2, 1))
        x = net.add(x, net.dense(net.dense(net.layer_norm(x), 2048, "GELU"), 512))
    net.classify(net.mean(net.layer_norm(x), np.array([1], np.int32)), classes)


@classifier("ConvNeXt tiny {width} {resolution}")
def convnext_tiny(net: Layers, x: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 28.6 million parameters."""
    for stage, (full, blocks) in enumerate(_CONVNEXT):
        channels = max(8, int(full * width))
        size = 2 if stage else 4
        x = net.plain(net.layer_norm(x) if stage else x, channels, size, size)
        x = x if stage else net.layer_norm(x)
        for _ in range(blocks):
            y = net.layer_norm(net.depthwise_plain(x, 7))
            y = net.dense(net.dense(y, 4 * channels, "GELU"), channels)
            x = net.add(x, net.scale("MUL", y, net.rng.uniform(0.1, 0.5, channels)))
    net.classify(net.layer_norm(net.mean(x)), classes)


def text_encoder(
    *,
    seed: int = 0,
    precision: str = "float32",
    quantized: bool = False,
    batch: int = 1,
    depth: int = 6,
    length: int = 128,
    vocabulary: int = 30522,
) -> bytes:
    """Tokens, int32 [batch, length], to a vector [batch, 384]: the mean of the last layer; 22.6 million parameters."""
    net = Layers(
        f"text encoder {depth} {length}, seeded weights",
        seed=seed,
        precision=precision,
        quantized=quantized,
        batch=batch,
    )
    x = _embedded(net, net.tokens("tokens", length, vocabulary), vocabulary, 384)
    x = net.scale("ADD", x, net.rng.normal(0, 0.5, (1, length, 384)))
    x = net.layer_norm(x)
    for _ in range(depth):
        x = net.layer_norm(net.add(x, net.attention(x, 12, flat=True, bias_after=True)))
        x = net.layer_norm(net.add(x, net.dense(net.dense(x, 1536, "GELU_TANH"), 384)))
    net.output("embedding", net.mean(x, np.array([1], np.int32)).tensor)
    return net.build()


def _patches(net: Layers, picture: NetworkTensor, channels: int) -> NetworkTensor:
    """[batch, patches, channels]."""
    x = net.plain(picture, channels, _PATCH, _PATCH)
    return net.reshape(x, x.sample[0, :, :, 0].size, channels)


def _embedded(net: Layers, tokens: NetworkTensor, vocabulary: int, channels: int) -> NetworkTensor:
    """GATHER of rows of a table."""
    table = net.rng.normal(0, 1, (vocabulary, channels)).astype(np.float32)
    return net.gather(table, tokens)
