"""The expected sizes of values against those that random inputs of size one have."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    MatMul,
    Op,
    Pad,
    Pool2D,
    Reduce,
    Reshape,
    Resize2D,
    Softmax,
    Transpose,
    TransposeConv2D,
    apply,
)
from litegpu.gpu.passes.sizes import expected_sizes

SHAPE = (1, 12, 10, 8)


class Net(GraphBuilder):
    """Ops one after the other."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.rng, self.scale = np.random.default_rng(0), scale
        self.x = self.last = self.value(SHAPE, DType.FLOAT32)

    def then(self, op: Op, shape: tuple[int, ...] = SHAPE, *more: int, epilogue=RESULT, operands=()) -> Net:
        y = self.value(shape, DType.FLOAT32)
        self.node(op, [] if isinstance(op, Elementwise) else [self.last, *more], y, epilogue, operands)
        self.last = y
        return self

    def weights(self, *shape: int) -> int:
        return self.constant(self.rng.standard_normal(shape) * self.scale)

    def done(self) -> Graph:
        return self.graph([self.x], [self.last])


def convolutions(scale: float) -> Net:
    net = Net(scale)
    relu = apply("max", apply("add", RESULT, Arg(1)), 0.0)
    for _ in range(3):
        bias = net.constant(net.rng.standard_normal(8) * scale)
        net.then(Conv2D(padding=(1, 1)), SHAPE, net.weights(8, 3, 3, 8), epilogue=relu, operands=[bias])
    return net


def network(name: str) -> Graph:
    net = Net()
    match name:
        case "convolutions" | "large" | "small":
            net = convolutions({"convolutions": 0.3, "large": 100.0, "small": 1e-5}[name])
        case "groups":
            net.then(Conv2D(groups=2, padding=(1, 1)), SHAPE, net.weights(8, 3, 3, 4))
        case "depthwise":
            net.then(DepthwiseConv2D(padding=(1, 1), multiplier=2), (1, 12, 10, 16), net.weights(1, 3, 3, 16))
        case "transposed":
            net.then(TransposeConv2D((2, 2), (0, 0)), (1, 24, 20, 4), net.weights(4, 2, 2, 8))
        case "means of squares":
            net.then(Reduce("mean", (1, 2), apply("mul", Arg(0), Arg(0))), (1, 1, 1, 8))
            net.then(Elementwise(), (1, 1, 1, 8), epilogue=apply("rsqrt", Arg(0)), operands=[net.last])
        case "moved":
            steps = (Pad((0, 1, 0, 0), (0, 1, 0, 0)), Reshape((1, 14, 10, 8), (1, 1, 140, 8)), Transpose((0, 1, 3, 2)))
            net.then(Copy(steps), (1, 1, 8, 140))
        case "joined":
            first = net.last
            net.then(Elementwise(), epilogue=apply("mul", Arg(0), 1e-3), operands=[first])
            net.then(Concat(3), (1, 12, 10, 16), first)
            net.then(Conv2D(), SHAPE, net.weights(8, 1, 1, 16))
        case "attention":
            net.then(Copy((Reshape(SHAPE, (1, 1, 120, 8)),)), (1, 1, 120, 8))
            keys = net.last
            net.then(MatMul(transpose_b=True), (1, 1, 120, 120), keys).then(Softmax(), (1, 1, 120, 120))
        case "pooled squares":
            net.then(Elementwise(), epilogue=apply("mul", Arg(0), 100.0), operands=[net.last])
            net.then(Pool2D("squares", (2, 2), (2, 2)), (1, 6, 5, 8))
        case "pools":
            net.then(Pool2D("max", (2, 2), (2, 2)), (1, 6, 5, 8)).then(Resize2D("nearest"), SHAPE)
    return net.done()


@pytest.mark.parametrize(
    "name",
    ["convolutions", "large", "small", "groups", "depthwise", "transposed", "means of squares", "moved", "joined",
     "attention", "pooled squares", "pools"],
)  # fmt: skip
def test_expected_sizes(name: str) -> None:
    """Within a factor of 8, where one that would matter is a thousand."""
    graph = network(name)
    sizes = expected_sizes(graph)
    values = {i: v.data for i, v in graph.values.items() if v.data is not None}
    values[graph.inputs[0]] = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
    for node in graph.nodes:
        found = values[node.output] = evaluate_node(node, values, graph)
        usual = float(np.sqrt(np.mean(found.astype(np.float64) ** 2, (0, 1, 2)).max()))
        largest = float(np.abs(found).max())
        assert usual / 8 <= sizes[node.output].usual <= 8 * usual, (name, node.op)
        assert largest / 8 <= sizes[node.output].largest <= 8 * largest, (name, node.op)


def test_inputs_are_as_large_as_calibration_says_and_no_smaller_than_one() -> None:
    builder = GraphBuilder()
    x = builder.value(SHAPE, DType.FLOAT32, tensor=3)
    y = builder.value(SHAPE, DType.FLOAT32)
    builder.node(Elementwise(), [], y, apply("mul", Arg(0), 2.0), [x])
    graph = builder.graph([x], [y])
    assert expected_sizes(graph)[y].usual == pytest.approx(2, rel=1e-3)
    assert expected_sizes(graph, {3: (-1e-6, 1e-6)})[y].usual == pytest.approx(2, rel=1e-3)
    assert expected_sizes(graph, {3: (-600.0, 10.0)})[y].usual == pytest.approx(600, rel=1e-3)
