"""Convolutions of few channels, whose rows of the window are one run of numbers, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected

from litegpu.gpu.backends.cuda.kernels import stem
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.stem import CANDIDATES, StemBlock, packed, ranked
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Graph, GraphBuilder, IntegerConv2D, apply
from litegpu.gpu.view import padded

CASES = {
    "7x7, stride 2": ((2, 30, 41, 3), (40, 7, 7, 3), Conv2D((2, 2), padding=(3, 3))),
    "3x3, stride 1": ((1, 9, 21, 3), (24, 3, 3, 3), Conv2D(padding=(1, 1))),
    "4x4 patches": ((1, 24, 40, 4), (20, 4, 4, 4), Conv2D((4, 4))),
    "5x2 of one channel, dilated": ((2, 20, 20, 1), (8, 5, 2, 1), Conv2D((1, 3), (2, 1), (3, 1))),
    "mirrored": ((1, 12, 17, 2), (16, 3, 3, 2), Conv2D((1, 2), padding=(1, 1), border="reflect")),
    "enlarged": ((1, 6, 9, 3), (16, 3, 3, 3), Conv2D(padding=(1, 1), upsample=(2, 2))),
}
SOME = (StemBlock(4, 16, (4, 1)), StemBlock(8, 32, (4, 1)), StemBlock(4, 64, (2, 2)), StemBlock(8, 64, (8, 1)))


def network(case: str, kind: DType) -> tuple[Graph, np.ndarray]:
    """x -> convolution + bias, relu6 -> a second one, so that what is looked at is an intermediate as well."""
    shape, weights, op = CASES[case]
    rng = np.random.default_rng(0)
    b, h, w, _ = shape
    o, kh, kw, c = weights
    size = [
        (n * up + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, up, p, k, d, s in zip((h, w), op.upsample, op.padding, (kh, kw), op.dilation, op.stride, strict=True)
    ]
    builder = GraphBuilder()
    x = builder.value(shape, kind)
    out = builder.value((b, *size, o), DType.FLOAT32)
    matrix = builder.constant(rng.standard_normal(weights) / np.sqrt(kh * kw * c))
    bias = builder.constant(rng.standard_normal((1, 1, 1, o)))
    if kind is DType.INT8:
        op = dataclasses.replace(op, zero_point=-3)
    builder.node(op, [x, matrix], out, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias])
    last = builder.value((b, *size, 8), DType.FLOAT32)
    builder.node(Conv2D(), [out, builder.constant(rng.standard_normal((8, 1, 1, o)))], last, RESULT)
    values = rng.integers(-128, 128, shape).astype(np.int8) if kind is DType.INT8 else rng.standard_normal(shape)
    return builder.graph([x], [last]), values.astype(np.int8 if kind is DType.INT8 else np.float32)


def check(device, monkeypatch, case: str, block: StemBlock, kind: DType = DType.FLOAT32) -> None:
    monkeypatch.setattr(stem, "ranked", lambda layer, units: [block] if layer.weights.shape[3] <= 4 else [])
    monkeypatch.setattr(stem, "cost", lambda layer, block, units: 0.0)
    graph, x = network(case, kind)
    program = build_program(graph, device.features, "cuda", half=True)
    assert "stem_convolution" in {k.name for k in program.kernels}
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want), block


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_cases(device, monkeypatch, case: str) -> None:
    check(device, monkeypatch, case, SOME[list(CASES).index(case) % len(SOME)])


@pytest.mark.cuda
def test_stored_numbers(device, monkeypatch) -> None:
    """Of a quantized input, whose zero point is subtracted where it is loaded: what is outside is zero."""
    check(device, monkeypatch, "7x7, stride 2", SOME[1], DType.INT8)


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize("block", CANDIDATES, ids=str)
def test_every_block(device, monkeypatch, block: StemBlock) -> None:
    for case in CASES:
        with monkeypatch.context() as patch:
            check(device, patch, case, block)


def layer_of(case: str, dtype: DType = DType.FLOAT32, *, half: bool = True) -> Layer:
    shape, weights, op = CASES[case]
    out = (shape[0], shape[1] // op.stride[0], shape[2] // op.stride[1], weights[0])
    return Layer(op, padded(0, shape, dtype), np.ones(weights, np.float32), out, half)


def test_which_layers_it_does() -> None:
    assert all(ranked(layer_of(case), 132) for case in CASES)
    assert not ranked(layer_of("7x7, stride 2", half=False), 132)
    one = layer_of("3x3, stride 1")
    wide = dataclasses.replace(one, op=Conv2D(dilation=(1, 2), padding=(1, 2)))
    assert not ranked(wide, 132)
    five = dataclasses.replace(one, weights=np.ones((24, 3, 3, 5), np.float32))
    assert not ranked(five, 132)
    patch = dataclasses.replace(one, op=Conv2D((16, 16)), weights=np.ones((24, 16, 16, 3), np.float32))
    assert not ranked(patch, 132)  # the weights of a pixel are many


def test_packed() -> None:
    weights = np.arange(40 * 49 * 3, dtype=np.float32).reshape(40, 7, 7, 3) % 2039
    layer = dataclasses.replace(layer_of("7x7, stride 2"), weights=weights)
    found = packed(layer, 32)
    assert found.shape == (64, 224)
    assert found[39, 6 * 32 + 6 * 4 + 2] == weights[39, 6, 6, 2]
    assert found[5, 2 * 32 + 3 * 4 + 1] == weights[5, 2, 3, 1]
    assert found.astype(np.float64).sum() == weights.astype(np.float16).astype(np.float64).sum()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
def test_whole_numbers(device, monkeypatch, kind: DType) -> None:
    """Sums of bytes less the zero point, which is also what is outside: equal in every element."""
    monkeypatch.setattr(stem, "cost", lambda layer, block, units: -1.0)
    rng = np.random.default_rng(2)
    builder = GraphBuilder()
    shape, zero_point = (2, 20, 33, 3), -128 if kind is DType.INT8 else 255
    x, out = builder.value(shape, kind), builder.value((2, 10, 17, 20), DType.INT32)
    weights = builder.constant(rng.integers(100, 128, (20, 7, 7, 3)).astype(np.int8), narrow=True)
    bias = builder.constant(rng.integers(-(1 << 20), 1 << 20, (1, 1, 1, 20)).astype(np.int32))
    op = IntegerConv2D((2, 2), padding=(3, 3), zero_point=zero_point)
    builder.node(op, [x, weights], out, apply("add", RESULT, Arg(1)), [bias])
    graph = builder.graph([x], [out])
    numbers = rng.integers(0, 256, shape).astype(np.uint8)
    numbers[:, 5:12, 5:12] = 127 if kind is DType.INT8 else 0  # the largest sums
    numbers = numbers if kind is DType.UINT8 else numbers.view(np.int8)
    program = build_program(graph, device.features, "cuda", half=False)
    assert "stem_convolution" in {k.name for k in program.kernels}
    got = first_output(device, program, [numbers], graph.values[out].shape, np.int32)
    assert np.array_equal(got, expected(graph, {x: numbers}))
