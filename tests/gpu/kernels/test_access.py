"""Elementwise kernels over operands and outputs in every layout, broadcast in every way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node

from litegpu.gpu.backends.webgpu.printer import print_wgsl
from litegpu.gpu.graph import Apply, Arg, DType, Elementwise, GraphBuilder, Literal, Reduce, apply
from litegpu.gpu.kernels.access import open_source
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang import Features, Kernel
from litegpu.gpu.lang.interpret import run as interpret
from litegpu.gpu.lang.ops import NUMPY
from litegpu.gpu.view import View, packed

CHANNELS = (1, 3, 4, 5, 17)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize(("source", "target"), [(a, b) for a, b in itertools.product(LAYOUTS, LAYOUTS)])
def test_layouts(source: str, target: str, channels: int, rng: np.random.Generator) -> None:
    shape = (2, 3, 5, channels)
    builder = GraphBuilder()
    a, b, y = (builder.value(shape, DType.FLOAT32) for _ in range(3))
    # exp(0) is not 0, so unmasked padding shows
    builder.node(Elementwise(), [], y, apply("exp", apply("sub", Arg(0), Arg(1))), [a, b])
    views = {
        a: LAYOUTS[source](0, shape, DType.FLOAT32),
        b: LAYOUTS["padded"](1, shape, DType.FLOAT32),
        y: LAYOUTS[target](2, shape, DType.FLOAT32),
    }
    check_node(builder, {a: rng.standard_normal(shape), b: rng.standard_normal(shape)}, views=views, interpret=True)


@pytest.mark.parametrize("channels", (3, 8))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_float16(layout: str, channels: int, rng: np.random.Generator) -> None:
    shape = (2, 3, 5, channels)
    builder = GraphBuilder()
    a, y = (builder.value(shape, DType.FLOAT32) for _ in range(2))
    builder.node(Elementwise(), [], y, apply("mul", Arg(0), 3.0), [a])
    views = {a: LAYOUTS[layout](0, shape, DType.FLOAT16), y: LAYOUTS[layout](1, shape, DType.FLOAT32)}
    check_node(builder, {a: rng.standard_normal(shape)}, views=views, interpret=True)
    views = {a: LAYOUTS["packed"](0, shape, DType.FLOAT32), y: LAYOUTS[layout](1, shape, DType.FLOAT16)}
    check_node(builder, {a: rng.standard_normal(shape)}, views=views, tolerance=1e-3, interpret=True)


@pytest.mark.parametrize("channels", (1, 3, 8))
@pytest.mark.parametrize("mask", list(itertools.product((0, 1), repeat=4)))
@pytest.mark.parametrize("constant", (False, True))
def test_broadcast(mask: tuple[int, ...], channels: int, constant: bool, rng: np.random.Generator) -> None:
    shape = (2, 3, 4, channels)
    other = tuple(n if keep else 1 for n, keep in zip(shape, mask, strict=True))
    builder = GraphBuilder()
    a, y = (builder.value(shape, DType.FLOAT32) for _ in range(2))
    data = rng.standard_normal(other).astype(np.float32)
    b = builder.constant(data) if constant else builder.value(other, DType.FLOAT32)
    builder.node(Elementwise(), [], y, apply("sub", apply("exp", Arg(1)), Arg(0)), [a, b])
    inputs = {a: rng.standard_normal(shape)} | ({} if constant else {b: data})
    check_node(builder, inputs, packed_values=(a,) if channels == 3 else (), interpret=True)


def test_both_sides_broadcast(rng: np.random.Generator) -> None:
    builder = GraphBuilder()
    a, b = builder.value((1, 3, 1, 5), DType.FLOAT32), builder.value((2, 1, 4, 1), DType.FLOAT32)
    y = builder.value((2, 3, 4, 5), DType.FLOAT32)
    builder.node(Elementwise(), [], y, apply("add", Arg(0), Arg(1)), [a, b])
    check_node(builder, {a: rng.standard_normal((1, 3, 1, 5)), b: rng.standard_normal((2, 1, 4, 1))}, interpret=True)


def test_one_memory_read_and_written_through_two_views(rng: np.random.Generator) -> None:
    shape = (1, 2, 3, 4)
    builder = GraphBuilder()
    a, y = (builder.value(shape, DType.FLOAT32) for _ in range(2))
    builder.node(Elementwise(), [], y, apply("mul", Arg(0), 2.0), [a])
    halves = [View(0, shape, (48, 12, 4, 1), DType.FLOAT32, 24 * i, zero_padded=True, size=48) for i in range(2)]
    check_node(builder, {a: rng.standard_normal(shape)}, views={a: halves[0], y: halves[1]}, interpret=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_int_and_bool(layout: str, rng: np.random.Generator) -> None:
    shape = (2, 3, 5, 6)
    builder = GraphBuilder()
    a = builder.value(shape, DType.INT32)
    m, y = (builder.value(shape, DType.BOOL) for _ in range(2))
    expr = Apply("logical_or", (Apply("logical_not", (Arg(1),)), Apply("ge", (Arg(0), Literal(3, DType.INT32)))))
    builder.node(Elementwise(), [], y, expr, [a, m])
    views = {v: LAYOUTS[layout](i, shape, builder.values[v].dtype) for i, v in enumerate((a, m, y))}
    check_node(builder, {a: rng.integers(-9, 9, shape), m: rng.integers(0, 2, shape) > 0}, views=views, interpret=True)


def test_constant_bool_and_int_operands(rng: np.random.Generator) -> None:
    shape = (1, 2, 3, 5)
    builder = GraphBuilder()
    a, y = (builder.value(shape, DType.INT32) for _ in range(2))
    condition = builder.constant(np.arange(5) % 2 == 0)
    bias = builder.constant(np.arange(5, dtype=np.int32))
    builder.node(Elementwise(), [], y, Apply("select", (Arg(1), Arg(0), Arg(2))), [a, condition, bias])
    check_node(builder, {a: rng.integers(-9, 9, shape)}, interpret=True)


def test_padding_of_a_constant_of_one_element_reads_as_zero() -> None:
    """Ops that combine channels rely on it."""
    builder = GraphBuilder()
    x, y = builder.constant(np.full((1, 1, 1, 1), 3.0)), builder.value((1, 1, 1, 1), DType.FLOAT32)
    builder.node(Reduce("sum", (3,), Arg(0)), [x], y)
    graph = builder.graph([], [y])
    k = Kernel("k")
    quad = open_source(KernelContext(graph, graph.nodes[0], {}, Features()), k, x, {}).quad(0, 0, 0, 0)
    assert [quad[j].constant for j in range(4)] == [3.0, 0.0, 0.0, 0.0]


def test_equal_layers_share_one_text() -> None:
    def text(root: int) -> str:
        builder = GraphBuilder()
        a, y = (builder.value((1, 2, 3, 5), DType.FLOAT32) for _ in range(2))
        builder.node(
            Elementwise(), [], y, apply("add", Arg(0), Arg(1)), [a, builder.constant(np.full(5, root, np.float32))]
        )
        graph = builder.graph([a], [y])
        views = {a: LAYOUTS["padded"](root, (1, 2, 3, 5), DType.FLOAT32)}
        views[y] = LAYOUTS["padded"](root + 1, (1, 2, 3, 5), DType.FLOAT32)
        (launch,) = build(KernelContext(graph, graph.nodes[0], views, Features()))
        assert isinstance(launch.kernel, Kernel)
        return print_wgsl(launch.kernel, Features())

    assert text(0) == text(7)


NARROW: dict[DType, type[np.integer]] = {DType.INT8: np.int8, DType.UINT8: np.uint8, DType.INT16: np.int16}


def run_narrow(source: DType, target: DType, data: np.ndarray) -> np.ndarray:
    """`data` [1,1,W,C] copied from one type to another by a kernel in the language's interpreter."""
    builder = GraphBuilder()
    x, y = builder.value(data.shape, source), builder.value(data.shape, target)
    builder.node(Elementwise(), [], y, Arg(0), [x])
    graph = builder.graph([x], [y])
    views = {v: packed(i, data.shape, t, written=bool(i)) for i, (v, t) in enumerate(((x, source), (y, target)))}
    (launch,) = build(KernelContext(graph, graph.nodes[0], views, Features()))
    memory = {}
    for view, values in ((views[x], data), (views[y], None)):
        raw = np.zeros(view.size, NARROW.get(view.dtype, np.int32))
        if values is not None:
            raw[: values.size] = values.ravel()
        memory[view.root] = np.frombuffer(bytearray(raw.tobytes()), np.uint8)
    arrays = {}
    assert isinstance(launch.kernel, Kernel)
    for m in launch.kernel.buffers:
        operand = launch.operands[m.name]
        assert isinstance(operand, View)
        arrays[m.name] = memory[operand.root].view(NUMPY[m.storage.kind])
    interpret(launch.kernel, arrays)
    found = memory[views[y].root].view(NARROW.get(target, np.int32))
    return found[: data.size].reshape(data.shape)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.value)
@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (1, 1, 2, 8), (1, 1, 1, 7), (1, 1, 2, 3)])
def test_narrow_numbers_are_read_with_their_signs(dtype: DType, shape: tuple[int, ...]) -> None:
    """In every place of a word, by fours and one by one."""
    limits = np.iinfo(NARROW[dtype])
    for shift in range(4):
        cycle = np.roll([limits.min, -1 % (limits.max + 1) if limits.min == 0 else -1, limits.max, 1], shift)
        data = np.resize(cycle, shape).astype(NARROW[dtype])
        np.testing.assert_array_equal(run_narrow(dtype, DType.INT32, data), data.astype(np.int32))


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.value)
@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (1, 1, 1, 7)])
def test_what_narrow_types_do_not_hold_is_cut_to_their_limits(dtype: DType, shape: tuple[int, ...]) -> None:
    limits = np.iinfo(NARROW[dtype])
    for shift in range(5):
        cycle = np.roll([limits.min, limits.min - 1, limits.max, limits.max + 1, 1], shift)
        data = np.resize(cycle, shape).astype(np.int32)
        np.testing.assert_array_equal(run_narrow(DType.INT32, dtype, data), np.clip(data, limits.min, limits.max))
