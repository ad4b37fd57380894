"""Convolutions by workgroups that stay, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import pytest
from gpu.backends.cuda.kernels.test_convolution import check as check_layer
from gpu.backends.cuda.kernels.test_convolution import network
from gpu.backends.cuda.kernels.test_specialized import check_sums, layer_of, layer_of_bytes

from litegpu.gpu.backends.cuda.kernels import persistent, specialized
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.persistent import MOST_STEPS, StayingTile, candidates, cost, lanes, ranked
from litegpu.gpu.graph import Conv2D, DType

CASES = {
    "points": ((2, 37, 19, 72), (44, 1, 1, 72), Conv2D(), False),
    "residual": ((1, 45, 29, 64), (64, 1, 1, 64), Conv2D(), True),
    "window": ((1, 29, 33, 16), (20, 3, 3, 16), Conv2D((2, 1), (1, 2), (1, 2)), False),
    "strided": ((2, 38, 28, 200), (64, 1, 1, 200), Conv2D((2, 2)), False),
    "shallow": ((1, 33, 35, 24), (144, 1, 1, 24), Conv2D(), False),
    "four channels at once": ((1, 21, 35, 36), (36, 1, 1, 36), Conv2D(), True),
}
#: One to three teams, one and two blocks of rows of each, all widths, a whole warpgroup that copies.
SOME = (
    (64, 32, 1, 4, 2, 32),
    (128, 64, 2, 2, 1, 64),
    (64, 96, 1, 3, 2, 96),
    (64, 128, 3, 2, 1, 64),
    (128, 128, 1, 3, 1, 64),
)


def only(monkeypatch, tile: StayingTile) -> list[Layer]:
    """The layers that are computed by the tile, by three workgroups for each of its columns."""
    taken: list[Layer] = []

    def alone(layer: Layer, capability: int, units: int) -> list[StayingTile]:
        found = [tile] if persistent.can(layer, 90) else []
        taken.extend([layer] * len(found))
        return found

    monkeypatch.setattr(persistent, "ranked", alone)
    monkeypatch.setattr(persistent, "cost", lambda layer, tile, units: 0.0)
    monkeypatch.setattr(persistent, "lanes", lambda layer, tile, units: (3, 2.0))
    return taken


def check(device, monkeypatch, case: str, tile: StayingTile) -> None:
    shape, weights, op, residual = CASES[case]
    taken = only(monkeypatch, tile)
    graph, x = network(shape, weights, op, residual=residual)
    check_layer(device, graph, x, half=True, kernel="persistent_convolution")
    assert taken


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tile", SOME, ids=lambda t: "x".join(map(str, t)))
def test_some_tiles(device, monkeypatch, case: str, tile: tuple[int, ...]) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    check(device, monkeypatch, case, StayingTile(*tile))


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("tile", [tile for tile in candidates() if tile.span], ids=str)
def test_every_tile(device, monkeypatch, tile: StayingTile) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    for case in CASES:
        with monkeypatch.context() as patch:
            check(device, patch, case, tile)


BYTES = {
    "points": ((2, 37, 8, 144), (44, 1, 1, 144), Conv2D(), DType.INT8),
    "zero point": ((1, 29, 11, 48), (20, 1, 1, 48), Conv2D(zero_point=-7), DType.INT8),
    "sixteen channels": ((1, 29, 11, 16), (96, 1, 1, 16), Conv2D(zero_point=-7), DType.INT8),
    "window": ((1, 29, 11, 48), (20, 3, 3, 48), Conv2D(padding=(1, 1), zero_point=-7), DType.INT8),
    "unsigned": ((2, 26, 17, 32), (64, 1, 1, 32), Conv2D(zero_point=131), DType.UINT8),
    "four channels at once": ((1, 28, 19, 36), (40, 1, 1, 36), Conv2D(zero_point=5), DType.INT8),
    "eight channels at once": ((1, 28, 19, 40), (40, 1, 1, 40), Conv2D(zero_point=5), DType.INT8),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", BYTES)
def test_whole_numbers(device, monkeypatch, case: str) -> None:
    """Sums of bytes, with and without a zero point, equal in every element."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    shape, weights, op, kind = BYTES[case]
    only(monkeypatch, StayingTile(*SOME[list(BYTES).index(case) % len(SOME)]))
    check_sums(device, *layer_of_bytes(shape, weights, op, kind), "persistent_convolution")


def test_candidates_fit() -> None:
    assert all(tile.fits(64, 1) for tile in candidates())
    assert not StayingTile(64, 128, 1, 2, 3, 64).fits(128, 9)  # the weights


def test_which_layers_it_does() -> None:
    shallow = layer_of((64, 56, 56, 64), (256, 1, 1, 64), residuals=1)
    assert ranked(shallow, 90, 132) and not ranked(shallow, 80, 132)
    assert cost(shallow, ranked(shallow, 90, 132)[0], 132) < specialized.cost(
        shallow, specialized.ranked(shallow, 90, 132)[0], 132
    )
    assert not ranked(layer_of((64, 56, 56, 64), (64, 3, 3, 64), Conv2D(padding=(1, 1))), 90, 132)  # windows
    assert not ranked(layer_of((64, 56, 56, 64 * MOST_STEPS + 8), (64, 1, 1, 64 * MOST_STEPS + 8)), 90, 132)  # deep
    assert not ranked(layer_of((1, 14, 14, 64), (64, 1, 1, 64)), 90, 132)  # few pixels


def test_halves_from_registers() -> None:
    """Of many outputs alone, as was measured."""
    for outputs, some in ((128, False), (576, True)):
        layer = dataclasses.replace(layer_of((64, 14, 14, 192), (outputs, 1, 1, 192)), run=8)
        assert any(not tile.span for tile in ranked(layer, 90, 132)) == some


def test_every_block_has_a_workgroup() -> None:
    layer = layer_of((3, 45, 47, 64), (200, 1, 1, 64))
    for tile in candidates():
        count, rounds = lanes(layer, tile, 132)
        assert count >= 1 and rounds * count * tile.teams >= 3 * 45 * 47 / tile.rows
        assert count * -(-200 // tile.columns) <= 132 * tile.resident
