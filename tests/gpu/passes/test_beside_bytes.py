"""Floats between bytes, or between bytes and a border of the graph: float32 in whole numbers, on every device."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_cuda, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Elementwise, GraphBuilder, Literal, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.beside_bytes import values_beside_bytes
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType

SHAPE = (1, 4, 4, 8)


def to_float(builder: GraphBuilder, x: int) -> int:
    real = builder.value(SHAPE, DType.FLOAT32)
    return builder.node(Elementwise(), (), real, apply("to_float32", Arg(0)), [x])


def to_bytes(builder: GraphBuilder, x: int) -> int:
    stored = builder.value(SHAPE, DType.INT8)
    return builder.node(Elementwise(), (), stored, apply("nearest", Arg(0)), [x])


def twice(builder: GraphBuilder, x: int) -> int:
    return builder.node(Elementwise(), (), builder.value(SHAPE, DType.FLOAT32), apply("mul", Arg(0), 2.0), [x])


def product(builder: GraphBuilder, x: int) -> int:
    weights = builder.constant(np.ones((8, 1, 1, 8), np.float32))
    return builder.node(Conv2D(), [x, weights], builder.value(SHAPE, DType.FLOAT32), RESULT)


def test_what_is_between_bytes_and_bytes_or_a_border() -> None:
    builder = GraphBuilder()
    x, y = builder.value(SHAPE, DType.INT8), builder.value(SHAPE, DType.FLOAT32)
    behind = to_float(builder, x)
    more = twice(builder, behind)
    out = to_bytes(builder, more)
    before = twice(builder, y)
    made = to_bytes(builder, before)
    assert set(values_beside_bytes(builder.graph([x, y], [out, made]))) == {behind, more, before}


def test_products_are_asked_for_in_float16() -> None:
    builder = GraphBuilder()
    x = builder.value(SHAPE, DType.INT8)
    real = product(builder, twice(builder, to_float(builder, x)))
    out = to_bytes(builder, twice(builder, real))
    assert not values_beside_bytes(builder.graph([x], [out]))


def test_kernels_keep_products_and_sums_apart() -> None:
    builder = GraphBuilder()
    x = builder.value(SHAPE, DType.INT8)
    y = builder.node(
        Elementwise(), (), builder.value(SHAPE, DType.INT8), apply("add", Arg(0), Literal(1, DType.INT32)), [x]
    )  # fmt: skip
    graph = builder.graph([x], [y])
    for integer in (False, True):
        program = build_program(graph, Features(native="cuda", capability=90), "cuda", integer=integer)
        assert [k.options for k in program.kernels] == [("--fmad=false",) if integer else ()]


def network() -> tuple[bytes, list[np.ndarray]]:
    m, n = ModelBuilder(), np.random.default_rng(0)
    shape, small = (1, 16, 16, 8), (1, 15, 15, 8)

    def numbers(*sizes: int) -> int:
        return m.constant(n.uniform(0.5, 1.5, sizes).astype(np.float32))

    x = m.input("x", shape, TensorType.INT8, quantization=quantized(0.031, 3))
    y = m.tensor(shape, TensorType.FLOAT32, "real")
    m.node("DEQUANTIZE", [x], [y])
    y = m.op("ADD", [m.op("MUL", [y, numbers(8)], shape), numbers(1, 16, 16, 1)], shape)
    y = m.op("TRANSPOSE", [y, m.constant(np.array([0, 2, 1, 3], np.int32))], shape)
    window = dict(filter_height=2, filter_width=2, stride_h=1, stride_w=1, padding=1)
    y = m.op("MAX_POOL_2D", [y], small, window)
    y = m.op("SUB", [m.op("MUL", [y, y], small), numbers(8)], small)
    q = m.tensor(small, TensorType.INT8, "q", quantization=quantized(0.09, -20))
    m.node("QUANTIZE", [y], [q])
    for t in (q, y):
        m.output(t)
    return m.build(), [n.integers(-128, 128, shape).astype(np.int8)]


def check(**options: object) -> None:
    content, inputs = network()
    gpu = on_gpu(content, arithmetic="integer", precision_loss_allowed=True, **options)
    assert gpu.delegation_report().fully_delegated
    for got, want in zip(run(gpu, inputs), run(official(content, OpResolverType.BUILTIN), inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_on_webgpu() -> None:
    require_gpu()
    check()


@pytest.mark.cuda
def test_on_cuda() -> None:
    require_cuda()
    check(backend="cuda")
