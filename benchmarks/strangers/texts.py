"""Encoders and classifiers of text: DistilBERT, ALBERT, MobileBERT, ELECTRA, T5, sentence vectors, CLIP's text tower,
windows over words, bags of words, and a GRU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from litegpu.model.types import TensorType
from litegpu.zoo.network import NetworkTensor
from strangers.layers import StrangeLayers, of_tokens
from strangers.sequences import words

Tensor = NetworkTensor


@of_tokens("DistilBERT", 128, 30522)
def distilbert(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 768) -> None:
    """Sanh et al. 2019 as ai-edge-torch writes it: logits where there is padding (token 0) are replaced; two classes;
    66 million parameters."""
    n = tokens.sample.shape[1]
    x = net.norm_of_torch(_embedded(net, tokens, vocabulary, width), 1e-12)
    none = _no_word(net, tokens)

    def masked(logits: Tensor) -> Tensor:
        return net.call("SELECT_V2", [none, np.array(-3.4e38, np.float32), logits])

    for _ in range(depth):
        x = net.norm_of_torch(net.add(x, _three_products(net, x, 12 if n > 16 else 2, masked)), 1e-12)
        x = net.norm_of_torch(net.add(x, net.dense(net.dense(x, 4 * width, "GELU"), width)), 1e-12)
    net.output("classes", net.dense(net.dense(net.first(x), width, "RELU"), 2).tensor)


@of_tokens("ALBERT", 128, 30000)
def albert(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 12, width: int = 768) -> None:
    """Lan et al. 2019: a narrow table, and the same weights in every layer; GELU by TANH; 11.7 million parameters."""
    known: dict[str, tuple[int, int, np.ndarray, np.ndarray]] = {}
    n, heads = tokens.sample.shape[1], 12 if width % 12 == 0 and width > 100 else 2

    def shared(name: str, x: Tensor, units: int) -> Tensor:
        if name not in known:
            weights, bias = net._normal((units, x.channels), x.channels), net._bias(units)
            known[name] = (net._constant(weights), net._constant(bias), weights, bias)
        weights_tensor, bias_tensor, weights, bias = known[name]
        sample = x.sample @ weights.T + bias
        operands = [x.tensor, weights_tensor, bias_tensor]
        tensor = net.builder.op("FULLY_CONNECTED", operands, net.shape_of(sample), dict(keep_num_dims=True))
        return net._made(tensor, sample)

    x = net.layer_norm(_embedded(net, tokens, vocabulary, width // 6), 1e-12)
    x = net.dense(x, width)
    mask = net.scale("MUL", net.scale("SUB", net.reshape(words(net, tokens), 1, 1, n), 1), 10000)
    for _ in range(depth):
        q, k, v = (net.heads(shared(name, x, width), heads) for name in "qkv")
        logits = net.scale("MUL", net.op("BATCH_MATMUL", [q, k], dict(adj_y=True)), (width // heads) ** -0.5)
        weights = net.op("SOFTMAX", [net.add(logits, mask)], dict(beta=1.0))
        y = net.transpose(net.op("BATCH_MATMUL", [weights, v]), 0, 2, 1, 3)
        x = net.layer_norm(net.add(x, shared("out", net.reshape(y, n, width), width)), 1e-12)
        y = net.activate(shared("wide", x, 4 * width), "GELU_TANH")
        x = net.layer_norm(net.add(x, shared("narrow", y, width)), 1e-12)
    net.output("pooled", net.op("TANH", [net.dense(net.first(x), width)]).tensor)


@of_tokens("MobileBERT", 128, 30522)
def mobilebert(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 24, width: int = 512) -> None:
    """Sun et al. 2020: 24 bottlenecks of 128, each with four small feed-forward layers; a factor and a sum instead of
    norms; RELU; places where an answer begins and ends; 24.6 million parameters."""
    n, narrow = tokens.sample.shape[1], width // 4
    y = net.gather(net.rng.normal(0, 1, (vocabulary, narrow)).astype(np.float32), tokens)
    ahead, behind = ([[0, 0], [0, 1], [0, 0]], [[0, 0], [1, 0], [0, 0]])
    later = net.apply("PAD", [net.span(y, 1, 1, n - 1)], [np.array(ahead, np.int32)])
    earlier = net.apply("PAD", [net.span(y, 1, 0, n - 1)], [np.array(behind, np.int32)])
    x = net.dense(net.join(later, y, earlier, axis=2), width)
    mask = net.scale("MUL", net.scale("SUB", net.reshape(words(net, tokens), 1, 1, n), 1), 10000)

    def normed(x: Tensor) -> Tensor:
        scale = net.rng.uniform(0.7, 1.3, x.channels) / max(1.0, float(x.sample.std()))
        return net.scale("ADD", net.scale("MUL", x, scale), net.rng.normal(0, 0.1, x.channels))

    def forward(x: Tensor) -> Tensor:
        return normed(net.add(net.dense(net.dense(x, 4 * narrow, "RELU", flat=True), narrow, flat=True), x))

    x = normed(net.scale("ADD", x, net.rng.normal(0, 0.5, (1, n, width))))
    for _ in range(depth):
        inner, shared = (normed(net.dense(x, narrow, flat=True)) for _ in range(2))
        q, k, v = (net.heads(net.dense(y, narrow, flat=True), 4) for y in (shared, shared, x))
        logits = net.scale("MUL", net.op("BATCH_MATMUL", [q, k], dict(adj_y=True)), (narrow // 4) ** -0.5)
        weights = net.op("SOFTMAX", [net.add(logits, mask)], dict(beta=1.0))
        y = net.reshape(net.transpose(net.op("BATCH_MATMUL", [weights, v]), 0, 2, 1, 3), n, narrow)
        y = normed(net.add(net.dense(y, narrow, flat=True), inner))
        for _ in range(3):
            y = forward(y)
        y = forward(y)
        x = normed(net.add(net.dense(y, width, flat=True), x))
    y = net.dense(x, 2)
    begin, end = (net.reshape(net.span(y, 2, i, 1), n) for i in range(2))
    net.output("begin", begin.tensor)
    net.output("end", end.tensor)


@of_tokens("ELECTRA small", 128, 30522)
def electra_small(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 12, width: int = 256) -> None:
    """Clark et al. 2020 through TensorFlow's converter: matrices of rows, biases of heads behind the RESHAPE; whether
    each token was replaced; 13.5 million parameters."""
    n = tokens.sample.shape[1]
    x = net.layer_norm(_embedded(net, tokens, vocabulary, width // 2), 1e-12)
    x = net.dense(x, width, flat=True)
    mask = net.scale("MUL", net.scale("SUB", net.reshape(words(net, tokens), 1, 1, n), 1), 10000)
    for _ in range(depth):
        added = net.attention(x, 4, flat=True, bias_after=True, added=lambda logits: net.add(logits, mask))
        x = net.layer_norm(net.add(x, added), 1e-12)
        x = net.layer_norm(net.add(x, net.dense(net.dense(x, 4 * width, "GELU", flat=True), width, flat=True)), 1e-12)
    y = net.dense(net.dense(x, width, "GELU"), 1)
    net.output("replaced", net.op("LOGISTIC", [net.reshape(y, n)]).tensor)


@of_tokens("T5 encoder", 128, 32128)
def t5_encoder(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 512) -> None:
    """Raffel et al. 2019, small: norms by the root of the mean square, no biases, and a number for each distance of two
    places that is added to the logits; 35 million parameters."""
    n, heads = tokens.sample.shape[1], 8
    x = net.gather(net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32), tokens)
    distance = np.arange(n)[None, :] - np.arange(n)[:, None]
    near = net.rng.normal(0, 1, (heads, 64))[:, np.clip(distance + 32, 0, 63)][None]

    def plain(x: Tensor, units: int, activation: str = "NONE") -> Tensor:
        options = dict(keep_num_dims=True, fused_activation_function=activation)
        return net.apply("FULLY_CONNECTED", [x], [net._normal((units, x.channels), x.channels)], options)

    for _ in range(depth):
        y = net.root_norm(x)
        q, k, v = (net.heads(plain(y, width), heads) for _ in range(3))
        k = net.scale("MUL", k, (width // heads) ** -0.5)
        logits = net.scale("ADD", net.op("BATCH_MATMUL", [q, net.turned(k)]), near)
        y = net.op("BATCH_MATMUL", [net.op("SOFTMAX", [logits], dict(beta=1.0)), v])
        x = net.add(x, plain(net.reshape(net.transpose(y, 0, 2, 1, 3), n, width), width))
        x = net.add(x, plain(plain(net.root_norm(x), 4 * width, "RELU"), width))
    net.output("encoded", net.root_norm(x).tensor)


@of_tokens("sentence vectors", 512, 30522)
def sentences(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 384) -> None:
    """MiniLM-L6 as sentence encoders are published: a mask, the mean of the words' vectors, and its direction; 22.7
    million parameters."""
    _sentence_vectors(net, tokens, vocabulary, depth, width)


@of_tokens("query vectors", 16, 30522)
def queries(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 6, width: int = 384) -> None:
    """The same for 16 words, as those who search have them."""
    _sentence_vectors(net, tokens, vocabulary, depth, width)


def _sentence_vectors(net: StrangeLayers, tokens: Tensor, vocabulary: int, depth: int, width: int) -> None:
    n, heads = tokens.sample.shape[1], 12 if width % 12 == 0 else 4
    there = words(net, tokens)
    mask = net.scale("MUL", net.scale("SUB", net.reshape(there, 1, 1, n), 1), 10000)
    x = net.norm_of_torch(_embedded(net, tokens, vocabulary, width), 1e-12)
    for _ in range(depth):
        x = net.norm_of_torch(net.add(x, _three_products(net, x, heads, lambda y: net.add(y, mask))), 1e-12)
        x = net.norm_of_torch(net.add(x, net.dense(net.dense(x, 4 * width, "GELU"), width)), 1e-12)
    there = net.reshape(there, n, 1)
    axis = np.array([1], np.int32)
    total = net.apply("SUM", [net.op("MUL", [x, there])], [axis], dict(keep_dims=False))
    count = net.scale("MAXIMUM", net.apply("SUM", [there], [axis], dict(keep_dims=False)), 1e-9)
    mean = net.op("DIV", [total, count])
    length = net.op("SQRT", [net.apply("SUM", [net.op("MUL", [mean, mean])], [axis], dict(keep_dims=True))])
    net.output("vector", net.op("DIV", [mean, net.scale("MAXIMUM", length, 1e-12)]).tensor)


@of_tokens("CLIP text", 77, 49408)
def clip_text(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 12, width: int = 512) -> None:
    """Radford et al. 2021: causal, x * sigmoid(1.702 x), the vector of the place whose token is largest; 63 million
    parameters."""
    n = tokens.sample.shape[1]
    mask = np.triu(np.full((1, 1, n, n), -1e9, np.float32), 1)
    x = net.gather(net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32), tokens)
    x = net.scale("ADD", x, net.rng.normal(0, 0.3, (1, n, width)))
    for _ in range(depth):
        y = net.norm_of_torch(x, 1e-5)
        x = net.add(x, net.attention_of_torch(y, 8, added=lambda logits: net.scale("ADD", logits, mask)))
        x = net.add(x, net.dense(net.quick_gelu(net.dense(net.norm_of_torch(x, 1e-5), 4 * width)), width))
    x = net.norm_of_torch(x, 1e-5)
    # one product picks the place: a row of zeros and one 1
    build, shape = net.builder, (net.batch, n)
    last = tokens.sample.argmax(1)
    place = build.op("ARG_MAX", [tokens.tensor, build.constant(np.int32(1))], (net.batch,), type=TensorType.INT32)
    options = dict(axis=-1)
    constants = [build.constant(np.int32(n)), build.constant(np.float32(1)), build.constant(np.float32(0))]
    chosen = net._made(build.op("ONE_HOT", [place, *constants], shape, options), np.eye(n, dtype=np.float32)[last])
    y = net.op("BATCH_MATMUL", [net.reshape(chosen, 1, n), x])
    net.output("vector", net.dense(net.reshape(y, width), width).tensor)


@of_tokens("windows of words", 100, 20000)
def text_cnn(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, width: float = 1.0) -> None:
    """Kim 2014: vectors of 300, windows of 3, 4 and 5 words, 100 filters each, and their largest values."""
    x = net.gather(net.rng.normal(0, 1, (vocabulary, int(300 * width))).astype(np.float32), tokens)
    axis = np.array([1], np.int32)
    parts = [
        net.apply("REDUCE_MAX", [net.along(x, int(100 * width), kernel, activation="RELU")], [axis])
        for kernel in (3, 4, 5)
    ]
    net.classify(net.join(*parts, axis=1), 6)


@of_tokens("bag of words", 256, 50000)
def fasttext(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, width: int = 100) -> None:
    """Joulin et al. 2016: the mean of the words' vectors, and a layer."""
    x = net.gather(net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32), tokens)
    net.classify(net.mean(x, np.array([1], np.int32)), 20)


@of_tokens("GRU", 64, 20000)
def gru_unrolled(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, units: int = 128) -> None:
    """A GRU as PyTorch's exporters write it: one product for all places, then each of 64 steps on its own."""
    n = tokens.sample.shape[1]
    x = net.gather(net.rng.normal(0, 1, (vocabulary, units)).astype(np.float32), tokens)
    given = net.dense(x, 3 * units)
    weights, bias = net._normal((3 * units, units), units), net._bias(3 * units)
    state = net.constant(np.zeros(units, np.float32))
    for step in range(n):
        own = net.apply("FULLY_CONNECTED", [state], [weights, bias])
        new = net.reshape(net.span(given, 1, step, 1), 3 * units)
        (reset, update, other), (r, u, o) = ([net.span(y, 1, i * units, units) for i in range(3)] for y in (new, own))
        first = net.op("LOGISTIC", [net.add(reset, r)])
        second = net.op("LOGISTIC", [net.add(update, u)])
        fresh = net.op("TANH", [net.add(other, net.op("MUL", [first, o]))])
        state = net.add(net.op("MUL", [net.op("SUB", [state, fresh]), second]), fresh)
    net.classify(state, 4)


def _embedded(net: StrangeLayers, tokens: Tensor, vocabulary: int, channels: int) -> Tensor:
    """Rows of a table, and a vector for each place."""
    x = net.gather(net.rng.normal(0, 1, (vocabulary, channels)).astype(np.float32), tokens)
    return net.scale("ADD", x, net.rng.normal(0, 0.5, (1, tokens.sample.shape[1], channels)))


def _no_word(net: StrangeLayers, tokens: Tensor) -> Tensor:
    """Where there is padding (token 0), BOOL: [batch, 1, 1, n]."""
    build, n = net.builder, tokens.sample.shape[1]
    none = build.op("EQUAL", [tokens.tensor, build.constant(np.int32(0))], (net.batch, n), type=TensorType.BOOL)
    return net.reshape(NetworkTensor(none, tokens.sample == 0), 1, 1, n)


def _three_products(net: StrangeLayers, x: Tensor, heads: int, added: Callable[[Tensor], Tensor]) -> Tensor:
    """Attention as PyTorch's modules with a layer for each of queries, keys and values come out."""
    n, d = x.sample.shape[1:]
    q, k, v = (net.heads(net.dense(x, d), heads) for _ in range(3))
    logits = net.op("BATCH_MATMUL", [net.scale("MUL", q, (d // heads) ** -0.5), net.turned(k)])
    weights = net.op("SOFTMAX", [added(logits)], dict(beta=1.0))
    y = net.op("BATCH_MATMUL", [weights, v])
    return net.dense(net.reshape(net.transpose(y, 0, 2, 1, 3), n, d), d)


@of_tokens("places first", 64, 8192)
def places_first(net: StrangeLayers, tokens: Tensor, *, vocabulary: int, depth: int = 4, width: int = 256) -> None:
    """As torch.nn.TransformerEncoder is without batch_first: places in front of the batch, heads within the batch, one
    product for queries, keys and values, three axes; padding (token 0) replaces logits; the mean of all places."""
    n, batch, heads = tokens.sample.shape[1], net.batch, 8 if width % 64 == 0 else 2
    size, net.pictures = width // heads, net.batch  # so that samples have the shapes of what they are of
    tokens = NetworkTensor(tokens.tensor, net.rng.integers(0, vocabulary, (batch, n)).astype(np.int32))
    x = net.gather(net.rng.normal(0, 1, (vocabulary, width)).astype(np.float32), tokens)
    x = net.transpose(net.scale("ADD", x, net.rng.normal(0, 0.5, (1, n, width))), 1, 0, 2)
    hidden = _no_word(net, tokens)
    for _ in range(depth):
        y = net.dense(x, 3 * width)
        parts = (net.rows(net.span(y, 2, i * width, width), batch * heads, size) for i in range(3))
        q, k, v = (net.transpose(part, 1, 0, 2) for part in parts)
        logits = net.op("BATCH_MATMUL", [net.scale("MUL", q, size**-0.5), k], dict(adj_y=True))
        logits = net.call("SELECT_V2", [hidden, np.array(-3.4e38, np.float32), net.rows(logits, heads, n, n)])
        weights = net.op("SOFTMAX", [net.rows(logits, n, n)], dict(beta=1.0))
        z = net.transpose(net.op("BATCH_MATMUL", [weights, v]), 1, 0, 2)
        x = net.norm_of_torch(net.add(x, net.dense(net.rows(z, batch, width), width)), 1e-5)
        x = net.norm_of_torch(net.add(x, net.dense(net.dense(x, 4 * width, "RELU"), width)), 1e-5)
    net.output("vector", net.mean(net.transpose(x, 1, 0, 2), np.array([1], np.int32)).tensor)
