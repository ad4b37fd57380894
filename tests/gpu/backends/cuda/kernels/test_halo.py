"""Convolutions of tiles that are copied with their border, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected, network
from gpu.backends.cuda.kernels.test_specialized import check_sums, layer_of, layer_of_bytes

from litegpu.gpu import view
from litegpu.gpu.backends.cuda.kernels import halo
from litegpu.gpu.backends.cuda.kernels.halo import HaloPlan, HaloTile, line_of, packed, ranked
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType

SAME = Conv2D(padding=(1, 1))
#: Shape, weights, op, whether there is a residual.
CASES = {
    "same": ((2, 9, 8, 32), (32, 3, 3, 32), SAME, False),
    "residual": ((3, 7, 7, 64), (64, 3, 3, 64), SAME, True),
    "valid": ((2, 11, 13, 16), (20, 3, 3, 16), Conv2D(), False),
    "dilated": ((1, 12, 17, 48), (40, 3, 3, 48), Conv2D((1, 1), (2, 3), (2, 3)), False),
    "five": ((1, 9, 10, 24), (12, 5, 5, 24), Conv2D(padding=(2, 2)), False),
    "four channels at once": ((2, 6, 9, 20), (36, 3, 3, 20), SAME, False),
    "more padding than taps": ((2, 5, 6, 16), (8, 3, 3, 16), Conv2D(padding=(3, 2)), False),
    "one row": ((2, 1, 40, 16), (16, 1, 5, 16), Conv2D(padding=(0, 2)), True),
    "strided": ((2, 9, 12, 32), (48, 3, 3, 32), Conv2D((2, 2), padding=(1, 1)), False),
    "strided along one axis": ((2, 7, 11, 16), (40, 3, 5, 16), Conv2D((1, 2), padding=(0, 3)), False),
    "many outputs": ((1, 10, 11, 40), (136, 3, 3, 40), SAME, False),
    "wide": ((2, 5, 65, 16), (32, 3, 3, 16), SAME, False),
    "a window's columns": ((2, 19, 5, 64), (32, 9, 1, 64), Conv2D(padding=(4, 0)), False),
}
#: Of a tile for each warpgroup and of one for all, with weights that stay and that come and go, all widths of pieces.
SOME = (
    HaloTile(64, 32, 2, 2, 2),
    HaloTile(128, 32, 3, 4, 3),
    HaloTile(64, 64, 2, 4, 3, 0, True),
    HaloTile(64, 64, 2, 4, 2, 3, True),
    HaloTile(64, 96, 2, 2, 2, 2, True),
    HaloTile(64, 128, 1, 8, 2, 2, True),
    HaloTile(64, 32, 2, 2, 3, 0, False, 7),
)


def only(monkeypatch, tile: HaloTile) -> None:
    """Leave no other choice."""
    ranked_before = halo.ranked

    def one(layer: Layer, capability: int, units: int) -> list[HaloTile]:
        return [tile] if ranked_before(layer, 90, units) else []

    monkeypatch.setattr(halo, "ranked", one)
    monkeypatch.setattr(halo, "cost", lambda layer, tile, units: 0.0)


def check(device, monkeypatch, case: str, tile: HaloTile, units: int = 132) -> None:
    shape, weights, op, residual = CASES[case]
    only(monkeypatch, tile)
    graph, x = network(shape, weights, op, residual=residual)
    features = dataclasses.replace(device.features, compute_units=units)
    program = build_program(graph, features, "cuda", half=True)
    assert "halo_convolution" in {k.name for k in program.kernels}
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want), tile


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tile", SOME, ids=str)
def test_some_tiles(device, monkeypatch, case: str, tile: HaloTile) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    check(device, monkeypatch, case, tile)


MANY = {"many tiles": ((5, 13, 15, 72), (32, 3, 3, 72), SAME, False)}


@pytest.mark.cuda
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("ring", [0, 2])
def test_a_workgroup_computes_many_tiles(device, monkeypatch, consumers: int, stages: int, ring: int) -> None:
    """Each warpgroup in its turn, though the ring holds less than a tile's pieces."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    monkeypatch.setitem(CASES, "many tiles", MANY["many tiles"])
    check(device, monkeypatch, "many tiles", HaloTile(64, 32, consumers, 2, stages, ring, bool(ring)), units=1)


DIVIDED = {
    "divided": ((2, 9, 10, 64), (64, 3, 3, 64), SAME, True),
    "divided, deep": ((1, 7, 10, 128), (72, 3, 3, 128), SAME, False),
    "divided, strided": ((1, 17, 12, 64), (40, 3, 3, 64), Conv2D((2, 2), padding=(1, 1)), False),
    "divided, four channels at once": ((1, 5, 9, 60), (36, 3, 3, 60), SAME, False),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", DIVIDED)
@pytest.mark.parametrize(
    "tile",
    [
        HaloTile(64, 32, 1, 2, 2, split=2),
        HaloTile(64, 64, 2, 2, 2, 0, True, split=4),
        HaloTile(64, 32, 1, 4, 2, split=2),
    ],
    ids=str,
)
def test_clusters_divide_the_channels(device, monkeypatch, case: str, tile: HaloTile) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    monkeypatch.setitem(CASES, case, DIVIDED[case])
    check(device, monkeypatch, case, tile)


WHOLE_NUMBERS = {
    "zero point": ((1, 9, 11, 48), (20, 3, 3, 48), SAME, -7, DType.INT8),
    "unsigned": ((2, 6, 7, 32), (64, 3, 3, 32), SAME, 131, DType.UINT8),
    "eight channels at once": ((1, 8, 9, 24), (40, 3, 3, 24), Conv2D(), 5, DType.INT8),
    "four channels at once": ((1, 8, 9, 20), (40, 3, 3, 20), SAME, 0, DType.INT8),
    "divided": ((2, 9, 11, 128), (40, 3, 3, 128), SAME, 9, DType.INT8),
    "many channels": ((1, 5, 9, 192), (64, 3, 3, 192), Conv2D((1, 1), (2, 2), (2, 2)), 0, DType.INT8),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", WHOLE_NUMBERS)
def test_whole_numbers(device, monkeypatch, case: str) -> None:
    """Sums of bytes, with and without a zero point, equal in every element."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    shape, weights, op, zero_point, kind = WHOLE_NUMBERS[case]
    tile = HaloTile(64, 64, 2, 2, 2, 0, True, split=4) if case == "divided" else None
    only(monkeypatch, tile or SOME[list(WHOLE_NUMBERS).index(case)])
    op = dataclasses.replace(op, zero_point=zero_point)
    check_sums(device, *layer_of_bytes(shape, weights, op, kind), "halo_convolution")


def test_which_layers_it_does() -> None:
    shape, weights = (8, 14, 14, 64), (64, 3, 3, 64)
    found = ranked(layer_of(shape, weights, SAME), 90, 132)
    assert found and all(HaloPlan(layer_of(shape, weights, SAME), tile).fits() for tile in found)
    assert not ranked(layer_of(shape, weights, SAME), 80, 132)
    assert not ranked(layer_of(shape, weights, SAME), 100, 132)
    assert not ranked(layer_of(shape, weights, SAME, dtype=DType.FLOAT32), 90, 132)
    assert not ranked(layer_of((8, 14, 14, 62), (64, 3, 3, 62), SAME, dense=True), 90, 132)  # element by element
    assert not ranked(layer_of(shape, (64, 1, 1, 64)), 90, 132)
    assert ranked(layer_of(shape, weights, Conv2D((2, 2), padding=(1, 1))), 90, 132)
    assert not ranked(layer_of(shape, weights, Conv2D((3, 2), padding=(1, 1))), 90, 132)
    assert not ranked(layer_of(shape, weights, Conv2D((2, 2), (2, 2), (2, 2))), 90, 132)
    assert not ranked(layer_of(shape, weights, Conv2D(padding=(1, 1), border="reflect")), 90, 132)
    assert not ranked(layer_of(shape, weights, Conv2D(padding=(1, 1), upsample=(2, 2))), 90, 132)
    rows = columns = 6
    assert rows * columns > halo.MOST_TAPS
    assert not ranked(layer_of(shape, (64, rows, columns, 64), Conv2D(padding=(2, 2))), 90, 132)


def test_few_tiles_of_many_channels_are_divided() -> None:
    few = layer_of((1, 14, 14, 256), (256, 3, 3, 256), SAME)
    many = layer_of((64, 14, 14, 256), (256, 3, 3, 256), SAME)
    assert ranked(few, 90, 132)[0].split == 4 and ranked(many, 90, 132)[0].split == 1
    plan = HaloPlan(few, ranked(few, 90, 132)[0])
    assert plan.tile.stages == plan.groups == 4  # one tile has no more pieces


def test_what_fits() -> None:
    layer = layer_of((8, 56, 56, 64), (64, 3, 3, 64), SAME)
    assert HaloPlan(layer, HaloTile(256, 64, 2, 4, 3)).fits()
    assert not HaloPlan(layer, HaloTile(256, 64, 2, 4, 8)).fits()  # shared memory
    assert not HaloPlan(layer, HaloTile(384, 64, 2, 2, 2)).fits()  # registers


def test_as_many_stages_as_fit() -> None:
    layer = layer_of((8, 56, 56, 128), (32, 3, 3, 128), SAME)
    for tile in ranked(layer, 90, 132):
        more = dataclasses.replace(tile, stages=tile.stages + 1)
        most = halo.MOST_STAGES if tile.split == 1 else max(halo.LEAST_STAGES, HaloPlan(layer, tile).groups)
        assert tile.stages == most or not HaloPlan(layer, more).fits()


def test_line() -> None:
    """Rows share what is between them; strips do not."""
    layer = layer_of((3, 14, 40, 64), (64, 3, 3, 64), SAME)
    line = line_of(layer, 0)
    assert (line.strips, line.pitch, line.lines, line.most) == (1, 41, 15, (2 * 15 + 14) * 41)
    assert HaloPlan(layer, HaloTile(64, 64, 2, 4, 2)).span == 64 + 2 * 41 + 2
    for padding, pitch in (((1, 1), 41), ((0, 0), 40), ((1, 0), 40), ((2, 2), 42), ((0, 3), 44)):
        out = (3, 12 + 2 * padding[0], 38 + 2 * padding[1], 64)
        padded = Layer(Conv2D(padding=padding), layer.source, layer.weights, out, True)
        assert line_of(padded, 0).pitch == pitch, padding
    even = Layer(Conv2D(padding=(0, 1)), layer.source, np.ones((64, 1, 4, 64), np.float32), (3, 14, 40, 64), True)
    assert line_of(even, 0).pitch == 42  # two columns of padding behind a row, one in front of the next
    line = line_of(layer, 20)
    assert (line.strips, line.strip, line.pitch, line.most) == (2, 20, 22, (5 * 15 + 14) * 22)


@pytest.mark.parametrize("chunks", [2, 4, 8])
def test_what_eight_threads_copy_lies_in_different_banks(chunks: int) -> None:
    for rows in (64, 128):
        plan = HaloPlan(layer_of((2, 13, 15, 64), (64, 3, 3, 64), SAME), HaloTile(rows, 64, 2, chunks, 2))
        places = {(i % chunks * plan.panel + i // chunks * 16) % 128 for i in range(8)}
        assert len(places) == 8 and plan.panel % 16 == 0 <= plan.panel - plan.span * 16


def test_packed() -> None:
    """[tile of outputs, piece of channels, tap, chunk, output, channel]: what is beyond the weights is zero."""
    weights = np.arange(40 * 9 * 24, dtype=np.float32).reshape(40, 3, 3, 24) % 2039
    layer = Layer(SAME, view.padded(0, (1, 9, 9, 24), DType.FLOAT16), weights, (1, 9, 9, 40), True)
    found = packed(layer, HaloPlan(layer, HaloTile(64, 32, 2, 2, 2)))
    assert found.shape == (2, 2, 9, 2, 32, 8)
    for o, tap, c in ((0, 0, 0), (5, 8, 23), (33, 4, 12), (39, 7, 9)):
        assert found[o // 32, c // 16, tap, c % 16 // 8, o % 32, c % 8] == weights[o, tap // 3, tap % 3, c]
    assert found.astype(np.float64).sum() == weights.astype(np.float16).astype(np.float64).sum()
