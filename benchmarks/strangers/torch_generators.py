"""PyTorch's counterparts of the networks in generators.py, for torch.compile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def plain(inward: int, outward: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inward, outward, kernel, stride, kernel // 2)


class Pix2Pix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 128, 256, 512, 512, 512, 512, 512]
        self.first = nn.Conv2d(3, 64, 4, 2, 1)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b)) for a, b in pairwise(sizes)
        )
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.ConvTranspose2d(a if i == 7 else 2 * a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()
            )
            for i, a, b in ((i, sizes[i], sizes[i - 1]) for i in range(7, 0, -1))
        )
        self.last = nn.ConvTranspose2d(128, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        past = [functional.leaky_relu(self.first(x), 0.2)]
        for layer in self.down:
            past.append(functional.leaky_relu(layer(past[-1]), 0.2))
        x = past.pop()
        for layer in self.up:
            x = torch.cat([layer(x), past.pop()], 1)
        return torch.tanh(self.last(x))


class CycleGan(nn.Module):
    def __init__(self, depth: int = 9) -> None:
        super().__init__()

        def norm(layer: nn.Module, channels: int, last: bool = False) -> Any:
            return nn.Sequential(layer, nn.InstanceNorm2d(channels, affine=True), *([] if last else [nn.ReLU()]))

        def mirrored(inward: int, outward: int, kernel: int = 3) -> nn.Conv2d:
            return nn.Conv2d(inward, outward, kernel, 1, kernel // 2, padding_mode="reflect")

        self.down = nn.Sequential(
            norm(mirrored(3, 64, 7), 64), norm(plain(64, 128, 3, 2), 128), norm(plain(128, 256, 3, 2), 256)
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(mirrored(256, 256), 256), norm(mirrored(256, 256), 256, last=True)) for _ in range(depth)
        )
        self.up = nn.Sequential(*(norm(nn.ConvTranspose2d(2 * n, n, 3, 2, 1, 1), n) for n in (128, 64)))
        self.last = mirrored(64, 3, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        for block in self.blocks:
            x = x + block(x)
        return torch.tanh(self.last(self.up(x)))


class SrResNet(nn.Module):
    def __init__(self, channels: int = 64, depth: int = 16) -> None:
        super().__init__()

        def normed() -> Any:
            return nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))

        self.first = nn.Sequential(plain(3, channels, 9), nn.PReLU())
        self.blocks = nn.ModuleList(nn.Sequential(normed(), nn.PReLU(), normed()) for _ in range(depth))
        self.middle = normed()
        grow = (nn.Sequential(plain(channels, 4 * channels), nn.PixelShuffle(2), nn.PReLU()) for _ in range(2))
        self.last = nn.Sequential(*grow, plain(channels, 3, 9))

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return torch.tanh(self.last(self.middle(x) + first))


class Gate(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layers(x.mean((2, 3), keepdim=True))


class Rcan(nn.Module):
    def __init__(self, channels: int = 64, depth: int = 10, repeats: int = 3) -> None:
        super().__init__()

        def block() -> Any:
            gate = Gate(channels, channels // 16)
            return nn.Sequential(plain(channels, channels), nn.ReLU(), plain(channels, channels), gate)

        self.first, self.middle = plain(3, channels), plain(channels, channels)
        self.groups = nn.ModuleList(nn.ModuleList(block() for _ in range(depth)) for _ in range(repeats))
        self.ends = nn.ModuleList(plain(channels, channels) for _ in range(repeats))
        self.last = nn.Sequential(plain(channels, 4 * channels), nn.PixelShuffle(2), plain(channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.first(x)
        for blocks, end in zip(self.groups, self.ends, strict=True):
            start = x
            for block in blocks:
                x = x + block(x)
            x = start + end(x)
        return self.last(first + self.middle(x))


class Residual(nn.Module):
    """Of a diffusion U-Net, for one step in time."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.GroupNorm(32, inward), nn.SiLU(), plain(inward, outward))
        self.time = nn.Parameter(torch.randn(1, outward, 1, 1))
        self.two = nn.Sequential(nn.GroupNorm(32, outward), nn.SiLU(), plain(outward, outward))
        self.past = nn.Conv2d(inward, outward, 1) if inward != outward else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.past(x) + self.two(self.one(x) + self.time)


class Attended(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, channels), channels // 64
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, 64, h * w).transpose(3, 4).unbind(1)
        y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(2, 3).reshape(b, c, h, w).contiguous(memory_format=torch.channels_last))


class Diffusion(nn.Module):
    def __init__(self, sizes: tuple[int, ...] = (96, 192, 384), blocks: int = 2) -> None:
        super().__init__()

        def block(inward: int, outward: int, level: int) -> Any:
            return nn.Sequential(Residual(inward, outward), Attended(outward) if level else nn.Identity())

        self.first, past, x = plain(3, sizes[0]), [sizes[0]], sizes[0]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, n in enumerate(sizes):
            for _ in range(blocks):
                self.down.append(block(x, n, level))
                x = n
                past.append(x)
            if level < 2:
                self.down.append(plain(x, x, 3, 2))
                past.append(x)
        self.middle = nn.Sequential(Residual(x, x), Attended(x), Residual(x, x))
        for level in (2, 1, 0):
            n = sizes[level]
            layers = nn.ModuleList()
            for _ in range(blocks + 1):
                layers.append(block(x + past.pop(), n, level))
                x = n
            if level:
                layers.append(nn.Sequential(nn.Upsample(scale_factor=2.0), plain(n, n)))
            self.up.append(layers)
        self.blocks = blocks
        self.last = nn.Sequential(nn.GroupNorm(32, x), nn.SiLU(), plain(x, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        past = [x]
        for layer in self.down:
            x = layer(x)
            past.append(x)
        x = self.middle(x)
        for layers in self.up:
            for i, layer in enumerate(layers):
                x = layer(torch.cat([x, past.pop()], 1) if i <= self.blocks else x)
        return self.last(x)


class Modulated(nn.Module):
    """The styles of a batch: factors of what goes in, so that all share the weights."""

    def __init__(self, inward: int, outward: int, kernel: int, lengths: bool = True) -> None:
        super().__init__()
        self.style, self.layer = nn.Linear(512, inward), nn.Conv2d(inward, outward, kernel, 1, kernel // 2, bias=False)
        self.lengths = lengths

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        factor = 1 + self.style(style)
        y = self.layer(x * factor[:, :, None, None])
        if not self.lengths:
            return y
        total = (factor * factor) @ self.layer.weight.square().sum((2, 3)).t()
        return y * torch.rsqrt(total + 1e-3)[:, :, None, None]


class StyleGan(nn.Module):
    def __init__(self, levels: int = 6) -> None:
        super().__init__()
        self.mapping = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(512, 512), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.randn(1, 512, 4, 4))
        sizes = [min(512, 2048 >> level) for level in range(levels)]
        pairs = [(512, 512)] + [p for a, b in pairwise(sizes) for p in ((a, b), (b, b))]
        self.layers = nn.ModuleList(Modulated(a, b, 3) for a, b in pairs)
        self.colours = nn.ModuleList(Modulated(n, 3, 1, False) for n in sizes)
        self.biases = nn.ParameterList(torch.randn(1, b, 1, 1) for _, b in pairs)
        sides = [4] + [4 << (1 + i // 2) for i in range(2 * levels - 2)]
        self.noise = nn.ParameterList(torch.randn(1, 1, n, n) for n in sides)

    def forward(self, x: Tensor) -> Tensor:
        style = self.mapping(x[:, 0])
        x = self.start.expand(len(style), -1, -1, -1).contiguous(memory_format=torch.channels_last)
        colours: Any = None
        for i, layer in enumerate(self.layers):
            if i % 2:
                x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
                colours = functional.interpolate(colours, scale_factor=2.0, mode="bilinear")
            x = functional.leaky_relu(layer(x, style) + self.noise[i] + self.biases[i], 0.2)
            if i % 2 == 0:
                own = self.colours[i // 2](x, style)
                colours = own if colours is None else colours + own
        return colours
