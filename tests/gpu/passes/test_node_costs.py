"""Operations and bytes of the fused graph's nodes, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.graph import (
    Attention,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Gather,
    GraphBuilder,
    InvertedConv2D,
    MatMul,
    SeparableConv2D,
    Slice,
    TransposeConv2D,
)
from litegpu.gpu.graph.ops import Op
from litegpu.gpu.passes.costs import NodeCost, node_cost


def cost(op: Op, shapes: list[tuple[int, ...]], output: tuple[int, ...], *, half: bool = False) -> NodeCost:
    b = GraphBuilder()
    inputs = [b.value(shape, DType.FLOAT32) for shape in shapes]
    out = b.node(op, inputs, b.value(output, DType.FLOAT32))
    graph = b.graph(inputs, [out])
    return node_cost(graph, graph.nodes[0], half)


@pytest.mark.parametrize(
    ("op", "shapes", "output", "flops"),
    [
        (Conv2D(), [(1, 8, 8, 6), (10, 3, 3, 6)], (1, 8, 8, 10), 2 * 64 * 10 * 54),
        (Conv2D(groups=2), [(1, 8, 8, 6), (10, 3, 3, 3)], (1, 8, 8, 10), 2 * 64 * 10 * 27),
        (DepthwiseConv2D(), [(1, 8, 8, 6), (1, 3, 3, 6)], (1, 8, 8, 6), 2 * 64 * 6 * 9),
        (
            SeparableConv2D(DepthwiseConv2D()), [(1, 8, 8, 6), (1, 3, 3, 6), (10, 1, 1, 6)], (1, 8, 8, 10),
            2 * 64 * (6 * 9 + 10 * 6),
        ),
        (
            InvertedConv2D(DepthwiseConv2D((2, 2))), [(1, 8, 8, 6), (12, 1, 1, 6), (1, 1, 1, 12), (1, 3, 3, 12)],
            (1, 4, 4, 12), 2 * (64 * 6 * 12 + 16 * 12 * 9),
        ),
        (
            InvertedConv2D(DepthwiseConv2D()),
            [(1, 8, 8, 6), (12, 1, 1, 6), (1, 1, 1, 12), (1, 3, 3, 12), (1, 1, 1, 12), (10, 1, 1, 12)], (1, 8, 8, 10),
            2 * 64 * (6 * 12 + 12 * 9 + 12 * 10),
        ),
        (TransposeConv2D((2, 2)), [(1, 4, 4, 6), (10, 2, 2, 6)], (1, 8, 8, 10), 2 * 16 * 6 * 10 * 4),
        (MatMul(), [(1, 2, 5, 7), (1, 2, 7, 3)], (1, 2, 5, 3), 2 * 2 * 5 * 3 * 7),
        (MatMul(transpose_a=True), [(1, 2, 7, 5), (1, 2, 7, 3)], (1, 2, 5, 3), 2 * 2 * 5 * 3 * 7),
        (Attention(), [(1, 2, 5, 8), (1, 2, 9, 8), (1, 2, 9, 4)], (1, 2, 5, 4), 2 * 2 * 5 * 9 * (8 + 4)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, (list, tuple, int)) else "",
)  # fmt: skip
def test_operations_and_bytes(op: Op, shapes: list[tuple[int, ...]], output: tuple[int, ...], flops: int) -> None:
    elements = sum(int(np.prod(shape)) for shape in (*shapes, output))
    assert cost(op, shapes, output) == NodeCost(flops, 4 * elements)
    assert cost(op, shapes, output, half=True) == NodeCost(flops, 2 * elements)


def test_what_chooses_reads_what_it_writes() -> None:
    steps = (Slice((0, 0, 0, 0), (1, 1, 1, 1), (1, 2, 2, 4)),)
    assert cost(Copy(steps), [(1, 8, 8, 4)], (1, 2, 2, 4)) == NodeCost(0, 4 * 2 * 16)
    b = GraphBuilder()
    x, indices = b.value((1, 1, 100, 8), DType.FLOAT32), b.value((1, 1, 1, 2), DType.INT32)
    out = b.node(Gather(1, 1, 100, 8, 2), [x, indices], b.value((1, 1, 2, 8), DType.FLOAT32))
    graph = b.graph([x, indices], [out])
    assert node_cost(graph, graph.nodes[0], True) == NodeCost(0, 2 * 16 + 2 * 16 + 4 * 2)
