"""Elementwise kernels over operands and outputs in every layout, broadcast in every way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import Apply, Arg, DType, Elementwise, GraphBuilder, Literal, Reduce, apply
from litegpu.gpu.kernels import build
from litegpu.gpu.kernels.access import open_source
from litegpu.gpu.kernels.context import Context
from litegpu.gpu.lang import Features, Kernel
from litegpu.gpu.lang.wgsl import print_wgsl
from litegpu.gpu.view import View

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
    quad = open_source(Context(graph, graph.nodes[0], {}, Features()), k, x, {}).quad(0, 0, 0, 0)
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
        (launch,) = build(Context(graph, graph.nodes[0], views, Features()))
        return print_wgsl(launch.kernel, Features())

    assert text(0) == text(7)
