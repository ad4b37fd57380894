"""Transformers whose parts read one another, or that take what they know along: an encoder and a decoder, queries in
groups, places relative to one another, a step with a cache, series that are halved on the way."""

from __future__ import annotations

import numpy as np

from litegpu.model.types import TensorType
from litegpu.zoo.network import NetworkTensor
from strangers.layers import StrangeLayers, of_frames, of_tokens
from strangers.sequences import words

Tensor = NetworkTensor


@of_tokens("translator", 128, 16384)
def translator(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 3, width: int = 512) -> None:
    """Vaswani et al. 2017, in the manner of Marian: half of the tokens are read, with a mask of what is padding, by
    those of the other half, which see what comes before them; logits of all places."""
    n, heads = tokens.sample.shape[1] // 2, 8 if width % 128 == 0 else 4
    table = net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32)
    source, target = (_part_of_tokens(net, tokens, i * n, n) for i in range(2))
    places = net.rng.normal(0, 0.5, (1, n, width))
    x, y = (net.scale("ADD", net.gather(table, t), places) for t in (source, target))
    mask = net.scale("MUL", net.scale("SUB", net.reshape(words(net, source), 1, 1, n), 1), 1e9)
    causal = np.triu(np.full((1, 1, n, n), -1e9, np.float32), 1)

    def attention(y: Tensor, x: Tensor, kind: str) -> Tensor:
        q = net.scale("MUL", net.dense(y, width), (width // heads) ** -0.5)
        q, k, v = (net.heads(part, heads) for part in (q, net.dense(x, width), net.dense(x, width)))
        logits = net.op("BATCH_MATMUL", [q, k], dict(adj_y=True))
        logits = net.scale("ADD", logits, causal) if kind == "causal" else net.add(logits, mask)
        z = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), v])
        return net.dense(net.reshape(net.transpose(z, 0, 2, 1, 3), n, width), width)

    def forward(x: Tensor) -> Tensor:
        return net.norm_of_torch(net.add(x, net.dense(net.dense(x, 4 * width, "SWISH"), width)))

    for _ in range(depth):
        x = forward(net.norm_of_torch(net.add(x, attention(x, x, "words"))))
    for _ in range(depth):
        y = net.norm_of_torch(net.add(y, attention(y, y, "causal")))
        y = forward(net.norm_of_torch(net.add(y, attention(y, x, "words"))))
    net.output("logits", net.dense(y, vocabulary).tensor)


def _part_of_tokens(net: StrangeLayers, tokens: Tensor, begin: int, size: int) -> Tensor:
    bounds = [net.builder.constant(np.array(v, np.int32)) for v in ([0, begin], [-1, size])]
    tensor = net.builder.op("SLICE", [tokens.tensor, *bounds], (net.batch, size))
    return NetworkTensor(tensor, tokens.sample[:, begin : begin + size])


@of_tokens("grouped queries", 256, 8192)
def grouped_queries(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 512) -> None:
    """Ainslie et al. 2023 as PyTorch writes it: eight heads of queries for two of keys and values, which BROADCAST_TO
    repeats; the mask falls with the distance, as ALiBi's (Press et al. 2021) does; the last place's vector."""
    n, heads, groups = tokens.sample.shape[1], 8, 2
    size = width // heads
    x = net.gather(net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32), tokens)
    far = np.arange(n)[None, :] - np.arange(n)[:, None]
    slopes = 2.0 ** -np.arange(1, heads + 1)
    mask = np.where(far > 0, -1e9, slopes[:, None, None] * far)[None].astype(np.float32)

    def repeated(y: Tensor) -> Tensor:
        y = net.reshape(y, groups, 1, n, size)
        shape = (net.batch, groups, heads // groups, n, size)
        sample = np.broadcast_to(y.sample, (len(y.sample), *shape[1:]))
        wanted = net.builder.constant(np.array(shape, np.int32))
        y = net._made(net.builder.op("BROADCAST_TO", [y.tensor, wanted], shape), np.ascontiguousarray(sample))
        return net.reshape(y, heads, n, size)

    for _ in range(depth):
        y = net.root_norm(x)
        q = net.heads(net.dense(y, width), heads)
        k, v = (repeated(net.heads(net.dense(y, groups * size), groups)) for _ in range(2))
        logits = net.scale("MUL", net.op("BATCH_MATMUL", [q, net.turned(k)]), size**-0.5)
        weights = net.op("SOFTMAX", [net.scale("ADD", logits, mask)], dict(beta=1.0))
        z = net.reshape(net.transpose(net.op("BATCH_MATMUL", [weights, v]), 0, 2, 1, 3), n, width)
        x = net.add(x, net.dense(z, width))
        y = net.root_norm(x)
        x = net.add(x, net.dense(net.op("MUL", [net.dense(y, 2 * width, "SWISH"), net.dense(y, 2 * width)]), width))
    last = net.reshape(net.span(net.root_norm(x), 1, n - 1, 1), width)
    net.output("vector", last.tensor)


@of_frames("relative conformer", 250, 144)
def conformer_relative(net: StrangeLayers, x: Tensor, *, width: int = 144, depth: int = 4) -> None:
    """Gulati et al. 2020 with attention as in Transformer-XL (Dai et al. 2019): queries with two biases, and logits of
    distances that are shifted by a padding, a reshape and a slice."""
    n, heads = x.sample.shape[1], 4
    size = width // heads
    x = net.dense(x, width)
    angles = np.arange(n - 1, -n, -1)[:, None] / 10000 ** (np.arange(width // 2) * 2 / width)
    places = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)

    def forward(x: Tensor) -> Tensor:
        y = net.dense(net.dense(net.norm_of_torch(x), 4 * width, "SWISH"), width)
        return net.add(x, net.scale("MUL", y, 0.5))

    for _ in range(depth):
        x = forward(x)
        y = net.norm_of_torch(x)
        q, k, v = (net.dense(y, width) for _ in range(3))
        u, w = (net.heads(net.scale("ADD", q, net._bias(width)), heads) for _ in range(2))
        far = places @ net._normal((width, width), width)
        far = np.ascontiguousarray(far.reshape(1, 2 * n - 1, heads, size).transpose(0, 2, 1, 3)).astype(np.float32)
        logits = net.op("BATCH_MATMUL", [u, net.heads(k, heads)], dict(adj_y=True))
        moved = net.call("BATCH_MATMUL", [w, far], dict(adj_y=True))
        pads = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], np.int32)
        moved = net.reshape(net.apply("PAD", [moved], [pads]), heads, 2 * n, n)
        moved = net.reshape(net.span(moved, 2, 1, 2 * n - 1), heads, n, 2 * n - 1)
        logits = net.scale("MUL", net.add(logits, net.span(moved, 3, 0, n)), size**-0.5)
        z = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), net.heads(v, heads)])
        x = net.add(x, net.dense(net.reshape(net.transpose(z, 0, 2, 1, 3), n, width), width))
        one, two = net.split(net.dense(net.norm_of_torch(x), 2 * width), 2, axis=2)
        y = net.op("MUL", [one, net.op("LOGISTIC", [two])])
        y = net.activate(net.depthwise_along(y, 31), "SWISH")
        x = net.norm_of_torch(forward(net.add(x, net.dense(y, width))))
    net.output("vectors", x.tensor)


@of_frames("Informer", 192, 21)
def informer(net: StrangeLayers, x: Tensor, *, width: int = 256, depth: int = 3) -> None:
    """Zhou et al. 2021, its encoder with whole attention: circular windows of 3 along time, ELU and maxima that halve
    the series between layers."""
    options = dict(filter_height=1, filter_width=3, stride_h=1, stride_w=2, padding="SAME")

    def circular(x: Tensor, filters: int) -> Tensor:
        n = x.sample.shape[1]
        return net.along(net.join(net.span(x, 1, n - 1, 1), x, net.span(x, 1, 0, 1), axis=1), filters, 3)

    x = circular(x, width)
    x = net.scale("ADD", x, net.rng.normal(0, 0.3, (1, *x.sample.shape[1:])))
    for level in range(depth):
        q, k, v = (net.dense(x, width) for _ in range(3))
        x = net.norm_of_torch(net.add(x, net.dense(net.attend(q, k, v, 8), width)), 1e-5)
        x = net.norm_of_torch(net.add(x, net.dense(net.dense(x, 2 * width, "GELU"), width)), 1e-5)
        if level < depth - 1:
            y = net.op("ELU", [circular(x, width)])
            y = net.op("MAX_POOL_2D", [net.reshape(y, 1, *y.sample.shape[1:])], options)
            x = net.reshape(y, *y.sample.shape[2:])
    net.output("encoded", net.norm_of_torch(x, 1e-5).tensor)


@of_tokens("decoding step", 1, 8192)
def decode_step(
    net: StrangeLayers, token: Tensor, *, vocabulary: int, depth: int = 6, width: int = 512, places: int = 512
) -> None:
    """The next token of a GPT as ai-edge-torch's generative models write it: keys and values of the places before come
    in and go out, one row of them new (DYNAMIC_UPDATE_SLICE), and all of them are read."""
    build, heads = net.builder, 8
    size = width // heads
    position = build.input("position", (1,), TensorType.INT32)
    net._inputs["position"] = position
    table = net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32)
    x = net.gather(table, token)
    zero = build.constant(np.zeros(1, np.int32))
    start = build.op("CONCATENATION", [zero, position, zero, zero], (4,), dict(axis=0))
    numbers = build.constant(np.arange(places, dtype=np.int32))
    seen = build.op("LESS_EQUAL", [numbers, position], (places,), type=TensorType.BOOL)
    shape = (1, 1, 1, places)
    seen = build.op("RESHAPE", [seen, build.constant(np.array(shape, np.int32))], shape)
    visible = NetworkTensor(seen, np.ones((net.pictures, 1, 1, places), bool))
    for layer in range(depth):
        y = net.norm_of_torch(x)
        q, k, v = (net.reshape(net.dense(y, width), 1, heads, size) for _ in range(3))
        kept = []
        for name, new in (("k", k), ("v", v)):
            whole = (net.batch, places, heads, size)
            cache = build.input(f"{name}{layer}", whole)
            net._inputs[f"{name}{layer}"] = cache
            tensor = build.op("DYNAMIC_UPDATE_SLICE", [cache, new.tensor, start], whole)
            net.output(f"new_{name}{layer}", tensor)
            sample = net.rng.normal(0, 1, (net.pictures, *whole[1:])).astype(np.float32)
            kept.append(net.transpose(net._made(tensor, sample), 0, 2, 1, 3))
        logits = net.op("BATCH_MATMUL", [net.transpose(q, 0, 2, 1, 3), kept[0]], dict(adj_y=True))
        logits = net.scale("MUL", logits, size**-0.5)
        logits = net.call("SELECT_V2", [visible, logits, np.array(-3.4e38, np.float32)])
        z = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), kept[1]])
        x = net.add(x, net.dense(net.reshape(net.transpose(z, 0, 2, 1, 3), 1, width), width))
        x = net.add(x, net.dense(net.dense(net.norm_of_torch(x), 4 * width, "GELU_TANH"), width))
    net.output("logits", net.dense(net.norm_of_torch(x), vocabulary).tensor)
