"""Networks of numbers in tables and of series: wide and narrow layers, recommenders, FT-Transformer, N-BEATS, PatchTST,
windows along time, skeletons and sets of points."""

from __future__ import annotations

import numpy as np

from litegpu.model.types import TensorType
from litegpu.zoo.network import NetworkTensor
from strangers.layers import StrangeLayers, of_frames, of_tokens
from strangers.sequences import words

Tensor = NetworkTensor


@of_frames("autoencoder", 1, 640)
def autoencoder(net: StrangeLayers, x: Tensor, *, width: int = 128) -> None:
    """MLPerf Tiny's for sounds of machines: 640 numbers through 8 and back."""
    x = net.reshape(x, x.channels)
    for units in (*[width] * 4, 8, *[width] * 4):
        x = net.dense(x, units, "RELU")
    net.output("decoded", net.dense(x, 640).tensor)


@of_frames("wide layers", 1, 784)
def wide_mlp(net: StrangeLayers, x: Tensor, *, width: int = 4096, depth: int = 3) -> None:
    """784 numbers through three layers of 4096; 37 million parameters."""
    x = net.reshape(x, x.channels)
    for _ in range(depth):
        x = net.dense(x, width, "RELU")
    net.classify(x, 10)


def _counts(net: StrangeLayers, fields: Tensor) -> Tensor:
    """The first 13 fields as the logarithms of counts: [batch, 13]."""
    build, shape = net.builder, (net.batch, 13)
    begin, size = (build.constant(np.array(v, np.int32)) for v in ([0, 0], [-1, 13]))
    piece = build.op("SLICE", [fields.tensor, begin, size], shape)
    tensor = build.op("CAST", [piece], shape, type=TensorType.FLOAT32)
    sample = fields.sample[:, :13]
    return net.op("LOG", [net.scale("ADD", net._made(tensor, sample.astype(np.float32)), 1)])


def _vectors(net: StrangeLayers, fields: Tensor, vocabulary: int, size: int) -> Tensor:
    """A row of a table of its own for each of the other 26 fields, side by side: [batch, 26 * size]."""
    parts = []
    for field in range(13, 39):
        shape = (net.batch,)
        begin, end, step = (net.builder.constant(np.array(v, np.int32)) for v in ([0, field], [0, field + 1], [1, 1]))
        options = dict(begin_mask=1, end_mask=1, shrink_axis_mask=2)
        tensor = net.builder.op("STRIDED_SLICE", [fields.tensor, begin, end, step], shape, options)
        table = net.rng.normal(0, 1, (vocabulary, size)).astype(np.float32)
        parts.append(net.gather(table, NetworkTensor(tensor, fields.sample[:, field])))
    return net.join(*parts, axis=1)


@of_tokens("DLRM", 39, 2000)
def dlrm(net: StrangeLayers, fields: Tensor, *, vocabulary: int, width: int = 512) -> None:
    """Naumov et al. 2019: 13 counts through layers, 26 rows of tables, the products of each two of these vectors, and
    layers again."""
    x = _counts(net, fields)
    for units in (width, width // 2, 64):
        x = net.dense(x, units, "RELU")
    y = net.join(x, _vectors(net, fields, vocabulary, 64), axis=1)
    y = net.reshape(y, 27, 64)
    products = net.op("BATCH_MATMUL", [y, y], dict(adj_y=True))
    rows, columns = np.tril_indices(27, -1)
    flat = net.transpose(net.reshape(products, 27 * 27), 1, 0)
    sample = flat.sample[rows * 27 + columns]
    pairs = net.builder.op(
        "GATHER", [flat.tensor, net.builder.constant((rows * 27 + columns).astype(np.int32))],
        (len(rows), net.batch), dict(axis=0),
    )  # fmt: skip
    x = net.join(x, net.transpose(NetworkTensor(pairs, sample), 1, 0), axis=1)
    for units in (width, width // 2):
        x = net.dense(x, units, "RELU")
    net.output("chance", net.op("LOGISTIC", [net.dense(x, 1)]).tensor)


@of_tokens("DCN v2", 39, 2000)
def dcn(net: StrangeLayers, fields: Tensor, *, vocabulary: int, width: int = 768, depth: int = 3) -> None:
    """Wang et al. 2020: crossed layers, the first vector times a layer of the last, beside deep ones; 845 numbers."""
    first = x = net.join(_counts(net, fields), _vectors(net, fields, vocabulary, 32), axis=1)
    for _ in range(depth):
        x = net.add(net.op("MUL", [first, net.dense(x, first.channels)]), x)
    y = first
    for _ in range(depth):
        y = net.dense(y, width, "RELU")
    net.output("chance", net.op("LOGISTIC", [net.dense(net.join(x, y, axis=1), 1)]).tensor)


@of_frames("FT-Transformer", 1, 40)
def ft_transformer(net: StrangeLayers, x: Tensor, *, width: int = 192, depth: int = 3) -> None:
    """Gorishniy et al. 2021: a vector for each of 40 numbers, a transformer with gated layers; 8 heads of 24."""
    x = net.reshape(x, x.channels, 1)
    x = net.scale("ADD", net.scale("MUL", x, net._normal((1, 40, width), 1)), net._normal((1, 40, width), 4))
    x = net.join(net.constant(net._normal((1, width), 1)), x, axis=1)
    for block in range(depth):
        x = net.add(x, net.attention(net.norm_of_torch(x, 1e-5) if block else x, 8))
        one, two = net.split(net.dense(net.norm_of_torch(x, 1e-5), width // 3 * 8), 2, axis=2)
        x = net.add(x, net.dense(net.op("MUL", [one, net.activate(two, "RELU")]), width))
    net.classify(net.activate(net.norm_of_torch(net.first(x), 1e-5), "RELU"), 10)


@of_frames("N-BEATS", 1, 60)
def nbeats(net: StrangeLayers, x: Tensor, *, width: int = 512, depth: int = 30) -> None:
    """Oreshkin et al. 2019, generic: thirty blocks of four layers of 512; each takes what it explains from the past and
    adds to the forecast."""
    x = net.reshape(x, x.channels)
    forecast: Tensor | None = None
    for _ in range(depth):
        y = x
        for _ in range(4):
            y = net.dense(y, width, "RELU")
        x = net.op("SUB", [x, net.dense(y, x.channels, gain=0.3)])
        own = net.dense(y, 12)
        forecast = own if forecast is None else net.add(forecast, own)
    assert forecast is not None
    net.output("forecast", forecast.tensor)


@of_frames("PatchTST", 512, 7)
def patchtst(net: StrangeLayers, x: Tensor, *, width: int = 128, depth: int = 3) -> None:
    """Nie et al. 2022: seven series, each of 64 pieces of 16 with steps of 8, a transformer of 16 heads of 8, batch
    norms; 96 steps ahead."""
    n, series = x.sample.shape[1:]
    x = net.transpose(x, 0, 2, 1)
    rows = np.minimum(np.arange(n // 8)[:, None] * 8 + np.arange(16), n - 1).astype(np.int32)
    sample = x.sample[:, :, rows]
    pieces = net.builder.op("GATHER", [x.tensor, net.builder.constant(rows)], net.shape_of(sample), dict(axis=2))
    x = net.dense(net._made(pieces, sample), width)
    x = net.rows(net.scale("ADD", x, net.rng.normal(0, 0.3, (1, 1, n // 8, width))), n // 8, width)

    def norm(x: Tensor) -> Tensor:
        return net.scale("ADD", net.scale("MUL", x, net.rng.uniform(0.5, 0.9, width)), net.rng.normal(0, 0.1, width))

    for _ in range(depth):
        x = norm(net.add(x, net.attention(x, 16)))
        x = norm(net.add(x, net.dense(net.dense(x, 2 * width, "GELU"), width)))
    x = net.dense(net.reshape(x, series, n // 8 * width), 96)
    net.output("forecast", net.transpose(x, 0, 2, 1).tensor)


@of_frames("TCN", 784, 1)
def tcn(net: StrangeLayers, x: Tensor, *, width: int = 25, depth: int = 8) -> None:
    """Bai et al. 2018: causal windows of 7 with 25 filters, whose distance doubles; the last place's class."""

    def conv(x: Tensor, dilation: int) -> Tensor:
        x = net.apply("PAD", [x], [np.array([[0, 0], [6 * dilation, 0], [0, 0]], np.int32)])
        return net.along(x, width, 7, dilation=dilation, activation="RELU")

    for level in range(depth):
        y = conv(conv(x, 1 << level), 1 << level)
        x = net.add(y, net.along(x, width, 1) if x.channels != width else x, "RELU")
    n = x.sample.shape[1]
    net.classify(net.reshape(net.span(x, 1, n - 1, 1), width), 10)


@of_frames("ST-GCN", 300, 75)
def st_gcn(net: StrangeLayers, x: Tensor, *, width: int = 64, classes: int = 60) -> None:
    """Yan et al. 2018: 300 frames of 25 joints; three matrices of joints, windows of 9 along time; 3.1 million
    parameters."""
    x = net.reshape(x, x.sample.shape[1], 25, 3)
    stages = ((1, 1), (1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1))
    for number, (factor, stride) in enumerate(stages):
        channels = width * factor
        # einsum("ntvkc,kvw->ntwc"): what is summed over comes last, as a product of matrices asks for it
        t = x.sample.shape[1]
        wide = net.transpose(net.reshape(net.plain(x, 3 * channels), t, 25, 3, channels), 0, 1, 4, 3, 2)
        joints = np.abs(net._normal((25, 75), 75)).astype(np.float32)
        mixed = net.apply("FULLY_CONNECTED", [net.reshape(wide, t, channels, 75)], [joints], dict(keep_num_dims=True))
        y = net.activate(net.transpose(mixed, 0, 1, 3, 2), "RELU")
        weights = net._normal((channels, 9, 1, channels), 9 * channels)
        options = dict(stride_h=stride, stride_w=1, padding="SAME")
        y = net.apply("CONV_2D", [y], [weights, net._bias(channels)], options)
        if number and channels == x.channels and stride == 1:
            y = net.add(y, x)
        elif number:
            weights, options = net._normal((channels, 1, 1, x.channels), x.channels), options
            y = net.add(y, net.apply("CONV_2D", [x], [weights, net._bias(channels)], options))
        x = net.activate(y, "RELU")
    net.classify(net.mean(x), classes)


@of_frames("PointNet++", 512, 192)
def pointnet2(net: StrangeLayers, x: Tensor, *, width: int = 64, classes: int = 40) -> None:
    """Qi et al. 2017, its layers: 512 groups of 32 points, 1x1 convolutions and their largest values, twice. Which
    points belong together is given: places and normals of each group."""
    x = net.reshape(x, x.sample.shape[1], 32, 6)
    for factor in (1, 1, 2):
        x = net.plain(x, width * factor, activation="RELU")
    x = net.apply("REDUCE_MAX", [x], [np.array([2], np.int32)])
    n = x.sample.shape[1]
    # every eighth group's 64 neighbours
    near = (np.arange(n // 4)[:, None] * 4 + np.arange(min(64, n)) * 7) % n
    sample = x.sample[:, near]
    groups = net.builder.op(
        "GATHER", [x.tensor, net.builder.constant(near.astype(np.int32))], net.shape_of(sample), dict(axis=1)
    )
    x = net._made(groups, sample)
    for factor in (2, 2, 4):
        x = net.plain(x, width * factor, activation="RELU")
    x = net.apply("REDUCE_MAX", [x], [np.array([2], np.int32)])
    for factor in (4, 8, 16):
        x = net.dense(x, width * factor, "RELU")
    x = net.apply("REDUCE_MAX", [x], [np.array([1], np.int32)])
    for factor in (8, 4):
        x = net.dense(x, width * factor, "RELU")
    net.classify(x, classes)


@of_frames("TabNet", 1, 64)
def tabnet(net: StrangeLayers, x: Tensor, *, width: int = 64, depth: int = 3, classes: int = 8) -> None:
    """Arik and Pfister 2019: steps that each look at some of 64 numbers, chosen by a sparse softmax (sorted, summed up
    and compared), and gated layers with halved sums."""
    n = x.channels
    x = net.reshape(x, n)
    prior = net.constant(np.ones(n, np.float32))

    def gated(y: Tensor, past: Tensor | None = None) -> Tensor:
        one, two = net.split(net.dense(y, 2 * width), 2, axis=1)
        z = net.op("MUL", [one, net.op("LOGISTIC", [two])])
        return z if past is None else net.scale("MUL", net.add(z, past), 0.5**0.5)

    def sparse(y: Tensor) -> Tensor:
        build, shape = net.builder, net.shape_of(y.sample)
        made = [(shape, TensorType.FLOAT32), (shape, TensorType.INT32)]
        tensors = build.op_multi("TOPK_V2", [y.tensor, build.constant(np.int32(n))], made)
        ordered = net._made(tensors[0], -np.sort(-y.sample, 1))
        total = net.apply("CUMSUM", [ordered], [np.array(1, np.int32)])
        ranks = np.arange(1, n + 1, dtype=np.float32)
        larger = [net.scale("ADD", net.scale("MUL", ordered, ranks), 1).tensor, total.tensor]
        there = build.op("GREATER", larger, shape, type=TensorType.BOOL)
        chosen = (ordered.sample * ranks + 1 > total.sample).astype(np.float32)
        inside = net._made(build.op("CAST", [there], shape, type=TensorType.FLOAT32), chosen)
        axis = np.array([1], np.int32)
        count = net.apply("SUM", [inside], [axis], dict(keep_dims=True))
        sums = net.apply("SUM", [net.op("MUL", [ordered, inside])], [axis], dict(keep_dims=True))
        level = net.op("DIV", [net.scale("SUB", sums, 1), count])
        return net.activate(net.op("SUB", [y, level]), "RELU")

    y = gated(gated(x))
    total: Tensor | None = None
    for _ in range(depth):
        mask = sparse(net.op("MUL", [net.dense(net.span(y, 1, 0, width // 2), n), prior]))
        prior = net.op("MUL", [prior, net.scale("ADD", net.op("NEG", [mask]), 1.3)])
        y = gated(net.op("MUL", [x, mask]))
        for _ in range(3):
            y = gated(y, y)
        part = net.activate(net.span(y, 1, width // 2, width // 2), "RELU")
        total = part if total is None else net.add(total, part)
    assert total is not None
    net.classify(total, classes)


@of_tokens("two towers", 102, 5000)
def two_towers(net: StrangeLayers, fields: Tensor, *, vocabulary: int, width: int = 256) -> None:
    """Covington et al. 2016: what somebody has seen, the mean of up to 100 vectors with a mask, who that is, and one
    thing: the product of what two towers of layers make of these."""
    build = net.builder

    def part(begin: int, size: int) -> Tensor:
        bounds = [build.constant(np.array(v, np.int32)) for v in ([0, begin], [-1, size])]
        tensor = build.op("SLICE", [fields.tensor, *bounds], (net.batch, size))
        return NetworkTensor(tensor, fields.sample[:, begin : begin + size])

    things, people = (net.rng.normal(0, 1, (vocabulary, 64)).astype(np.float32) for _ in range(2))
    seen = part(0, 100)
    there = net.reshape(words(net, seen), 100, 1)
    axis = np.array([1], np.int32)
    total = net.apply("SUM", [net.op("MUL", [net.gather(things, seen), there])], [axis], dict(keep_dims=False))
    count = net.scale("MAXIMUM", net.apply("SUM", [there], [axis], dict(keep_dims=False)), 1)
    who, what = (net.reshape(net.gather(table, part(at, 1)), 64) for table, at in ((people, 100), (things, 101)))
    towers = []
    for x in (net.join(net.op("DIV", [total, count]), who, axis=1), what):
        for units in (width, width // 2, 64):
            x = net.dense(x, units, "RELU" if units != 64 else "NONE")
        towers.append(x)
    both = net.apply("SUM", [net.op("MUL", towers)], [axis], dict(keep_dims=True))
    net.output("chance", net.op("LOGISTIC", [net.scale("MUL", both, 0.1)]).tensor)
