"""PyTorch's counterparts of the networks in texts.py and towers.py, for torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Function = Callable[[Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def tanh_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


class Attention(nn.Module):
    """Of queries to keys and values; one product for all three if they are the same."""

    def __init__(self, width: int, heads: int, *, bias: bool = True, joint: bool = True, inner: int = 0) -> None:
        super().__init__()
        inner = inner or width
        self.heads, self.joint = heads, joint
        if joint:
            self.qkv = nn.Linear(width, 3 * inner, bias)
        else:
            self.q, self.k, self.v = (nn.Linear(width, inner, bias) for _ in range(3))
        self.out = nn.Linear(inner, width, bias)

    def forward(self, x: Tensor, keys: Any = None, values: Any = None, **how: Any) -> Tensor:
        if self.joint:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            q, k, v = self.q(x), self.k(x if keys is None else keys), self.v(x if values is None else values)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, **how)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer's, with norms in front or behind."""

    def __init__(
        self, width: int, heads: int, inner: int = 0, *, before: bool = False, gelu: Function = functional.gelu
    ) -> None:
        super().__init__()
        self.attention, self.before, self.gelu = Attention(width, heads), before, gelu
        self.wide, self.narrow = nn.Linear(width, inner or 4 * width), nn.Linear(inner or 4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, **how: Any) -> Tensor:
        if self.before:
            x = x + self.attention(self.first(x), **how)
            return x + self.narrow(self.gelu(self.wide(self.second(x))))
        x = self.first(x + self.attention(x, **how))
        return self.second(x + self.narrow(self.gelu(self.wide(x))))


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, norm: bool = True) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(1, length, width))
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.table(tokens) + self.places)


def mask_of(tokens: Tensor, like: Tensor) -> Tensor:
    return torch.where(tokens[:, None, None, :] != 0, 0.0, -1e4).to(like.dtype)


class Bert(nn.Module):
    """DistilBERT, ALBERT and ELECTRA: `shared`, one block for all layers; `last`, what follows."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, depth: int, last: nn.Module, *, narrow: int = 0,
        shared: bool = False, each: bool = False, gelu: Function = functional.gelu,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = Embedding(vocabulary, 128, narrow or width)
        self.widen = nn.Linear(narrow, width) if narrow else nn.Identity()
        blocks = [Block(width, heads, gelu=gelu) for _ in range(1 if shared else depth)]
        self.blocks, self.depth, self.each, self.last = nn.ModuleList(blocks), depth, each, last

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.widen(self.embedding(tokens))
        mask = mask_of(tokens, x)
        for i in range(self.depth):
            x = self.blocks[i % len(self.blocks)](x, attn_mask=mask)
        return self.last(x if self.each else x[:, 0])


def distilbert() -> nn.Module:
    return Bert(30522, 768, 12, 6, nn.Sequential(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 2)))


def albert() -> nn.Module:
    last = nn.Sequential(nn.Linear(768, 768), nn.Tanh())
    return Bert(30000, 768, 12, 12, last, narrow=128, shared=True, gelu=tanh_gelu)


def electra_small() -> nn.Module:
    last = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1), nn.Flatten(1), nn.Sigmoid())
    return Bert(30522, 256, 4, 12, last, narrow=128, each=True)


class NoNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Bottleneck(nn.Module):
    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.inner, self.shared = (nn.Sequential(nn.Linear(width, narrow), NoNorm(narrow)) for _ in range(2))
        self.q, self.k, self.out = (nn.Linear(narrow, narrow) for _ in range(3))
        self.v, self.norm = nn.Linear(width, narrow), NoNorm(narrow)
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.Linear(narrow, 4 * narrow), nn.ReLU(), nn.Linear(4 * narrow, narrow)) for _ in range(4)
        )
        self.norms = nn.ModuleList(NoNorm(narrow) for _ in range(4))
        self.last, self.last_norm = nn.Linear(narrow, width), NoNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        inner, shared = self.inner(x), self.shared(x)
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in (self.q(shared), self.k(shared), self.v(x)))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        y = self.norm(self.out(y) + inner)
        for forward, norm in zip(self.forwards, self.norms, strict=True):
            y = norm(forward(y) + y)
        return self.last_norm(self.last(y) + x)


class MobileBert(nn.Module):
    def __init__(self, width: int = 512, depth: int = 24) -> None:
        super().__init__()
        narrow = width // 4
        self.table, self.places = nn.Embedding(30522, narrow), nn.Parameter(torch.randn(1, 128, width))
        self.widen, self.norm, self.last = nn.Linear(3 * narrow, width), NoNorm(width), nn.Linear(width, 2)
        self.blocks = nn.ModuleList(Bottleneck(width, narrow) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Any:
        y = self.table(tokens)
        y = torch.cat([functional.pad(y[:, 1:], (0, 0, 0, 1)), y, functional.pad(y[:, :-1], (0, 0, 1, 0))], 2)
        x = self.norm(self.widen(y) + self.places)
        mask = mask_of(tokens, x)
        for block in self.blocks:
            x = block(x, mask)
        y = self.last(x)
        return y[..., 0], y[..., 1]


class T5(nn.Module):
    def __init__(self, width: int = 512, depth: int = 6, heads: int = 8, length: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(32128, width)
        self.near = nn.Parameter(torch.randn(1, heads, length, length))
        self.attentions = nn.ModuleList(Attention(width, heads, bias=False) for _ in range(depth))
        self.wides = nn.ModuleList(nn.Linear(width, 4 * width, False) for _ in range(depth))
        self.narrows = nn.ModuleList(nn.Linear(4 * width, width, False) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2 * depth + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for i, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * i](x), attn_mask=self.near)
            x = x + self.narrows[i](self.wides[i](self.norms[2 * i + 1](x)).relu())
        return self.norms[-1](x)


class Sentences(nn.Module):
    def __init__(self, length: int, width: int = 384, depth: int = 6) -> None:
        super().__init__()
        self.embedding = Embedding(30522, length, width)
        self.blocks = nn.ModuleList(Block(width, 12) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        mask = mask_of(tokens, x)
        for block in self.blocks:
            x = block(x, attn_mask=mask)
        there = (tokens != 0).to(x.dtype)[:, :, None]
        return functional.normalize((x * there).sum(1) / there.sum(1).clamp(min=1e-4), dim=1)


def sentences() -> nn.Module:
    return Sentences(512)


def queries() -> nn.Module:
    return Sentences(16)


class ClipText(nn.Module):
    def __init__(self, width: int = 512, depth: int = 12) -> None:
        super().__init__()
        self.embedding = Embedding(49408, 77, width, norm=False)
        self.blocks = nn.ModuleList(Block(width, 8, before=True, gelu=quick_gelu) for _ in range(depth))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, is_causal=True)
        return self.last(self.norm(x)[torch.arange(len(x), device=x.device), tokens.argmax(1)])


class ClipImage(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, width, 32, 32), nn.Parameter(torch.randn(1, 1, width))
        self.places, self.norm = nn.Parameter(torch.randn(1, 50, width)), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, 12, before=True, gelu=quick_gelu) for _ in range(depth))
        self.after, self.last = nn.LayerNorm(width), nn.Linear(width, 512)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.norm(torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places)
        for block in self.blocks:
            x = block(x)
        return functional.normalize(self.last(self.after(x[:, 0])), dim=1)


class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20000, 300), nn.Linear(300, 6)
        self.windows = nn.ModuleList(nn.Conv1d(300, 100, n) for n in (3, 4, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens).transpose(1, 2)
        return self.last(torch.cat([window(x).relu().amax(2) for window in self.windows], 1)).softmax(1)


class FastText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(50000, 100), nn.Linear(100, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.table(tokens).mean(1)).softmax(1)


class Gru(nn.Module):
    def __init__(self, units: int = 128) -> None:
        super().__init__()
        self.table, self.layer, self.last = (
            nn.Embedding(20000, units),
            nn.GRU(units, units, batch_first=True),
            nn.Linear(units, 4),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.layer(self.table(tokens))[0][:, -1]).softmax(1)


class DetrDecoder(nn.Module):
    def __init__(self, width: int = 256, depth: int = 6, queries: int = 100) -> None:
        super().__init__()
        self.places, self.asked = nn.Parameter(torch.randn(1, 850, width)), nn.Parameter(torch.randn(1, queries, width))
        self.own, self.seen = (nn.ModuleList(Attention(width, 8, joint=False) for _ in range(depth)) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(width, 8 * width) for _ in range(depth))
        self.narrow = nn.ModuleList(nn.Linear(8 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * depth + 1))
        self.classes = nn.Linear(width, 92)
        layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
        self.boxes = nn.Sequential(*layers, nn.Sigmoid())

    def forward(self, x: Tensor) -> Any:
        keys, y = x + self.places, torch.zeros_like(self.asked).expand(len(x), -1, -1)
        for i, (own, seen) in enumerate(zip(self.own, self.seen, strict=True)):
            first, second, third = self.norms[3 * i : 3 * i + 3]
            z = y + self.asked
            y = first(y + own(z, z, y))
            y = second(y + seen(y + self.asked, keys, x))
            y = third(y + self.narrow[i](self.wide[i](y).relu()))
        y = self.norms[-1](y)
        return self.classes(y), self.boxes(y)


class Perceiver(nn.Module):
    def __init__(self, width: int = 512, depth: int = 6, queries: int = 256) -> None:
        super().__init__()
        self.latents, self.places = (
            nn.Parameter(torch.randn(1, queries, width)),
            nn.Parameter(torch.randn(1, 3136, 64)),
        )
        self.norm, self.inward = nn.LayerNorm(width), nn.LayerNorm(64)
        self.q, self.k, self.v, self.out = (
            nn.Linear(width, 64),
            nn.Linear(64, 64),
            nn.Linear(64, 64),
            nn.Linear(64, width),
        )
        self.second, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 1024), nn.Linear(1024, width)
        self.blocks = nn.ModuleList(Block(width, 8, 2 * width, before=True) for _ in range(depth))
        self.last = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        z, y = self.inward(x + self.places), self.latents.expand(len(x), -1, -1)
        seen = functional.scaled_dot_product_attention(self.q(self.norm(y)), self.k(z), self.v(z))
        y = y + self.out(seen)
        y = y + self.narrow(functional.gelu(self.wide(self.second(y))))
        for block in self.blocks:
            y = block(y)
        return self.last(y.mean(1)).softmax(1)


class Translator(nn.Module):
    def __init__(self, width: int = 512, depth: int = 3, vocabulary: int = 16384) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(1, 64, width))
        self.blocks = nn.ModuleList(Block(width, 8, gelu=functional.silu) for _ in range(2 * depth))
        self.seen = nn.ModuleList(Attention(width, 8, joint=False) for _ in range(depth))
        self.norms, self.last = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth)), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        source, target = tokens.chunk(2, 1)
        x, y = (self.table(part) + self.places for part in (source, target))
        mask = mask_of(source, x)
        for block in self.blocks[: len(self.seen)]:
            x = block(x, attn_mask=mask)
        for block, seen, norm in zip(self.blocks[len(self.seen) :], self.seen, self.norms, strict=True):
            y = block.first(y + block.attention(y, is_causal=True))
            y = norm(y + seen(y, x, x, attn_mask=mask))
            y = block.second(y + block.narrow(block.gelu(block.wide(y))))
        return self.last(y)


class GroupedQueries(nn.Module):
    def __init__(self, width: int = 512, depth: int = 6, heads: int = 8, groups: int = 2, length: int = 256) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.table = nn.Embedding(8192, width)
        self.qkv = nn.ModuleList(nn.Linear(width, width + 2 * groups * size) for _ in range(depth))
        self.out, self.narrow = (nn.ModuleList(nn.Linear(n, width) for _ in range(depth)) for n in (width, 2 * width))
        self.gate, self.wide = (nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth)) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-6) for _ in range(2 * depth + 1))
        self.mask = nn.Parameter(torch.randn(1, heads, length, length))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for i, layer in enumerate(self.qkv):
            parts = layer(self.norms[2 * i](x)).unflatten(-1, (self.heads + 2 * self.groups, -1)).transpose(1, 2)
            q, k, v = parts.split([self.heads, self.groups, self.groups], 1)
            k, v = (y.repeat_interleave(self.heads // self.groups, 1) for y in (k, v))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
            x = x + self.out[i](y.transpose(1, 2).flatten(2))
            y = self.norms[2 * i + 1](x)
            x = x + self.narrow[i](functional.silu(self.gate[i](y)) * self.wide[i](y))
        return self.norms[-1](x)[:, -1]


class PlacesFirst(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.embedding = Embedding(8192, 64, width, norm=False)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(0, 1)
        return self.layers(x, src_key_padding_mask=tokens == 0).mean(0)
