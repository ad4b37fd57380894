"""PyTorch's counterparts of the networks in sounds.py, for torch.compile."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from strangers.torch_modules import conv
from strangers.torch_texts import Block


def along(inward: int, outward: int, kernel: int = 1, stride: int = 1, groups: int = 1, dilation: int = 1) -> nn.Conv1d:
    """A Conv1d that keeps the length, or divides it."""
    padding = ((kernel - 1) * dilation + 1 - stride + 1) // 2
    return nn.Conv1d(inward, outward, kernel, stride, padding, dilation, groups)


class WhisperTiny(nn.Module):
    def __init__(self, width: int = 384, depth: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(80, width, 3, 1, 1), nn.Conv1d(width, width, 3, 2, 1)
        self.places = nn.Parameter(torch.randn(1, 1500, width))
        self.blocks = nn.Sequential(*(Block(width, 6, before=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(x.transpose(1, 2)))))
        return self.norm(self.blocks(x.transpose(1, 2) + self.places))


class QuartzNet(nn.Module):
    def __init__(self, repeats: int = 5, classes: int = 29) -> None:
        super().__init__()

        def separate(inward: int, outward: int, kernel: int, stride: int = 1, last: bool = False) -> Any:
            layers = [along(inward, inward, kernel, stride, inward), nn.Conv1d(inward, outward, 1, bias=False)]
            return nn.Sequential(*layers, nn.BatchNorm1d(outward), nn.Identity() if last else nn.ReLU())

        self.first, channels = separate(64, 256, 33, 2), 256
        self.blocks, self.past = nn.ModuleList(), nn.ModuleList()
        for outward, kernel in ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75)):
            sizes = [channels] + [outward] * repeats
            steps = [separate(sizes[i], outward, kernel, last=i == repeats - 1) for i in range(repeats)]
            self.blocks.append(nn.Sequential(*steps))
            self.past.append(nn.Conv1d(channels, outward, 1))
            channels = outward
        last = (nn.Conv1d(512, 1024, 1), nn.ReLU(), nn.Conv1d(1024, classes, 1))
        self.last = nn.Sequential(separate(512, 512, 87), *last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.transpose(1, 2))
        for block, past in zip(self.blocks, self.past, strict=True):
            x = (block(x) + past(x)).relu()
        return self.last(x).log_softmax(1).transpose(1, 2)


class DsCnn(nn.Module):
    def __init__(self, classes: int = 12) -> None:
        super().__init__()

        def separate() -> Any:
            window = nn.Conv2d(64, 64, 3, 1, 1, groups=64, bias=False)
            return nn.Sequential(window, nn.BatchNorm2d(64), nn.ReLU(), conv(64, 64, 1))

        first = nn.Conv2d(1, 64, (10, 4), 2, (5, 1), bias=False)
        self.layers = nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), *(separate() for _ in range(4)))
        self.last = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x[:, None]).mean((2, 3))).softmax(1)


class TcResNet(nn.Module):
    def __init__(self, classes: int = 12) -> None:
        super().__init__()
        sizes = (24, 36, 54, 72)
        self.first, self.last = along(40, sizes[0], 3), nn.Linear(sizes[-1], classes)
        pairs = list(itertools.pairwise(sizes))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 9, 2, 4), nn.ReLU(), nn.Conv1d(b, b, 9, 1, 4)) for a, b in pairs
        )
        self.past = nn.ModuleList(nn.Sequential(nn.Conv1d(a, b, 1, 2), nn.ReLU()) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.transpose(1, 2))
        for block, past in zip(self.blocks, self.past, strict=True):
            x = (block(x) + past(x)).relu()
        return self.last(x.mean(2)).softmax(1)


class YamNet(nn.Module):
    def __init__(self, classes: int = 521) -> None:
        super().__init__()
        sizes = [32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024]

        def separate(inward: int, outward: int, stride: int) -> Any:
            window = nn.Conv2d(inward, inward, 3, stride, 1, groups=inward, bias=False)
            return nn.Sequential(window, nn.BatchNorm2d(inward), nn.ReLU(), conv(inward, outward, 1))

        steps = (separate(sizes[i - 1], sizes[i], 2 if i in (2, 4, 6, 12) else 1) for i in range(1, 14))
        self.layers, self.last = nn.Sequential(conv(1, 32, 3, 2), *steps), nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x[:, None]).mean((2, 3))).sigmoid()


class Demucs(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        sizes = [1, *(width << level for level in range(depth))]
        self.down, self.gates, self.up, self.back = (nn.ModuleList() for _ in range(4))
        for a, b in itertools.pairwise(sizes):
            self.down.append(nn.Conv1d(a, b, 8, 4, 2))
            self.gates.append(nn.Conv1d(b, 2 * b, 1))
            self.back.append(nn.Conv1d(b, 2 * b, 1))
            self.up.append(nn.ConvTranspose1d(b, a, 8, 4, 2))
        self.layer = nn.LSTM(sizes[-1], sizes[-1], batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x, before = x.transpose(1, 2), []
        for down, gate in zip(self.down, self.gates, strict=True):
            x = functional.glu(gate(down(x).relu()), 1)
            before.append(x)
        x = self.layer(x.transpose(1, 2))[0].transpose(1, 2)
        for level in reversed(range(len(before))):
            x = self.up[level](functional.glu(self.back[level](x + before[level]), 1))
            x = x.relu() if level else x
        return x.transpose(1, 2)


class HifiGan(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.last = along(80, width, 7), along(width >> 4, 1, 7)
        self.up, self.blocks = nn.ModuleList(), nn.ModuleList()
        for number, (stride, kernel) in enumerate(((8, 16), (8, 16), (2, 4), (2, 4)), 1):
            n = width >> number
            self.up.append(nn.ConvTranspose1d(2 * n, n, kernel, stride, (kernel - stride) // 2))
            self.blocks.append(
                nn.ModuleList(
                    nn.ModuleList(
                        nn.ModuleList([along(n, n, window, dilation=dilation), along(n, n, window)])
                        for dilation in (1, 3, 5)
                    )
                    for window in (3, 7, 11)
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.transpose(1, 2))
        for up, blocks in zip(self.up, self.blocks, strict=True):
            x, total = up(functional.leaky_relu(x, 0.1)), 0
            for block in blocks:
                y = x
                for one, two in block:
                    y = y + two(functional.leaky_relu(one(functional.leaky_relu(y, 0.1)), 0.1))
                total = total + y
            x = total / 3
        return torch.tanh(self.last(functional.leaky_relu(x, 0.1))).transpose(1, 2)


class Relative(nn.Module):
    """A conformer's block with places relative to one another."""

    def __init__(self, width: int = 144, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.biases, self.far = (
            nn.Parameter(torch.randn(2, width)),
            nn.Parameter(torch.randn(1, heads, 499, width // heads)),
        )
        self.gate, self.window, self.last = (
            nn.Linear(width, 2 * width),
            along(width, width, 31, 1, width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.forwards[0](x)
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        u, w, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q + self.biases[0], q + self.biases[1], k, v)
        )
        moved = functional.pad(w @ self.far.transpose(2, 3), (1, 0))
        b, h, n, m = moved.shape
        moved = moved.reshape(b, h, m, n)[:, :, 1:].reshape(b, h, n, m - 1)[..., :n]
        weights = ((u @ k.transpose(2, 3) + moved) * k.shape[-1] ** -0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        y = functional.glu(self.gate(self.norms[1](x)), -1).transpose(1, 2)
        x = x + self.last(functional.silu(self.window(y)).transpose(1, 2))
        return self.norms[2](x + 0.5 * self.forwards[1](x))


def conformer_relative() -> nn.Module:
    return nn.Sequential(nn.Linear(144, 144), *(Relative() for _ in range(4)))


class Ecapa(nn.Module):
    def __init__(self, width: int = 512, classes: int = 192) -> None:
        super().__init__()

        def relu(inward: int, outward: int, kernel: int = 1, dilation: int = 1) -> Any:
            return nn.Sequential(along(inward, outward, kernel, dilation=dilation), nn.ReLU())

        self.first, self.joined = relu(80, width, 5), relu(3 * width, 3 * width)
        self.before, self.after = (nn.ModuleList(relu(width, width) for _ in range(3)) for _ in range(2))
        self.parts = nn.ModuleList(
            nn.ModuleList(relu(width // 8, width // 8, 3, dilation) for _ in range(7)) for dilation in (2, 3, 4)
        )
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid())
            for _ in range(3)
        )
        self.weights = nn.Sequential(
            along(3 * width, width // 4), nn.Tanh(), along(width // 4, 3 * width), nn.Softmax(2)
        )
        self.last = nn.Linear(6 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x, found = self.first(x.transpose(1, 2)), []
        for before, parts, after, gate in zip(self.before, self.parts, self.after, self.gates, strict=True):
            given = before(x).chunk(8, 1)
            done = [given[0]]
            for i, layer in enumerate(parts):
                done.append(layer(given[i + 1] + done[-1] if i else given[1]))
            y = after(torch.cat(done, 1))
            x = x + y * gate(y.mean(2))[:, :, None]
            found.append(x)
        x = self.joined(torch.cat(found, 1))
        weights = self.weights(x)
        mean = (weights * x).sum(2)
        left = (weights * x * x).sum(2) - mean * mean
        return self.last(torch.cat([mean, left.clamp(min=1e-4).sqrt()], 1))


class ConvTasNet(nn.Module):
    def __init__(self, width: int = 512, depth: int = 8, repeats: int = 2) -> None:
        super().__init__()
        narrow, self.width = width // 4, width
        self.first, self.norm, self.inward = (
            nn.Conv1d(1, width, 16, 8, 4),
            nn.GroupNorm(1, width),
            nn.Conv1d(width, narrow, 1),
        )
        steps = [1 << i for _ in range(repeats) for i in range(depth)]
        self.layers = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(narrow, width, 1), nn.PReLU(), nn.GroupNorm(1, width)),
                *(along(width, width, 3, 1, width, n), nn.PReLU(), nn.GroupNorm(1, width)),
            )
            for n in steps
        )
        self.past, self.on = (nn.ModuleList(nn.Conv1d(width, narrow, 1) for _ in steps) for _ in range(2))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(narrow, 2 * width, 1), nn.Sigmoid())
        self.last = nn.ModuleList(nn.ConvTranspose1d(width, 1, 16, 8, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.first(x.transpose(1, 2)).relu()
        y, skip = self.inward(self.norm(mixed)), 0
        for layer, past, on in zip(self.layers, self.past, self.on, strict=True):
            z = layer(y)
            skip, y = skip + past(z), y + on(z)
        masks = self.masks(skip).chunk(2, 1)
        voices = [last(mixed * mask) for last, mask in zip(self.last, masks, strict=True)]
        return torch.cat(voices, 1).transpose(1, 2)
