"""Networks that draw: from pictures, from noise, and larger ones."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.classifiers import wide
from strangers.layers import StrangeLayers, of_frames, of_pictures, of_torch_pictures

Tensor = NetworkTensor


@of_pictures("pix2pix", 256)
def pix2pix(net: StrangeLayers, x: Tensor, *, width: float = 1.0, levels: int = 8) -> None:
    """Isola et al. 2017, the generator as in TensorFlow's tutorial: windows of 4x4 down to one pixel and up
    again, every level joined; 54.4 million parameters."""
    before: list[Tensor] = []
    while x.sample.shape[1] > 1 and len(before) < levels:
        channels = wide(min(64 << len(before), 512), width)
        y = net.conv(x, channels, 4, 2, activation="NONE") if before else net.plain(x, channels, 4, 2)
        before.append(x := net.leaky(y))
    for past in before[-2::-1]:
        x = net.join(net.activate(net.transposed(x, past.channels, 4), "RELU"), past)
    net.output("picture", net.op("TANH", [net.transposed(x, 3, 4)]).tensor)


@of_torch_pictures("CycleGAN", 256, pictures=1)
def cyclegan(net: StrangeLayers, x: Tensor, *, width: float = 1.0, depth: int = 9) -> None:
    """Zhu et al. 2017, the generator: reflected borders, instance norms, transposed 3x3; 11.4 million parameters."""

    def norm(x: Tensor, activation: str = "RELU") -> Tensor:
        return net.activate(net.instance_norm(x), activation)

    x = norm(net.reflected(x, wide(64, width), 7))
    for channels in (128, 256):
        x = norm(net.plain(x, wide(channels, width), 3, 2))
    for _ in range(depth):
        x = net.add(x, norm(net.reflected(norm(net.reflected(x, x.channels)), x.channels), "NONE"))
    for channels in (128, 64):
        x = norm(net.transposed(x, wide(channels, width), 3))
    net.output("picture", net.op("TANH", [net.reflected(x, 3, 7)]).tensor)


@of_torch_pictures("SRResNet x4", 64)
def srresnet(net: StrangeLayers, x: Tensor, *, width: float = 1.0, depth: int = 16) -> None:
    """Ledig et al. 2017: slopes that are learnt, windows of 9x9, pixels from channels twice; 1.5 million parameters."""

    def prelu(x: Tensor) -> Tensor:
        return net.apply("PRELU", [x], [net.rng.uniform(0.1, 0.4, (1, 1, 1)).astype(np.float32)])

    first = x = prelu(net.plain(x, wide(64, width), 9))
    for _ in range(depth):
        y = prelu(net.conv(x, x.channels, 3, activation="NONE"))
        x = net.add(x, net.conv(y, x.channels, 3, activation="NONE"))
    x = net.add(net.conv(x, x.channels, 3, activation="NONE"), first)
    for _ in range(2):
        x = prelu(net.shuffled_pixels(net.plain(x, 4 * x.channels, 3), 2))
    net.output("picture", net.op("TANH", [net.plain(x, 3, 9)]).tensor)


@of_torch_pictures("RCAN-like x2", 64)
def rcan(net: StrangeLayers, x: Tensor, *, width: float = 1.0, depth: int = 10, repeats: int = 3) -> None:
    """Zhang et al. 2018 with fewer blocks: gates in residual blocks in residual groups."""
    first = x = net.plain(x, wide(64, width), 3)
    for _ in range(repeats):
        start = x
        for _ in range(depth):
            y = net.plain(net.plain(x, x.channels, 3, activation="RELU"), x.channels, 3)
            x = net.add(x, net.gate(y, max(1, x.channels // 16), "RELU", flat=False))
        x = net.add(start, net.plain(x, x.channels, 3))
    x = net.add(first, net.plain(x, x.channels, 3))
    net.output("picture", net.plain(net.shuffled_pixels(net.plain(x, 4 * x.channels, 3), 2), 3, 3).tensor)


@of_pictures("diffusion U-Net", 64)
def diffusion(net: StrangeLayers, x: Tensor, *, width: float = 1.0, blocks: int = 2) -> None:
    """As Ho et al. 2020 and later ones have it, for one step in time: group norms and SiLU in front of 3x3 layers,
    attention at the two lowest resolutions, everything joined on the way up; 34 million parameters."""

    def norm(x: Tensor) -> Tensor:
        height, columns, channels = x.sample.shape[1:]
        y = net.group_norm(net.reshape(x, height * columns, channels), 32 if channels % 32 == 0 else 8)
        return net.reshape(y, height, columns, channels)

    def block(x: Tensor, channels: int) -> Tensor:
        y = net.plain(net.activate(norm(x), "SWISH"), channels, 3)
        y = net.scale("ADD", y, net.rng.normal(0, 0.3, channels))  # what the time adds
        y = net.plain(net.activate(norm(y), "SWISH"), channels, 3)
        return net.add(net.plain(x, channels) if x.channels != channels else x, y)

    def attended(x: Tensor) -> Tensor:
        height, columns, channels = x.sample.shape[1:]
        y = net.attention_of_torch(net.reshape(norm(x), height * columns, channels), max(1, channels // 64))
        return net.add(x, net.reshape(y, height, columns, channels))

    sizes = [wide(n, width) for n in (96, 192, 384)]
    x = net.plain(x, sizes[0], 3)
    past = [x]
    for level, channels in enumerate(sizes):
        for _ in range(blocks):
            x = block(x, channels)
            x = attended(x) if level else x
            past.append(x)
        if level < 2:
            x = net.plain(x, channels, 3, 2)
            past.append(x)
    x = block(attended(block(x, x.channels)), x.channels)
    for level in (2, 1, 0):
        for _ in range(blocks + 1):
            x = block(net.join(x, past.pop()), sizes[level])
            x = attended(x) if level else x
        x = net.plain(net.enlarge(x), sizes[level], 3) if level else x
    net.output("noise", net.plain(net.activate(norm(x), "SWISH"), 3, 3).tensor)


@of_frames("StyleGAN-like", 1, 512)
def stylegan(net: StrangeLayers, x: Tensor, *, width: float = 1.0, levels: int = 6) -> None:
    """Karras et al. 2020, in the manner of its second version at 128x128: styles multiply what goes into a layer, their
    lengths what comes out, noise, leaky RELUs, colours summed over the resolutions."""
    x = net.reshape(x, 512)
    for _ in range(8):
        x = net.leaky(net.dense(x, wide(512, width), gain=1.4))
    style = x

    def modulated(x: Tensor, filters: int, kernel: int, lengths: bool = True) -> Tensor:
        factor = net.reshape(net.scale("ADD", net.dense(style, x.channels, gain=0.3), 1.0), 1, 1, x.channels)
        weights = net._normal((filters, kernel, kernel, x.channels), kernel**2 * x.channels)
        options = dict(stride_h=1, stride_w=1, padding="SAME")
        y = net.apply("CONV_2D", [net.op("MUL", [x, factor])], [weights, np.zeros(filters, np.float32)], options)
        if not lengths:
            return y
        squares = np.square(weights).sum((1, 2))
        total = net.apply("FULLY_CONNECTED", [net.reshape(net.op("MUL", [factor, factor]), x.channels)], [squares])
        return net.op("MUL", [y, net.reshape(net.op("RSQRT", [net.scale("ADD", total, 1e-3)]), 1, 1, filters)])

    def layer(x: Tensor, filters: int) -> Tensor:
        y = modulated(x, filters, 3)
        y = net.scale("ADD", y, net.rng.normal(0, 0.1, (*y.sample.shape[1:3], 1)))
        return net.leaky(net.scale("ADD", y, net.rng.normal(0, 0.1, filters)))

    x = net.constant(net.rng.normal(0, 1, (4, 4, wide(512, width))).astype(np.float32))
    colours: Tensor | None = None
    for level in range(levels):
        channels = wide(min(512, 2048 >> level), width)
        if colours is not None:
            x = layer(net.smooth(x, 4 << level, 4 << level), channels)
            colours = net.smooth(colours, 4 << level, 4 << level)
        x = layer(x, channels)
        own = modulated(x, 3, 1, lengths=False)
        colours = own if colours is None else net.add(colours, own)
    assert colours is not None
    net.output("picture", colours.tensor)
