"""Convolutions by warps that copy and warps that multiply, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import check as check_layer
from gpu.backends.cuda.kernels.test_convolution import expected, network

from litegpu.gpu import view
from litegpu.gpu.backends.cuda.kernels import convolution, halo, matvec, overlapped, specialized, tile, window
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.specialized import (
    MOST_TAPS,
    SpecializedTile,
    candidates,
    cost,
    groups_of,
    packed,
    ranked,
    tiles_of,
)
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Graph, GraphBuilder, IntegerConv2D, Literal, apply

CASES = {
    "points": ((2, 9, 8, 72), (44, 1, 1, 72), Conv2D(), False),
    "residual": ((1, 9, 9, 64), (64, 1, 1, 64), Conv2D(), True),
    "window": ((1, 9, 7, 16), (20, 3, 3, 16), Conv2D((2, 1), (1, 2), (1, 2)), False),
    "deep": ((2, 6, 7, 96), (136, 3, 3, 96), Conv2D(padding=(1, 1)), False),
    "strided": ((2, 8, 8, 200), (64, 1, 1, 200), Conv2D((2, 2)), False),
}


@pytest.fixture(autouse=True)
def without_later_kernels(monkeypatch) -> None:
    """That of halo.cu has tests of its own."""
    monkeypatch.setattr(halo, "ranked", lambda layer, capability, units: [])


#: One and two warpgroups that multiply, one and two blocks of rows of each, all widths, a whole warpgroup that copies.
SOME = (
    (64, 32, 1, 4, 4),
    (128, 64, 2, 3, 3),
    (128, 96, 2, 2, 2),
    (128, 128, 1, 2, 2),
    (256, 128, 2, 4, 1),
    (64, 32, 1, 4, 4, 2),
    (64, 64, 1, 3, 4, 4),
    (64, 128, 1, 4, 2, 2),
)


def layer_of(shape, weights, op=Conv2D(), *, dtype=DType.FLOAT16, residuals: int = 0, dense: bool = False) -> Layer:  # noqa: B008
    b, h, w, _ = shape
    out = (b, -(-h // op.stride[0]), -(-w // op.stride[1]), weights[0])
    source = (view.packed if dense else view.padded)(0, shape, dtype)
    return Layer(op, source, np.ones(weights, np.float32), out, True, residuals)


def check(device, monkeypatch, case: str, tile: SpecializedTile) -> None:
    shape, weights, op, residual = CASES[case]
    taken = []

    def only(layer: Layer, capability: int, units: int) -> list[SpecializedTile]:
        found = [tile] if ranked(layer, 90, units) else []
        taken.extend(found)
        return found

    monkeypatch.setattr(specialized, "ranked", only)
    monkeypatch.setattr(specialized, "cost", lambda layer, tile, units: 0.0)
    graph, x = network(shape, weights, op, residual=residual)
    check_layer(device, graph, x, half=True, kernel="specialized_convolution")
    assert taken


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tile", SOME, ids=lambda t: "x".join(map(str, t)))
def test_some_tiles(device, monkeypatch, case: str, tile: tuple[int, ...]) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    check(device, monkeypatch, case, SpecializedTile(*tile))


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("tile", candidates(), ids=str)
def test_every_tile(device, monkeypatch, tile: SpecializedTile) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    for case in CASES:
        with monkeypatch.context() as patch:
            check(device, patch, case, tile)


def test_candidates_fit() -> None:
    assert all(tile.fits() for tile in candidates())
    assert not SpecializedTile(256, 256, 2, 4, 1).fits()  # shared memory
    assert not SpecializedTile(128, 256, 1, 3, 1).fits()  # registers


def test_which_layers_it_does() -> None:
    shape, weights = (8, 14, 14, 256), (256, 3, 3, 256)
    same = Conv2D(padding=(1, 1))
    assert ranked(layer_of(shape, weights, same), 90, 132)
    assert not ranked(layer_of(shape, weights, same), 80, 132)
    assert not ranked(layer_of(shape, weights, same), 100, 132)
    assert not ranked(layer_of(shape, weights, same, dtype=DType.FLOAT32), 90, 132)
    assert not ranked(layer_of((8, 14, 14, 250), (256, 3, 3, 250), same, dense=True), 90, 132)  # element by element
    assert not ranked(layer_of((8, 14, 14, 32), (256, 1, 1, 32)), 90, 132)  # shallow
    assert not ranked(layer_of(shape, weights, Conv2D(padding=(1, 1), border="reflect")), 90, 132)
    assert not ranked(layer_of(shape, weights, Conv2D(padding=(1, 1), upsample=(2, 2))), 90, 132)
    rows, columns = 7, 5
    assert rows * columns > MOST_TAPS
    assert not ranked(layer_of(shape, (256, rows, columns, 256), Conv2D(padding=(3, 2))), 90, 132)


def test_packed() -> None:
    """Each tile's chunks of eight, permuted by the row: what is beyond the weights is zero."""
    weights = np.arange(70 * 9 * 16, dtype=np.float32).reshape(70, 3, 3, 16) % 2039
    layer = Layer(Conv2D(), view.padded(0, (1, 9, 9, 16), DType.FLOAT16), weights, (1, 7, 7, 70), True)
    tiles = packed(layer, SpecializedTile(64, 32, 1, 4, 4))
    assert tiles.shape == (3, 3, 32, 8, 8)
    flat = weights.reshape(70, 144)
    for o, k in ((0, 0), (5, 143), (33, 70), (69, 64)):
        row, chunk = o % 32, k % 64 // 8
        assert tiles[o // 32, k // 64, row, chunk ^ row % 8, k % 8] == flat[o, k]
    assert tiles.astype(np.float64).sum() == flat.astype(np.float16).astype(np.float64).sum()


def test_large_layers_take_it(monkeypatch) -> None:
    """By the estimates: the middle of a residual network at batch 64, and deep layers of few pixels in parts, but no
    shallow ones of these."""
    same = Conv2D(padding=(1, 1))
    large, deep = layer_of((64, 28, 28, 128), (128, 3, 3, 128), same), layer_of((1, 7, 7, 512), (512, 3, 3, 512), same)
    shallow = layer_of((1, 28, 28, 512), (128, 1, 1, 512))
    assert ranked(large, 90, 132)[0].split == 1 < ranked(deep, 90, 132)[0].split

    def others(layer: Layer) -> float:
        product = convolution.product_of(layer, 90)
        found = [tile.cost(product, tile.ranked(product, 132)[0], 132)]
        found += [
            module.cost(layer, block, 132) for module in (window, matvec) for block in module.ranked(layer, 132)[:1]
        ]
        return min(found)

    for layer, faster in ((large, True), (deep, True), (shallow, False)):
        assert (cost(layer, ranked(layer, 90, 132)[0], 132) < others(layer)) is faster


def test_which_tiles_are_taken_in_turn() -> None:
    """Wide ones of layers that are neither shallow nor deep, where there are more of them than multiprocessors."""

    def points(depth: int, *, rows: int = 8192, **given) -> Layer:
        return dataclasses.replace(layer_of((1, 1, rows, depth), (1536, 1, 1, depth)), run=8, **given)

    def some(layer: Layer) -> bool:
        return any(one.in_turn for one in ranked(layer, 90, 132))

    found = ranked(points(768), 90, 132)
    assert found[0].in_turn and str(found[0]).endswith("+")
    for one in found:
        wide, tiles = one.resident == 1 and one.rows == 128 and one.columns >= 192, tiles_of(points(768), one)
        assert one.in_turn == (wide and tiles > 132)
        assert groups_of(points(768), one, 132) == (132 if one.in_turn else tiles * one.split)
        if one.in_turn:
            assert cost(points(768), one, 132) < cost(points(768), dataclasses.replace(one, in_turn=False), 132)
    assert not some(points(832)) and not some(points(320)) and some(points(384)) and not some(points(768, rows=1024))
    assert not any(one.in_turn and one.columns == 192 for one in ranked(points(768, rows=20480), 90, 132))  # ten rounds
    added = ranked(points(768, residuals=1), 90, 132)
    assert {one.columns for one in added if one.in_turn} == {192}
    assert not some(dataclasses.replace(points(768), run=0))  # stored by way of shared memory
    assert not some(points(768, side=2))


def test_residuals_cost() -> None:
    without, read = (
        layer_of((8, 28, 28, 128), (512, 1, 1, 128)),
        layer_of((8, 28, 28, 128), (512, 1, 1, 128), residuals=1),
    )
    first = ranked(without, 90, 132)[0]
    assert cost(read, first, 132) > 1.2 * cost(without, first, 132)


WHOLE_NUMBERS = {
    "points": ((2, 9, 8, 144), (44, 1, 1, 144), Conv2D(), DType.INT8),
    "window, zero point": ((1, 9, 11, 48), (20, 3, 3, 48), Conv2D(padding=(1, 1), zero_point=-7), DType.INT8),
    "unsigned": ((2, 6, 7, 32), (64, 3, 3, 32), Conv2D((2, 1), padding=(1, 1), zero_point=131), DType.UINT8),
    "eight channels at once": ((1, 8, 9, 24), (40, 1, 1, 24), Conv2D(zero_point=5), DType.INT8),
    "four channels at once": ((1, 8, 9, 20), (40, 3, 3, 20), Conv2D(padding=(1, 1), zero_point=5), DType.INT8),
}


def stored(rng: np.random.Generator, shape: tuple[int, ...], kind: DType) -> np.ndarray:
    """Bytes of all values."""
    numbers = rng.integers(0, 256, shape).astype(np.uint8)
    return numbers if kind is DType.UINT8 else numbers.view(np.int8)


def layer_of_bytes(shape, weights, op: Conv2D, kind: DType) -> tuple[Graph, np.ndarray]:
    """The sums of a layer with a bias, and bytes of all values for it."""
    rng = np.random.default_rng(1)
    builder = GraphBuilder()
    x = builder.value(shape, kind)
    size = [
        (n + 2 * p - (k - 1) * d - 1) // s + 1
        for n, p, k, d, s in zip(shape[1:3], op.padding, weights[1:3], op.dilation, op.stride, strict=True)
    ]
    out = builder.value((shape[0], *size, weights[0]), DType.INT32)
    matrix = builder.constant(rng.integers(-127, 128, weights).astype(np.int8), narrow=True)
    bias = builder.constant(rng.integers(-(1 << 20), 1 << 20, (1, 1, 1, weights[0])).astype(np.int32))
    node = IntegerConv2D(op.stride, op.dilation, op.padding, zero_point=op.zero_point or 0)
    builder.node(node, [x, matrix], out, apply("add", RESULT, Arg(1)), [bias])
    return builder.graph([x], [out]), stored(rng, shape, kind)


def check_sums(device, graph: Graph, numbers: np.ndarray, kernel: str) -> None:
    """By this kernel, equal in every element."""
    program = build_program(graph, device.features, "cuda", half=False)
    assert kernel in {k.name for k in program.kernels}
    got = first_output(device, program, [numbers], graph.values[graph.outputs[0]].shape, np.int32)
    assert np.array_equal(got, expected(graph, {graph.inputs[0]: numbers}))


def result_of_bytes(device, graph, numbers: np.ndarray, dtype) -> np.ndarray:
    """By the kernel that is tested."""
    program = build_program(graph, device.features, "cuda", half=False)
    assert "specialized_convolution" in {k.name for k in program.kernels}
    return first_output(device, program, [numbers], graph.values[graph.outputs[0]].shape, dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("case", WHOLE_NUMBERS)
def test_whole_numbers(device, monkeypatch, case: str) -> None:
    """Sums of bytes, with and without a zero point, equal in every element."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    shape, weights, op, kind = WHOLE_NUMBERS[case]
    chosen = SpecializedTile(*SOME[list(WHOLE_NUMBERS).index(case) % len(SOME)])
    monkeypatch.setattr(specialized, "_suits", lambda tile, layer: tile == chosen)
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)
    graph, numbers = layer_of_bytes(shape, weights, op, kind)
    check_sums(device, graph, numbers, "specialized_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
def test_requantized(device, kind: DType) -> None:
    """Sums scaled to bytes, to the nearest, of two the even one: equal in every element, beyond the range as well."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    rng = np.random.default_rng(3)
    builder = GraphBuilder()
    shape, outputs, low = (2, 7, 9, 32), 40, 0 if kind is DType.UINT8 else -128
    x, out = builder.value(shape, kind), builder.value((2, 7, 9, outputs), kind)
    weights = builder.constant(rng.integers(-127, 128, (outputs, 1, 1, 32)).astype(np.int8), narrow=True)
    bias = builder.constant(rng.integers(-9999, 9999, (1, 1, 1, outputs)).astype(np.int32))
    factor = builder.constant(rng.choice([0.5, 0.0078125, 0.0031, 1e-4], (1, 1, 1, outputs)).astype(np.float32))
    scaled = apply("mul", apply("to_float32", apply("add", RESULT, Arg(1))), Arg(2))
    bounded = apply("min", apply("max", scaled, float(low - 3)), float(low + 255 - 3))
    expression = apply("add", apply("nearest", bounded), Literal(3, DType.INT32))
    builder.node(IntegerConv2D(zero_point=low + 100), [x, weights], out, expression, [bias, factor])
    graph = builder.graph([x], [out])
    numbers = stored(rng, shape, kind)
    got = result_of_bytes(device, graph, numbers, numbers.dtype)
    want = expected(graph, {x: numbers})
    assert len(np.unique(want)) > 50 and {low, low + 255} <= set(np.unique(want))
    assert np.array_equal(got, want)
