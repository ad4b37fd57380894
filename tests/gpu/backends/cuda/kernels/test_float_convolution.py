"""Convolutions of floats as products of halves: parts of weights in NumPy, and the kernel against the definition."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from gpu.backends.cuda.kernels.test_convolution import check, network, run

from litegpu.gpu import view
from litegpu.gpu.backends.cuda.kernels import convolution, float_convolution, halved, transpose
from litegpu.gpu.backends.cuda.kernels.float_convolution import FloatTile, candidates, packed, ranked
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder, TransposeConv2D
from litegpu.gpu.lang.features import Features

CASES = {
    "points": ((2, 9, 8, 72), (44, 1, 1, 72), Conv2D(), False),
    "residual": ((1, 9, 9, 64), (64, 1, 1, 64), Conv2D(), True),
    "window": ((1, 9, 7, 16), (20, 3, 3, 16), Conv2D((2, 1), (1, 2), (1, 2)), False),
    "deep": ((2, 6, 7, 96), (136, 3, 3, 96), Conv2D(padding=(1, 1)), False),
    "few channels": ((2, 8, 8, 12), (70, 3, 3, 12), Conv2D((2, 2), padding=(1, 1)), False),
}
#: One to four warpgroups that multiply, one and two blocks of rows of each, one and two parts at a time.
SOME = ("64x32-1h-4-3", "64x128-1h-3-2", "128x64-2h-3-2", "128x128-2h-4-1", "192x64-3h-5-1", "256x64-2h-4-1")
BY_NAME = {str(tile): tile for tile in candidates()}


def use(monkeypatch, tile: FloatTile) -> None:
    """The kernel with this tile, for layers that it takes."""

    def only(layer: Layer, capability: int, units: int) -> list[FloatTile]:
        return [tile] if float_convolution.takes(layer, capability) else []

    monkeypatch.setattr(float_convolution, "ranked", only)
    monkeypatch.setattr(float_convolution, "cost", lambda layer, tile, units: -1.0)


def needs(device) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SOME)
def test_some_tiles(device, monkeypatch, name: str, case: str) -> None:
    needs(device)
    use(monkeypatch, BY_NAME[name])
    shape, weights, op, residual = CASES[case]
    graph, x = network(shape, weights, op, residual=residual)
    check(device, graph, x, half=False, kernel="float_convolution")


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_every_tile(device, monkeypatch, name: str) -> None:
    needs(device)
    use(monkeypatch, BY_NAME[name])
    for shape, weights, op, residual in CASES.values():
        graph, x = network(shape, weights, op, residual=residual)
        check(device, graph, x, half=False, kernel="float_convolution")


def alone(weights: np.ndarray, shape: tuple[int, ...]) -> Graph:
    """A 1x1 layer without bias."""
    builder = GraphBuilder()
    source = builder.value(shape, DType.FLOAT32)
    out = builder.value((*shape[:3], len(weights)), DType.FLOAT32)
    builder.node(Conv2D(), [source, builder.constant(weights)], out)
    return builder.graph([source], [out])


@pytest.mark.cuda
@pytest.mark.parametrize(
    "exponents, depth",
    [((0, 17, -13, -40, 60, 0, -100, 100, 3, -20), 80), ((0, 0, -16, 1), 300), ((2, 20), 300), ((0, -3, 8), 80)],
    ids=["all", "small", "large", "usual"],
)
def test_rows_of_any_size(device, monkeypatch, exponents: tuple[int, ...], depth: int) -> None:
    """Beyond what halves hold, below it, and beside rows of usual numbers, of fewer steps than stages and more: each
    row by itself is as exact."""
    needs(device)
    use(monkeypatch, BY_NAME["64x32-1h-4-3"])
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((40, 1, 1, depth)).astype(np.float32)
    x = rng.standard_normal((1, 1, len(exponents), depth)).astype(np.float32)
    x *= (np.float32(2.0) ** np.array(exponents, np.float32))[:, None]
    graph = alone(weights, x.shape)
    got = run(device, graph, {graph.inputs[0]: x}, False, "float_convolution")[0, 0].astype(np.float64)
    want = x[0, 0].astype(np.float64) @ weights.reshape(40, depth).T.astype(np.float64)
    for row, exponent in enumerate(exponents):
        assert np.linalg.norm(got[row] - want[row]) <= 4e-7 * np.linalg.norm(want[row]), exponent


@pytest.mark.cuda
def test_infinities_and_nan(device, monkeypatch) -> None:
    """As floats have them: an infinity's row is infinite where its weight is not zero, with its sign; NaN stays in its
    row; rows beside them are what they are without."""
    needs(device)
    use(monkeypatch, BY_NAME["64x32-1h-4-3"])
    depth, outputs = 40, 12
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((outputs, 1, 1, depth)).astype(np.float32)
    weights[3, 0, 0, 5] = 0.0
    weights[4, 0, 0, 5] = 2.0**-60
    weights[5, 0, 0, 5], weights[6, 0, 0, 5] = 1.0, -0.5  # which halves have
    x = rng.standard_normal((1, 1, 7, depth)).astype(np.float32)
    x[0, 0, 1, 5], x[0, 0, 2, 5], x[0, 0, 3, 9] = np.inf, -np.inf, np.nan
    x[0, 0, 4, 5], x[0, 0, 4, 6] = np.inf, 3e38
    x[0, 0, 5, 5:7] = np.inf, -np.inf
    graph = alone(weights, x.shape)
    got = run(device, graph, {graph.inputs[0]: x}, False, "float_convolution")[0, 0]
    matrix = weights.reshape(outputs, depth).T
    with np.errstate(invalid="ignore", over="ignore"):
        want = x[0, 0] @ matrix
        for row in (1, 2, 4):
            want[row] = np.where(matrix[5] == 0, np.nan, np.copysign(np.inf, x[0, 0, row, 5] * matrix[5]))
    opposite = np.sign(matrix[5]) == -np.sign(matrix[6])
    want[5] = np.where(opposite, np.copysign(np.inf, matrix[5]), np.nan)
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isinf(got), np.isinf(want))
    infinite, finite = np.isinf(want), np.isfinite(want)
    assert np.array_equal(got[infinite], want[infinite])
    assert np.linalg.norm(got[finite] - want[finite]) <= 1e-6 * np.linalg.norm(want[finite])


@pytest.mark.cuda
def test_whole_numbers_are_exact(device, monkeypatch) -> None:
    """Sums below 2^24 of products of whole numbers of up to eleven and twelve bits."""
    needs(device)
    use(monkeypatch, BY_NAME["64x32-1h-4-3"])
    rng = np.random.default_rng(3)
    weights = rng.integers(-4095, 4096, (20, 1, 1, 64)).astype(np.float32)
    x = rng.integers(-31, 32, (1, 5, 7, 64)).astype(np.float32)
    x[0, 0, 0], x[0, 0, 0, :2] = 0, 4095
    weights[..., :2] = rng.integers(-2047, 2048, (20, 1, 1, 2))
    weights[0, 0, 0, :2] = 2047
    graph = alone(weights, x.shape)
    got = run(device, graph, {graph.inputs[0]: x}, False, "float_convolution")
    want = x.astype(np.float64) @ weights.reshape(20, 64).T.astype(np.float64)
    assert np.abs(want).max() < 2**24 and np.array_equal(got, want)


@pytest.mark.cuda
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_transposed_layers(device, monkeypatch, at_once: bool) -> None:
    """A layer for each residue of the stride, side by side in one launch or one by one, of which one has a row that is
    multiplied again."""
    needs(device)
    use(monkeypatch, BY_NAME["64x32-1h-4-3"])
    monkeypatch.setattr(transpose, "estimated", lambda *_: [1.0, 2.0] if at_once else [2.0, 1.0])
    rng = np.random.default_rng(4)
    builder = GraphBuilder()
    x, out = builder.value((1, 5, 6, 36), DType.FLOAT32), builder.value((1, 10, 12, 20), DType.FLOAT32)
    weights = builder.constant(rng.standard_normal((20, 4, 4, 36)).astype(np.float32))
    builder.node(TransposeConv2D((2, 2), (1, 1)), [x, weights], out)
    graph = builder.graph([x], [out])
    values = rng.standard_normal((1, 5, 6, 36)).astype(np.float32)
    values[0, 0, 0] *= 1e6
    got = run(device, graph, {x: values}, False, "float_convolution" + "_parts" * at_once)
    (want,) = evaluate_graph(graph, [values])
    for y, line in enumerate(zip(got[0], want[0], strict=True)):
        assert np.linalg.norm(line[0] - line[1]) <= 1e-6 * np.linalg.norm(line[1]), y


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 1e-6])
def test_weights_are_their_parts(scale: float) -> None:
    """Both halves are the weight but for 2^-22 of it, or 2^-37 of the output's largest; the third is the first."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((8, 500)) * 2.0 ** rng.integers(-12, 1, (8, 500)) * scale).astype(np.float32)
    scaled = weights * halved.scales(weights)[:, None]
    assert (np.abs(scaled).max(axis=1) >= 2.0**14).all() and (np.abs(scaled) < 2.0**15).all()
    assert np.array_equal(scaled / halved.scales(weights)[:, None], weights)
    high, rest, below = (part.astype(np.float64) for part in halved.halves(scaled))
    assert (np.abs(high + rest - scaled) <= np.maximum(2.0**-22 * np.abs(scaled), 2.0**-23)).all()
    assert (np.abs(below * 2048 - high) <= np.maximum(2.0**-11 * np.abs(high), 2.0**-13)).all()


def test_no_weight_but_zero_is_a_zero_half() -> None:
    """An infinity times it is one, with the weight's sign; numbers that halves have leave nothing."""
    weights = np.array([[2.0**14, 2.0**-30, -(2.0**-40), 0.0, -0.0, 3.0, -1023.5]], np.float32)
    high, rest, below = halved.halves(weights)
    for part in (high, below):
        assert np.array_equal(np.sign(part.astype(np.float64)), np.sign(weights.astype(np.float64)))
    assert not rest.any()


def test_scales_of_weights_that_floats_end_with() -> None:
    weights = np.array([[0.0, 0.0], [1e-45, 0.0], [3e38, 1.0], [1.0, 0.0]], np.float32)
    scales = halved.scales(weights)
    assert np.isfinite(scales).all() and np.isfinite(1 / scales).all() and (scales > 0).all()
    assert scales[0] == 1.0 and scales[3] == 2.0**14
    assert (np.abs(weights * scales[:, None]) < 2.0**15).all()


def layer_of(shape, weights, op=Conv2D(), dtype=DType.FLOAT32, *, dense: bool = False) -> Layer:  # noqa: B008
    b, h, w, _ = shape
    out = (b, -(-h // op.stride[0]), -(-w // op.stride[1]), weights[0])
    source = (view.packed if dense else view.padded)(0, shape, dtype)
    return Layer(op, source, np.ones(weights, np.float32), out, dtype is DType.FLOAT16)


def test_which_layers_it_does() -> None:
    shape, weights = (8, 14, 14, 256), (256, 3, 3, 256)
    same = Conv2D(padding=(1, 1))
    assert ranked(layer_of(shape, weights, same), 90, 132)
    assert not ranked(layer_of(shape, weights, same), 80, 132)
    assert not ranked(layer_of(shape, weights, same), 100, 132)
    assert not ranked(layer_of(shape, weights, same, DType.FLOAT16), 90, 132)
    assert not ranked(layer_of((8, 14, 14, 250), (256, 3, 3, 250), same, dense=True), 90, 132)  # element by element
    assert not ranked(layer_of(shape, weights, Conv2D(padding=(1, 1), border="reflect")), 90, 132)
    assert not ranked(layer_of(shape, weights, Conv2D(padding=(1, 1), upsample=(2, 2))), 90, 132)
    assert not ranked(layer_of(shape, (256, 7, 5, 256), Conv2D(padding=(3, 2))), 90, 132)
    infinite = layer_of(shape, weights, same)
    infinite.weights[0, 0, 0, 0] = math.inf
    assert not ranked(infinite, 90, 132)


def test_packed() -> None:
    """Each tile's three parts, their chunks of eight permuted by the row, of each eight numbers those four apart side
    by side; what is beyond the weights is zero."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((70, 3, 3, 16)).astype(np.float32)
    layer = dataclasses.replace(layer_of((1, 9, 9, 16), (70, 3, 3, 16)), weights=weights)
    tiles, unscaled = packed(layer, BY_NAME["64x32-1h-4-3"])
    assert tiles.shape == (3, 5, 3, 32, 4, 8) and tiles.dtype == np.float16 and unscaled.shape == (96,)
    flat = weights.reshape(70, 144)
    for o, k in ((0, 0), (5, 143), (33, 70), (69, 64), (40, 101)):
        row, place = o % 32, k % 32
        chunk, within = place // 8, place % 8
        at = within % 4 * 2 + within // 4
        high, rest, _ = tiles[o // 32, k // 32, :, row, chunk ^ row // 2 % 4, at].astype(np.float64)
        assert abs((high + rest) * unscaled[o] - flat[o, k]) <= 2.0**-22 * abs(flat[o, k])
    assert not tiles[2, :, :, 6:].any() and not tiles[:, 4, :, 0, 2:].any()


def test_candidates_fit() -> None:
    assert all(tile.fits() for tile in candidates()) and len(BY_NAME) == len(candidates())
    assert not FloatTile(256, 256, 2, 4, 1).fits()  # shared memory
    assert not FloatTile(128, 256, 1, 3, 1).fits()  # registers


def test_which_kernel_is_taken() -> None:
    """By the estimates: large layers, and wide ones of few pixels, take it; deep layers of few pixels do not."""
    same = Conv2D(padding=(1, 1))
    cases = {
        True: [((64, 28, 28, 128), (128, 3, 3, 128), same), ((1, 1, 197, 768), (3072, 1, 1, 768), Conv2D())],
        False: [((1, 14, 14, 256), (256, 3, 3, 256), same), ((64, 56, 56, 24), (144, 1, 1, 24), Conv2D())],
    }
    features = Features(float16=True, native="cuda", capability=90, compute_units=132)
    for taken, layers in cases.items():
        for shape, weights, op in layers:
            _, first = convolution._chosen(layer_of(shape, weights, op), features, False)
            assert (first[1] is float_convolution.launch) is taken


def test_short_layers_where_kernels_overlap() -> None:
    """Those of less than six microseconds are left to other kernels there."""
    features = Features(float16=True, native="cuda", capability=90, compute_units=132)
    short, longer = layer_of((1, 56, 56, 64), (256, 1, 1, 64)), layer_of((1, 14, 14, 384), (1536, 1, 1, 384))
    for layer, overlapping, taken in ((short, False, True), (short, True, False), (longer, True, True)):
        _, first = convolution._chosen(layer, features, overlapping)
        assert (first[1] is float_convolution.launch) is taken
