"""Convolutions of one value become one with the channels of all, where nothing has to be copied for it."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    MatMul,
    Pool2D,
    Reduce,
    Reshape,
    Slice,
    Transpose,
    apply,
    whole,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.siblings import join_siblings

BIAS = apply("add", RESULT, Arg(1))
RELU = apply("max", BIAS, 0.0)


class Layers(GraphBuilder):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def conv(self, x: int, outputs: int, epilogue: Expr = BIAS, *, size: int = 1, bias: int | None = None) -> int:
        shape = self.values[x].shape
        weights = self.constant(self.rng.standard_normal((outputs, size, size, shape[3])) / shape[3])
        bias = self.constant(self.rng.standard_normal(outputs)) if bias is None else bias
        y = self.value((*shape[:3], outputs), DType.FLOAT32)
        return self.node(Conv2D(padding=(size // 2, size // 2)), [x, weights], y, epilogue, [bias])

    def pooled(self, x: int) -> int:
        """What reads it with vectors."""
        return self.node(Pool2D("max", (1, 1), (1, 1)), [x], self.value(self.values[x].shape, DType.FLOAT32))


def joined(graph: Graph) -> Graph:
    """After a comparison of what both compute."""
    found = join_siblings(graph)
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(found, given), evaluate_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return found


def convolutions(graph: Graph) -> list[int]:
    return [graph.values[n.output].shape[3] for n in graph.nodes if isinstance(n.op, Conv2D)]


def test_queries_keys_and_values_are_one_product() -> None:
    """Each with a reshape of its own in front, and a scale behind the queries' bias; heads are views of the product."""
    b = Layers()
    x = b.value((1, 2, 5, 16), DType.FLOAT32)
    y, heads = b.pooled(x), []
    for scale in (0.25, 1.0, 1.0):
        flat = b.node(Copy((Reshape((1, 2, 5, 16), (1, 1, 10, 16)),)), [y], b.value((1, 1, 10, 16), DType.FLOAT32))
        product = b.conv(flat, 16, apply("mul", BIAS, scale) if scale != 1 else BIAS)
        steps = (Reshape((1, 1, 10, 16), (2, 5, 2, 8)), Transpose((0, 2, 1, 3)))
        heads.append(b.node(Copy(steps), [product], b.value((2, 2, 5, 8), DType.FLOAT32)))
    square = b.node(MatMul(transpose_b=True), heads[:2], b.value((2, 2, 5, 5), DType.FLOAT32))
    out = b.node(MatMul(), [square, heads[2]], b.value((2, 2, 5, 8), DType.FLOAT32))
    found = joined(b.graph([x], [out]))
    assert convolutions(found) == [48]
    assert len(build_program(found, Features()).dispatches) == 4


def test_functions_that_are_the_same() -> None:
    b = Layers()
    x = b.value((1, 4, 4, 8), DType.FLOAT32)
    parts = [b.conv(x, outputs, epilogue) for outputs, epilogue in ((8, RELU), (16, BIAS), (24, RELU))]
    assert convolutions(joined(b.graph([x], [b.pooled(v) for v in parts]))) == [32, 16]


@pytest.mark.parametrize("scale", [apply("div", BIAS, 3.0), apply("sub", 1.0, BIAS), apply("neg", BIAS)])
def test_factors_become_the_weights(scale: Apply) -> None:
    b = Layers()
    x = b.value((1, 4, 4, 8), DType.FLOAT32)
    parts = [b.conv(x, 8, epilogue) for epilogue in (scale, BIAS)]
    assert convolutions(joined(b.graph([x], [b.pooled(v) for v in parts]))) == [16]


def test_what_stays_apart() -> None:
    """Others windows, channels that do not fill groups, outputs of the graph, parts of a concatenation, and what is
    added that is no constant for each channel."""
    b = Layers()
    x = b.value((1, 4, 4, 8), DType.FLOAT32)
    image = b.constant(b.rng.standard_normal((1, 4, 4, 8)))
    apart = [b.conv(x, 8, size=3), b.conv(x, 12), b.conv(x, 8, bias=image)]
    output, part = b.conv(x, 8), b.conv(x, 8)
    whole = b.node(Concat(3), [part, b.pooled(x)], b.value((1, 4, 4, 16), DType.FLOAT32))
    graph = b.graph([x], [output, whole, *(b.pooled(v) for v in (*apart, b.conv(x, 8)))])
    assert joined(graph) is not None and len(convolutions(join_siblings(graph))) == 6
    assert not any(isinstance(n.op, Copy) and isinstance(n.op.steps[0], Slice) for n in join_siblings(graph).nodes)


class ByteLayers(GraphBuilder):
    """Layers of bytes with a bias, a factor for each channel, and limits that are those of bytes, or others."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.x = self.value((1, 3, 4, 24), DType.INT8)

    def layer(
        self, zero: int, outputs: int = 16, low: int = -128, input_zero: int = 3, kind: DType = DType.INT8
    ) -> int:
        weights = self.constant(self.rng.integers(-127, 128, (outputs, 1, 1, 24)).astype(np.int8), narrow=True)
        bias = self.constant(self.rng.integers(-500, 500, outputs).astype(np.int32))
        scale = self.constant(self.rng.uniform(0.001, 0.002, outputs).astype(np.float32))
        number = apply("small", apply("mul", apply("to_float32", apply("add", RESULT, Arg(1))), Arg(2)))
        high = low + 255
        kept = apply("nearest", apply("min", apply("max", number, float(low - zero)), float(high - zero)))
        y = self.value((1, 3, 4, outputs), kind)
        return self.node(
            IntegerConv2D(zero_point=input_zero), [self.x, weights], y, apply("add", kept, whole(zero)), [bias, scale]
        )


def test_layers_of_bytes_with_zero_points_of_their_own() -> None:
    b = ByteLayers()
    outputs = [b.layer(zero) for zero in (7, -20, 7)]
    graph = b.graph([b.x], [_read(b, v) for v in outputs])
    joined = join_siblings(graph)
    (layer,) = (node for node in joined.nodes if isinstance(node.op, IntegerConv2D))
    assert joined.values[layer.output].shape == (1, 3, 4, 48) and joined.values[layer.output].dtype is DType.INT8
    assert joined.values[layer.inputs[1]].dtype is DType.INT8
    data = [np.random.default_rng(1).integers(-128, 128, (1, 3, 4, 24)).astype(np.int8)]
    for got, want in zip(evaluate_graph(joined, data), evaluate_graph(graph, data), strict=True):
        assert len(np.unique(want)) > 30
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("changed", [
    {"outputs": 24}, {"low": 0}, {"input_zero": 4}, {"kind": DType.UINT8, "low": 0},
], ids=str)  # fmt: skip
def test_layers_of_bytes_that_stay_apart(changed: dict) -> None:
    """Of another width, with other limits, of other numbers, or of another type."""
    b = ByteLayers()
    graph = b.graph([b.x], [_read(b, b.layer(5)), _read(b, b.layer(-3, **changed))])
    assert sum(isinstance(node.op, IntegerConv2D) for node in join_siblings(graph).nodes) == 2


def _read(b: GraphBuilder, v: int) -> int:
    """A sum of the value, so that the value itself is no output."""
    shape = b.values[v].shape
    return b.node(Reduce("max", (1,)), [v], b.value((shape[0], 1, *shape[2:]), DType.INT32))
