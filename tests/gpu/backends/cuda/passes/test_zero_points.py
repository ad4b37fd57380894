"""Weights with a zero point, multiplied as bytes without one."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.passes.zero_points import MOST_BESIDE, part_zero_points
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Arg, DType, GraphBuilder, IntegerConv2D, Literal, apply
from litegpu.gpu.lang.features import Features

POINTS = IntegerConv2D(zero_point=7, weights_zero_point=-53)
LARGEST = IntegerConv2D(zero_point=7, weights_zero_point=-128)  # of differences to 255, which two bytes do not give
WINDOW = IntegerConv2D((2, 1), (1, 1), (1, 1), zero_point=130, weights_zero_point=21)


def network(op: IntegerConv2D, kernel: int, channels: int, most: int = 128, beyond: int = 0, narrow=None, filters=16):
    """`beyond`: places of filters with a weight that is no byte without its zero point. `narrow`: the result is made
    bytes of that type."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.value((2, 9, 9, channels), DType.UINT8)
    weights = rng.integers(-most, most, (filters, kernel, kernel, channels)).astype(np.int8)
    if most == 128:
        weights[0, 0, 0, 0] = 127
    far = 127 if op.weights_zero_point < 0 else -127
    weights.reshape(filters, -1)[rng.integers(0, filters, beyond), rng.permutation(kernel**2 * channels)[:beyond]] = far
    bias = builder.constant(rng.integers(-1000, 1000, filters).astype(np.int32))
    size = [(9 + 2 * op.padding[0] - kernel) // s + 1 for s in op.stride]
    y = builder.value((2, *size, filters), narrow or DType.INT32)
    epilogue = apply("add", Arg(0), Arg(1))
    if narrow:
        scaled = apply("mul", apply("to_float32", epilogue), 0.02 / (kernel * channels**0.5))
        low, high = (-128, 127) if narrow is DType.INT8 else (0, 255)
        clamped = apply("min", apply("max", scaled, float(low - 5)), float(high - 5))
        epilogue = apply("add", apply("nearest", clamped), Literal(5, DType.INT32))
    builder.node(op, [x, builder.constant(weights, narrow=True)], y, epilogue, [bias])
    return builder.graph([x], [y]), rng.integers(0, 256, (2, 9, 9, channels)).astype(np.uint8)


@pytest.mark.parametrize(("op", "kernel", "nodes"), [(POINTS, 1, 1), (LARGEST, 1, 2), (WINDOW, 3, 2)])
@pytest.mark.parametrize("channels", [5, 32])
def test_same_sums(op: IntegerConv2D, kernel: int, nodes: int, channels: int) -> None:
    graph, x = network(op, kernel, channels)
    parted = part_zero_points(graph, Features(max_buffers=16))
    assert len(parted.nodes) == nodes
    assert all(getattr(node.op, "weights_zero_point", 0) == 0 for node in parted.nodes)
    np.testing.assert_array_equal(evaluate_graph(parted, [x])[0], evaluate_graph(graph, [x])[0])


@pytest.mark.parametrize(("op", "kernel", "wanted"), [(POINTS, 1, 1), (WINDOW, 3, 2)])
def test_native_kernels_do_it(op: IntegerConv2D, kernel: int, wanted: int) -> None:
    graph, _ = network(op, kernel, 32)
    program = build_program(graph, Features(native="cuda", capability=90), "cuda", half=True)
    assert len(program.dispatches) == wanted
    assert "convolution" not in {kernel.name for kernel in program.kernels}  # the language's


FEW = IntegerConv2D(zero_point=7, weights_zero_point=-9)
AROUND = IntegerConv2D((2, 1), (1, 2), (1, 2), zero_point=130, weights_zero_point=9)


@pytest.mark.parametrize(("op", "kernel"), [(FEW, 1), (AROUND, 3)])
def test_few_that_are_no_bytes_are_beside_the_sums(op: IntegerConv2D, kernel: int) -> None:
    graph, x = network(op, kernel, 12, most=110, beyond=MOST_BESIDE)
    parted = part_zero_points(graph, Features(max_buffers=16))
    assert [type(n.op).__name__ for n in parted.nodes] == ["Copy"] * MOST_BESIDE + ["IntegerConv2D"]
    np.testing.assert_array_equal(evaluate_graph(parted, [x])[0], evaluate_graph(graph, [x])[0])
    graph, x = network(op, kernel, 12, most=110, beyond=MOST_BESIDE + 1)
    assert "Copy" not in [type(n.op).__name__ for n in part_zero_points(graph, Features(max_buffers=16)).nodes]


def test_no_more_are_beside_the_sums_than_a_kernel_may_read() -> None:
    graph, _ = network(FEW, 1, 12, most=110, beyond=2)
    for buffers, kinds in ((8, ["Copy", "Copy", "IntegerConv2D"]), (7, ["IntegerConv2D"])):
        parted = part_zero_points(graph, Features(max_buffers=buffers))
        assert [type(n.op).__name__ for n in parted.nodes] == kinds


@pytest.mark.parametrize(("op", "kernel", "wanted"), [(FEW, 1, 1), (AROUND, 3, 3)])
def test_bytes_of_points_are_read_where_they_are(op: IntegerConv2D, kernel: int, wanted: int) -> None:
    """A window sees pixels outside of the picture, which a copy has."""
    graph, _ = network(op, kernel, 12, most=110, beyond=2)
    assert len(build_program(graph, Features(native="cuda", capability=90), "cuda", half=True).dispatches) == wanted


@pytest.mark.cuda
@pytest.mark.parametrize(("op", "kernel"), [(FEW, 1), (AROUND, 3)])
@pytest.mark.parametrize("channels", [12, 32])
def test_native_kernels_add_what_few_weights_lack(device, op: IntegerConv2D, kernel: int, channels: int) -> None:
    graph, x = network(op, kernel, channels, most=110, beyond=2)
    (want,) = evaluate_graph(graph, [x])
    program = build_program(graph, device.features, "cuda", half=True)
    np.testing.assert_array_equal(first_output(device, program, [x], want.shape, np.int32), want)


@pytest.mark.cuda
@pytest.mark.parametrize(("op", "kernel"), [(FEW, 1), (AROUND, 3)])
@pytest.mark.parametrize("narrow", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize(("channels", "filters"), [(32, 48), (64, 96), (3, 32), (24, 20)])
def test_bytes_that_are_stored_from_registers(
    device, op, kernel: int, narrow: DType, channels: int, filters: int
) -> None:
    """And a pixel's one byte that they need is loaded there too."""
    graph, x = network(op, kernel, channels, most=110, beyond=2, narrow=narrow, filters=filters)
    (want,) = evaluate_graph(graph, [x])
    assert np.unique(want).size > 50
    program = build_program(graph, device.features, "cuda", half=True)
    stored = [k.name for k in program.kernels if "#define PER_PLACE(each) each(" in k.source]
    assert stored or kernel > 1 or filters % 16 or channels < 16
    np.testing.assert_array_equal(first_output(device, program, [x], want.shape, narrow.value), want)
