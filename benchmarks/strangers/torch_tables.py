"""PyTorch's counterparts of the networks in tables.py, for torch.compile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from strangers.torch_texts import Attention


def dense(*sizes: int) -> Any:
    """Layers with RELU behind each."""
    return nn.Sequential(*(m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())))


def autoencoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(1), dense(640, *[128] * 4, 8, *[128] * 4), nn.Linear(128, 640))


def wide_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(1), dense(784, *[4096] * 3), nn.Linear(4096, 10), nn.Softmax(1))


class Fields(nn.Module):
    """13 counts, and a row of a table for each of 26 fields."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(2000, size) for _ in range(26))

    def forward(self, fields: Tensor) -> tuple[Tensor, list[Tensor]]:
        vectors = [table(fields[:, 13 + i]) for i, table in enumerate(self.tables)]
        return fields[:, :13].to(vectors[0].dtype).log1p(), vectors


class Dlrm(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.fields, self.below = Fields(64), dense(13, width, width // 2, 64)
        self.above = nn.Sequential(dense(351 + 64, width, width // 2), nn.Linear(width // 2, 1), nn.Sigmoid())
        rows, columns = torch.tril_indices(27, 27, -1)
        self.register_buffer("pairs", rows * 27 + columns)

    def forward(self, fields: Tensor) -> Tensor:
        counts, vectors = self.fields(fields)
        x = self.below(counts)
        y = torch.stack([x, *vectors], 1)
        products = (y @ y.transpose(1, 2)).flatten(1)
        return self.above(torch.cat([x, products[:, self.pairs]], 1))


class Dcn(nn.Module):
    def __init__(self, width: int = 768, depth: int = 3) -> None:
        super().__init__()
        size = 13 + 26 * 32
        self.fields, self.deep = Fields(32), dense(size, *[width] * depth)
        self.crossed, self.last = nn.ModuleList(nn.Linear(size, size) for _ in range(depth)), nn.Linear(size + width, 1)

    def forward(self, fields: Tensor) -> Tensor:
        counts, vectors = self.fields(fields)
        first = x = torch.cat([counts, *vectors], 1)
        for layer in self.crossed:
            x = first * layer(x) + x
        return self.last(torch.cat([x, self.deep(first)], 1)).sigmoid()


class FtTransformer(nn.Module):
    def __init__(self, width: int = 192, depth: int = 3) -> None:
        super().__init__()
        self.factors, self.sums = nn.Parameter(torch.randn(1, 40, width)), nn.Parameter(torch.randn(1, 40, width))
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.attentions = nn.ModuleList(Attention(width, 8, joint=False) for _ in range(depth))
        self.wides = nn.ModuleList(nn.Linear(width, width // 3 * 8) for _ in range(depth))
        self.narrows = nn.ModuleList(nn.Linear(width // 3 * 4, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2) * self.factors + self.sums
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for i, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * i](x) if i else x)
            one, two = self.wides[i](self.norms[2 * i + 1](x)).chunk(2, -1)
            x = x + self.narrows[i](one * two.relu())
        return self.last(self.norms[-1](x[:, 0]).relu()).softmax(1)


class Nbeats(nn.Module):
    def __init__(self, width: int = 512, depth: int = 30) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(dense(60, *[width] * 4) for _ in range(depth))
        self.past = nn.ModuleList(nn.Linear(width, 60) for _ in range(depth))
        self.future = nn.ModuleList(nn.Linear(width, 12) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x, forecast = x.flatten(1), 0
        for block, past, future in zip(self.blocks, self.past, self.future, strict=True):
            y = block(x)
            x, forecast = x - past(y), forecast + future(y)
        return forecast


class PatchTst(nn.Module):
    def __init__(self, width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.first, self.places = nn.Linear(16, width), nn.Parameter(torch.randn(1, 1, 64, width))
        self.attentions = nn.ModuleList(Attention(width, 16, joint=False) for _ in range(depth))
        self.wides = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.narrows = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2 * depth))
        self.last = nn.Linear(64 * width, 96)

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        x = functional.pad(x.transpose(1, 2), (0, 8), mode="replicate").unfold(2, 16, 8)
        x = (self.first(x) + self.places).flatten(0, 1)
        for i, attention in enumerate(self.attentions):
            x = self.norms[2 * i]((x + attention(x)).transpose(1, 2)).transpose(1, 2)
            y = self.narrows[i](functional.gelu(self.wides[i](x)))
            x = self.norms[2 * i + 1]((x + y).transpose(1, 2)).transpose(1, 2)
        return self.last(x.reshape(batch, 7, -1)).transpose(1, 2)


class Tcn(nn.Module):
    def __init__(self, width: int = 25, depth: int = 8) -> None:
        super().__init__()
        self.first, self.second = (
            nn.ModuleList(
                nn.Conv1d(1 if not (level or both) else width, width, 7, dilation=1 << level) for level in range(depth)
            )
            for both in (0, 1)
        )
        self.past, self.last = nn.Conv1d(1, width, 1), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for level, (one, two) in enumerate(zip(self.first, self.second, strict=True)):
            y = one(functional.pad(x, (6 << level, 0))).relu()
            y = two(functional.pad(y, (6 << level, 0))).relu()
            x = (y + (x if level else self.past(x))).relu()
        return self.last(x[:, :, -1]).softmax(1)


class StGcn(nn.Module):
    def __init__(self, width: int = 64, classes: int = 60) -> None:
        super().__init__()
        self.wide, self.time, self.past = (nn.ModuleList() for _ in range(3))
        stages, inward = ((1, 1), (1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (2, 1), (4, 2), (4, 1), (4, 1)), 3
        for number, (factor, stride) in enumerate(stages):
            n = width * factor
            self.wide.append(nn.Conv2d(inward, 3 * n, 1))
            self.time.append(nn.Conv2d(n, n, (9, 1), (stride, 1), (4, 0)))
            changed = number and (n != inward or stride != 1)
            self.past.append(nn.Conv2d(inward, n, 1, (stride, 1)) if changed else nn.Identity())
            inward = n
        self.joints = nn.Parameter(torch.rand(len(stages), 3, 25, 25) / 25)
        self.last = nn.Linear(inward, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(2, (25, 3)).permute(0, 3, 1, 2)
        for number, (wide, time, past) in enumerate(zip(self.wide, self.time, self.past, strict=True)):
            y = wide(x)
            y = torch.einsum("nkctv,kvw->nctw", y.unflatten(1, (3, -1)), self.joints[number]).relu()
            y = time(y)
            x = (y + past(x) if number else y).relu()
        return self.last(x.mean((2, 3))).softmax(1)


class PointNet2(nn.Module):
    def __init__(self, width: int = 64, classes: int = 40) -> None:
        super().__init__()
        self.first = dense(6, width, width, 2 * width)
        self.second = dense(2 * width, 2 * width, 2 * width, 4 * width)
        self.third = dense(4 * width, 4 * width, 8 * width, 16 * width)
        self.last = nn.Sequential(dense(16 * width, 8 * width, 4 * width), nn.Linear(4 * width, classes))
        self.register_buffer("near", (torch.arange(128)[:, None] * 4 + torch.arange(64) * 7) % 512)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.unflatten(2, (32, 6))).amax(2)
        x = self.second(x[:, self.near]).amax(2)
        return self.last(self.third(x).amax(1)).softmax(1)
