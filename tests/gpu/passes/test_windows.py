"""Maxima of large windows, of columns first."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, DType, Graph, GraphBuilder, Pool2D, apply
from litegpu.gpu.passes import windows
from litegpu.gpu.passes.windows import split_windows


def network(op: Pool2D, size: int = 20, channels: int = 32, batch: int = 16) -> Graph:
    b = GraphBuilder()
    x = b.value((batch, size, size, channels), DType.FLOAT32)
    out = [(size + 2 * p - k) // s + 1 for k, s, p in zip(op.window, op.stride, op.padding, strict=True)]
    scale = b.constant(np.full((1, 1, 1, 1), 2, np.float32))
    y = b.value((batch, *out, channels), DType.FLOAT32)
    return b.graph([x], [b.node(op, [x], y, apply("mul", RESULT, Arg(1)), [scale])])


@pytest.mark.parametrize(
    "op",
    [
        Pool2D("max", (13, 13), (1, 1), (6, 6)), Pool2D("max", (9, 5), (1, 2), (4, 2)),
        Pool2D("max", (11, 12), (3, 1), (5, 0), outside=0.5),
    ],
)  # fmt: skip
def test_columns_first(op: Pool2D, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LEAST_SAVED", 1000)
    graph = network(op, batch=2)
    found = split_windows(graph)
    first, second = (n.op for n in found.nodes)
    assert isinstance(first, Pool2D) and isinstance(second, Pool2D)
    assert (first.window, second.window) == ((op.window[0], 1), (1, op.window[1]))
    given = [np.random.default_rng(0).standard_normal((2, 20, 20, 32)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0])


@pytest.mark.parametrize(("op", "batch", "split"), [
    (Pool2D("max", (13, 13), (1, 1), (6, 6)), 16, True), (Pool2D("max", (5, 5), (1, 1), (2, 2)), 1, False),
    (Pool2D("max", (3, 3), (2, 2), (1, 1)), 16, False), (Pool2D("average", (13, 13), (1, 1), (6, 6)), 16, False),
    (Pool2D("max", (1, 20), (1, 1)), 16, False),
    (Pool2D("max", (3, 3), (1, 1), (1, 1)), 64, False),  # neighbours share columns: as many loads
])  # fmt: skip
def test_which_pay(op: Pool2D, batch: int, split: bool) -> None:
    assert len(split_windows(network(op, 20, 256, batch)).nodes) == 1 + split
