"""Swin tiny (Liu et al. 2021): attention in windows of 7 x 7 places, which are shifted every other time."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.classifier import classifier
from litegpu.zoo.layers import Layers
from litegpu.zoo.network import NetworkTensor

_STAGES = ((3, 2), (6, 2), (12, 6), (24, 2))  # (heads, blocks)
_WINDOWS = (7, 8, 4, 2, 1)  # the first that the size can be divided by: 7 at 224


@classifier("Swin tiny {width} {resolution}")
def swin_tiny(net: Layers, x: NetworkTensor, classes: int, *, width: float = 1.0) -> None:
    """[batch, resolution, resolution, 3] in -1..1 to probabilities [batch, classes]; 28.3 million parameters."""
    resolution = x.sample.shape[1]
    for stage, (heads, blocks) in enumerate(_STAGES):
        size = resolution // (4 << stage)
        if stage:
            quarters = [net.every_second(x, row, column) for column in (0, 1) for row in (0, 1)]
            y = net.layer_norm(net.op("CONCATENATION", quarters, dict(axis=3)))
            x = net.dense(y, y.channels // 2)
        else:
            x = net.layer_norm(net.plain(x, heads * max(4, int(32 * width)), 4, 4))
        for block in range(blocks):
            window = next(n for n in _WINDOWS if size % n == 0)
            shift = window // 2 if block % 2 and size > window else 0
            x = net.add(x, _in_windows(net, net.layer_norm(x), heads, window, shift))
            y = net.dense(net.dense(net.layer_norm(x), 4 * x.channels, "GELU"), x.channels)
            x = net.add(x, y)
    net.classify(net.mean(net.layer_norm(x)), classes)


def _in_windows(net: Layers, x: NetworkTensor, heads: int, window: int, shift: int) -> NetworkTensor:
    """Attention within each window of [batch, size, size, channels], with a bias for each pair of places, and a mask
    where windows were shifted over the edge."""
    _, size, _, channels = x.sample.shape
    count, area = size // window, window * window
    y = net.roll(x, -shift) if shift else x
    y = net.transpose(net.reshape(y, count, window, count, window, channels), 0, 1, 3, 2, 4, 5)
    y = net.rows(y, area, channels)  # [batch * windows, places, channels]
    bias = net.rng.normal(0, 0.5, (1, heads, area, area))

    def added(logits: NetworkTensor) -> NetworkTensor:
        logits = net.scale("ADD", logits, bias)
        if not shift:
            return logits
        apart = net.reshape(logits, count * count, heads, area, area)
        return net.rows(net.scale("ADD", apart, _mask(size, window, shift)), heads, area, area)

    y = net.attention(y, heads, added=added)
    y = net.transpose(net.reshape(y, count, count, window, window, channels), 0, 1, 3, 2, 4, 5)
    y = net.reshape(y, size, size, channels)
    return net.roll(y, shift) if shift else y


def _mask(size: int, window: int, shift: int) -> np.ndarray:
    """[1, windows, 1, places, places]: -100 between places that were not neighbours before the shift."""
    edges = np.zeros((size, size))
    bounds = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for number, (rows, columns) in enumerate((r, c) for r in bounds for c in bounds):
        edges[rows, columns] = number
    count = size // window
    areas = edges.reshape(count, window, count, window).transpose(0, 2, 1, 3).reshape(-1, 1, window * window)
    return np.where(areas[..., None] == areas[:, :, None, :], 0.0, -100.0)[None]
