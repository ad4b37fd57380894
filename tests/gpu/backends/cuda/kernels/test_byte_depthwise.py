"""Depthwise convolutions of bytes, four products at once, equal to the definition in NumPy in every element."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected
from gpu.backends.cuda.kernels.test_runs import scaled
from gpu.backends.cuda.kernels.test_specialized import stored

from litegpu.gpu.backends.cuda.kernels import byte_depthwise, overlapped
from litegpu.gpu.backends.cuda.kernels.byte_depthwise import PIXELS, ranked, sharing
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Graph, GraphBuilder, IntegerDepthwiseConv2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

#: Shape, taps, op.
CASES = {
    "3x3": ((2, 11, 13, 36), (3, 3), IntegerDepthwiseConv2D(padding=(1, 1))),
    "3x3, stride 2": ((2, 12, 17, 32), (3, 3), IntegerDepthwiseConv2D((2, 2), padding=(1, 1))),
    "2x4": ((1, 9, 10, 132), (2, 4), IntegerDepthwiseConv2D((1, 1), padding=(1, 2))),
    "4x2, strides 2 and 1": ((1, 14, 9, 8), (4, 2), IntegerDepthwiseConv2D((2, 1))),
    "1x1": ((1, 5, 6, 16), (1, 1), IntegerDepthwiseConv2D()),
    "5x5": ((2, 7, 9, 20), (5, 5), IntegerDepthwiseConv2D(padding=(2, 2))),
    "5x5, stride 2": ((1, 14, 15, 24), (5, 5), IntegerDepthwiseConv2D((2, 2), padding=(1, 2))),
    "2x5, strides 2 and 1": ((1, 9, 11, 12), (2, 5), IntegerDepthwiseConv2D((2, 1), padding=(0, 1))),
}


def network(case: str, kind: DType, rests: int = 0) -> tuple[Graph, np.ndarray]:
    """`rests`: so many weights that are no signed bytes."""
    shape, taps, op = CASES[case]
    rng = np.random.default_rng(5)
    builder = GraphBuilder()
    zero_point = 3 if kind is DType.INT8 else 130
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(shape[1:3], op.padding, taps, op.stride, strict=True)]
    x, out = builder.value(shape, kind), builder.value((shape[0], *size, shape[3]), kind)
    quanta = rng.integers(-128, 128, (1, *taps, shape[3])).astype(np.int32)
    quanta.reshape(-1)[rng.permutation(quanta.size)[:rests]] = rng.choice([-255, -130, 128, 200, 255], rests)
    weights = builder.constant(quanta)
    bias = builder.constant(rng.integers(-9999, 9999, (1, 1, 1, shape[3])).astype(np.int32))
    factor = builder.constant(rng.choice([0.0078125, 0.0031, 0.002], (1, 1, 1, shape[3])).astype(np.float32))
    expr = scaled(apply("add", RESULT, Arg(1)), zero_point, kind)
    op = IntegerDepthwiseConv2D(op.stride, op.dilation, op.padding, zero_point=zero_point - 9)
    builder.node(op, [x, weights], out, expr, [bias, factor])
    return builder.graph([x], [out]), stored(rng, shape, kind)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pixels", PIXELS)
def test_cases(device, monkeypatch, case: str, kind: DType, pixels: tuple[int, int]) -> None:
    if device.features.capability < byte_depthwise.LEAST_CAPABILITY:
        pytest.skip("needs products of four bytes")
    found = byte_depthwise.ranked
    monkeypatch.setattr(
        byte_depthwise, "ranked", lambda *a: [b for b in found(*a) if (b.y, b.x) == pixels] or found(*a)
    )
    monkeypatch.setattr(byte_depthwise, "cost", lambda layer, block, units: -1.0)
    graph, x = network(case, kind)
    program = build_program(graph, device.features, "cuda", half=False)
    assert "byte_depthwise" in {k.name for k in program.kernels}
    want = expected(graph, {graph.inputs[0]: x})
    got = first_output(device, program, [x], want.shape, x.dtype)
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(got, want)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", ["3x3", "3x3, stride 2", "4x2, strides 2 and 1", "5x5, stride 2"])
@pytest.mark.parametrize("rests", [1, byte_depthwise.MOST_RESTS])
def test_few_weights_that_are_no_bytes(device, monkeypatch, case: str, kind: DType, rests: int) -> None:
    """As files of old have them, whose weights have a zero point."""
    if device.features.capability < byte_depthwise.LEAST_CAPABILITY:
        pytest.skip("needs products of four bytes")
    monkeypatch.setattr(byte_depthwise, "cost", lambda layer, block, units: -1.0)
    graph, x = network(case, kind, rests)
    program = build_program(graph, device.features, "cuda", half=False)
    assert "byte_depthwise" in {k.name for k in program.kernels}
    want = expected(graph, {graph.inputs[0]: x})
    np.testing.assert_array_equal(first_output(device, program, [x], want.shape, x.dtype), want)


def layer_of(taps: tuple[int, int], op: Conv2D | None = None, most: int = 127, run: int = 16) -> Layer:
    weights = np.full((1, *taps, 64), most, np.int32)
    return Layer(
        op or Conv2D(), padded(0, (8, 28, 28, 64), DType.INT8), weights, (8, 28, 28, 64), False, 0, True, run=run
    )


def test_which_layers_it_does() -> None:
    assert ranked(layer_of((3, 3)), 90, 132) and ranked(layer_of((3, 3)), 75, 40)
    assert not ranked(layer_of((3, 3)), 60, 132)
    assert ranked(layer_of((5, 5)), 90, 132) and not ranked(layer_of((3, 6)), 90, 132)
    assert not ranked(layer_of((6, 3)), 90, 132)
    assert not ranked(layer_of((3, 3), Conv2D(dilation=(2, 2))), 90, 132)
    assert not ranked(layer_of((3, 3), Conv2D((3, 3))), 90, 132)
    assert not ranked(layer_of((3, 3), most=128), 90, 132)  # differences to a zero point
    for rests, taken in ((byte_depthwise.MOST_RESTS, True), (byte_depthwise.MOST_RESTS + 1, False)):
        layer = layer_of((3, 3))
        layer.weights.reshape(-1)[:rests] = 128
        assert bool(ranked(layer, 90, 132)) == taken
    assert not ranked(layer_of((3, 3), run=0), 90, 132)


def test_sharing() -> None:
    """Outputs whose taps are in the same four columns."""
    assert [sharing(layer_of((1, n))) for n in (1, 2, 3, 4, 5)] == [4, 3, 2, 1, 0]
    assert [sharing(layer_of((1, n), Conv2D((2, 2)))) for n in (1, 2, 3, 4)] == [2, 2, 1, 1]


def test_taken_where_kernels_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: True)
    graph, _ = network("3x3", DType.INT8)
    names = []
    for capability in (90, 80):
        features = Features(float16=True, native="cuda", capability=capability, compute_units=132)
        names += [k.name for k in build_program(graph, features, "cuda", half=True).kernels]
    assert names == ["byte_depthwise", "blocked_depthwise"]
