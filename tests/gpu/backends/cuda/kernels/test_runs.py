"""Epilogues of bytes in registers, against the definition in NumPy, equal in every element."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_columns import inside
from gpu.backends.cuda.kernels.test_columns import only as only_columns
from gpu.backends.cuda.kernels.test_convolution import check as check_layer
from gpu.backends.cuda.kernels.test_convolution import expected
from gpu.backends.cuda.kernels.test_convolution import network as network_of_floats
from gpu.backends.cuda.kernels.test_halo import only as only_halo
from gpu.backends.cuda.kernels.test_persistent import only
from gpu.backends.cuda.kernels.test_row_norm import check as check_norm
from gpu.backends.cuda.kernels.test_row_norm import network as network_with_norm
from gpu.backends.cuda.kernels.test_specialized import stored

from litegpu.gpu.backends.cuda.kernels import columns as column_kernels
from litegpu.gpu.backends.cuda.kernels import overlapped, persistent, runs, specialized
from litegpu.gpu.backends.cuda.kernels.columns import ColumnTile
from litegpu.gpu.backends.cuda.kernels.halo import HaloTile
from litegpu.gpu.backends.cuda.kernels.persistent import StayingTile
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    apply,
    whole,
)


def scaled(expr: Expr, zero_point: int, kind: DType) -> Expr:
    """Sums with a bias as bytes, to the nearest."""
    low, high = (0, 255) if kind is DType.UINT8 else (-128, 127)
    floats = apply("mul", apply("to_float32", expr), Arg(2))
    limited = apply("min", apply("max", floats, float(low - zero_point)), float(high - zero_point))
    return apply("add", apply("nearest", limited), whole(zero_point))


def with_sum(expr: Expr, zero_point: int, kind: DType) -> Expr:
    """Bytes with others added to them, as XNNPACK adds."""
    low, high = (0, 255) if kind is DType.UINT8 else (-128, 127)
    both = apply(
        "add",
        apply("mul", apply("sub", Arg(3), whole(-3)), whole(1376098)),
        apply("mul", apply("sub", expr, whole(zero_point)), whole(1113180)),
    )
    shifted = apply("shift_right", apply("add", both, whole(1 << 19)), whole(20))
    return apply(
        "add", apply("min", apply("max", shifted, whole(low - zero_point)), whole(high - zero_point)), whole(zero_point)
    )


def network(
    shape: tuple[int, ...], outputs: int, kind: DType, residual: bool, *, taps: int = 1, alone: bool = False
) -> tuple[Graph, list[np.ndarray]]:
    """`alone`: RESULT is also read without its bias."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder()
    zero_point = 3 if kind is DType.INT8 else 130
    x, out = builder.value(shape, kind), builder.value((*shape[:3], outputs), kind)
    weights = builder.constant(rng.integers(-127, 128, (outputs, taps, taps, shape[3])).astype(np.int8), narrow=True)
    bias = builder.constant(rng.integers(-9999, 9999, (1, 1, 1, outputs)).astype(np.int32))
    factor = builder.constant(rng.choice([0.0078125, 0.0031, 1e-3, 1e-4], (1, 1, 1, outputs)).astype(np.float32))
    operands, inputs = [bias, factor], [x]
    expr = scaled(apply("add", RESULT, Arg(1)), zero_point, kind)
    if residual:
        operands.append(builder.value((*shape[:3], outputs), kind))
        inputs.append(operands[-1])
        expr = with_sum(expr, zero_point, kind)
    if alone:
        expr = apply("max", expr, apply("min", RESULT, whole(100)))
    op = IntegerConv2D(padding=(taps // 2, taps // 2), zero_point=zero_point - 9)
    builder.node(op, [x, weights], out, expr, operands)
    numbers = [stored(rng, shape, kind)] + [stored(rng, (*shape[:3], outputs), kind)] * residual
    return builder.graph(inputs, [out]), numbers


#: Shape, outputs, type, whether there is a residual.
CASES = {
    "sixteen": ((2, 37, 8, 64), 64, DType.INT8, False),
    "sixteen, two tiles": ((1, 33, 11, 144), 128, DType.INT8, True),
    "eight": ((1, 29, 11, 48), 96, DType.INT8, True),
    "unsigned": ((2, 26, 17, 32), 192, DType.UINT8, True),
}
TILES = {
    64: ((64, 64, 2, 2, 2, 0), (128, 64, 1, 3, 1, 0), (64, 192, 2, 2, 1, 0)),
    32: ((64, 32, 2, 2, 2, 0), (64, 96, 2, 2, 1, 0), (64, 256, 2, 2, 1, 0)),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_staying_workgroups(device, monkeypatch, case: str, number: int) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    shape, outputs, kind, residual = CASES[case]
    tile = StayingTile(*TILES[64 if outputs % 64 == 0 else 32][number])
    only(monkeypatch, tile)
    graph, numbers = network(shape, outputs, kind, residual)
    check(device, graph, numbers, kind)


@pytest.mark.cuda
@pytest.mark.parametrize("columns", [64, 96, 256])
def test_warps_that_multiply(device, monkeypatch, columns: int) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    tile = {
        64: SpecializedTile(128, 64, 1, 2, 1),
        96: SpecializedTile(64, 96, 1, 3, 3),
        256: SpecializedTile(128, 256, 2, 3, 1),
    }
    monkeypatch.setattr(specialized, "_suits", lambda found, layer: found == tile[columns])
    monkeypatch.setattr(specialized, "candidates", lambda: tuple(tile.values()))
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)
    for others in (persistent, column_kernels):
        monkeypatch.setattr(others, "ranked", lambda *a: [])
    kind = DType.UINT8 if columns == 96 else DType.INT8
    graph, numbers = network((1, 29, 11, 288), columns - 8 * (columns == 96), kind, columns > 64)
    check(device, graph, numbers, kind)


def check(device, graph: Graph, numbers: list[np.ndarray], kind: DType) -> None:
    program = build_program(graph, device.features, "cuda", half=False)
    assert all("struct Channels" in k.source for k in program.kernels), [k.name for k in program.kernels]
    dtype = np.uint8 if kind is DType.UINT8 else np.int8
    got = first_output(device, program, numbers, graph.values[graph.outputs[0]].shape, dtype)
    want = expected(graph, dict(zip(graph.inputs, numbers, strict=True)))
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(got, want)


@pytest.mark.cuda
@pytest.mark.parametrize("tile", ["64x64", "128x32", "64x96"])
def test_tiles_with_their_border(device, monkeypatch, tile: str) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    case = {"64x64": (64, DType.INT8, True), "128x32": (40, DType.UINT8, False), "64x96": (96, DType.INT8, True)}[tile]
    outputs, kind, residual = case
    rows, columns = map(int, tile.split("x"))
    only_halo(monkeypatch, HaloTile(rows, columns, 2, 2, 2, 2 * (columns == 96), columns == 96, 6 * (rows == 128)))
    graph, numbers = network((2, 9, 13, 32), outputs, kind, residual, taps=3)
    check(device, graph, numbers, kind)


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [64, 24])
def test_halves(device, monkeypatch, outputs: int) -> None:
    """Of an intermediate with a residual, and of 24 channels, of which a tile has a part."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    only_halo(monkeypatch, HaloTile(64, 64 if outputs == 64 else 32, 2, 2, 2))
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    shape, wide = (2, 9, 13, 32), (2, 9, 13, outputs)
    x, start, out, last = (builder.value(s, DType.FLOAT32) for s in (shape, wide, wide, wide))
    same = Conv2D(padding=(1, 1))
    for source, result, more in ((x, start, []), (start, out, [start]), (out, last, [])):
        channels = builder.values[source].shape[3]
        weights = builder.constant(rng.standard_normal((outputs, 3, 3, channels)) / np.sqrt(9 * channels))
        bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
        expr = apply("add", RESULT, Arg(1))
        builder.node(
            same,
            [source, weights],
            result,
            apply("max", apply("add", expr, Arg(2)) if more else expr, 0.0),
            [bias, *more],
        )
    graph, values = builder.graph([x], [last]), rng.standard_normal(shape).astype(np.float32)
    program = build_program(graph, device.features, "cuda", half=True)
    assert sum("struct Channels" in k.source for k in program.kernels) == 1
    got = first_output(device, program, [values], wide)
    want = expected(graph, {x: values})
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
def test_sums_without_their_bias(device, monkeypatch) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    only(monkeypatch, StayingTile(64, 64, 2, 2, 2, 0))
    graph, numbers = network((1, 33, 11, 64), 64, DType.INT8, False, alone=True)
    check(device, graph, numbers, DType.INT8)


@pytest.mark.parametrize("run", [16, 8])
def test_columns(run: int) -> None:
    """Column 8n + 2t + i is one of the channels of thread t."""
    found = runs.columns_of(np.arange(8 * run).reshape(-1, 1, 1, 1), run).reshape(-1)
    for j, channel in enumerate(found):
        group, place = divmod(j, 4 * run)
        n, t, i = place // 8, place % 8 // 2, place % 2
        assert channel == group * 4 * run + t * run + n * 2 + i


def test_zero_points_are_added_before_the_shift() -> None:
    """One addition less where nothing overflows: the same for every pair of bytes."""
    total = apply("add", apply("mul", Arg(1), whole(1376098)), apply("mul", Arg(2), whole(1113180)))
    expr = apply("add", apply("shift_right", apply("add", total, whole(1 << 19)), whole(20)), whole(-24))
    byte = (-128, 127)
    found = runs.shifted_once(expr, {1: byte, 2: byte})
    assert found == apply("shift_right", apply("add", total, whole((1 << 19) - (24 << 20))), whole(20))
    assert runs.shifted_once(expr, {1: byte}) == expr
    assert runs.shifted_once(expr, {1: byte, 2: (-2000, 127)}) == expr  # might overflow
    near = apply("add", apply("shift_right", apply("add", total, whole(1 << 19)), whole(20)), whole(-2000))
    assert runs.shifted_once(near, {1: byte, 2: byte}) == near
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (2, 1000), dtype=np.int32)
    summed = a * np.int32(1376098) + b * np.int32(1113180)
    together = summed + np.int32((1 << 19) - (24 << 20)) >> 20
    assert np.array_equal((summed + np.int32(1 << 19) >> 20) - 24, together)


@pytest.mark.cuda
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "tile",
    [
        SpecializedTile(64, 96, 1, 3, 3),
        SpecializedTile(128, 128, 1, 3, 2),
        SpecializedTile(128, 192, 2, 4, 1),
        SpecializedTile(128, 96, 2, 4, 1, in_turn=True),
        SpecializedTile(128, 192, 2, 3, 1, in_turn=True),
        SpecializedTile(256, 128, 2, 4, 1, in_turn=True),
        StayingTile(64, 96, 3, 2, 1, 0),
        StayingTile(64, 192, 2, 2, 1, 0),
    ],
    ids=str,
)
def test_halves_of_points(device, monkeypatch, tile: SpecializedTile | StayingTile, norm: bool) -> None:
    """1x1 layers of halves, with a residual or a norm, of rows and channels of which tiles have a part."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    module = persistent if isinstance(tile, StayingTile) else specialized
    only_columns(monkeypatch, ColumnTile(64, 32), 1)
    monkeypatch.setattr(column_kernels, "ranked", lambda *_: [])
    monkeypatch.setattr(
        module, "ranked", lambda layer, *_: [tile] if layer.run and specialized.takes(layer, 90) else []
    )
    monkeypatch.setattr(module, "cost", lambda *_: -1.0)
    monkeypatch.setattr(persistent, "lanes", lambda layer, tile, units: (3, 2.0))
    groups_of = specialized.groups_of
    monkeypatch.setattr(specialized, "groups_of", lambda *given: min(3 if given[1].in_turn else 99, groups_of(*given)))
    kernel = module.__name__.rpartition(".")[2] + "_convolution"
    if norm:
        graph, inputs = network_with_norm((3, 9, 11, 100), 136)
        check_norm(device, inside(graph), inputs, kernel=kernel)
    else:
        graph, x = network_of_floats((2, 19, 11, 136), (136, 1, 1, 136), residual=True)
        check_layer(device, inside(graph), x, half=True, kernel=kernel)
