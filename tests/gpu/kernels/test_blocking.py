"""Tiles: within the device's limits, and covering the output."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.graph import Conv2D, DType, GraphBuilder
from litegpu.gpu.kernels.blocking import Axis, choose_tile, fit_bytes, grid
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import packed, padded

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


@pytest.mark.parametrize("largest, fits", [(127, True), (-127, True), (128, False), (-128, False), (129, False)])
def test_bytes_hold_whole_numbers_up_to_127(largest: int, fits: bool) -> None:
    """128 does not fit, and of -128 the language's kernels and the native ones would make different numbers."""
    array = np.ones((128, 128))
    array[77, 5] = largest
    assert fit_bytes(1, array) == fits


def test_bytes_are_for_many_whole_weights_of_few_pixels() -> None:
    array = np.ones((128, 128))
    assert fit_bytes(8, array) and not fit_bytes(9, array)
    assert not fit_bytes(1, array[:, :127])
    array[3, 3] = 0.5
    assert not fit_bytes(1, array)


def weights_of(largest: float, half: bool = True, outputs: int = 2048, pixels: int = 12) -> np.ndarray:
    """The weights as the language's kernel of a convolution has them, the largest being this."""
    b = GraphBuilder()
    shape = (1, 1, pixels, 4)
    x, y = b.value(shape, DType.FLOAT32), b.value((1, 1, pixels, outputs), DType.FLOAT32)
    array = np.ones((outputs, 1, 1, 4)) / 4
    array[1, 0, 0, 2] = largest
    b.node(Conv2D(), [x, b.constant(array)], y)
    kind = DType.FLOAT16 if half else DType.FLOAT32
    views = {x: padded(0, shape, kind), y: packed(1, (1, 1, pixels, outputs), DType.FLOAT32)}
    graph = b.graph([x], [y])
    (launch,) = build(KernelContext(graph, graph.nodes[0], views, Features(float16=True), half))
    found = launch.operands["weights"]
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("largest", [65504.0, -65504.0, 65520.0, -65520.0, 1e6])
def test_weights_that_float16_does_not_hold_stay_float32(largest: float) -> None:
    found = weights_of(largest)
    assert found.dtype == (np.float16 if abs(largest) <= 65504 else np.float32)
    assert np.isfinite(found).all() and found.astype(np.float64)[0, 0, 2, 1] == largest


def test_weights_are_float16_only_beside_float16() -> None:
    assert weights_of(1.0, half=False).dtype == np.float32
    assert weights_of(1.0).dtype == np.float16


def test_few_weights_stay_in_float32() -> None:
    """Up to 16 KB of them; four inputs each."""
    assert weights_of(1.0, outputs=1024).dtype == np.float32
    assert weights_of(1.0, outputs=1028).dtype == np.float16


def test_weights_are_padded() -> None:
    assert weights_of(1.0, outputs=5).shape == (1, 1, 4, 8) and not weights_of(1.0, outputs=5)[..., 5:].any()


def test_cells_of_a_window() -> None:
    """How many taps of each output position lie inside, against counting."""
    from litegpu.gpu.lang import f32, trace
    from litegpu.gpu.lang.interpret import run

    for size, kernel, stride, padding in ((5, 3, 1, 1), (5, 3, 2, 1), (4, 5, 1, 2), (7, 2, 3, 0), (6, 3, 2, 0)):
        out = -(-(size + 2 * padding - kernel + 1) // stride)
        axis = Axis(size, out, kernel, stride, 1, padding, out - 1)

        def count(k, axis=axis, out=out) -> None:
            y = k.buffer("y", f32, out)
            y[k.local_id()] = f32(axis.cells(k, k.local_id()))

        found = np.zeros(out, np.float32)
        run(trace(count, "cells", (out, 1, 1), (1, 1, 1)), {"y": found})
        want = [sum(0 <= o * stride + t - padding < size for t in range(kernel)) for o in range(out)]
        assert found.tolist() == want, (size, kernel, stride, padding)
        inside = all(0 <= o * stride + t - padding < size for o in range(out) for t in range(kernel))
        assert axis.padded == (not inside)


@pytest.mark.parametrize("size, dilation, padded_", [(9, 4, False), (8, 4, True), (9, 5, True)])
def test_dilated_windows_that_pass_the_end(size: int, dilation: int, padded_: bool) -> None:
    assert Axis(size=size, out=1, kernel=3, stride=1, dilation=dilation, padding=0).padded == padded_
