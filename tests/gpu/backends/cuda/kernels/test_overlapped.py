"""Which tiles convolutions take in programs whose kernels overlap, and those that only these take."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gpu.backends.cuda.kernels.test_convolution import check as check_layer
from gpu.backends.cuda.kernels.test_convolution import network
from gpu.backends.cuda.kernels.test_specialized import CASES, layer_of

from litegpu.gpu.backends.cuda.kernels import (
    convolution,
    halo,
    overlapped,
    patch,
    persistent,
    specialized,
    stem,
    tile,
    window,
)
from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise
from litegpu.gpu.backends.cuda.kernels.layer import Layer, RowNorm
from litegpu.gpu.backends.cuda.kernels.overlapped import (
    divisions,
    more_divisions,
    more_tiles,
    overlaps_tiles,
    tiles,
    will_overlap,
)
from litegpu.gpu.backends.cuda.kernels.prologue import factors_bytes
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.tile import MOST_SHARED_BYTES, WorkgroupTile
from litegpu.gpu.backends.cuda.overlap import SHARED_BYTES
from litegpu.gpu.graph import Conv2D, DType, GraphBuilder, LayerNorm
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

SAME = Conv2D(padding=(1, 1))
#: Eight warps that divide the depth alone, and rows and columns too; rings as deep as the depth, and half as deep.
SOME_TILES = (
    WorkgroupTile(16, 16, 512, (1, 1, 8), 2),
    WorkgroupTile(32, 32, 128, (1, 1, 8), 3),
    WorkgroupTile(32, 64, 128, (1, 2, 4), 2),
    WorkgroupTile(64, 64, 128, (2, 2, 2), 2),
)
SOME_DIVISIONS = (SpecializedTile(64, 64, 1, 8, 1, 8), SpecializedTile(64, 64, 1, 6, 2, 2))


def best(layer) -> tuple[float, object]:
    found: list[tuple[float, object]]
    found = [(overlapped.tile_cost(layer, t, 132), t) for t in tiles(layer, convolution.product_of(layer, 90), 132)[:1]]
    found += [(overlapped.specialized_cost(layer, t, 132), t) for t in divisions(layer, 90, 132)[:1]]
    return min(found, key=lambda pair: pair[0])


@pytest.mark.cuda
@pytest.mark.parametrize("chosen", (*SOME_TILES, *SOME_DIVISIONS), ids=str)
def test_some(device, monkeypatch, chosen: WorkgroupTile | SpecializedTile) -> None:
    """The kernels compute what they should with them."""
    divided = isinstance(chosen, SpecializedTile)
    if divided and device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    for module in (specialized, persistent, halo, patch):
        monkeypatch.setattr(module, "ranked", lambda layer, capability, units: [])
    for other in (window, stem):
        monkeypatch.setattr(other, "ranked", lambda layer, units: [])
    simple = tile.candidates(True)[0]
    monkeypatch.setattr(convolution, "ranked", lambda product, units: [simple if divided else chosen])
    if divided:
        takes = specialized.takes
        monkeypatch.setattr(specialized, "ranked", lambda layer, *_: [chosen] if takes(layer, 90) else [])
        monkeypatch.setattr(specialized, "cost", lambda layer, tile, units: 0.0)
    for case in ("points", "residual", "deep"):
        shape, weights, op, residual = CASES[case]
        graph, x = network(shape, weights, op, residual=residual)
        check_layer(device, graph, x, half=True, kernel="specialized_convolution" if divided else "tensor_convolution")


def test_all_fit() -> None:
    assert all(t.fits(True) and t.shared_bytes(True) <= MOST_SHARED_BYTES for t in more_tiles())
    assert all(t.fits() for t in more_divisions())
    assert not set(more_tiles()) & set(tile.candidates(True, 90))


def test_what_deep_layers_of_few_pixels_take() -> None:
    """The clusters whose rings hold all of their part of the depth, or many warps that divide it: on an H200 7x7x512 by
    3x3 takes 4.1 us so, 5.2 with four steps of nine under way."""
    window, points = layer_of((1, 7, 7, 512), (512, 3, 3, 512), SAME), layer_of((1, 14, 14, 1024), (512, 1, 1, 1024))
    _, chosen = best(window)
    assert isinstance(chosen, SpecializedTile)
    assert chosen.split >= 4 and chosen.stages >= 8
    _, chosen = best(points)
    assert isinstance(chosen, WorkgroupTile) and chosen.threads == 256


@pytest.mark.parametrize("pixels, depth, outputs, expected", [
    ((14, 14), 512, 512, WorkgroupTile(32, 32, 128, (1, 1, 8), 5)),
    ((7, 7), 960, 160, WorkgroupTile(16, 16, 256, (1, 1, 8), 5)),
    ((7, 7), 512, 1024, WorkgroupTile(16, 32, 512, (1, 1, 8), 2)),
])  # fmt: skip
def test_smaller_steps_where_all_are_under_way(
    pixels: tuple[int, int], depth: int, outputs: int, expected: WorkgroupTile
) -> None:
    """Products begin when the first step's rows have come (MobileNet v1, tuned on an H200); one step has nothing to
    begin with."""
    assert best(layer_of((1, *pixels, depth), (outputs, 1, 1, depth)))[1] == expected


def test_workgroups_that_share_no_multiprocessor_wait() -> None:
    """The multiprocessors' shared memory bounds how many run at once, which a second round pays for."""
    layer = layer_of((1, 19, 19, 728), (728, 1, 1, 728))
    small, large = WorkgroupTile(32, 32, 128, (1, 1, 4), 3), WorkgroupTile(32, 32, 128, (1, 1, 4), 6)
    assert overlapped.tile_parts(layer, small, 132).rounds < overlapped.tile_parts(layer, large, 132).rounds


def test_batch_norms_in_front_are_known_and_gates_are_not() -> None:
    """DenseNet's 1x1 layers take 3.9 us by four warps with two steps of eight under way, 2.5 by a ring of the depth."""
    scale = np.ones(992, np.float32)
    plain = layer_of((1, 14, 14, 992), (128, 1, 1, 992))
    norm = dataclasses.replace(plain, prologue=Channelwise(scale, scale, (0.0, np.inf)))
    gated = dataclasses.replace(norm, gate=padded(1, (1, 1, 1, 992), DType.FLOAT32))
    found = tiles(norm, convolution.product_of(norm, 90), 132)
    assert found[0].threads == 256 and found[0].depth * found[0].stages >= 992
    room = SHARED_BYTES - 1024
    assert all(t.shared_bytes(True) + factors_bytes(norm, t.depth) <= room for t in found)
    assert not tiles(gated, convolution.product_of(gated, 90), 132)


def test_normalised_rows_take_longer() -> None:
    """By what each workgroup sums up anew: in networks such layers are the quickest by fewer, wider tiles (H200:
    ConvNeXt 228.6 to 221.7 us, Swin 253.8 to 248.3)."""
    plain = layer_of((1, 56, 56, 96), (384, 1, 1, 96))
    norm = dataclasses.replace(plain, norm=RowNorm(LayerNorm(1e-6), 96, 1.0))
    narrow, wide = (SpecializedTile(64, columns, 1, 4, 2) for columns in (32, 128))
    more = [
        overlapped.specialized_cost(norm, t, 132) - overlapped.specialized_cost(plain, t, 132) for t in (narrow, wide)
    ]
    assert more[0] > 2 * more[1] > 0
    tile_of = WorkgroupTile(32, 32, 128, (1, 1, 4), 3)
    assert overlapped.tile_cost(norm, tile_of, 132) > overlapped.tile_cost(plain, tile_of, 132)


@pytest.mark.parametrize(
    "batch, width, expected, tiled",
    ((1, 64, True, True), (8, 64, False, True), (64, 64, False, False), (1, 2048, True, True)),
)
def test_which_graphs(batch: int, width: int, expected: bool, tiled: bool) -> None:
    """However large the weights are."""
    builder = GraphBuilder()
    side = 56 if width == 64 else 7
    x = builder.value((batch, side, side, width), DType.FLOAT32)
    first = x
    for _ in range(3):
        y = builder.value((batch, side, side, width), DType.FLOAT32)
        builder.node(Conv2D(), [x, builder.constant(np.eye(width, dtype=np.float32).reshape(width, 1, 1, width))], y)
        x = y
    graph = builder.graph([first], [x])
    assert will_overlap(graph) is expected and overlaps_tiles(graph) is tiled


def test_tiles_of_one_round() -> None:
    """Where kernels do not overlap, but are small: layers of two rounds of workgroups become ones of one, others stay,
    and so do shallow ones."""

    def chosen(rows: int, depth: int, outputs: int, alone: bool) -> tuple[object, object]:
        weights = np.ones((outputs, 1, 1, depth), np.float32)
        layer = Layer(
            Conv2D(), padded(0, (1, 1, rows, depth), DType.FLOAT16), weights, (1, 1, rows, outputs), True, run=8
        )
        _, make, one = convolution._chosen(
            layer, Features(float16=True, native="cuda", capability=90, compute_units=132), alone, alone=alone
        )[1]
        return make, one

    def groups(rows: int, outputs: int, one: object) -> int:
        assert isinstance(one, SpecializedTile)
        return -(-rows // one.rows) * -(-outputs // one.columns) * one.split

    make, one = chosen(784, 2048, 512, True)  # ResNet-50's last, 16 images
    assert make is specialized.launch and groups(784, 512, one) <= 132
    assert groups(784, 512, chosen(784, 2048, 512, False)[1]) > 132
    for rows, depth, outputs in ((6304, 192, 192), (100352, 64, 32), (8192, 768, 2304)):
        assert chosen(rows, depth, outputs, True) == chosen(rows, depth, outputs, False)
