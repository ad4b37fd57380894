"""The depthwise convolution in CUDA C++ against NumPy and the language's kernel: every block, windows, layouts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from depthwise_network import check, network, run
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import depthwise
from litegpu.gpu.backends.cuda.kernels.depthwise_block import DepthwiseBlock
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DepthwiseConv2D, DType, GraphBuilder, IntegerDepthwiseConv2D, apply
from litegpu.gpu.view import padded


def blocks_of(graph, half: bool) -> list[DepthwiseBlock]:
    """The candidates for the depthwise convolution of `graph`."""
    node = next(n for n in graph.nodes if isinstance(n.op, DepthwiseConv2D))
    op = node.op
    view = padded(0, graph.values[node.inputs[0]].shape, DType.FLOAT16 if half else DType.FLOAT32)
    weights = graph.values[node.inputs[1]].data
    assert weights is not None
    shape = graph.values[node.output].shape
    return depthwise.candidates(Layer(Conv2D(op.stride, op.dilation, op.padding), view, weights, shape, half))


def some(blocks: list[DepthwiseBlock]) -> list[DepthwiseBlock]:
    """A workgroup for every division into threads, changing along the way."""
    by_thread: dict[tuple, list[DepthwiseBlock]] = {}
    for block in blocks:
        by_thread.setdefault((block.lanes, block.y, block.x), []).append(block)
    assert {(y, x) for _, y, x in by_thread} == set(depthwise.PIXELS)
    return [group[i * 7 % len(group)] for i, group in enumerate(by_thread.values())]


def check_blocks(device, monkeypatch, graph, x, half: bool, blocks: list[DepthwiseBlock]) -> None:
    for block in blocks:
        monkeypatch.setattr(depthwise, "ranked", lambda layer, units, block=block: [block])
        try:
            check(device, graph, x, half)
        except Exception as error:
            raise AssertionError(f"{block}: {error}") from error


BOTH = pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])


@pytest.mark.cuda
@BOTH
def test_blocks(device, monkeypatch, half: bool) -> None:
    """Blocks that overhang in every direction, several images."""
    graph, x = network((2, 11, 13, 136 if half else 12), (3, 3))
    check_blocks(device, monkeypatch, graph, x, half, some(blocks_of(graph, half)))


@pytest.mark.cuda
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("op, taps", [
    (DepthwiseConv2D(padding=(2, 2)), (5, 5)), (DepthwiseConv2D((2, 2), (1, 1), (1, 1)), (3, 3)),
    (DepthwiseConv2D((1, 1), (2, 2), (2, 2)), (3, 3)),
])  # fmt: skip
def test_all_blocks(device, monkeypatch, half: bool, op: DepthwiseConv2D, taps) -> None:
    graph, x = network((2, 18, 17, 24), taps, op)
    check_blocks(device, monkeypatch, graph, x, half, blocks_of(graph, half))


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("channels", [1, 3, 5, 8, 12, 17, 24, 48, 1024])
def test_channels(device, half: bool, channels: int) -> None:
    graph, x = network((3, 5, 6, channels), (3, 3), residual=True)
    check(device, graph, x, half)


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("op", [
    DepthwiseConv2D((2, 2), (1, 1), (1, 1)), DepthwiseConv2D((1, 3), (2, 1), (2, 0)), DepthwiseConv2D((3, 1)),
    DepthwiseConv2D((1, 1), (4, 4), (4, 4)), DepthwiseConv2D((3, 2), (2, 4), (3, 4)),
    DepthwiseConv2D((1, 1), (9, 9), (9, 9)),
])  # fmt: skip
@pytest.mark.parametrize("block", [(1, 1), (2, 4)])
def test_windows(device, monkeypatch, half: bool, op: DepthwiseConv2D, block: tuple[int, int]) -> None:
    best = depthwise.ranked

    def ranked(layer, units):
        blocks = best(layer, units)
        return [b for b in blocks if (b.y, b.x) == block] or blocks

    monkeypatch.setattr(depthwise, "ranked", ranked)
    for taps in ((3, 3), (2, 3), (1, 1)):
        graph, x = network((1, 19, 20, 16), taps, op)
        check(device, graph, x, half)


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("taps, padding", [((7, 1), (3, 0)), ((5, 5), (2, 2)), ((9, 11), (4, 5)), ((4, 2), (3, 1))])
def test_taps(device, half: bool, taps, padding) -> None:
    for stride in ((1, 1), (2, 2)):
        graph, x = network((2, 14, 15, 20), taps, DepthwiseConv2D(stride, (1, 1), padding))
        check(device, graph, x, half)


@pytest.mark.cuda
def test_inputs_and_outputs_of_the_network(device) -> None:
    for half in (True, False):
        graph, x = network((2, 9, 8, 12), (3, 3), direct=True)
        check(device, graph, x, half)
        for channels in (3, 17):
            graph, x = network((2, 9, 8, channels), (3, 3), direct=True)
            check(device, graph, x, half, kernel=None)


@pytest.mark.cuda
@BOTH
def test_agrees_with_the_kernel_of_the_language(device, half: bool) -> None:
    graph, x = network((1, 17, 15, 48), (5, 5), DepthwiseConv2D((1, 1), (1, 1), (2, 2)), residual=True)
    plain = dataclasses.replace(device.features, capability=0)
    ours, other = run(device, graph, x, half), run(device, graph, x, half, plain, kernel=None)
    assert np.linalg.norm(ours - other) <= (1e-3 if half else 1e-6) * np.linalg.norm(other)


@pytest.mark.cuda
def test_left_to_the_kernel_of_the_language(device) -> None:
    graph, x = network((1, 35, 36, 8), (3, 3), DepthwiseConv2D(multiplier=2))
    check(device, graph, x, True, kernel=None)


@pytest.mark.cuda
def test_what_is_not_finite_stays_where_it_is(device) -> None:
    """Taps outside of the image add nothing, even if they are infinite, and an input's NaN reaches its window only."""
    weights = np.ones((1, 3, 3, 8))
    weights[0, 0, 1, 2] = np.inf
    graph, x = network((1, 9, 9, 8), (3, 3), direct=True, weights=weights)
    x = np.abs(x)
    x[0, 8, 8, 5] = np.nan
    got = run(device, graph, x, False)
    assert np.argwhere(np.isnan(got)).tolist() == [[0, y, x, 5] for y in (7, 8) for x in (7, 8)]
    (want,) = evaluate_graph(graph, [x])
    np.testing.assert_allclose(got[..., 5], want[..., 5], rtol=1e-5)
    assert (got[0, 1:, :, 2] == 6).all() and (got[0, 0, :, 2] < 6).any()


def test_chosen_blocks_fit_the_layer() -> None:
    def layer(shape, taps):
        view = padded(0, shape, DType.FLOAT16)
        return Layer(Conv2D(padding=(taps // 2, taps // 2)), view, np.zeros((1, taps, taps, shape[3])), shape, True)

    few, many = layer((1, 7, 7, 1024), 3), layer((64, 128, 128, 48), 5)
    first, second = depthwise.ranked(few, 132)[0], depthwise.ranked(many, 132)[0]
    assert first.y * first.x < second.y * second.x
    assert np.prod(first.groups(few)) * first.threads >= 132 * 64  # enough for every multiprocessor
    for case in (few, many):
        costs = [depthwise.cost(case, block, 132) for block in depthwise.ranked(case, 132)]
        assert costs and costs == sorted(costs)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("channels", [4, 24, 48])
def test_whole_numbers(device, monkeypatch, kind: DType, channels: int) -> None:
    """Sums of bytes less the zero point, which is also what is outside: equal in every element."""
    rng = np.random.default_rng(channels)
    builder = GraphBuilder()
    shape, zero_point = (2, 9, 10, channels), 11 if kind is DType.INT8 else 200
    x, out = builder.value(shape, kind), builder.value((2, 5, 10, channels), DType.INT32)
    weights = builder.constant(rng.integers(-127, 128, (1, 3, 5, channels)).astype(np.int32))
    bias = builder.constant(rng.integers(-(1 << 20), 1 << 20, (1, 1, 1, channels)).astype(np.int32))
    op = IntegerDepthwiseConv2D((2, 1), padding=(1, 2), zero_point=zero_point)
    builder.node(op, [x, weights], out, apply("add", RESULT, Arg(1)), [bias])
    graph = builder.graph([x], [out])
    numbers = rng.integers(0, 256, shape).astype(np.uint8)
    numbers = numbers if kind is DType.UINT8 else numbers.view(np.int8)
    (want,) = evaluate_graph(graph, [numbers])
    every = depthwise.ranked

    for i in range(4):
        monkeypatch.setattr(
            depthwise, "ranked", lambda layer, units, i=i: every(layer, units)[i::4] or every(layer, units)
        )
        program = build_program(graph, device.features, "cuda", half=False)
        assert "blocked_depthwise" in {k.name for k in program.kernels}
        got = first_output(device, program, [numbers], graph.values[out].shape, np.int32)
        assert np.array_equal(got, want)
