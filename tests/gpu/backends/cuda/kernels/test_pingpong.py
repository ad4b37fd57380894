"""1x1 convolutions of which two warpgroups take turns at the tensor cores, against the definition in NumPy."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from gpu.backends.cuda.kernels.test_columns import inside, needs_warpgroups
from gpu.backends.cuda.kernels.test_convolution import check as check_layer
from gpu.backends.cuda.kernels.test_convolution import expected, network
from gpu.backends.cuda.kernels.test_runs import check as check_bytes
from gpu.backends.cuda.kernels.test_runs import network as network_of_bytes
from gpu.backends.cuda.kernels.test_specialized import layer_of
from gpu.backends.cuda.test_binding import ByDLPack

from litegpu.gpu.backends.cuda.array import import_array
from litegpu.gpu.backends.cuda.kernels import (
    columns,
    convolution,
    matvec,
    overlapped,
    persistent,
    pingpong,
    runs,
    specialized,
)
from litegpu.gpu.backends.cuda.kernels.layer import Layer, has_functions
from litegpu.gpu.backends.cuda.kernels.pingpong import PingpongTile, candidates, cost, groups_of, ranked, units_of
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, GraphBuilder, Literal, apply

KERNEL = "pingpong_convolution"
CASES = {
    "points": ((2, 37, 9, 72), (264, 1, 1, 72), Conv2D(), False),
    "residual": ((1, 45, 29, 192), (192, 1, 1, 192), Conv2D(), True),
    "shallow": ((1, 33, 35, 40), (144, 1, 1, 40), Conv2D(), False),
    "three rows": ((1, 1, 3, 136), (256, 1, 1, 136), Conv2D(), False),
    "deep": ((1, 19, 21, 776), (384, 1, 1, 776), Conv2D(), False),
}


def only(monkeypatch: pytest.MonkeyPatch, tile: PingpongTile, groups: int) -> list[Layer]:
    """The layers that are computed by the tile, by so many clusters at most."""
    taken: list[Layer] = []

    def alone(layer: Layer, capability: int, units: int) -> list[PingpongTile]:
        found = [tile] if pingpong.can(layer, capability) and runs.run_in(layer, tile.columns) else []
        taken.extend([layer] * len(found))
        return found

    for other in (matvec, specialized, persistent, columns):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    for module in (convolution, overlapped):
        monkeypatch.setattr(module, "will_overlap", lambda graph: False)
    monkeypatch.setattr(pingpong, "ranked", alone)
    monkeypatch.setattr(pingpong, "cost", lambda *_: -1.0)
    monkeypatch.setattr(pingpong, "groups_of", lambda layer, tile, units: min(groups, groups_of(layer, tile, units)))
    return taken


@pytest.mark.cuda
@pytest.mark.parametrize("groups", [1, 3, 66])
@pytest.mark.parametrize("tile, case", [*zip(candidates(), cycle(CASES), strict=False)], ids=str)
def test_tiles(device, monkeypatch, case: str, tile: PingpongTile, groups: int) -> None:
    """By clusters that have all tiles, several, and one or none for the second warpgroup."""
    needs_warpgroups(device)
    shape, weights, op, residual = CASES[case]
    taken = only(monkeypatch, tile, groups)
    graph, x = network(shape, weights, op, residual=residual)
    check_layer(device, inside(graph), x, half=True, kernel=KERNEL)
    assert taken


#: Shape, outputs, type, whether there is a residual.
BYTES = {
    "one step": ((2, 37, 8, 128), 192, DType.INT8, False),
    "two steps": ((1, 33, 11, 144), 128, DType.INT8, True),
    "unsigned": ((2, 26, 17, 320), 256, DType.UINT8, True),
}


@pytest.mark.cuda
@pytest.mark.parametrize("tile, case", [*zip(candidates(), cycle(BYTES), strict=False)], ids=str)
def test_whole_numbers(device, monkeypatch, case: str, tile: PingpongTile) -> None:
    """Equal in every element."""
    needs_warpgroups(device)
    shape, outputs, kind, residual = BYTES[case]
    taken = only(monkeypatch, tile, 2)
    graph, numbers = network_of_bytes(shape, outputs, kind, residual)
    check_bytes(device, graph, numbers, kind)
    assert taken


@pytest.mark.cuda
def test_part_of_a_concatenation(device, monkeypatch) -> None:
    """Pixels that lie further apart than they have channels, and begin behind others."""
    needs_warpgroups(device)
    taken = only(monkeypatch, PingpongTile(128, 64, 9, 2), 2)
    rng, builder = np.random.default_rng(3), GraphBuilder()

    def layer(x: int, outputs: int) -> int:
        *lead, channels = builder.values[x].shape
        weights = builder.constant(rng.standard_normal((outputs, 1, 1, channels)) / np.sqrt(channels))
        return builder.node(Conv2D(), [x, weights], builder.value((*lead, outputs), DType.FLOAT32))

    x = builder.value((1, 21, 19, 64), DType.FLOAT32)
    first, second = layer(x, 72), layer(x, 136)
    both = builder.node(Concat(3), [first, second], builder.value((1, 21, 19, 208), DType.FLOAT32))
    graph = builder.graph([x], [layer(layer(second, 192), 8), layer(both, 8)])
    check_layer(device, graph, rng.standard_normal((1, 21, 19, 64)).astype(np.float32), half=True, kernel=KERNEL)
    assert any(one.source.offset and one.pitch != one.source.shape[3] for one in taken)


@pytest.mark.cuda
def test_inputs_elsewhere(device, monkeypatch) -> None:
    """What is read by a map is found where the user has it."""
    needs_warpgroups(device)
    only(monkeypatch, PingpongTile(128, 192, 5, 1), 2)
    graph, (numbers,) = network_of_bytes((1, 29, 11, 192), 192, DType.INT8, False)
    program = build_program(graph, device.features, "cuda", half=False)
    session = device.session(program)
    arrays = [np.ascontiguousarray(np.roll(numbers, i)) for i in range(3)]
    held = [ByDLPack(device, array) for array in arrays]
    try:
        for i in (0, 1, 2, 1, 0):
            session.bind("input", 0, import_array(device, held[i], "x", int(session._stream)), "x")
            session.run()
            got = np.zeros((1, 29, 11, 192), np.int8)
            session.read(0, got)
            np.testing.assert_array_equal(got, expected(graph, {graph.inputs[0]: arrays[i]}))
    finally:
        session.close()
        for one in held:
            one.free()


def test_which_layers_it_does() -> None:
    large = replace(layer_of((64, 128, 1, 768), (3072, 1, 1, 768)), run=8)
    (best, *_) = ranked(large, 90, 132)
    assert cost(large, best, 132) < specialized.cost(large, specialized.ranked(large, 90, 132)[0], 132)
    assert not ranked(large, 80, 132)  # no such products
    assert not ranked(replace(large, run=0), 90, 132)  # results that do not lie in runs
    assert not ranked(replace(layer_of((64, 56, 56, 64), (256, 1, 1, 64)), run=8), 90, 132)  # shallow
    assert not ranked(replace(layer_of((1, 14, 14, 768), (768, 1, 1, 768)), run=8), 90, 132)  # few rows
    windows = layer_of((64, 28, 28, 256), (256, 3, 3, 256), Conv2D(padding=(1, 1)))
    assert not ranked(replace(windows, run=8), 90, 132)
    assert not ranked(replace(layer_of((64, 28, 28, 772), (768, 1, 1, 772)), run=8), 90, 132)  # pixels at odd places


def test_functions_take_time() -> None:
    """Where they do not end under the products of the other warpgroup."""
    plain = replace(layer_of((64, 128, 1, 512), (2048, 1, 1, 512)), run=8)
    tile = PingpongTile(128, 128, 7, 1)
    assert cost(replace(plain, functions=True), tile, 132) > 1.1 * cost(plain, tile, 132)


def test_functions_of_epilogues() -> None:
    gelu = apply("mul", apply("add", RESULT, Arg(1)), apply("add", apply("erf", RESULT), Literal(1.0)))
    assert has_functions(gelu)
    assert not has_functions(apply("max", apply("add", RESULT, Arg(1)), Literal(0.0))) and not has_functions(RESULT)


def test_every_tile_has_a_workgroup() -> None:
    for tile in candidates():
        assert tile.fits()
        for shape in ((3, 45, 47, 256), (1, 1, 5, 256)):
            layer = layer_of(shape, (200, 1, 1, 256))
            count, groups = units_of(layer, tile), groups_of(layer, tile, 132)
            assert 1 <= groups <= count and groups * tile.cluster <= 132
            assert count * tile.rows * tile.cluster * tile.columns >= math.prod(shape[:3]) * 200
