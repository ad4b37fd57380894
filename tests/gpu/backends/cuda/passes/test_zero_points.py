"""Weights with a zero point, multiplied as bytes without one."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.passes.zero_points import part_zero_points
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Arg, DType, GraphBuilder, IntegerConv2D, apply
from litegpu.gpu.lang.features import Features

POINTS = IntegerConv2D(zero_point=7, weights_zero_point=-53)
LARGEST = IntegerConv2D(zero_point=7, weights_zero_point=-128)  # of differences to 255, which two bytes do not give
WINDOW = IntegerConv2D((2, 1), (1, 1), (1, 1), zero_point=130, weights_zero_point=21)


def network(op: IntegerConv2D, kernel: int, channels: int):
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.value((2, 9, 9, channels), DType.UINT8)
    weights = rng.integers(-128, 128, (16, kernel, kernel, channels)).astype(np.int8)
    weights[0, 0, 0, 0] = 127
    bias = builder.constant(rng.integers(-1000, 1000, 16).astype(np.int32))
    size = [(9 + 2 * op.padding[0] - kernel) // s + 1 for s in op.stride]
    y = builder.value((2, *size, 16), DType.INT32)
    epilogue = apply("add", Arg(0), Arg(1))
    builder.node(op, [x, builder.constant(weights, narrow=True)], y, epilogue, [bias])
    return builder.graph([x], [y]), rng.integers(0, 256, (2, 9, 9, channels)).astype(np.uint8)


@pytest.mark.parametrize(("op", "kernel", "nodes"), [(POINTS, 1, 1), (LARGEST, 1, 2), (WINDOW, 3, 2)])
@pytest.mark.parametrize("channels", [3, 32])
def test_same_sums(op: IntegerConv2D, kernel: int, nodes: int, channels: int) -> None:
    graph, x = network(op, kernel, channels)
    parted = part_zero_points(graph)
    assert len(parted.nodes) == nodes
    assert all(getattr(node.op, "weights_zero_point", 0) == 0 for node in parted.nodes)
    np.testing.assert_array_equal(evaluate_graph(parted, [x])[0], evaluate_graph(graph, [x])[0])


@pytest.mark.parametrize(("op", "kernel", "wanted"), [(POINTS, 1, 1), (WINDOW, 3, 2)])
def test_native_kernels_do_it(op: IntegerConv2D, kernel: int, wanted: int) -> None:
    graph, _ = network(op, kernel, 32)
    program = build_program(graph, Features(native="cuda", capability=90), "cuda", half=True)
    assert len(program.dispatches) == wanted
    assert "convolution" not in {kernel.name for kernel in program.kernels}  # the language's
