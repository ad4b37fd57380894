"""Convolutions in groups as fewer ones of bundles of groups, where that is quicker."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends import registry
from litegpu.gpu.backends.cuda.native import CudaNative
from litegpu.gpu.backends.cuda.passes.grouped import split_groups
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, Graph, GraphBuilder, Pool2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.layout import place

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
RELU = apply("max", apply("add", apply("mul", RESULT, Arg(2)), Arg(1)), 0.0)


def network(size: int, channels: int, groups: int, batch: int = 1, *, added: bool = False) -> Graph:
    rng, builder = np.random.default_rng(0), GraphBuilder()
    shape = (batch, size, size, channels)
    x = builder.value(shape, DType.FLOAT32)
    weights = builder.constant(rng.standard_normal((channels, 3, 3, channels // groups)) / 9)
    bias = x if added else builder.constant(rng.standard_normal(channels))
    operands = [bias, builder.constant(np.array(0.5, np.float32))]
    y = builder.value(shape, DType.FLOAT32)
    builder.node(Conv2D(padding=(1, 1), groups=groups), [x, weights], y, RELU, operands, [3])
    builder.node(Pool2D("max", (1, 1), (1, 1)), [y], builder.value(shape, DType.FLOAT32))
    return builder.graph([x], [builder.nodes[-1].output])


def widths(graph: Graph) -> list[int]:
    return [graph.values[n.output].shape[3] for n in graph.nodes if isinstance(n.op, Conv2D)]


@pytest.mark.parametrize(("size", "channels", "groups", "expected"), [
    (3, 512, 4, [512]), (3, 1024, 8, [512, 512]), (2, 768, 8, [384, 384]),
])  # fmt: skip
def test_bundles_compute_the_same(size: int, channels: int, groups: int, expected: list[int]) -> None:
    graph = network(size, channels, groups)
    found = split_groups(graph, CUDA)
    assert widths(found) == expected and all(n.op.groups == 1 for n in found.nodes if isinstance(n.op, Conv2D))
    assert all(n.sources == (3,) for n in found.nodes if not isinstance(n.op, Pool2D))
    given = [np.random.default_rng(1).standard_normal(found.values[found.inputs[0]].shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-5)


def test_large_batches_have_narrower_bundles_without_copies() -> None:
    """Zeros that are multiplied cost more there than kernels that are started."""
    found = split_groups(network(7, 960, 10, 64), CUDA)
    assert widths(found) == [192] * 5 and sum(isinstance(n.op, Concat) for n in found.nodes) == 1
    assert len(place(found, half=True).graph.nodes) == 6
    assert widths(split_groups(network(56, 128, 32, 64), CUDA)) == [128], (
        "groups of few channels have a kernel of their own"
    )


@pytest.mark.parametrize(("size", "channels", "groups", "batch", "expected"), [
    (28, 448, 8, 64, [56] * 8), (28, 448, 8, 1, [448]), (28, 240, 2, 64, [120] * 2), (14, 720, 6, 64, [240] * 3),
    (28, 240, 2, 1, [240]), (28, 256, 8, 64, [256]),
])  # fmt: skip
def test_wide_groups_are_convolutions_of_their_own_in_large_batches(
    size: int, channels: int, groups: int, batch: int, expected: list[int]
) -> None:
    """RegNet's groups of 56 and 120 channels; those of 56 have a kernel of their own in small batches, of 32 always."""
    found = split_groups(network(size, channels, groups, batch), CUDA)
    assert widths(found) == expected
    assert all(n.op.groups in (1, groups) for n in found.nodes if isinstance(n.op, Conv2D))


def test_what_stays() -> None:
    """Sums with another value, few channels, outputs of the graph; float32, and devices without tensor cores."""
    for graph in (network(3, 512, 4, added=True), network(8, 32, 4)):
        assert split_groups(graph, CUDA) is graph
    graph = network(3, 512, 4)
    output = GraphBuilder(dict(graph.values), list(graph.nodes[:1])).graph(graph.inputs, [graph.nodes[0].output])
    assert split_groups(output, CUDA) is output
    assert CudaNative().join_first(graph, CUDA, True) is not graph
    assert widths(CudaNative().join_first(graph, CUDA, False)) == [512]
    assert CudaNative().join_first(graph, Features(), True) is graph


def test_every_bundle_is_a_native_kernel() -> None:
    backend = registry.of_language("cuda")
    assert backend is not None
    program = build_program(network(7, 1024, 8, 8), CUDA, "cuda", half=True)
    assert sum("convolution" in program.kernels[d.kernel].name for d in program.dispatches) >= 2
    assert not any(program.kernels[d.kernel].name == "conv_2d" for d in program.dispatches)
