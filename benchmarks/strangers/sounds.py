"""Networks of sound: Whisper's encoder, separable and strided windows along time, a U-Net of samples, a vocoder."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_frames
from strangers.sequences import lstm_layer

Tensor = NetworkTensor


@of_frames("Whisper tiny encoder", 3000, 80)
def whisper_tiny(net: StrangeLayers, x: Tensor, *, depth: int = 4, width: int = 384) -> None:
    """Radford et al. 2022 as ai-edge-torch writes it: 30 s of sound to 1500 vectors; 8.2 million parameters."""
    for stride in (1, 2):
        x = net.apply("PAD", [x], [np.array([[0, 0], [1, 1], [0, 0]], np.int32)])
        x = net.activate(net.along(x, width, 3, stride), "GELU")
    x = net.scale("ADD", x, net.rng.normal(0, 0.3, (1, *x.sample.shape[1:])))
    for _ in range(depth):
        y = net.norm_of_torch(x, 1e-5)
        q, k, v = (net.dense(y, width) for _ in range(3))
        x = net.add(x, net.dense(net.attend(q, k, v, 6), width))
        x = net.add(x, net.dense(net.dense(net.norm_of_torch(x, 1e-5), 4 * width, "GELU"), width))
    net.output("encoded", net.norm_of_torch(x, 1e-5).tensor)


# (channels, window) of QuartzNet's blocks
_QUARTZ = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))


@of_frames("QuartzNet 5x5", 400, 64)
def quartznet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, repeats: int = 5, classes: int = 29) -> None:
    """Kriman et al. 2019: separable windows of up to 87 along time, residual sums; letters; 6.7 million parameters."""

    def separate(x: Tensor, channels: int, kernel: int, stride: int = 1, activation: str = "RELU") -> Tensor:
        y = net.depthwise_along(x, kernel, stride)
        n, d = y.sample.shape[1:]
        return net.reshape(net.conv(net.reshape(y, 1, n, d), channels, activation=activation), n, channels)

    x = separate(x, wide(256, width), 33, 2)
    for full, kernel in _QUARTZ:
        channels, y = wide(full, width), x
        for repeat in range(repeats):
            y = separate(y, channels, kernel, activation="NONE" if repeat == repeats - 1 else "RELU")
        x = net.add(y, net.along(x, channels, 1), "RELU")
    x = net.along(separate(x, wide(512, width), 87), wide(1024, width), 1, activation="RELU")
    net.output("letters", net.op("LOG_SOFTMAX", [net.along(x, classes, 1)]).tensor)


@of_frames("DS-CNN", 49, 10)
def ds_cnn(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 12) -> None:
    """Zhang et al. 2017, the keyword network of MLPerf Tiny: a window of 10x4, four separable layers of 64; 24 thousand
    parameters."""
    x = net.conv(net.reshape(x, *x.sample.shape[1:], 1), wide(64, width), (10, 4), 2)
    for _ in range(4):
        x = net.conv(net.separate(x), wide(64, width))
    net.classify(net.reshape(net.average_pool(x), x.channels), classes)


@of_frames("TC-ResNet 8", 98, 40)
def tc_resnet(net: StrangeLayers, x: Tensor, *, width: float = 1.5, classes: int = 12) -> None:
    """Choi et al. 2019: keywords, with frequencies as channels and windows of 9 along time."""
    x = net.along(x, int(16 * width), 3, padding="SAME")
    for channels in (24, 32, 48):
        filters = int(channels * width)
        y = net.along(net.along(x, filters, 9, 2, padding="SAME", activation="RELU"), filters, 9, padding="SAME")
        x = net.add(y, net.along(x, filters, 1, 2, padding="SAME", activation="RELU"), "RELU")
    net.classify(net.mean(x, np.array([1], np.int32)), classes)


@of_frames("YAMNet", 96, 64)
def yamnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, classes: int = 521) -> None:
    """Plakal and Ellis 2020: MobileNet v1 on a second of sound; 3.75 million parameters."""
    x = net.conv(net.reshape(x, *x.sample.shape[1:], 1), wide(32, width), 3, 2)
    strided = {1: 64, 2: 128, 3: 128, 4: 256, 5: 256, 6: 512, 12: 1024, 13: 1024}
    for number in range(1, 14):
        stride = 2 if number in (2, 4, 6, 12) else 1
        x = net.conv(net.depthwise(x, stride, activation="RELU"), wide(strided.get(number, 512), width))
    net.output("scores", net.op("LOGISTIC", [net.dense(net.mean(x), classes)]).tensor)


@of_frames("Demucs", 16384, 1)
def demucs(net: StrangeLayers, x: Tensor, *, width: int = 64, depth: int = 4) -> None:
    """Défossez et al. 2020, for speech: strided windows of 8 samples and gated 1x1 layers down, an LSTM, and the same
    up by transposed windows."""

    def gated(x: Tensor) -> Tensor:
        one, two = net.split(net.along(x, 2 * x.channels, 1), 2, axis=2)
        return net.op("MUL", [one, net.op("LOGISTIC", [two])])

    before = []
    for level in range(depth):
        x = gated(net.along(x, width << level, 8, 4, padding="SAME", activation="RELU"))
        before.append(x)
    x = lstm_layer(net, x, x.channels)
    for level in reversed(range(depth)):
        x = gated(net.add(x, before[level]))
        x = net.transposed_along(x, (width << level) // 2 if level else 1, 8, 4)
        x = net.activate(x, "RELU") if level else x
    net.output("samples", x.tensor)


@of_frames("HiFi-GAN", 64, 80)
def hifigan(net: StrangeLayers, x: Tensor, *, width: int = 256) -> None:
    """Kong et al. 2020: a spectrum to samples, 256 a frame, by transposed windows and, at each rate, dilated ones
    of 3, 7 and 11, whose mean goes on."""

    def leaky(x: Tensor) -> Tensor:
        return net.op("LEAKY_RELU", [x], dict(alpha=0.1))

    x = net.along(x, width, 7, padding="SAME")
    for number, (stride, kernel) in enumerate(((8, 16), (8, 16), (2, 4), (2, 4)), 1):
        x = net.transposed_along(leaky(x), width >> number, kernel, stride)
        total: Tensor | None = None
        for window in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                z = net.along(leaky(y), y.channels, window, dilation=dilation, padding="SAME")
                y = net.add(y, net.along(leaky(z), y.channels, window, padding="SAME"))
            total = y if total is None else net.add(total, y)
        assert total is not None
        x = net.scale("MUL", total, 1 / 3)
    net.output("samples", net.op("TANH", [net.along(leaky(x), 1, 7, padding="SAME")]).tensor)


@of_frames("ECAPA-TDNN", 300, 80)
def ecapa(net: StrangeLayers, x: Tensor, *, width: int = 512, classes: int = 192) -> None:
    """Desplanques et al. 2020, who speaks: dilated windows in eight parts, each with the sum of those before it,
    squeeze and excite along time, mean and deviation with attention over the frames."""

    def window(x: Tensor, filters: int, kernel: int = 1, dilation: int = 1) -> Tensor:
        n, d = x.sample.shape[1:]
        if kernel == 1:
            return net.reshape(net.conv(net.reshape(x, 1, n, d), filters), n, filters)
        return net.along(x, filters, kernel, dilation=dilation, padding="SAME", activation="RELU")

    def block(x: Tensor, dilation: int) -> Tensor:
        parts = net.split(window(x, width), 8, axis=2)
        done = [parts[0]]
        for part in parts[1:]:
            given = part if len(done) == 1 else net.add(part, done[-1])
            done.append(window(given, width // 8, 3, dilation))
        y = window(net.join(*done, axis=2), width)
        gate = net.dense(net.mean(y, np.array([1], np.int32), keep=True), width // 4, "RELU")
        return net.add(x, net.op("MUL", [y, net.op("LOGISTIC", [net.dense(gate, width)])]))

    x = window(x, width, 5)
    found = []
    for dilation in (2, 3, 4):
        x = block(x, dilation)
        found.append(x)
    x = window(net.join(*found, axis=2), 3 * width)
    axis = np.array([1], np.int32)
    y = net.dense(net.op("TANH", [net.dense(x, width // 4)]), 3 * width)
    n = y.sample.shape[1]
    weights = net.transpose(net.op("SOFTMAX", [net.transpose(y, 0, 2, 1)], dict(beta=1.0)), 0, 2, 1)
    mean = net.apply("SUM", [net.op("MUL", [weights, x])], [axis], dict(keep_dims=False))
    square = net.apply("SUM", [net.op("MUL", [weights, net.op("MUL", [x, x])])], [axis], dict(keep_dims=False))
    left = net.scale("MAXIMUM", net.op("SUB", [square, net.op("MUL", [mean, mean])]), 1e-4)
    assert n > 1
    net.output("speaker", net.dense(net.join(mean, net.op("SQRT", [left]), axis=1), classes).tensor)


@of_frames("Conv-TasNet", 8000, 1)
def conv_tasnet(net: StrangeLayers, x: Tensor, *, width: int = 512, depth: int = 8, repeats: int = 2) -> None:
    """Luo and Mesgarani 2018, who says what: short windows of samples, depthwise windows whose distance doubles with
    norms over all of time and channels, a mask for each of two, and samples again."""
    mixed = net.along(x, width, 16, 8, padding="SAME", activation="RELU")
    n = mixed.sample.shape[1]

    def norm(x: Tensor) -> Tensor:
        axes = np.array([1, 2], np.int32)
        left = net.op("SUB", [x, net.mean(x, axes, keep=True)])
        variance = net.mean(net.op("MUL", [left, left]), axes, keep=True)
        y = net.op("MUL", [left, net.op("RSQRT", [net.scale("ADD", variance, 1e-5)])])
        y = net.scale("MUL", y, net.rng.uniform(0.7, 1.3, x.channels))
        return net.scale("ADD", y, net.rng.normal(0, 0.1, x.channels))

    def leaky(x: Tensor) -> Tensor:
        return net.apply("PRELU", [x], [np.full((1, x.channels), 0.25, np.float32)])

    def depthwise(x: Tensor, dilation: int) -> Tensor:
        d = x.channels
        options = dict(stride_h=1, stride_w=1, padding="SAME", depth_multiplier=1)
        options |= dict(dilation_h_factor=1, dilation_w_factor=dilation)
        weights = [net._normal((1, 1, 3, d), 3), net._bias(d)]
        return net.reshape(net.apply("DEPTHWISE_CONV_2D", [net.reshape(x, 1, n, d)], weights, options), n, d)

    y = net.along(norm(mixed), width // 4, 1)
    skip: Tensor | None = None
    for layer in range(repeats * depth):
        z = norm(leaky(net.along(y, width, 1)))
        z = norm(leaky(depthwise(z, 1 << layer % depth)))
        past = net.along(z, width // 4, 1)
        skip = past if skip is None else net.add(skip, past)
        y = net.add(y, net.along(z, width // 4, 1))
    assert skip is not None
    masks = net.op("LOGISTIC", [net.along(leaky(skip), 2 * width, 1)])
    parts = [net.op("MUL", [mixed, net.span(masks, 2, i * width, width)]) for i in range(2)]
    net.output("voices", net.join(*(net.transposed_along(part, 1, 16, 8) for part in parts), axis=2).tensor)


@of_frames("codec", 16000, 1)
def codec(net: StrangeLayers, x: Tensor, *, width: int = 32) -> None:
    """In the manner of SoundStream (Zeghidour et al. 2021) and DAC: residual windows with x + sin(ax)^2 / a, strided
    ones, and the nearest of 1024 rows of a table, twice: its number and what is left."""

    def snake(x: Tensor) -> Tensor:
        scale = net.rng.uniform(0.5, 2, x.channels)
        wave = net.op("SIN", [net.scale("MUL", x, scale)])
        return net.add(x, net.scale("MUL", net.op("MUL", [wave, wave]), 1 / scale))

    x = net.along(x, width, 7, padding="SAME")
    for stride in (2, 4, 5, 8):
        for dilation in (1, 3, 9):
            y = net.along(snake(x), x.channels, 7, dilation=dilation, padding="SAME")
            x = net.add(x, net.along(snake(y), x.channels, 1))
        x = net.along(snake(x), 2 * x.channels, 2 * stride, stride, padding="SAME")
    x = net.along(snake(x), 128, 3, padding="SAME")
    for stage in range(2):
        table = net.rng.normal(0, 1, (1024, 128)).astype(np.float32)
        near = net.apply("FULLY_CONNECTED", [x], [table, -0.5 * (table**2).sum(1)], dict(keep_num_dims=True))
        numbers, shape = near.sample.argmax(2).astype(np.int32), net.shape_of(near.sample)[:2]
        tensor = net.builder.op("ARG_MAX", [near.tensor, net.builder.constant(np.int32(2))], shape)
        net.output(f"numbers{stage}", tensor)
        x = net.op("SUB", [x, net.gather(table, NetworkTensor(tensor, numbers))])
    net.output("left", x.tensor)
