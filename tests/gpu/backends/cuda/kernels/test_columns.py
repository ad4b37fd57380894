"""1x1 convolutions whose rows stay while columns pass, against the definition in NumPy."""

from __future__ import annotations

import dataclasses
from itertools import cycle

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import check as check_layer
from gpu.backends.cuda.kernels.test_convolution import expected, network
from gpu.backends.cuda.kernels.test_row_norm import check as check_norm
from gpu.backends.cuda.kernels.test_row_norm import network as network_with_norm
from gpu.backends.cuda.kernels.test_specialized import layer_of

from litegpu.gpu.backends.cuda.kernels import columns, matvec, persistent, specialized
from litegpu.gpu.backends.cuda.kernels.columns import ColumnTile, candidates, cost, groups_of, ranked
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder

CASES = {
    "points": ((2, 37, 9, 72), (264, 1, 1, 72), Conv2D(), False),
    "residual": ((1, 45, 29, 192), (192, 1, 1, 192), Conv2D(), True),
    "strided": ((2, 38, 28, 200), (104, 1, 1, 200), Conv2D((2, 2)), False),
    "shallow": ((1, 33, 35, 24), (144, 1, 1, 24), Conv2D(), False),
    "four channels at once": ((1, 21, 35, 36), (136, 1, 1, 36), Conv2D(), False),
    "three rows": ((1, 1, 3, 136), (256, 1, 1, 136), Conv2D(), False),
}
#: One to three blocks of 64 rows, all kinds of width.
SOME = ((128, 96), (64, 32), (192, 64), (64, 128), (128, 32), (128, 256))


def only(monkeypatch, tile: ColumnTile, groups: int) -> list[Layer]:
    """The layers that are computed by the tile, by so many workgroups at most."""
    taken: list[Layer] = []

    def alone(layer: Layer, capability: int, units: int) -> list[ColumnTile]:
        fits = columns.can(layer, 90) and tile.fits(specialized.row_bytes(layer), specialized.steps_of(layer))
        found = [tile] if fits else []
        taken.extend([layer] * len(found))
        return found

    for other in (matvec, specialized, persistent):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(columns, "ranked", alone)
    monkeypatch.setattr(columns, "cost", lambda *_: -1.0)
    monkeypatch.setattr(columns, "groups_of", lambda layer, tile, units: min(groups, groups_of(layer, tile, units)))
    return taken


def inside(graph: Graph) -> Graph:
    """The same with its first output an intermediate, that is in halves: what follows leaves it as it is."""
    builder = GraphBuilder(dict(graph.values), list(graph.nodes))
    (v, *others), shape = graph.outputs, graph.values[graph.outputs[0]].shape
    eye = builder.constant(np.eye(shape[3], dtype=np.float32).reshape(shape[3], 1, 1, shape[3]))
    out = builder.node(Conv2D(), [v, eye], builder.value(shape, DType.FLOAT32))
    return builder.graph(list(graph.inputs), [out, *others])


def needs_warpgroups(device) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")


@pytest.mark.cuda
@pytest.mark.parametrize(
    "tile, case",
    [*zip(SOME, cycle(CASES), strict=False), *zip(SOME, cycle(["residual", "points"]), strict=False)],
    ids=str,
)
def test_some_tiles(device, monkeypatch, case: str, tile: tuple[int, ...]) -> None:
    """By workgroups that begin and end within a block of rows, and go over several."""
    needs_warpgroups(device)
    shape, weights, op, residual = CASES[case]
    taken = only(monkeypatch, ColumnTile(*tile), 3)
    graph, x = network(shape, weights, op, residual=residual)
    check_layer(device, inside(graph), x, half=True, kernel="column_convolution")
    assert taken


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["points", "residual", "three rows", "four channels at once"])
def test_results_in_float32(device, monkeypatch, case: str) -> None:
    """Those of the graph leave as they are."""
    needs_warpgroups(device)
    shape, weights, op, _ = CASES[case]
    taken = only(monkeypatch, ColumnTile(128, 64), 3)
    graph, x = network(shape, weights, op)
    check_layer(device, graph, x, half=True, kernel="column_convolution")
    assert taken[-1].floats == 4


@pytest.mark.cuda
def test_large_results_are_streamed(device, monkeypatch) -> None:
    """Those of the program that none of its kernels reads, if they are more than the cache holds."""
    needs_warpgroups(device)
    only(monkeypatch, ColumnTile(128, 64), 3)
    graph, x = network((1, 21, 35, 72), (136, 1, 1, 72))
    size = 4 * 21 * 35 * 136
    builder = GraphBuilder(dict(graph.values), list(graph.nodes))
    more = builder.node(Conv2D(), [graph.outputs[0], builder.constant(np.eye(136).reshape(136, 1, 1, 136))],
                        builder.value((1, 21, 35, 136), DType.FLOAT32))  # fmt: skip
    read = builder.graph(list(graph.inputs), [graph.outputs[0], more])

    def streamed(graph: Graph, cache_bytes: int) -> bool:
        features = dataclasses.replace(device.features, cache_bytes=cache_bytes)
        program = build_program(graph, features, "cuda", half=True)
        got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
        want = expected(graph, {graph.inputs[0]: x})
        assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)
        *_, last = (k.source for k in program.kernels if k.name == "column_convolution")
        return "#define STREAMED 1" in last

    assert streamed(graph, size - 1) and not streamed(graph, size) and not streamed(graph, 0)
    assert not streamed(read, size - 1)


@pytest.mark.cuda
@pytest.mark.parametrize("groups", (1, 5, 7, 132))
def test_units_are_divided(device, monkeypatch, groups: int) -> None:
    """Some workgroups begin with the last block of columns, or end with the first."""
    needs_warpgroups(device)
    only(monkeypatch, ColumnTile(64, 32), groups)
    graph, x = network((1, 9, 37, 72), (96, 1, 1, 72))
    check_layer(device, inside(graph), x, half=True, kernel="column_convolution")


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("tile", candidates(), ids=str)
def test_every_tile(device, monkeypatch, tile: ColumnTile) -> None:
    needs_warpgroups(device)
    only(monkeypatch, tile, 3)
    for depth in (72, 384):
        if tile.fits(128, -(-depth // 64)):
            graph, x = network((1, 41, 29, depth), (tile.columns * 4, 1, 1, depth))
            check_layer(device, inside(graph), x, half=True, kernel="column_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("centred, channels", [(True, 32), (True, 100), (False, 192), (True, 192)])
@pytest.mark.parametrize("tile", [(128, 32), (64, 128)], ids=str)
def test_norms(device, monkeypatch, channels: int, centred: bool, tile: tuple[int, ...]) -> None:
    """Sums of rows are taken once for all columns."""
    needs_warpgroups(device)
    graph, inputs = network_with_norm((3, 9, 11, channels), 136, centred=centred)
    only(monkeypatch, ColumnTile(*tile), 2)
    check_norm(device, inside(graph), inputs, kernel="column_convolution")


def test_candidates_fit() -> None:
    assert all(tile.fits(128, 3) for tile in candidates())
    assert not ColumnTile(256, 192).fits(128, 3)  # registers
    assert not ColumnTile(128, 128).fits(128, 13)  # rows and three tiles


def wide(*, depth: int = 384, outputs: int = 1536, rows: int = 8192) -> Layer:
    found = layer_of((1, 1, rows, depth), (outputs, 1, 1, depth))
    return Layer(found.op, found.source, found.weights, found.shape, True, run=8)


def test_which_layers_it_does() -> None:
    assert ranked(wide(), 90, 132) and not ranked(wide(), 80, 132)
    assert not ranked(wide(depth=4096), 90, 132)  # rows have no room
    assert not ranked(layer_of((1, 1, 8192, 384), (1536, 1, 1, 384)), 90, 132)  # results in no runs
    assert not columns.can(layer_of((64, 56, 56, 64), (64, 3, 3, 64), Conv2D(padding=(1, 1))), 90)  # windows
    tile = ranked(wide(), 90, 132)[0]
    assert cost(wide(), tile, 132) < cost(wide(rows=16384), tile, 132)
    assert not any(t.columns == 256 for t in ranked(wide(outputs=576), 90, 132))  # a third would be wasted
    logits = dataclasses.replace(wide(outputs=8192, rows=16384), run=0, floats=4)
    assert [t.columns for t in ranked(logits, 90, 132)] == [256, 192, 128]
    assert cost(logits, ColumnTile(128, 256), 132) < specialized.cost(
        logits, specialized.ranked(logits, 90, 132)[0], 132
    )
    assert not ranked(dataclasses.replace(wide(depth=512), run=0, floats=4), 90, 132)  # not measured
    for other in (wide(depth=64), wide(depth=576), wide(outputs=384), dataclasses.replace(wide(), residuals=1)):
        assert columns.can(other, 90) and not ranked(other, 90, 132)  # not measured
