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
