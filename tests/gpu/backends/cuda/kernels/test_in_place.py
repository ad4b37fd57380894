"""Kernels that write their results over what their epilogues read, beside themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.build import build_program
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Graph,
    GraphBuilder,
    Op,
    apply,
)

SAME = (1, 1)
#: The node, the shape of its weights, if any, and of what it reads: odd sizes, so that tiles reach beyond the end.
NODES: dict[str, tuple[Op, tuple[int, ...], tuple[int, int, int, int]]] = {
    "points": (Conv2D(), (64, 1, 1, 64), (3, 9, 7, 64)),
    "three rows at the end": (Conv2D(), (128, 1, 1, 64), (1, 5, 7, 64)),
    "one row at the end": (Conv2D(), (64, 1, 1, 64), (3, 11, 19, 64)),
    "few points": (Conv2D(), (64, 1, 1, 64), (1, 2, 2, 64)),
    "window": (Conv2D(padding=SAME), (32, 3, 3, 32), (2, 19, 17, 32)),
    "large window": (Conv2D(padding=SAME), (16, 3, 3, 16), (1, 96, 96, 16)),
    "divided": (Conv2D(padding=SAME), (512, 3, 3, 512), (1, 4, 4, 512)),
    "odd channels": (Conv2D(), (21, 1, 1, 12), (2, 9, 9, 12)),
    "depthwise": (DepthwiseConv2D(padding=SAME), (1, 3, 3, 24), (2, 17, 15, 24)),
}


def network(name: str) -> tuple[Graph, np.ndarray]:
    """x -> a -> b; what the node makes of b, plus a, RELU; twice that."""
    op, weights, shape = NODES[name]
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    outputs = (*shape[:3], weights[0] if isinstance(op, Conv2D) else shape[3])
    x = g.value(shape, DType.FLOAT32)

    def points(source: int, shape: tuple[int, ...]) -> int:
        matrix = rng.standard_normal((shape[3], 1, 1, g.values[source].shape[3])) / 8
        return g.node(Conv2D(), [source, g.constant(matrix)], g.value(shape, DType.FLOAT32))

    a = points(x, outputs)
    b = points(a, shape)
    inputs = [b, g.constant(rng.standard_normal(weights) / np.sqrt(np.prod(weights[1:])))]
    added = apply("max", apply("add", RESULT, Arg(1)), 0.0)
    c = g.node(op, inputs, g.value(outputs, DType.FLOAT32), added, [a])
    return g.graph([x], [points(c, outputs)]), rng.standard_normal(shape).astype(np.float32)


@pytest.mark.cuda
@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("name", NODES)
def test_the_same_bits(device, name: str, half: bool) -> None:
    graph, x = network(name)
    shape = graph.values[graph.outputs[0]].shape
    results = []
    for cache_bytes in (0, 64):
        features = dataclasses.replace(device.features, cache_bytes=cache_bytes)
        program = build_program(graph, features, "cuda", half=half)
        places = [[b.offset for b in d.bindings if b.space == "arena"] for d in program.dispatches]
        assert sum(len(set(found)) < len(found) for found in places) == (cache_bytes > 0)
        results.append(first_output(device, program, [x], shape).tobytes())
    assert results[0] == results[1]
