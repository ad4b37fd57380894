"""Tiles: within the device's limits, and covering the output."""

from __future__ import annotations

import pytest

from litegpu.gpu.kernels.blocking import Axis, choose_tile, grid
from litegpu.gpu.lang.features import Features

DEVICES = [
    Features(),
    Features(compute_units=1),
    Features(compute_units=300, max_threads=1024),
    Features(max_threads=32, max_shared_bytes=4096),
]


@pytest.mark.parametrize("features", DEVICES)
@pytest.mark.parametrize("pixels, quads, depth", [(1, 1, 1), (1, 250, 256), (49, 256, 256), (12544, 8, 8), (3, 7, 999)])
def test_tile_is_within_limits_and_covers(features: Features, pixels: int, quads: int, depth: int) -> None:
    tile = choose_tile(pixels, quads, depth, features, most_pixels=min(8, pixels))
    wide, tall, parts = tile.workgroup
    assert wide * tall * parts <= min(256, features.max_threads)
    assert parts & (parts - 1) == 0 and parts <= max(1, depth)
    if parts > 1:
        assert wide * tall * parts * tile.pixels * tile.quads * 16 <= features.max_shared_bytes
    blocks = -(-pixels // tile.pixels)
    assert grid(tile, blocks, quads)[0] * wide * tile.quads * tall >= blocks * quads


def test_fully_connected_layers_keep_the_device_busy() -> None:
    tile = choose_tile(1, 250, 256, Features(), most_pixels=1)
    assert tile.parts >= 16


def test_axis_knows_when_nothing_can_lie_outside() -> None:
    assert not Axis(size=9, out=4, kernel=3, stride=2, dilation=1, padding=0).padded
    assert Axis(size=8, out=4, kernel=3, stride=2, dilation=1, padding=0).padded
    assert Axis(size=9, out=9, kernel=3, stride=1, dilation=1, padding=1).padded
