"""PyTorch's counterparts of the networks here that neither torchvision nor timm has, for torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv(inward: int, outward: int, kernel: int = 3, stride: int = 1, activation: type[nn.Module] = nn.ReLU) -> Any:
    """A convolution, its batch norm and what follows."""
    layer = nn.Conv2d(inward, outward, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outward), activation())


class UNet(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()

        def double(inward: int, outward: int) -> Any:
            return nn.Sequential(conv(inward, outward), conv(outward, outward))

        sizes = [channels << level for level in range(5)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in sizes[:4])
        self.up = nn.ModuleList(double(2 * n, n) for n in sizes[:4])
        self.last = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for level in reversed(range(4)):
            x = self.up[level](torch.cat([self.grow[level](x), skips[level]], 1))
        return torch.sigmoid(self.last(x))


class Edsr(nn.Module):
    def __init__(self, channels: int = 64, depth: int = 16) -> None:
        super().__init__()

        def plain(inward: int, outward: int) -> nn.Conv2d:
            return nn.Conv2d(inward, outward, 3, padding=1)

        self.first, self.middle = plain(3, channels), plain(channels, channels)
        self.blocks = nn.ModuleList(
            nn.Sequential(plain(channels, channels), nn.ReLU(), plain(channels, channels)) for _ in range(depth)
        )
        self.grow, self.last = plain(channels, 4 * channels), plain(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = x = self.first(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return self.last(functional.pixel_shuffle(self.grow(self.middle(x) + first), 2))


class Split(nn.Module):
    """YOLOv8's block: half of the channels go through, and every step's result is kept."""

    def __init__(self, inward: int, outward: int, count: int, residual: bool = True) -> None:
        super().__init__()
        half = outward // 2
        self.first = conv(inward, outward, 1, activation=nn.SiLU)
        steps = (nn.Sequential(*(conv(half, half, activation=nn.SiLU) for _ in range(2))) for _ in range(count))
        self.steps, self.residual = nn.ModuleList(steps), residual
        self.last = conv((2 + count) * half, outward, 1, activation=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for step in self.steps:
            parts.append(parts[-1] + step(parts[-1]) if self.residual else step(parts[-1]))
        return self.last(torch.cat(parts, 1))


def aggregated(neck: Any, third: Tensor, fourth: Tensor, fifth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The levels after the path down and the one up again, by the layers `up`, `down` and `mixed` of the network."""
    y = neck.up[0](torch.cat([functional.interpolate(fifth, scale_factor=2.0), fourth], 1))
    fine = neck.up[1](torch.cat([functional.interpolate(y, scale_factor=2.0), third], 1))
    middle = neck.mixed[0](torch.cat([neck.down[0](fine), y], 1))
    return fine, middle, neck.mixed[1](torch.cat([neck.down[1](middle), fifth], 1))


class Yolo(nn.Module):
    def __init__(self, classes: int = 80) -> None:
        super().__init__()

        def silu(inward: int, outward: int, kernel: int, stride: int = 1) -> Any:
            return conv(inward, outward, kernel, stride, nn.SiLU)

        self.third = nn.Sequential(
            *(silu(3, 16, 3, 2), silu(16, 32, 3, 2), Split(32, 32, 1), silu(32, 64, 3, 2), Split(64, 64, 2))
        )
        self.fourth = nn.Sequential(silu(64, 128, 3, 2), Split(128, 128, 2))
        self.fifth = nn.Sequential(silu(128, 256, 3, 2), Split(256, 256, 1), silu(256, 128, 1))
        self.pooled = silu(512, 256, 1)
        self.up = nn.ModuleList([Split(384, 128, 1, False), Split(192, 64, 1, False)])
        self.down = nn.ModuleList([silu(64, 64, 3, 2), silu(128, 128, 3, 2)])
        self.mixed = nn.ModuleList([Split(192, 128, 1, False), Split(384, 256, 1, False)])
        self.boxes, self.scores = (
            nn.ModuleList(
                nn.Sequential(silu(n, inner, 3), silu(inner, inner, 3), nn.Conv2d(inner, last, 1))
                for n in (64, 128, 256)
            )
            for inner, last in ((64, 64), (80, classes))
        )
        self.register_buffer("steps", torch.arange(16.0))

    def forward(self, x: Tensor) -> Tensor:
        third = self.third(x)
        fourth = self.fourth(third)
        pools = [self.fifth(fourth)]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        fifth = self.pooled(torch.cat(pools, 1))
        levels = aggregated(self, third, fourth, fifth)
        boxes = torch.cat([layer(v).flatten(2) for layer, v in zip(self.boxes, levels, strict=True)], 2)
        scores = torch.cat([layer(v).flatten(2) for layer, v in zip(self.scores, levels, strict=True)], 2)
        y = boxes.unflatten(1, (4, 16)).softmax(2)
        y = (y * self.steps.view(1, 1, 16, 1)).sum(2)
        near, far = 3 - y[:, :2], 5 + y[:, 2:]
        return torch.cat([torch.cat([(near + far) / 2, far - near], 1) * 8, scores.sigmoid()], 1)


class Transformer(nn.Module):
    """Causal, with norms in front, as GPT; else with norms behind and padding (token 0) left out, as BERT."""

    def __init__(self, width: int, heads: int, depth: int, length: int, vocabulary: int, gpt: bool) -> None:
        super().__init__()
        self.gpt, self.heads = gpt, heads
        self.table = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(1, length, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.ModuleList([
                *(nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)),
                *(nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)),
            ])
            for _ in range(depth)
        )  # fmt: skip
        self.last = nn.Linear(width, vocabulary if gpt else width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.places
        mask = None if self.gpt else torch.where(tokens[:, None, None, :] != 0, 0.0, -1e4).to(x.dtype)
        x = x if self.gpt else self.norm(x)
        for qkv, out, first, wide, narrow, second in self.layers:
            if self.gpt:
                x = x + out(self.attention(qkv(first(x)), mask))
                x = x + narrow(functional.gelu(wide(second(x)), approximate="tanh"))
            else:
                x = first(x + out(self.attention(qkv(x), mask)))
                x = second(x + narrow(functional.gelu(wide(x))))
        return self.last(self.norm(x)) if self.gpt else torch.tanh(self.last(x[:, 0]))

    def attention(self, qkv: Tensor, mask: Tensor | None) -> Tensor:
        batch, n, width = qkv.shape
        q, k, v = qkv.reshape(batch, n, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.gpt)
        return y.transpose(1, 2).reshape(batch, n, width // 3)


def bert() -> nn.Module:
    return Transformer(512, 8, 6, 128, 8192, gpt=False)


def gpt() -> nn.Module:
    return Transformer(384, 6, 6, 256, 8192, gpt=True)
