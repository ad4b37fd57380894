"""Depthwise convolutions with long windows in CUDA C++ against NumPy: blocks, strides, dilations, borders, bytes."""

from __future__ import annotations

import numpy as np
import pytest
from depthwise_network import check, network, run
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import depthwise, long_depthwise
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.long_depthwise import LongBlock
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DepthwiseConv2D, DType, GraphBuilder, IntegerDepthwiseConv2D, apply
from litegpu.gpu.view import padded

BOTH = pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])


@pytest.fixture(autouse=True)
def long_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is offered for such windows."""
    monkeypatch.setattr(depthwise, "ranked", lambda layer, units: [])


def layer_of(shape: tuple[int, ...], taps: tuple[int, int], half: bool = True, **options) -> Layer:
    op = Conv2D(**options)
    size = [
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip(shape[1:3], op.padding, taps, op.dilation, op.stride, strict=True)
    ]
    view = padded(0, shape, DType.FLOAT16 if half else DType.FLOAT32)
    return Layer(op, view, np.zeros((1, *taps, shape[3]), np.float32), (shape[0], *size, shape[3]), half)


def choose(monkeypatch: pytest.MonkeyPatch, block: LongBlock) -> None:
    monkeypatch.setattr(long_depthwise, "ranked", lambda layer, units: [block])


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("taps, padding", [((1, 13), (0, 6)), ((13, 1), (6, 0)), ((3, 9), (1, 4))])
def test_blocks(device, monkeypatch, half: bool, taps, padding) -> None:
    """A workgroup for every division into threads, that overhang in every direction, several images."""
    shape = (2, 11, 21, 40) if taps[1] > 1 else (2, 21, 11, 40)
    graph, x = network(shape, taps, DepthwiseConv2D(padding=padding))
    every = long_depthwise.candidates(layer_of(shape, taps, half, padding=padding))
    by_thread: dict[tuple[int, int], list[LongBlock]] = {}
    for block in every:
        by_thread.setdefault((block.lanes, block.outputs), []).append(block)
    assert {outputs for _, outputs in by_thread} == set(long_depthwise.OUTPUTS)
    for i, group in enumerate(by_thread.values()):
        choose(monkeypatch, group[i * 7 % len(group)])
        check(device, graph, x, half, "long_depthwise")


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("outputs", [1, 4, 8])
@pytest.mark.parametrize("stride, dilation", [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 3), (4, 6), (5, 1)])
def test_strides_and_dilations(device, monkeypatch, half: bool, outputs: int, stride: int, dilation: int) -> None:
    """Pixels of a thread that lie apart, taps taken apart; along both axes, and taps that are no multiple of pixels."""
    choose(monkeypatch, LongBlock(4, outputs, 4, 2, 4))
    for count in (9, 10):
        pad = count * dilation // 2
        for sideways in (False, True):

            def turned(a: int, b: int, sideways: bool = sideways) -> tuple[int, int]:
                return (b, a) if sideways else (a, b)

            op = DepthwiseConv2D(turned(1, stride), turned(2, dilation), turned(2, pad))
            graph, x = network((2, *turned(7, 37), 20), turned(2, count), op)
            check(device, graph, x, half, "long_depthwise")


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("shape, taps, padding", [
    ((1, 1, 60, 5), (1, 31), (0, 15)), ((3, 1, 50, 17), (1, 87), (0, 43)), ((2, 70, 1, 8), (64, 1), (63, 0)),
    ((1, 33, 34, 12), (31, 31), (15, 15)), ((2, 9, 30, 24), (5, 25), (2, 12)), ((1, 1, 11, 8), (1, 9), (0, 0)),
])  # fmt: skip
def test_windows(device, half: bool, shape, taps, padding) -> None:
    """As they are chosen; windows longer than the picture, of one pixel's height, without a border."""
    graph, x = network(shape, taps, DepthwiseConv2D(padding=padding), residual=shape[1:3] == (1, 60))
    check(device, graph, x, half, "long_depthwise")


@pytest.mark.cuda
def test_what_is_not_finite_stays_where_it_is(device) -> None:
    """An input's NaN reaches its window only, and taps outside of the image add nothing, even if they are infinite."""
    weights = np.full((1, 1, 15, 8), 0.1)
    graph, x = network((1, 1, 40, 8), (1, 15), DepthwiseConv2D(padding=(0, 7)), direct=True, weights=weights)
    x[0, 0, 20, 5] = np.nan
    got = run(device, graph, x, False, kernel="long_depthwise")
    assert np.argwhere(np.isnan(got)).tolist() == [[0, 0, column, 5] for column in range(13, 28)]
    weights[0, 0, 0, 2] = np.inf
    graph, x = network((1, 1, 40, 8), (1, 15), DepthwiseConv2D(padding=(0, 7)), direct=True, weights=weights)
    x = np.abs(np.nan_to_num(x))
    got = run(device, graph, x, False, kernel="long_depthwise")
    assert (got[0, 0, 7:, 2] == 6).all() and (got[0, 0, :7, 2] < 6).any() and np.isfinite(got).all()


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("taps, channels", [((1, 31), 24), ((20, 20), 4), ((1, 300), 8)])
def test_whole_numbers(device, kind: DType, taps: tuple[int, int], channels: int) -> None:
    """Equal in every element, sums beyond what float32 holds included."""
    rng = np.random.default_rng(channels)
    builder = GraphBuilder()
    shape, zero_point = (2, 22, 310, channels), 11 if kind is DType.INT8 else 200
    pad = taps[0] // 2, taps[1] // 2
    size = [n + 2 * p - k + 1 for n, p, k in zip(shape[1:3], pad, taps, strict=True)]
    x, out = builder.value(shape, kind), builder.value((2, *size, channels), DType.INT32)
    numbers = rng.integers(60, 128, (1, *taps, channels)) * (-1) ** np.arange(channels)
    weights = builder.constant(numbers.astype(np.int32))
    bias = builder.constant(rng.integers(-(1 << 20), 1 << 20, (1, 1, 1, channels)).astype(np.int32))
    op = IntegerDepthwiseConv2D(padding=pad, zero_point=zero_point)
    builder.node(op, [x, weights], out, apply("add", RESULT, Arg(1)), [bias])
    graph = builder.graph([x], [out])
    bytes_ = rng.integers(0, 256, shape).astype(np.uint8)
    inputs = bytes_ if kind is DType.UINT8 else bytes_.view(np.int8)
    (want,) = evaluate_graph(graph, [inputs])
    program = build_program(graph, device.features, "cuda", half=False)
    assert "long_depthwise" in {k.name for k in program.kernels}
    assert np.array_equal(first_output(device, program, [inputs], graph.values[out].shape, np.int32), want)


def test_which_windows_are_unrolled() -> None:
    """A thread's registers hold a row of a short window, and never one of a long one."""
    for taps, short in (((7, 7), True), ((1, 9), True), ((1, 31), False), ((31, 31), False)):
        layer = layer_of((64, 40, 100, 64), taps, padding=(taps[0] // 2, taps[1] // 2))
        assert any(depthwise.is_small(layer, 4, 1, x) for x in (1, 2, 4, 8)) == short
        assert long_depthwise.is_long(layer) == (taps != (7, 7))


def test_more_pixels_to_a_thread_where_there_are_many() -> None:
    few, many = (layer_of((batch, 1, 250, 144), (1, 31), padding=(0, 15)) for batch in (1, 64))
    first, second = long_depthwise.ranked(few, 132)[0], long_depthwise.ranked(many, 132)[0]
    assert first.outputs < second.outputs
    assert np.prod(second.groups(many)) >= 132
