"""Widening blocks of few pixels by clusters of workgroups: halves against NumPy, bytes equal to it."""

from __future__ import annotations

import numpy as np
import pytest
from byte_network import whole_network
from first_output import first_output
from gpu.backends.cuda.kernels.test_inverted import network

from litegpu.gpu.backends.cuda.kernels import widening, widening_cost
from litegpu.gpu.backends.cuda.kernels.byte_inverted import Stage
from litegpu.gpu.backends.cuda.kernels.widening_cost import WideningBlock
from litegpu.gpu.backends.cuda.passes import inverted as passes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    DepthwiseConv2D,
    DType,
    Graph,
    IntegerDepthwiseConv2D,
)


@pytest.fixture(autouse=True)
def _always(monkeypatch) -> None:
    """Whatever the kernel can do it does."""
    monkeypatch.setattr(widening_cost, "GAIN", -1e9)
    monkeypatch.setattr(widening_cost, "KNOWN_TAPS", widening_cost.MOST_TAPS)
    monkeypatch.setattr(widening_cost, "KNOWN_SIDES", frozenset(range(40)))


def check(device, graph: Graph, x: np.ndarray, *, exact: bool, least: int = 21) -> None:
    (want,) = evaluate_graph(graph, [x])
    program = build_program(graph, device.features, "cuda", half=True)
    assert "widening_block" in [k.name for k in program.kernels]
    got = first_output(device, program, [x], want.shape, x.dtype.type)
    if exact:
        assert np.unique(want).size >= least
        np.testing.assert_array_equal(got, want)
    else:
        assert np.isfinite(got).all()
        assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


def use(monkeypatch, *blocks: WideningBlock) -> None:
    monkeypatch.setattr(widening, "ranked", lambda shape, size, units: blocks)


@pytest.mark.cuda
@pytest.mark.parametrize("inputs, channels, outputs", [(8, 48, 24), (16, 36, 9), (24, 144, 24), (40, 96, 72)])
@pytest.mark.parametrize("taps, stride, padding", [
    ((3, 3), (1, 1), (1, 1)), ((3, 3), (2, 2), (0, 1)), ((5, 5), (1, 2), (2, 2)), ((2, 4), (2, 1), (1, 0)),
])  # fmt: skip
def test_halves(device, inputs: int, channels: int, outputs: int, taps, stride, padding) -> None:
    op = DepthwiseConv2D(stride, (1, 1), padding)
    residual = inputs == outputs and stride == (1, 1)
    graph, x = network((2, 7, 9, inputs), channels, op, taps=taps, outputs=outputs, residual=residual)
    check(device, graph, x, exact=False)


BLOCKS = [
    WideningBlock(8, 1, 14), WideningBlock(8, 4, 4, 16), WideningBlock(4, 2, 7, 32), WideningBlock(2, 8, 8, 16),
    WideningBlock(1, 4, 8), WideningBlock(8, 7, 7, 16),
]  # fmt: skip


@pytest.mark.cuda
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks(device, monkeypatch, block: WideningBlock) -> None:
    use(monkeypatch, block)
    graph, x = network((2, 9, 10, 24), 200, DepthwiseConv2D(padding=(1, 1)), outputs=40, act="hard swish")
    check(device, graph, x, exact=False)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape, channels, outputs, stride, taps", [
    ((2, 7, 9, 16), 48, 16, (1, 1), (3, 3)), ((1, 9, 8, 8), 36, 12, (2, 2), (3, 3)),
    ((1, 13, 12, 24), 144, 8, (2, 1), (2, 3)), ((1, 11, 16, 40), 150, 36, (1, 2), (3, 4)),
    ((1, 7, 7, 96), 200, 96, (1, 1), (3, 3)),
])  # fmt: skip
def test_bytes(device, shape, channels, outputs: int, stride, taps, dtype: DType) -> None:
    op = IntegerDepthwiseConv2D(stride, (1, 1), (taps[0] // 2, taps[1] // 2))
    graph, x = whole_network(
        shape, channels, op, taps=taps, outputs=outputs, dtype=dtype, residual=outputs == shape[3], seed=taps[0]
    )
    check(device, graph, x, exact=True)


@pytest.mark.cuda
@pytest.mark.parametrize("changes", [{"narrower": 37}, {"steep": 1e4}, {"far": 1 << 22}, {"above": (128, 255, 254, 3)}])
def test_limits_of_bytes(device, changes) -> None:
    op = IntegerDepthwiseConv2D((1, 1), (1, 1), (1, 1))
    graph, x = whole_network((1, 9, 8, 16), 96, op, outputs=24, seed=3, **changes)
    check(device, graph, x, exact=True, least=21 if changes.keys() <= {"narrower", "above"} else 1)


@pytest.mark.cuda
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_of_bytes(device, monkeypatch, block: WideningBlock) -> None:
    use(monkeypatch, block)
    op = IntegerDepthwiseConv2D((1, 1), (1, 1), (1, 1))
    graph, x = whole_network((1, 12, 11, 32), 200, op, outputs=48, seed=1)
    check(device, graph, x, exact=True)


@pytest.mark.cuda
@pytest.mark.parametrize("outlying", [0, 1])
def test_weights_that_are_no_bytes(device, monkeypatch, outlying: int) -> None:
    """Of any of the three layers: those are for other kernels, also where something else has joined them."""
    op = IntegerDepthwiseConv2D((1, 1), (1, 1), (1, 1))
    graph, x = whole_network((1, 7, 9, 16), 48, op, outputs=16, outlying=outlying)
    (want,) = evaluate_graph(graph, [x])
    for joined in (False, True):
        if joined:
            monkeypatch.setattr(passes, "_quickest", lambda graph, some, last, features: [*some, last] if last else [])
        program = build_program(graph, device.features, "cuda", half=True)
        names = [k.name for k in program.kernels]
        assert ("widening_block" in names, len(names) == 1) == (not outlying, joined or not outlying)
        np.testing.assert_array_equal(first_output(device, program, [x], want.shape, x.dtype.type), want)


def test_sums_begin_with_the_bits_of_a_float_that_holds_them() -> None:
    """Or with what is added to them alone."""
    bits = np.float32(12582912).view(np.int32)
    for count, near in ((129, True), (130, False)):  # 129 * 127 * 255 + 16000 < 2**22
        stage = Stage(np.full((1, count), 127.0), np.array([-16000.0]), np.ones(1), -128.0, 127.0, 0)
        found, begun = widening.begun(stage, 0)
        assert (found, begun.tolist()) == (near, [-16000 + near * int(bits)])
