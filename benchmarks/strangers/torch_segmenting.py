"""PyTorch's counterparts of the networks in segmenting.py, for torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from strangers.torch_generators import Gate, plain
from strangers.torch_modules import aggregated, conv
from strangers.torch_more import CrossStage


class PspNet(nn.Module):
    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        import torchvision

        whole = torchvision.models.resnet50(weights=None, replace_stride_with_dilation=[False, True, True])
        self.body = nn.Sequential(*list(whole.children())[:-2])
        self.parts = nn.ModuleList(nn.Sequential(nn.AvgPool2d(30 // n), conv(2048, 512, 1)) for n in (1, 2, 3, 6))
        self.last = nn.Sequential(conv(4096, 512), nn.Conv2d(512, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        x = self.body(x)
        parts = [functional.interpolate(part(x), x.shape[2:], mode="bilinear") for part in self.parts]
        return functional.interpolate(self.last(torch.cat([x, *parts], 1)), size, mode="bilinear")


class UNetPlus(nn.Module):
    def __init__(self, levels: int = 5) -> None:
        super().__init__()
        sizes = [32 << level for level in range(levels)]

        def double(inward: int, outward: int) -> Any:
            return nn.Sequential(conv(inward, outward), conv(outward, outward))

        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(
            nn.ModuleList(
                double(sizes[above] * (level - above) + sizes[above + 1], sizes[above]) for above in range(level)
            )
            for level in range(1, levels)
        )
        self.last = nn.Conv2d(32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = [[self.down[0](x)]]
        for down, up in zip(self.down[1:], self.up, strict=True):
            rows.append([down(functional.max_pool2d(rows[-1][0], 2))])
            for above in reversed(range(len(rows) - 1)):
                below = functional.interpolate(rows[above + 1][-1], scale_factor=2.0, mode="bilinear")
                rows[above].append(up[above](torch.cat([*rows[above], below], 1)))
        return torch.sigmoid(self.last(rows[0][-1]))


class BiSeNet(nn.Module):
    def __init__(self, classes: int = 19) -> None:
        super().__init__()
        import torchvision

        whole = torchvision.models.resnet18(weights=None)
        self.fine = nn.Sequential(conv(3, 64, 7, 2), conv(64, 64, 3, 2), conv(64, 64, 3, 2), conv(64, 128, 1))
        body = list(whole.children())
        self.fourth, self.fifth = nn.Sequential(*body[:7]), body[7]
        self.refine = nn.ModuleList(conv(n, 128) for n in (256, 512))
        self.gates = nn.ModuleList(nn.Conv2d(128, 128, 1) for _ in range(2))
        self.all = nn.Sequential(nn.Conv2d(512, 128, 1), nn.ReLU())
        self.up = nn.ModuleList(conv(128, 128) for _ in range(2))
        self.both, self.gate = conv(256, 256, 1), Gate(256, 64)
        self.last = nn.Sequential(conv(256, 256), nn.Conv2d(256, classes, 1))

    def refined(self, i: int, x: Tensor) -> Tensor:
        y = self.refine[i](x)
        return y * torch.sigmoid(self.gates[i](y.mean((2, 3), keepdim=True)))

    def forward(self, x: Tensor) -> Tensor:
        size, fine, fourth = x.shape[2:], self.fine(x), self.fourth(x)
        fifth = self.fifth(fourth)
        y = self.refined(1, fifth) + self.all(fifth.mean((2, 3), keepdim=True))
        y = self.up[0](functional.interpolate(y, scale_factor=2.0))
        y = self.up[1](functional.interpolate(self.refined(0, fourth) + y, scale_factor=2.0))
        y = self.both(torch.cat([fine, y], 1))
        return functional.interpolate(self.last(y + self.gate(y)), size, mode="bilinear")


class Before(nn.Module):
    """A residual block with its batch norms in front."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        half = outward // 2
        layers: list[nn.Module] = []
        for a, b, kernel in ((inward, half, 1), (half, half, 3), (half, outward, 1)):
            layers += [nn.BatchNorm2d(a), nn.ReLU(), plain(a, b, kernel)]
        self.layers = nn.Sequential(*layers)
        self.past = nn.Conv2d(inward, outward, 1) if inward != outward else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.past(x) + self.layers(x)


class Glass(nn.Module):
    def __init__(self, levels: int, n: int = 256) -> None:
        super().__init__()
        self.past, self.down, self.up = Before(n, n), Before(n, n), Before(n, n)
        self.inner = Glass(levels - 1) if levels > 1 else Before(n, n)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.inner(self.down(functional.max_pool2d(x, 2))))
        return self.past(x) + functional.interpolate(y, scale_factor=2.0)


class Hourglass(nn.Module):
    def __init__(self, repeats: int = 2, n: int = 256, joints: int = 16) -> None:
        super().__init__()
        self.first = nn.Sequential(
            conv(3, 64, 7, 2), Before(64, 128), nn.MaxPool2d(2), Before(128, 128), Before(128, n)
        )
        self.glasses = nn.ModuleList(nn.Sequential(Glass(4), Before(n, n), conv(n, n, 1)) for _ in range(repeats))
        self.heat = nn.ModuleList(nn.Conv2d(n, joints, 1) for _ in range(repeats))
        self.back = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(n, n, 1), nn.Conv2d(joints, n, 1)]) for _ in range(repeats - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, glass in enumerate(self.glasses):
            y = glass(x)
            heat = self.heat[i](y)
            if i < len(self.back):
                x = x + self.back[i][0](y) + self.back[i][1](heat)
        return heat


class YoloV5(nn.Module):
    def __init__(self, classes: int = 80) -> None:
        super().__init__()

        def silu(inward: int, outward: int, kernel: int = 1, stride: int = 1) -> Any:
            return conv(inward, outward, kernel, stride, nn.SiLU)

        first = nn.Sequential(nn.Conv2d(3, 32, 6, 2, 2, bias=False), nn.BatchNorm2d(32), nn.SiLU())
        self.third = nn.Sequential(
            *(first, silu(32, 64, 3, 2), CrossStage(64, 64, 1), silu(64, 128, 3, 2), CrossStage(128, 128, 2))
        )
        self.fourth = nn.Sequential(silu(128, 256, 3, 2), CrossStage(256, 256, 3))
        self.fifth = nn.Sequential(silu(256, 512, 3, 2), CrossStage(512, 512, 1), silu(512, 256))
        self.pooled = nn.Sequential(silu(1024, 512), silu(512, 256))
        self.up = nn.ModuleList([
            nn.Sequential(CrossStage(512, 256, 1, False), silu(256, 128)), CrossStage(256, 128, 1, False)
        ])  # fmt: skip
        self.down = nn.ModuleList([silu(128, 128, 3, 2), silu(256, 256, 3, 2)])
        self.mixed = nn.ModuleList([CrossStage(256, 256, 1, False), CrossStage(512, 512, 1, False)])
        self.last = nn.ModuleList(nn.Conv2d(n, 3 * (5 + classes), 1) for n in (128, 256, 512))
        self.grids = nn.ParameterList(torch.rand(1, n * n, 1, 2) for n in (80, 40, 20))
        self.anchors = nn.ParameterList(torch.rand(1, 1, 3, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        third = self.third(x)
        fourth = self.fourth(third)
        pools = [self.fifth(fourth)]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        fifth = self.pooled(torch.cat(pools, 1))
        rows = []
        for i, level in enumerate(aggregated(self, third, fourth, fifth)):
            y = self.last[i](level).permute(0, 2, 3, 1)
            y = y.reshape(len(x), -1, 3, y.shape[3] // 3).sigmoid()
            centre = (2 * y[..., :2] + self.grids[i]) / y.shape[1] ** 0.5
            sides = (2 * y[..., 2:4]) ** 2 * self.anchors[i]
            rows.append(torch.cat([centre, sides, y[..., 4:]], 3).flatten(1, 2))
        return torch.cat(rows, 1)
