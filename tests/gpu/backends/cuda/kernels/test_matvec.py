"""Convolutions with few output pixels, in CUDA C++, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import convolution, halo, matvec, specialized, stem, tile, window
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.matvec import MatvecDivision
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, Copy, DType, GraphBuilder, Slice, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import packed, padded

PLAIN = Conv2D()


def network(shape, weights, op=PLAIN, *, inner=False, fused=False, sliced=False, seed=0):
    """x (its first half along the width, if `sliced`; times two, in an intermediate, if `inner`) -> convolution + bias
    (-> relu6 of it minus an operand of the output's shape, if `fused`)."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    b, h, w, c = shape
    outputs, kh, kw, _ = weights
    whole = (b, h, 2 * w, c) if sliced else shape
    x = source = builder.value(whole, DType.FLOAT32)
    if inner:
        eye = builder.constant(2 * np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
        source = builder.node(Conv2D(), [x, eye], builder.value(whole, DType.FLOAT32))
    if sliced:
        steps = (Slice((0, 0, 0, 0), (1, 1, 1, 1), shape),)
        source = builder.node(Copy(steps), [source], builder.value(shape, DType.FLOAT32))
    size = [
        (n * u + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, u, p, k, d, s in zip((h, w), op.upsample, op.padding, (kh, kw), op.dilation, op.stride, strict=True)
    ]
    out = builder.value((b, *size, outputs), DType.FLOAT32)
    inputs, data = [x], [rng.standard_normal(whole).astype(np.float32)]
    matrix = builder.constant(rng.standard_normal(weights) / np.sqrt(kh * kw * c))
    expression, operands = apply("add", RESULT, Arg(1)), [builder.constant(rng.standard_normal((1, 1, 1, outputs)))]
    if fused:
        other = builder.value((b, *size, outputs), DType.FLOAT32)
        inputs.append(other)
        data.append(rng.standard_normal((b, *size, outputs)).astype(np.float32))
        expression = apply("min", apply("max", apply("sub", expression, Arg(2)), 0.0), 6.0)
        operands.append(other)
    builder.node(op, [source, matrix], out, expression, operands)
    return builder.graph(inputs, [out]), data


def check(device, network, half: bool, kernel: str = "vector_convolution") -> None:
    """NaN, if any, where NumPy has it."""
    graph, data = network
    program = build_program(graph, device.features, "cuda", half=half)
    assert program.kernels[program.dispatches[-1].kernel].name == kernel
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    error = np.linalg.norm(got[finite] - want[finite])
    assert finite.any() and error <= (2e-3 if half else 1e-6) * np.linalg.norm(want[finite])


@pytest.fixture
def taken(monkeypatch) -> None:
    """Where the kernel can do a layer it is taken, whatever the estimates say."""
    monkeypatch.setattr(convolution, "cost", lambda product, tile, units: 1000)
    monkeypatch.setattr(window, "ranked", lambda layer, units: [])
    monkeypatch.setattr(stem, "ranked", lambda layer, units: [])
    monkeypatch.setattr(specialized, "ranked", lambda layer, capability, units: [])
    monkeypatch.setattr(halo, "ranked", lambda layer, capability, units: [])


HALF = pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
@pytest.mark.parametrize("depth", [1, 3, 4, 5, 8, 17, 100, 1024])
@pytest.mark.parametrize("outputs", [1, 4, 17])
def test_vectors(device, half: bool, depth: int, outputs: int) -> None:
    check(device, network((1, 1, 1, depth), (outputs, 1, 1, depth), fused=outputs == 17), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
@pytest.mark.parametrize("rows", range(1, 9))
def test_rows(device, half: bool, rows: int) -> None:
    """Rows along the width, or in a batch; float32 as the user gives them, or intermediates, which may be float16."""
    for channels, inner in ((17, False), (20, True), (32, True), (13, True)):
        shape = (1, 1, rows, channels) if inner else (rows, 1, 1, channels)
        check(device, network(shape, (10, 1, 1, channels), inner=inner), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
@pytest.mark.parametrize("op, taps, size", [
    (PLAIN, (5, 5), (5, 5)), (PLAIN, (3, 2), (4, 3)), (Conv2D((2, 2), (1, 1), (1, 1)), (3, 3), (4, 3)),
    (Conv2D((1, 2), (2, 1), (2, 1)), (3, 3), (2, 3)), (Conv2D(padding=(1, 2), border="reflect"), (5, 6), (3, 3)),
    (Conv2D(padding=(1, 1), border="symmetric"), (4, 3), (2, 2)),
    (Conv2D(padding=(1, 0), upsample=(2, 3)), (4, 4), (1, 2)),
])  # fmt: skip
def test_windows(device, half: bool, op: Conv2D, taps, size) -> None:
    for channels, inner in ((3, False), (12, True), (16, True), (5, True)):
        check(device, network((2, *size, channels), (7, *taps, channels), op, inner=inner), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
def test_views(device, half: bool) -> None:
    """Rows that lie apart, and channels that lie apart."""
    for channels in (3, 16):
        check(device, network((2, 2, 1, channels), (5, 1, 1, channels), inner=True, sliced=True), half)
        check(device, network((2, 1, 2, channels), (5, 1, 1, channels), sliced=True, fused=True), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
@pytest.mark.parametrize("division", matvec.CANDIDATES, ids=str)
def test_divisions(device, monkeypatch, half: bool, division: matvec.MatvecDivision) -> None:
    """Depths that are less than a step, and several steps; rows that are more or less than a power of two."""
    monkeypatch.setattr(matvec, "ranked", lambda layer, units: [division])
    for rows, channels in ((1, 44), (5, 1000), (8, 130)):
        check(device, network((rows, 1, 1, channels), (21, 1, 1, channels), fused=True), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
@pytest.mark.parametrize("lanes, threads", [(8, 128), (32, 64), (128, 128)])
def test_some_divisions(device, monkeypatch, half: bool, lanes: int, threads: int) -> None:
    """More steps than are loaded ahead, the last of them not whole: few enough for the emulated driver."""
    monkeypatch.setattr(matvec, "ranked", lambda layer, units: [matvec.MatvecDivision(lanes, threads)])
    for rows in (1, 5):
        depth = lanes * (8 if half else 4) * 5 + 12
        check(device, network((rows, 1, 1, depth), (21, 1, 1, depth), fused=rows == 5), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
def test_what_lies_beside_a_slice_does_not_matter(device, half: bool) -> None:
    """Of 17 channels in a batch of two the last chunk is not whole, and NaN follows."""
    graph, data = network((2, 1, 1, 17), (9, 1, 1, 17), sliced=True)
    data[0][:, :, 1] = np.nan
    check(device, (graph, data), half)


@pytest.mark.cuda
@pytest.mark.usefixtures("taken")
@HALF
@pytest.mark.parametrize("channels", [17, 12, 20])
def test_rows_of_nan_beside_others(device, half: bool, channels: int) -> None:
    """What follows the last channel of a row is the next row, whose NaN no weight of zero makes harmless."""
    for inner in (False, True):
        graph, data = network((3, 1, 1, channels), (9, 1, 1, channels), inner=inner)
        data[0][1] = np.nan
        check(device, (graph, data), half)


def layer(rows: int, depth: int, outputs: int, *, half=True) -> Layer:
    view = padded(0, (rows, 1, 1, depth), DType.FLOAT16) if half else packed(0, (rows, 1, 1, depth), DType.FLOAT32)
    return Layer(PLAIN, view, np.ones((outputs, 1, 1, depth), np.float32), (rows, 1, 1, outputs), half)


def test_many_rows_are_left_to_tiles() -> None:
    assert matvec.ranked(layer(8, 100, 100), 132)
    assert not matvec.ranked(layer(9, 100, 100), 132)


def test_every_layer_has_a_division_and_large_ones_occupy_the_device() -> None:
    for few in (layer(1, 1, 1), layer(8, 10, 3, half=False), layer(2, 50000, 2)):
        costs = [matvec.cost(few, division, 132) for division in matvec.ranked(few, 132)]
        assert costs and costs == sorted(costs)
    classifier = matvec.ranked(layer(1, 1024, 1000), 132)[0]
    assert -(-250 // (classifier.threads // classifier.lanes)) >= 100
    assert matvec.ranked(layer(1, 1024, 1000), 132)[0].lanes > matvec.ranked(layer(1, 64, 1000), 132)[0].lanes


def test_features_without_units_do() -> None:
    assert matvec.ranked(layer(1, 1024, 1000), Features().compute_units)


def test_large_weights_are_on_their_way_to_many_threads() -> None:
    """As they come from memory: 25088 to 4096 took 55.9 us with 32 threads for four outputs, and 48.4 with 64."""
    large = dataclasses.replace(layer(1, 25088, 4096), weights=np.full((4096, 1, 1, 25088), 0.3, np.float32))
    product = convolution.product_of(large, 90)
    assert matvec.ranked(large, 132)[0] == MatvecDivision(64, 512)  # one workgroup on each multiprocessor
    few, many = (matvec.cost(large, MatvecDivision(lanes, lanes), 132) for lanes in (32, 64))
    assert 1.1 * many < few < 1.4 * many
    assert tile.cost(product, tile.ranked(product, 132)[0], 132) > many
