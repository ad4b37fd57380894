"""A mean over the pixels in front of a 1x1 convolution instead of behind it, where that gives the same."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Reduce,
    apply,
)
from litegpu.gpu.passes.fuse import fuse_elementwise
from litegpu.gpu.passes.squeezing import squeeze_first

BIAS = apply("add", RESULT, Arg(1))
RELU = apply("max", BIAS, 0.0)
MEAN = Reduce("mean", (1, 2))


def block(
    epilogue: Expr = BIAS,
    op: Conv2D | None = None,
    *,
    inputs: int = 8,
    outputs: int = 16,
    mean: Reduce = MEAN,
    squeezed: Expr = RELU,
    gated: bool = True,
    given: bool = False,
    twice: bool = False,
) -> Graph:
    """A residual block whose layer has a gate. `gated`: else the mean alone is used; `given`: the layer's result is the
    user's as well; `twice`: somebody else reads the mean."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    size = 1 if op is None or op.padding == (0, 0) else 3
    pixels = (2, 6, 5)

    def constant(*shape: int) -> int:
        return b.constant(rng.standard_normal(shape))

    x, past = b.value((*pixels, inputs), DType.FLOAT32), b.value((*pixels, outputs), DType.FLOAT32)
    op = op or Conv2D()
    out = tuple(-(-n // s) for n, s in zip(pixels[1:], op.stride, strict=True))
    y = b.value((2, *out, outputs), DType.FLOAT32)
    b.node(op, [x, constant(outputs, size, size, inputs)], y, epilogue, [constant(outputs)], [1])
    shape = tuple(1 if i in mean.axes else n for i, n in enumerate((2, *out, outputs)))
    m = b.node(mean, [y], b.value(shape, DType.FLOAT32), sources=[2])
    if not gated:
        return b.graph([x], [m, y] if given else [m])
    s = b.value((*shape[:3], 4), DType.FLOAT32)
    b.node(Conv2D(), [m, constant(4, 1, 1, outputs)], s, squeezed, [constant(4)], [3])
    g = b.value((*shape[:3], outputs), DType.FLOAT32)
    b.node(Conv2D(), [s, constant(outputs, 1, 1, 4)], g, apply("sigmoid", BIAS), [constant(outputs)], [4])
    product = apply("mul", Arg(0), Arg(1))
    z = b.node(Elementwise(), [], b.value((2, *out, outputs), DType.FLOAT32), product, [y, g], [5])
    whole = b.value((2, *out, outputs), DType.FLOAT32)
    added = apply("max", apply("add", Arg(0), Arg(1)), 0.0)
    b.node(Elementwise(), [], whole, added, [z, past], [6])
    return b.graph([x, past], [whole, *([y] if given else []), *([m] if twice else [])])


def same(graph: Graph, found: Graph) -> None:
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(found, given), evaluate_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epilogue", [BIAS, apply("mul", apply("sub", RESULT, Arg(1)), 0.5), RESULT])
@pytest.mark.parametrize("squeezed", [RELU, apply("mul", Arg(1), RESULT), apply("mul", BIAS, apply("sigmoid", BIAS))])
def test_the_gate_comes_first(epilogue: Expr, squeezed: Expr) -> None:
    graph = block(epilogue, squeezed=squeezed)
    found = squeeze_first(graph)
    assert [type(n.op) for n in found.nodes] == [Reduce, Conv2D, Conv2D, Conv2D, Elementwise, Elementwise]
    assert found.values[found.nodes[0].inputs[0]].shape[3] == 8
    assert found.nodes[1].sources == (1, 2, 3)
    same(graph, found)


def test_the_layer_then_multiplies_and_adds() -> None:
    graph = block()
    found = fuse_elementwise(squeeze_first(graph), 8)
    assert [type(n.op) for n in found.nodes] == [Reduce, Conv2D, Conv2D, Conv2D]
    assert found.nodes[-1].sources == (1, 5, 6)
    same(graph, found)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("inputs", [8, 24])
def test_a_mean_that_is_a_result(inputs: int, given: bool) -> None:
    """Of more channels it is taken first only where nobody reads what the layer gives."""
    graph = block(inputs=inputs, gated=False, given=given)
    found = squeeze_first(graph)
    if given and inputs > 16:
        assert found is graph
    else:
        assert [type(n.op) for n in found.nodes] == [Reduce, Conv2D, *([Conv2D] if given else [])]
    same(graph, found)


def test_a_mean_that_somebody_else_reads() -> None:
    graph = block(twice=True, given=True)
    found = squeeze_first(graph)
    assert [type(n.op) for n in found.nodes][:4] == [Reduce, Conv2D, Conv2D, Conv2D]
    same(graph, found)


def test_layers_after_one_another() -> None:
    """A layer that is moved, and reads the result of another that is."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((2, 6, 5, 8), DType.FLOAT32)
    results, y = [], x
    for i in range(3):
        layer = b.value((2, 6, 5, 16), DType.FLOAT32)
        channels = b.values[y].shape[3]
        b.node(Conv2D(), [y, b.constant(rng.standard_normal((16, 1, 1, channels)))], layer, sources=[2 * i])
        results.append(b.node(MEAN, [layer], b.value((2, 1, 1, 16), DType.FLOAT32), sources=[2 * i + 1]))
        y = layer
    graph = b.graph([x], [y, *results])
    found = squeeze_first(graph)
    assert found is not graph
    same(graph, found)


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(block(RELU), id="an activation"),
        pytest.param(block(op=Conv2D(padding=(1, 1))), id="a window"),
        pytest.param(block(op=Conv2D(stride=(2, 2))), id="a stride"),
        pytest.param(block(mean=Reduce("max", (1, 2))), id="a maximum"),
        pytest.param(block(mean=Reduce("mean", (1, 2, 3)), gated=False), id="over channels"),
        pytest.param(block(inputs=24), id="more channels"),
        pytest.param(block(apply("add", RESULT, apply("mul", RESULT, RESULT)), gated=False), id="a square"),
    ],
)
def test_what_stays(graph: Graph) -> None:
    assert squeeze_first(graph) is graph
