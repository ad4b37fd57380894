"""A 1x1 convolution is divided into the parts of its channels where that stores less, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Slice,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.dividing import divide_layers

BIAS = apply("add", RESULT, Arg(1))
ADD = apply("add", Arg(0), Arg(1))


def dual_path(
    sizes: tuple[int, ...] = (32, 8),
    *,
    inputs: int = 16,
    size: int = 1,
    kept: bool = False,
    gap: int = 0,
    constant: bool = False,
    sums: int = 1,
    spread: bool = False,
) -> Graph:
    """A layer whose first channels are added to `past`, and whose others are joined to something. `gap`: channels that
    nobody reads; `kept`: the user has the layer's result as well; `sums`: values that are added; `spread`: the bias
    differs from pixel to pixel."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    pixels, whole = (2, 6, 5), sum(sizes) + gap

    def value(channels: int) -> int:
        return b.value((*pixels, channels), DType.FLOAT32)

    x, past, other = value(inputs), value(sizes[0]), value(8)
    weights = b.constant(rng.standard_normal((whole, size, size, inputs)))
    bias = b.constant(rng.standard_normal((1, 6, 5, whole) if spread else (1, 1, 1, whole)))
    y = b.node(Conv2D(padding=(size // 2,) * 2), [x, weights], value(whole), BIAS, [bias], [1])
    begin, parts = gap, list[int]()
    for n in sizes:
        step = Slice((0, 0, 0, begin), (1, 1, 1, 1), (*pixels, n))
        parts.append(b.node(Copy((step,)), [y], value(n), sources=[2 + len(parts)]))
        begin += n
    added = b.constant(rng.standard_normal((1, 1, 1, sizes[0]))) if constant else past
    total = parts[0]
    for _ in range(sums):
        total = b.node(Elementwise(), [], value(sizes[0]), ADD, [total, added], [9])
    joined = b.node(Concat(3), [other, *parts[1:]], value(8 + sum(sizes[1:])), sources=[10])
    return b.graph([x, past, other], [total, joined, *([y] if kept else [])])


def same(graph: Graph, found: Graph) -> None:
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(found, given), evaluate_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(32, 8), (8, 16, 8)])
@pytest.mark.parametrize("sums", [1, 2])
def test_a_sum_becomes_an_epilogue(sizes: tuple[int, ...], sums: int) -> None:
    graph = dual_path(sizes, sums=sums)
    found = divide_layers(graph)
    assert [type(n.op) for n in found.nodes] == [*[Conv2D] * len(sizes), *[Elementwise] * sums, Concat]
    assert [n.sources for n in found.nodes[:2]] == [(1, 2), (1, 3)]
    same(graph, found)
    fused = optimise(graph, Features())
    assert [type(n.op) for n in fused.nodes] == [Conv2D, Conv2D, Concat]  # neighbours are joined as one
    same(graph, fused)


def test_two_layers_whose_parts_are_added() -> None:
    """One sum can be the epilogue of one of them only; the other is divided if what is joined is worth it."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    pixels = (2, 6, 5)
    x = b.value((*pixels, 40), DType.FLOAT32)
    parts = []
    for number in range(2):
        weights = b.constant(rng.standard_normal((40, 1, 1, 40)))
        y = b.node(Conv2D(), [x, weights], b.value((*pixels, 40), DType.FLOAT32), sources=[3 * number])
        for begin, size in ((0, 32), (32, 8)):
            step = Slice((0, 0, 0, begin), (1, 1, 1, 1), (*pixels, size))
            parts.append(b.node(Copy((step,)), [y], b.value((*pixels, size), DType.FLOAT32), sources=[3 * number + 1]))
    total = b.node(Elementwise(), [], b.value((*pixels, 32), DType.FLOAT32), ADD, [parts[0], parts[2]])
    joined = b.node(Concat(3), [parts[1], parts[3]], b.value((*pixels, 16), DType.FLOAT32))
    graph = b.graph([x], [total, joined])
    found = divide_layers(graph)
    assert [type(n.op) for n in found.nodes] == [Conv2D, Copy, Copy, Conv2D, Conv2D, Elementwise, Concat]
    same(graph, found)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"inputs": 96}, id="reading the input again takes longer"),
        pytest.param({"size": 3}, id="a window"),
        pytest.param({"kept": True}, id="the whole is a result"),
        pytest.param({"gap": 8}, id="channels that nobody reads"),
        pytest.param({"constant": True}, id="no other value"),
        pytest.param({"sizes": (32, 4)}, id="no whole groups"),
        pytest.param({"sizes": (8, 8, 8, 8)}, id="many parts"),
        pytest.param({"spread": True}, id="a bias of each pixel"),
        pytest.param({"sums": 0}, id="no sum"),
    ],
)
def test_what_stays(given: dict[str, Any]) -> None:
    graph = dual_path(**given)
    assert divide_layers(graph) is graph
