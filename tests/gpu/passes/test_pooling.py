"""A pooling in front of a 1x1 convolution instead of behind it, where that gives the same."""

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
    Pool2D,
    Reduce,
    apply,
)
from litegpu.gpu.passes.pooling import average_first, join_averages

BIAS = apply("add", RESULT, Arg(1))
POOL = Pool2D("average", (2, 2), (2, 2))


def network(
    epilogue: Expr = BIAS,
    pool: Pool2D = POOL,
    *,
    size: int = 1,
    outputs: int = 8,
    function: Expr = RESULT,
    shared: bool = False,
    spread: bool = False,
) -> Graph:
    rng, b = np.random.default_rng(0), GraphBuilder()
    x, y = b.value((2, 7, 6, 16), DType.FLOAT32), b.value((2, 7, 6, outputs), DType.FLOAT32)
    weights = b.constant(rng.standard_normal((outputs, size, size, 16)))
    added = b.constant(rng.standard_normal((1, 7, 6, outputs) if spread else outputs))
    b.node(Conv2D(padding=(size // 2, size // 2)), [x, weights], y, epilogue, [added], [1])
    height, width = (
        (n + 2 * p - w) // s + 1 for n, p, w, s in zip((7, 6), pool.padding, pool.window, pool.stride, strict=True)
    )
    z = b.node(pool, [y], b.value((2, height, width, outputs), DType.FLOAT32), function, (), [2])
    return b.graph([x], [z, y] if shared else [z])


@pytest.mark.parametrize("epilogue", [BIAS, apply("mul", apply("sub", RESULT, Arg(1)), 0.5), RESULT])
@pytest.mark.parametrize("pool", [POOL, Pool2D("average", (3, 3), (2, 2), (1, 1))])
def test_average_first(epilogue: Expr, pool: Pool2D) -> None:
    """Cells outside the input count for nothing, so that a bias stays what it is at the border as well."""
    graph = network(epilogue, pool)
    found = average_first(graph)
    assert [type(n.op) for n in found.nodes] == [Pool2D, Conv2D]
    assert found.nodes[-1].sources == (1, 2)
    given = [np.random.default_rng(1).standard_normal((2, 7, 6, 16)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "graph",
    [
        network(apply("max", BIAS, 0.0)),
        network(pool=Pool2D("max", (2, 2), (2, 2))),
        network(size=3),
        network(outputs=4),
        network(function=apply("tanh", RESULT)),
        network(shared=True),
        network(spread=True),
        network(pool=Pool2D("average", (3, 3), (1, 1), (1, 1))),
        network(apply("div", 1.0, RESULT)),
    ],
    ids=[
        "activation",
        "maximum",
        "window",
        "wide",
        "function",
        "output",
        "no constant of channels",
        "as many",
        "divisor",
    ],
)
def test_what_stays(graph: Graph) -> None:
    assert average_first(graph) is graph


NORM = apply("max", apply("add", apply("mul", Arg(1), Arg(0)), Arg(2)), 0.0)


def normalized(
    pool: Pool2D = POOL, expr: Expr = NORM, *, channels: int = 8, spread: bool = False, readers: int = 1
) -> Graph:
    rng, b = np.random.default_rng(0), GraphBuilder()
    x, y = (b.value((2, 6, 6, channels), DType.FLOAT32) for _ in range(2))
    factors = [b.constant(rng.standard_normal((1, 6, 6, channels) if spread else channels)) for _ in range(2)]
    b.node(Elementwise(), [], y, expr, [factors[0], x, factors[1]], [1])
    size = [(n + 2 * p - w) // s + 1 for n, p, w, s in zip((6, 6), pool.padding, pool.window, pool.stride, strict=True)]
    b.node(pool, [y], b.value((2, *size, channels), DType.FLOAT32), apply("neg", RESULT), (), [2])
    for _ in range(readers - 1):
        b.node(Reduce("mean", (1, 2)), [y], b.value((2, 1, 1, channels), DType.FLOAT32))
    return b.graph([x], [n.output for n in b.nodes[1:]])


@pytest.mark.parametrize("pool", [POOL, Pool2D("average", (3, 3), (3, 3), (1, 1))])
def test_averages_of_what_is_normalized(pool: Pool2D) -> None:
    graph = normalized(pool)
    found = join_averages(graph, 8)
    assert [type(n.op) for n in found.nodes] == [Pool2D] and found.nodes[0].sources == (1, 2)
    given = [np.random.default_rng(1).standard_normal((2, 6, 6, 8)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-5)
    assert len(join_averages(graph, 3).nodes) == 2  # buffers


@pytest.mark.parametrize(
    "graph",
    [
        normalized(Pool2D("max", (2, 2), (2, 2))),
        normalized(Pool2D("average", (3, 3), (2, 2))),  # elements that are read again
        normalized(channels=6),
        normalized(spread=True),
        normalized(readers=2),
    ],
    ids=["maximum", "overlapping", "padded channels", "no constants of channels", "other readers"],
)
def test_what_is_normalized_apart(graph: Graph) -> None:
    assert any(isinstance(n.op, Elementwise) for n in join_averages(graph, 8).nodes)
