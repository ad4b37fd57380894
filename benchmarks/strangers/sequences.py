"""Transformers and other networks of sequences, as ai-edge-torch, exporters to ONNX and Keras write them."""

from __future__ import annotations

import numpy as np

from litegpu.model.types import TensorType
from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_frames, of_pictures, of_tokens, of_torch_pictures

Tensor = NetworkTensor


@of_torch_pictures("DeiT tiny")
def deit_tiny(net: StrangeLayers, x: Tensor, *, depth: int = 12, classes: int = 1000) -> None:
    """Touvron et al. 2020 as ai-edge-torch writes it: one product for queries, keys and values, norms op by op; 5.7
    million parameters."""
    x = net.plain(x, 192, 16, 16)
    x = net.reshape(x, x.sample[0, :, :, 0].size, 192)
    token = net.constant(net.rng.normal(0, 1, (1, 192)).astype(np.float32))
    x = net.join(token, x, axis=1)
    x = net.scale("ADD", x, net.rng.normal(0, 0.3, (1, *x.sample.shape[1:])))
    for _ in range(depth):
        x = net.add(x, net.attention_of_torch(net.norm_of_torch(x), 3))
        x = net.add(x, net.dense(net.dense(net.norm_of_torch(x), 768, "GELU"), 192))
    net.classify(net.first(net.norm_of_torch(x)), classes)


# (channels, blocks, stride) of inverted bottlenecks, then (d, depth) of the transformer behind them
_MOBILE_VIT = (
    *(((32, 1, 1), None), ((48, 3, 2), None)),
    *(((64, 1, 2), (96, 2)), ((80, 1, 2), (120, 4)), ((96, 1, 2), (144, 3))),
)


@of_torch_pictures("MobileViT xs", 256)
def mobilevit_xs(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 1000) -> None:
    """Mehta and Rastegari 2021: transformers over every fourth place between convolutions; 2.3 million parameters."""
    x = net.conv(x, wide(16, width), 3, 2, pad=1, activation="SWISH")
    for (channels, blocks, first), inner in _MOBILE_VIT:
        for block in range(blocks):
            stride = 1 if block else first
            y = net.separate(net.conv(x, 4 * x.channels, activation="SWISH"), stride, activation="SWISH")
            y = net.conv(y, wide(channels, width), activation="NONE")
            x = net.add(x, y) if stride == 1 and x.channels == y.channels else y
        if inner is not None:
            x = _places_apart(net, x, wide(inner[0], width), inner[1])
    net.classify(net.mean(net.conv(x, wide(384, width), activation="SWISH")), classes)


def _places_apart(net: StrangeLayers, x: Tensor, d: int, depth: int) -> Tensor:
    """A block of MobileViT: [batch, h, w, c] to [batch * 4, h * w / 4, d] and back."""
    _, height, across, channels = x.sample.shape
    y = net.plain(net.conv(x, channels, 3, activation="SWISH"), d)
    y = net.transpose(net.reshape(y, height // 2, 2, across // 2, 2, d), 0, 2, 4, 1, 3, 5)
    places = height * across // 4
    y = net.rows(y, places, d)
    for _ in range(depth):
        y = net.add(y, net.attention_of_torch(net.norm_of_torch(y), 4))
        y = net.add(y, net.dense(net.dense(net.norm_of_torch(y), 2 * d, "SWISH"), d))
    y = net.norm_of_torch(y)
    y = net.transpose(net.rows(y, 2, 2, height // 2, across // 2, d), 0, 3, 1, 4, 2, 5)
    y = net.conv(net.reshape(y, height, across, d), channels, activation="SWISH")
    return net.conv(net.join(x, y), channels, 3, activation="SWISH")


@of_tokens("BERT-like", 128, 8192)
def bert(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 512) -> None:
    """Devlin et al. 2018 through ONNX: norms by powers, roots and divisions, a mask from the tokens (0 is padding)
    that is added to the logits, softmax op by op; the first place's vector through TANH."""
    n = tokens.sample.shape[1]
    x = net.gather(net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32), tokens)
    x = net.norm_of_onnx(net.scale("ADD", x, net.rng.normal(0, 0.5, (1, n, width))))
    mask = net.scale("MUL", net.scale("SUB", net.reshape(words(net, tokens), 1, 1, n), 1), 10000)

    def attention(x: Tensor) -> Tensor:
        q, k, v = (net.heads(net.dense(x, width), 8) for _ in range(3))
        logits = net.op("BATCH_MATMUL", [q, net.turned(k)])
        logits = net.add(net.scale("DIV", logits, (width // 8) ** 0.5), mask)
        y = net.op("BATCH_MATMUL", [net.softmax_apart(logits), v])
        return net.dense(net.reshape(net.transpose(y, 0, 2, 1, 3), n, width), width)

    for _ in range(depth):
        x = net.norm_of_onnx(net.add(x, attention(x)))
        x = net.norm_of_onnx(net.add(x, net.dense(net.dense(x, 4 * width, "GELU"), width)))
    net.output("pooled", net.op("TANH", [net.dense(net.first(x), width)]).tensor)


def words(net: StrangeLayers, tokens: Tensor) -> Tensor:
    """1 where there is a token, 0 where there is padding (token 0): [batch, n]."""
    build, shape = net.builder, (net.batch, tokens.sample.shape[1])
    there = build.op("NOT_EQUAL", [tokens.tensor, build.constant(np.int32(0))], shape, type=TensorType.BOOL)
    tensor = build.op("CAST", [there], shape, type=TensorType.FLOAT32)
    return net._made(tensor, (tokens.sample != 0).astype(np.float32))


@of_tokens("GPT-like", 256, 8192)
def gpt(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 384) -> None:
    """Radford et al. 2019 as ai-edge-torch writes it: a causal mask by SELECT_V2, GELU by TANH, and the logits of every
    place through the table of the tokens."""
    n = tokens.sample.shape[1]
    table = net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32)
    x = net.gather(table, tokens)
    x = net.scale("ADD", x, net.rng.normal(0, 0.3, (1, n, width)))
    visible = np.tril(np.ones((1, 1, n, n), bool))

    def causal(logits: Tensor) -> Tensor:
        return net.call("SELECT_V2", [visible, logits, np.array(-1e9, np.float32)])

    for _ in range(depth):
        x = net.add(x, net.attention_of_torch(net.norm_of_torch(x), 6, added=causal))
        x = net.add(x, net.dense(net.dense(net.norm_of_torch(x), 4 * width, "GELU_TANH"), width))
    weights = table * np.float32(width**-0.5)
    options = dict(keep_num_dims=True)
    x = net.norm_of_torch(x)
    net.output("logits", net.apply("FULLY_CONNECTED", [x], [weights, np.zeros(vocabulary, np.float32)], options).tensor)


@of_tokens("Llama-like", 256, 8192)
def llama(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 512) -> None:
    """Touvron et al. 2023 as ai-edge-torch writes it: norms by the root of the mean square, queries and keys that are
    turned by their place, gated layers, a causal mask that is added."""
    n, heads = tokens.sample.shape[1], 8
    table = net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32)
    x = net.gather(table, tokens)
    mask = np.triu(np.full((1, 1, n, n), -1e9), 1)
    half = width // heads // 2
    angles = np.arange(n)[:, None] / 10000 ** (np.arange(half) / half)
    cosine, sine = (np.concatenate([f(angles)] * 2, axis=1)[None, None] for f in (np.cos, np.sin))

    def turned(y: Tensor) -> Tensor:
        left, right = (net.span(y, 3, i * half, half) for i in range(2))
        other = net.join(net.op("NEG", [right]), left)
        return net.add(net.scale("MUL", y, cosine), net.scale("MUL", other, sine))

    def attention(y: Tensor) -> Tensor:
        q, k, v = (net.heads(net.dense(y, width), heads) for _ in range(3))
        logits = net.op("BATCH_MATMUL", [turned(q), net.turned(turned(k))])
        logits = net.scale("ADD", net.scale("MUL", logits, (width // heads) ** -0.5), mask)
        z = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), v])
        return net.dense(net.rows(net.transpose(z, 0, 2, 1, 3), n, width), width)

    for _ in range(depth):
        x = net.add(x, attention(net.root_norm(x, 1e-5)))
        y = net.root_norm(x, 1e-5)
        gated = net.op("MUL", [net.dense(y, 4 * width, "SWISH"), net.dense(y, 4 * width)])
        x = net.add(x, net.dense(gated, width))
    net.output("logits", net.dense(net.root_norm(x, 1e-5), vocabulary).tensor)


@of_frames("speech encoder", 8000, 1)
def wav2vec(net: StrangeLayers, x: Tensor, *, width: int = 384, depth: int = 4) -> None:
    """In the manner of wav2vec 2.0 (Baevski et al. 2020): seven Conv1d over samples of sound, a group norm behind the
    first, positions by a grouped Conv1d, and a transformer: a vector for each 20 ms."""
    for number, (kernel, stride) in enumerate(((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))):
        x = net.along(x, width, kernel, stride)
        x = net.activate(net.group_norm(x, width) if not number else x, "GELU")
    x = net.dense(net.norm_of_torch(x), width)
    x = net.add(x, net.activate(net.along(x, width, 15, groups=16, padding="SAME"), "GELU"))
    x = net.norm_of_torch(x)
    for _ in range(depth):
        x = net.norm_of_torch(net.add(x, net.attention_of_torch(x, 6)))
        x = net.norm_of_torch(net.add(x, net.dense(net.dense(x, 4 * width, "GELU"), width)))
    net.output("frames", x.tensor)


@of_frames("conformer", 400, 80)
def conformer(net: StrangeLayers, x: Tensor, *, width: int = 144, depth: int = 8, classes: int = 128) -> None:
    """Gulati et al. 2020, the small one: two strided convolutions, then halves of feed-forward layers around attention
    and a gated depthwise convolution along time; log probabilities of each place's token."""
    length, bins = x.sample.shape[1:]
    y = net.plain(net.reshape(x, length, bins, 1), width, 3, 2, activation="RELU")
    y = net.plain(y, width, 3, 2, activation="RELU")
    n = y.sample.shape[1]
    x = net.dense(net.reshape(y, n, y.sample[0, 0].size), width)

    def forward(x: Tensor) -> Tensor:
        y = net.dense(net.dense(net.norm_of_torch(x), 4 * width, "SWISH"), width)
        return net.add(x, net.scale("MUL", y, 0.5))

    for _ in range(depth):
        x = forward(x)
        x = net.add(x, net.attention_of_torch(net.norm_of_torch(x), 4))
        one, two = net.split(net.dense(net.norm_of_torch(x), 2 * width), 2, axis=2)
        y = net.op("MUL", [one, net.op("LOGISTIC", [two])])
        y = net.activate(net.depthwise_along(y, 31), "SWISH")
        x = net.norm_of_torch(forward(net.add(x, net.dense(y, width))))
    net.output("tokens", net.op("LOG_SOFTMAX", [net.dense(x, classes)]).tensor)


@of_pictures("CRNN", 96)
def crnn(net: StrangeLayers, x: Tensor, *, width: float = 1.0, units: int = 96, classes: int = 80) -> None:
    """Shi et al. 2015: convolutions, then LSTMs both ways along the columns, as Keras's Bidirectional comes out."""
    for channels in (64, 128, 256, 256):
        x = net.max_pool(net.conv(x, wide(channels, width), 3), 2, 2)
    _, rows, columns, channels = x.sample.shape
    x = net.reshape(net.transpose(x, 0, 2, 1, 3), columns, rows * channels)
    for _ in range(2):
        turned = net.apply("REVERSE_V2", [x], [np.array([1], np.int32)])
        back = net.apply("REVERSE_V2", [lstm_layer(net, turned, units)], [np.array([1], np.int32)])
        x = net.join(lstm_layer(net, x, units), back, axis=2)
    net.output("characters", net.op("SOFTMAX", [net.dense(x, classes)], dict(beta=1.0)).tensor)


def lstm_layer(net: StrangeLayers, x: Tensor, units: int) -> Tensor:
    """UNIDIRECTIONAL_SEQUENCE_LSTM of [batch, n, d] without projection and peepholes."""
    build, n, d = net.builder, x.sample.shape[1], x.channels
    inward = [net._constant(net._normal((units, d), d)) for _ in range(4)]
    recurrent = [net._constant(net._normal((units, units), units)) for _ in range(4)]
    biases = [net._constant(net._bias(units)) for _ in range(4)]
    states = [build.variable(f"state_{name}_{x.tensor}", (net.batch, units)) for name in ("output", "cell")]
    operands = [x.tensor, *inward, *recurrent, None, None, None, *biases, None, None, *states]
    options = dict(fused_activation_function="TANH", cell_clip=10.0, time_major=False)
    shape = (net.batch, n, units)
    tensor = build.op("UNIDIRECTIONAL_SEQUENCE_LSTM", [*operands, None, None, None, None], shape, options)
    return net._made(tensor, net.rng.normal(0, 0.3, (net.pictures, n, units)).astype(np.float32))
