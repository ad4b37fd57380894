"""First layers by warpgroup products, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected
from gpu.backends.cuda.kernels.test_specialized import stored

from litegpu.gpu import view
from litegpu.gpu.backends.cuda.kernels import wide_stem
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.wide_stem import WideStemBlock, WideStemPlan, packed, ranked
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    Copy,
    DType,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    Literal,
    Transpose,
    apply,
)

CASES = {
    "7x7, stride 2": ((2, 29, 32, 3), (40, 7, 7, 3), Conv2D((2, 2), padding=(3, 3))),
    "3x3, stride 2": ((2, 21, 48, 3), (32, 3, 3, 3), Conv2D((2, 2), padding=(0, 1))),
    "3x3, stride 1": ((1, 9, 16, 3), (24, 3, 3, 3), Conv2D(padding=(1, 1))),
    "4x4 of four": ((1, 24, 40, 4), (64, 4, 4, 4), Conv2D((2, 1), padding=(1, 2))),
    "5x5 of one channel, dilated": ((1, 22, 32, 1), (16, 5, 5, 1), Conv2D((1, 1), (2, 1), (4, 2))),
    "5x2 of two, stride 3": ((1, 20, 24, 2), (96, 5, 2, 2), Conv2D((3, 2), padding=(2, 0))),
}


def network(case: str, kind: DType) -> tuple[Graph, np.ndarray]:
    """x -> convolution + bias, relu -> a second one, so that what is looked at is an intermediate."""
    shape, weights, op = CASES[case]
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x, out = builder.value(shape, kind), builder.value(shape_of(case), DType.FLOAT32)
    matrix = builder.constant(rng.standard_normal(weights) / np.sqrt(np.prod(weights[1:])))
    bias = builder.constant(rng.standard_normal((1, 1, 1, weights[0])))
    if kind is DType.INT8:
        op = dataclasses.replace(op, zero_point=-3)
    builder.node(op, [x, matrix], out, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias])
    last = builder.value((*out_shape(builder, out)[:3], 8), DType.FLOAT32)
    builder.node(Conv2D(), [out, builder.constant(rng.standard_normal((8, 1, 1, weights[0])))], last, RESULT)
    values = stored(rng, shape, kind) if kind is DType.INT8 else rng.standard_normal(shape).astype(np.float32)
    return builder.graph([x], [last]), values


def out_shape(builder: GraphBuilder, value: int) -> tuple[int, ...]:
    return builder.values[value].shape


def shape_of(case: str) -> tuple[int, ...]:
    shape, weights, op = CASES[case]
    size = [
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip(shape[1:3], op.padding, weights[1:3], op.dilation, op.stride, strict=True)
    ]
    return (shape[0], *size, weights[0])


def only(monkeypatch, block: WideStemBlock) -> None:
    found = wide_stem.ranked
    monkeypatch.setattr(wide_stem, "ranked", lambda layer, c, units: [block] if found(layer, 90, units) else [])
    monkeypatch.setattr(wide_stem, "cost", lambda layer, block, units: -1.0)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.FLOAT32, DType.INT8])
@pytest.mark.parametrize("case", CASES)
def test_cases(device, monkeypatch, case: str, kind: DType) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    number = list(CASES).index(case)
    only(monkeypatch, WideStemBlock((2, 4, 1, 3)[number % 4], (64, 32)[number % 2]))
    graph, x = network(case, kind)
    program = build_program(graph, dataclasses.replace(device.features, compute_units=2), "cuda", half=True)
    assert "wide_stem" in {k.name for k in program.kernels}
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["7x7, stride 2", "3x3, stride 2", "3x3, stride 1"])
def test_channels_were_in_front(device, monkeypatch, case: str) -> None:
    """A copy makes halves of the picture, of four channels each of which the last is zero."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    only(monkeypatch, WideStemBlock(2, 32))
    (batch, height, width, channels), weights, op = CASES[case]
    rng, builder = np.random.default_rng(3), GraphBuilder()
    x = builder.value((batch, channels, height, width), DType.FLOAT32)
    turned = builder.value((batch, height, width, channels), DType.FLOAT32)
    builder.node(Copy((Transpose((0, 2, 3, 1)),)), [x], turned)
    matrix = builder.constant(rng.standard_normal(weights) / np.sqrt(np.prod(weights[1:])))
    y = builder.node(op, [turned, matrix], builder.value(shape_of(case), DType.FLOAT32))
    out = builder.value((*shape_of(case)[:3], 8), DType.FLOAT32)
    builder.node(Conv2D(), [y, builder.constant(rng.standard_normal((8, 1, 1, weights[0])))], out)
    graph, given = builder.graph([x], [out]), rng.standard_normal((batch, channels, height, width)).astype(np.float32)
    program = build_program(graph, dataclasses.replace(device.features, compute_units=2), "cuda", half=True)
    (kernel,) = (k for k in program.kernels if k.name == "wide_stem")
    assert "#define AS_THEY_ARE 1" in kernel.source
    got = first_output(device, program, [given], graph.values[out].shape)
    want = evaluate_graph(graph, [given])[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", CASES)
def test_whole_numbers(device, monkeypatch, case: str, kind: DType) -> None:
    """Sums of bytes, outside of the picture those of the zero point: equal in every element."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    shape, weights, op = CASES[case]
    number = list(CASES).index(case)
    only(monkeypatch, WideStemBlock((2, 4, 1, 3)[number % 4], (64, 32)[number % 2]))
    rng = np.random.default_rng(2)
    builder = GraphBuilder()
    low, zero_point = (0, 130) if kind is DType.UINT8 else (-128, -5)
    x, out = builder.value(shape, kind), builder.value(shape_of(case), kind)
    matrix = builder.constant(rng.integers(-127, 128, weights).astype(np.int8), narrow=True)
    bias = builder.constant(rng.integers(-9999, 9999, (1, 1, 1, weights[0])).astype(np.int32))
    factor = builder.constant(rng.choice([0.0078125, 0.0031, 1e-3], (1, 1, 1, weights[0])).astype(np.float32))
    scaled = apply("mul", apply("to_float32", apply("add", RESULT, Arg(1))), Arg(2))
    limited = apply("min", apply("max", scaled, float(low - zero_point)), float(low + 255 - zero_point))
    expr = apply("add", apply("nearest", limited), Literal(zero_point, DType.INT32))
    builder.node(
        IntegerConv2D(op.stride, op.dilation, op.padding, zero_point=zero_point), [x, matrix], out, expr, [bias, factor]
    )
    graph, numbers = builder.graph([x], [out]), stored(rng, shape, kind)
    program = build_program(graph, dataclasses.replace(device.features, compute_units=2), "cuda", half=False)
    assert "wide_stem" in {k.name for k in program.kernels}
    got = first_output(device, program, [numbers], shape_of(case), np.uint8 if kind is DType.UINT8 else np.int8)
    want = expected(graph, {graph.inputs[0]: numbers})
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(got, want)


def layer_of(case: str, dtype: DType = DType.FLOAT32, *, half: bool = True, run: int = 8) -> Layer:
    shape, weights, op = CASES[case]
    return Layer(op, view.packed(0, shape, dtype), np.ones(weights, np.float32), shape_of(case), half, run=run)


def test_which_layers_it_does() -> None:
    for case in CASES:
        layer = layer_of(case)
        found = ranked(layer, 90, 132)
        assert found and all(WideStemPlan(layer, one).shared_bytes <= 227 * 1024 for one in found)
    layer = layer_of("3x3, stride 2")
    assert not ranked(layer, 80, 132)
    assert not ranked(layer_of("3x3, stride 2", run=0), 90, 132)  # results that do not lie in runs
    assert not ranked(layer_of("3x3, stride 2", half=False), 90, 132)
    for op in (
        Conv2D((2, 3)), Conv2D(dilation=(1, 2)), Conv2D(padding=(1, 1), border="reflect"), Conv2D(upsample=(2, 2))
    ):  # fmt: skip
        assert not ranked(dataclasses.replace(layer, op=op), 90, 132)
    narrow = view.packed(0, (2, 21, 45, 3), DType.FLOAT32)  # whose lines are no whole 16 bytes
    assert not ranked(dataclasses.replace(layer, source=narrow), 90, 132)
    assert not ranked(dataclasses.replace(layer, source=view.padded(0, (2, 21, 48, 3), DType.FLOAT32)), 90, 132)


def test_places_of_chunks() -> None:
    """Of a window of 7 x 7 with stride 2 at two pixels a position: those of even lines come first."""
    plan = WideStemPlan(layer_of("7x7, stride 2"), WideStemBlock(2, 64))
    assert (plan.at_once, plan.step, plan.row_chunks, plan.pitch, plan.lines, plan.pairs) == (2, 1, 4, 19, 9, 14)
    places = plan.chunks
    assert places[:5] == [(0, 0, 0), (1, 0, 2), (2, 0, 4), (3, 0, 6), (19, 2, 0)]
    assert places[16] == (plan.span, 1, 0)


def test_packed() -> None:
    """[tile, pair, chunk, column, pixel, channel]; an odd chunk is the second of the last pair."""
    layer = dataclasses.replace(
        layer_of("3x3, stride 2"), weights=np.arange(32 * 27, dtype=np.float32).reshape(32, 3, 3, 3)
    )
    plan = WideStemPlan(layer, WideStemBlock(2, 32))
    found = packed(layer, plan, 8)
    assert found.shape == (1, 3, 2, 32, 2, 4)
    places = [(line, column) for _, line, column in plan.chunks]
    assert places == [(0, 0), (0, 2), (2, 0), (2, 2), (1, 0), (1, 2)]
    assert found[0, 1, 1, 0, 0, 2] == layer.weights[0, 2, 2, 2] and not found[0, 1, 1, :, 1].any()
    assert found[0, 2, 0, 2, 1, 1] == layer.weights[8, 1, 1, 1]  # column 2 is the first channel of thread 1
    assert found.astype(np.float64).sum() == layer.weights.astype(np.float64).sum()
