"""Parts of a product's rows that become one pixel of each image are read where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.graph import RESULT, Arg, Conv2D, Copy, DType, GraphBuilder, MatMul, Reshape, Slice, apply
from litegpu.gpu.passes.layout import place


@pytest.mark.parametrize("batch", [1, 16])
def test_factors_of_a_convolution(batch: int) -> None:
    """As the styles of all layers of a generator, which are one product."""
    b = GraphBuilder()
    x, style = b.value((batch, 4, 4, 8), DType.FLOAT32), b.value((1, 1, batch, 6), DType.FLOAT32)
    factors = b.value((1, 1, batch, 32), DType.FLOAT32)
    b.node(MatMul(), [style, b.constant(np.ones((1, 1, 6, 32)))], factors)
    steps = (Slice((0, 0, 0, 16), (1, 1, 1, 1), (1, 1, batch, 8)), Reshape((1, 1, batch, 8), (batch, 1, 1, 8)))
    own = b.node(Copy(steps), [factors], b.value((batch, 1, 1, 8), DType.FLOAT32))
    y = b.value((batch, 4, 4, 8), DType.FLOAT32)
    b.node(Conv2D(), [x, b.constant(np.ones((8, 1, 1, 8)))], y, apply("mul", RESULT, Arg(1)), [own])
    placed = place(b.graph([x, style], [y]), True)
    assert [type(n.op) for n in placed.graph.nodes] == [MatMul, Conv2D]
