"""PyTorch's counterparts of the networks in dense.py and signals.py, for torch.compile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from strangers.torch_modules import aggregated, conv


class RetinaNet(nn.Module):
    """torchvision's, without the choice of boxes."""

    def __init__(self) -> None:
        super().__init__()
        import torchvision

        self.whole = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None)

    def forward(self, x: Tensor) -> Any:
        return self.whole.head(list(self.whole.backbone(x).values()))


class LinkNet(nn.Module):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        import torchvision

        whole = torchvision.models.resnet18(weights=None)
        self.first = nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool)
        self.stages = nn.ModuleList([whole.layer1, whole.layer2, whole.layer3, whole.layer4])

        def up(inward: int, outward: int, stride: int) -> Any:
            middle = inward // 4
            layer = nn.ConvTranspose2d(middle, middle, 3, stride, 1, stride - 1)
            grow = nn.Sequential(layer, nn.BatchNorm2d(middle), nn.ReLU())
            return nn.Sequential(conv(inward, middle, 1), grow, conv(middle, outward, 1))

        self.up = nn.ModuleList([up(64, 64, 1), up(128, 64, 2), up(256, 128, 2), up(512, 256, 2)])
        self.last = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.ReLU(), conv(32, 32), nn.ConvTranspose2d(32, classes, 2, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x, before = self.first(x), []
        for stage in self.stages:
            x = stage(x)
            before.append(x)
        for i in reversed(range(4)):
            x = self.up[i](x) + (before[i - 1] if i else 0)
        return self.last(x)


class CrossStage(nn.Module):
    def __init__(self, inward: int, outward: int, count: int, residual: bool = True) -> None:
        super().__init__()
        half, silu = outward // 2, nn.SiLU
        self.one, self.past = (conv(inward, half, 1, activation=silu) for _ in range(2))
        steps = (nn.Sequential(conv(half, half, 1, 1, silu), conv(half, half, 3, 1, silu)) for _ in range(count))
        self.steps, self.last = nn.ModuleList(steps), conv(outward, outward, 1, activation=silu)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        for step in self.steps:
            y = step(y) + y if self.residual else step(y)
        return self.last(torch.cat([y, self.past(x)], 1))


class YoloX(nn.Module):
    def __init__(self, classes: int = 80) -> None:
        super().__init__()

        def silu(inward: int, outward: int, kernel: int = 1, stride: int = 1) -> Any:
            return conv(inward, outward, kernel, stride, nn.SiLU)

        self.first = nn.Sequential(silu(12, 32, 3), silu(32, 64, 3, 2), CrossStage(64, 64, 1), silu(64, 128, 3, 2))
        self.third = CrossStage(128, 128, 3)
        self.fourth = nn.Sequential(silu(128, 256, 3, 2), CrossStage(256, 256, 3))
        self.narrow = nn.Sequential(silu(256, 512, 3, 2), silu(512, 256))
        self.fifth = nn.Sequential(silu(1024, 512), CrossStage(512, 512, 1, False), silu(512, 256))
        self.up = nn.ModuleList([
            nn.Sequential(CrossStage(512, 256, 1, False), silu(256, 128)), CrossStage(256, 128, 1, False)
        ])  # fmt: skip
        self.down = nn.ModuleList([silu(128, 128, 3, 2), silu(256, 256, 3, 2)])
        self.mixed = nn.ModuleList([CrossStage(256, 256, 1, False), CrossStage(512, 512, 1, False)])
        self.stems = nn.ModuleList([silu(n, 128) for n in (128, 256, 512)])
        self.scores, self.boxes = (
            nn.ModuleList([nn.Sequential(silu(128, 128, 3), silu(128, 128, 3)) for _ in range(3)]) for _ in range(2)
        )
        self.last = nn.ModuleList(nn.ModuleList([nn.Conv2d(128, n, 1) for n in (4, 1, classes)]) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)], 1)
        third = self.third(self.first(x))
        fourth = self.fourth(third)
        x = self.narrow(fourth)
        fifth = self.fifth(torch.cat([x, *(functional.max_pool2d(x, n, 1, n // 2) for n in (5, 9, 13))], 1))
        rows = []
        for i, level in enumerate(aggregated(self, third, fourth, fifth)):
            level = self.stems[i](level)
            boxes, scores = self.boxes[i](level), self.scores[i](level)
            parts = [self.last[i][0](boxes), self.last[i][1](boxes).sigmoid(), self.last[i][2](scores).sigmoid()]
            rows.append(torch.cat(parts, 1).flatten(2))
        return torch.cat(rows, 2).transpose(1, 2)


class DnCnn(nn.Module):
    def __init__(self, channels: int = 64, depth: int = 15) -> None:
        super().__init__()
        first = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        middle = [conv(channels, channels) for _ in range(depth)]
        self.layers = nn.Sequential(*first, *middle, nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.layers(x)


class Dense(nn.Module):
    def __init__(self, channels: int, grown: int) -> None:
        super().__init__()
        sizes = [channels + i * grown for i in range(5)]
        self.layers = nn.ModuleList(
            nn.Conv2d(n, channels if i == 4 else grown, 3, padding=1) for i, n in enumerate(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers[:4]:
            parts.append(functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.layers[4](torch.cat(parts, 1))


class Esrgan(nn.Module):
    def __init__(self, channels: int = 64, depth: int = 4) -> None:
        super().__init__()

        def plain(outward: int = channels) -> nn.Conv2d:
            return nn.Conv2d(channels, outward, 3, padding=1)

        self.first, self.middle, self.last = nn.Conv2d(3, channels, 3, padding=1), plain(), plain(3)
        self.blocks = nn.ModuleList(
            nn.Sequential(*(Dense(channels, channels // 2) for _ in range(3))) for _ in range(depth)
        )
        self.up = nn.ModuleList([plain(), plain(), plain()])

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.first(x)
        for block in self.blocks:
            x = x + 0.2 * block(x)
        x = self.middle(x) + first
        for layer in self.up[:2]:
            x = functional.leaky_relu(layer(functional.interpolate(x, scale_factor=2.0)), 0.2)
        return self.last(functional.leaky_relu(self.up[2](x), 0.2))


class Stylize(nn.Module):
    def __init__(self, depth: int = 5) -> None:
        super().__init__()

        def normed(inward: int, outward: int, kernel: int = 3, stride: int = 1, last: bool = False) -> Any:
            layer = nn.Conv2d(inward, outward, kernel, stride, kernel // 2, padding_mode="reflect")
            return nn.Sequential(layer, nn.InstanceNorm2d(outward, affine=True), *([] if last else [nn.ReLU()]))

        self.down = nn.Sequential(normed(3, 32, 9), normed(32, 64, 3, 2), normed(64, 128, 3, 2))
        self.blocks = nn.ModuleList(nn.Sequential(normed(128, 128), normed(128, 128, last=True)) for _ in range(depth))
        self.up = nn.ModuleList([normed(128, 64), normed(64, 32)])
        self.last = nn.Conv2d(32, 3, 9, padding=4, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        for block in self.blocks:
            x = x + block(x)
        for layer in self.up:
            x = layer(functional.interpolate(x, scale_factor=2.0))
        return self.last(x)


class Dcgan(nn.Module):
    def __init__(self, channels: int = 1024) -> None:
        super().__init__()
        self.channels, self.first = channels, nn.Linear(100, 16 * channels)
        sizes = [channels >> i for i in range(4)]
        self.layers = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in zip(sizes, [*sizes[1:], 3], strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu().reshape(-1, self.channels, 4, 4).contiguous(memory_format=torch.channels_last)
        for layer in self.layers[:3]:
            y = layer(y).relu()
        return torch.tanh(self.layers[3](y))


class PointNet(nn.Module):
    def __init__(self, classes: int = 40) -> None:
        super().__init__()

        def dense(*sizes: int) -> Any:
            return nn.Sequential(*(m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())))

        self.each, self.all = dense(3, 64, 64, 64, 128, 1024), dense(1024, 512, 256)
        self.last = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.all(self.each(x).amax(1))).softmax(1)


class Recommender(nn.Module):
    def __init__(self, fields: int = 26, vocabulary: int = 20000) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, 64)
        sizes = (64 * fields, 1024, 512, 256)
        layers = (m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU()))
        self.layers = nn.Sequential(*layers, nn.Linear(256, 1))

    def forward(self, fields: Tensor) -> Tensor:
        return self.layers(self.table(fields).flatten(1)).sigmoid()


class Lstm(nn.Module):
    def __init__(self, units: int = 256, classes: int = 32) -> None:
        super().__init__()
        self.layers = nn.LSTM(64, units, 2, batch_first=True)
        self.last = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x)[0]).softmax(2)


class WaveNet(nn.Module):
    def __init__(self, width: int = 64, depth: int = 10, repeats: int = 2) -> None:
        super().__init__()
        steps = [1 << i for _ in range(repeats) for i in range(depth)]
        self.first = nn.Conv1d(1, width, 2)
        self.both = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=n) for n in steps)
        self.past = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in steps)
        self.on = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in steps)
        self.last = nn.ModuleList([nn.Conv1d(2 * width, 256, 1), nn.Conv1d(256, 256, 1)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(functional.pad(x.transpose(1, 2), (1, 0)))
        skip: Any = 0
        for both, past, on in zip(self.both, self.past, self.on, strict=True):
            one, two = both(functional.pad(x, (both.dilation[0], 0))).chunk(2, 1)
            y = torch.tanh(one) * torch.sigmoid(two)
            skip = skip + past(y)
            x = x + on(y)
        return self.last[1](self.last[0](skip.relu()).relu()).transpose(1, 2)
