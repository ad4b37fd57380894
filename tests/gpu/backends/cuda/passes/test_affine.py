"""Lines of each channel in front of layers are part of their weights."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.passes.affine import fold_affine
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
    MatMul,
    apply,
)

SHAPE = (1, 2, 24, 16)
LINE = apply("add", apply("mul", Arg(0), Arg(1)), Arg(2))
RELU = apply("max", apply("add", RESULT, Arg(1)), 0.0)


def network(kind: str = "conv", line: Expr = LINE, *, read: bool = False) -> Graph:
    """x, a line of it, and a layer. `read`: the line is an output as well."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value(SHAPE, DType.FLOAT32)
    constants = [b.constant(rng.standard_normal((1, 1, 1, 16)).astype(np.float32)) for _ in range(2)]
    y = b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), line, [x, *constants])
    bias = b.constant(rng.standard_normal((1, 1, 1, 1)).astype(np.float32))
    if kind == "product":
        matrix = b.constant(rng.standard_normal((1, 1, 20, 24)).astype(np.float32))
        z = b.node(MatMul(), [matrix, y], b.value((1, 2, 20, 16), DType.FLOAT32), RELU, [bias])
    else:
        size = 3 if kind == "window" else 1
        weights = b.constant(rng.standard_normal((8, size, size, 16)).astype(np.float32))
        op = Conv2D(padding=(1, 1)) if kind == "window" else Conv2D()
        z = b.node(op, [y, weights], b.value((*SHAPE[:3], 8), DType.FLOAT32), RELU, [bias])
    return b.graph([x], [z, y] if read else [z])


@pytest.mark.parametrize("kind", ["conv", "product"])
@pytest.mark.parametrize("line", [
    LINE, apply("mul", Arg(1), apply("sub", Arg(0), Arg(2))), apply("sub", Arg(1), apply("mul", Arg(0), 3.0)),
    apply("add", Arg(0), apply("mul", Arg(1), Arg(2))),
])  # fmt: skip
def test_a_line_is_in_the_weights(kind: str, line: Expr) -> None:
    graph = network(kind, line)
    found = fold_affine(graph)
    assert len(found.nodes) == 1
    given = [np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)]
    want = evaluate_graph(graph, given)[0]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("graph", [
    network("window"), network(read=True), network(line=apply("max", LINE, 0.0)),
    network(line=apply("mul", Arg(0), apply("add", Arg(0), Arg(1)))),
])  # fmt: skip
def test_what_stays(graph: Graph) -> None:
    """Windows read zeros beside the picture; others read the line; what is bent, or a square."""
    assert fold_affine(graph) is graph
