"""Convolutions of bytes by windows that lie side by side read rows of windows as pixels."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output

from litegpu.gpu.backends.cuda.passes.strips import join_strips
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Copy, DType, Graph, GraphBuilder, IntegerConv2D, apply, whole

HOPPER = GPUS["H200"].features


def patches(
    shape: tuple[int, ...], window: tuple[int, int], outputs: int, kind: DType = DType.INT8, *, inner: bool = False,
    stride: tuple[int, int] | None = None, padding: tuple[int, int] = (0, 0),
) -> Graph:  # fmt: skip
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x, stride = b.value(shape, kind), stride or window
    weights = b.constant(rng.integers(-127, 128, (outputs, *window, shape[3])).astype(np.int8), narrow=True)
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(shape[1:3], padding, window, stride, strict=True)]
    y, before = b.value((shape[0], *size, outputs), DType.INT8), x
    if inner:
        before = b.value(shape, kind)
        b.node(Copy(()), [x], before)
    byte = apply("min", apply("max", apply("shift_right", RESULT, whole(11)), whole(-128)), whole(127))
    b.node(IntegerConv2D(stride, padding=padding, zero_point=5), [before, weights], y, byte)
    return b.graph([x], [y])


CASES = {
    "a vision transformer": patches((2, 64, 64, 3), (16, 16), 32),
    "unsigned, of another height": patches((1, 30, 48, 3), (5, 16), 12, DType.UINT8),
    "rows that are not read": patches((1, 35, 32, 1), (3, 32), 8, stride=(4, 32)),
}
LEFT = {
    "windows that overlap": patches((1, 32, 32, 3), (16, 16), 8, stride=(16, 8)),
    "columns that are not read": patches((1, 32, 40, 3), (16, 16), 8),
    "padding": patches((1, 32, 16, 3), (16, 32), 8, padding=(0, 8)),
    "channels enough": patches((1, 32, 32, 16), (16, 16), 8),
    "no whole pieces": patches((1, 28, 28, 3), (14, 14), 8),
    "no input of the program": patches((1, 32, 32, 3), (16, 16), 8, inner=True),
}


def numbers(graph: Graph) -> list[np.ndarray]:
    value = graph.values[graph.inputs[0]]
    limits = np.iinfo(value.dtype.value)
    return [np.random.default_rng(1).integers(limits.min, limits.max + 1, value.shape).astype(value.dtype.value)]


@pytest.mark.parametrize("case", CASES)
def test_they_are_pixels_of_many_channels(case: str) -> None:
    graph = CASES[case]
    joined = join_strips(graph)
    copy, conv = joined.nodes
    assert isinstance(copy.op, Copy) and copy.op.keeps_order
    assert isinstance(conv.op, IntegerConv2D) and conv.op.stride[1] == 1
    assert joined.values[conv.inputs[1]].shape[2] == 1
    np.testing.assert_array_equal(evaluate_graph(joined, numbers(graph))[0], evaluate_graph(graph, numbers(graph))[0])
    program = build_program(graph, HOPPER, "cuda", half=True, integer=True)
    assert len(program.dispatches) == 1


@pytest.mark.parametrize("case", LEFT)
def test_others_are_left(case: str) -> None:
    assert [n.op for n in join_strips(LEFT[case]).nodes] == [n.op for n in LEFT[case].nodes]


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_on_the_device(device, case: str) -> None:
    graph = CASES[case]
    (want,) = evaluate_graph(graph, numbers(graph))
    program = build_program(graph, device.features, "cuda", half=True, integer=True)
    got = first_output(device, program, numbers(graph), want.shape, want.dtype)
    assert len(np.unique(want)) > 20
    np.testing.assert_array_equal(got, want)
