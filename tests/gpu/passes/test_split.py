"""Splitting large reductions keeps what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, DType, Graph, GraphBuilder, Reduce, apply
from litegpu.gpu.passes.split import split_reductions


def graph_of(kind: str, axes: tuple[int, ...], shape: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Graph:
    builder = GraphBuilder()
    x, m = builder.value(shape, dtype), builder.value((1, 1, 1, shape[3]), dtype)
    y = builder.value([1 if a in axes else n for a, n in enumerate(shape)], dtype)
    builder.node(Reduce(kind, axes, apply("sub", Arg(0), Arg(1))), [x, m], y, apply("add", RESULT, 1.0), sources=[4])
    return builder.graph([x, m], [y])


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(1, 2), (0, 1, 2), (1, 2, 3), (0, 1, 2, 3)])
def test_same_result_in_two_steps(kind: str, axes: tuple[int, ...]) -> None:
    graph = graph_of(kind, axes, (2, 65, 64, 6))
    split = split_reductions(graph)
    assert [n.op.axes if isinstance(n.op, Reduce) else n.op for n in split.nodes] == [
        tuple(a for a in axes if a != 1),
        (1,),
    ]
    assert all(n.sources == (4,) for n in split.nodes)
    inputs = [np.random.default_rng(1).uniform(1.9, 2.1, graph.values[v].shape) for v in graph.inputs]
    inputs[1] = inputs[1] - 1
    np.testing.assert_allclose(evaluate_graph(split, inputs)[0], evaluate_graph(graph, inputs)[0], rtol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "max", "prod"])
@pytest.mark.parametrize("shape", [(1, 3, 300, 1024), (2, 32, 130, 126), (1, 64, 128, 128)])
def test_channels_first_where_a_batch_lies_in_rows(kind: str, shape: tuple[int, ...]) -> None:
    """Norms over time and channels, of a batch of sounds."""
    graph = graph_of(kind, (2, 3), shape)
    split = split_reductions(graph)
    assert [n.op.axes for n in split.nodes if isinstance(n.op, Reduce)] == [(3,), (2,)]
    inputs = [np.random.default_rng(1).uniform(1.9, 2.1, graph.values[v].shape) for v in graph.inputs]
    inputs[1] = inputs[1] - 1
    np.testing.assert_allclose(evaluate_graph(split, inputs)[0], evaluate_graph(graph, inputs)[0], rtol=1e-4)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of("mean", (2, 3), (1, 3, 100, 1024)),  # soon done by all threads of a workgroup
        graph_of("mean", (2, 3), (1, 300, 100, 1024)),  # many results
        graph_of("mean", (2, 3), (1, 64, 1, 1 << 18)),  # one axis
        graph_of("mean", (1, 2), (1, 7, 7, 64)),  # soon done
        graph_of("mean", (2,), (1, 1, 9000, 4)),  # one axis
        graph_of("mean", (1, 2), (64, 64, 64, 64)),  # many results
        graph_of("mean", (1, 2), (1, 64, 64, 4), DType.INT32),  # rounds once only
    ],
)
def test_left_alone(graph: Graph) -> None:
    assert split_reductions(graph).nodes == graph.nodes


def test_many_results_do_not_fill_a_device_that_has_more_multiprocessors() -> None:
    """The first squeeze-and-excite of an EfficientNet at batch 64: 512 results, of 64 workgroups."""
    graph = graph_of("mean", (1, 2), (64, 112, 112, 32))
    assert len(split_reductions(graph, 132).nodes) == 2
    assert split_reductions(graph, 64).nodes == graph.nodes
    small = graph_of("mean", (1, 2), (64, 56, 56, 32))
    assert split_reductions(small, 132).nodes == small.nodes


def sums_of(kind: DType, shape: tuple[int, ...]) -> Graph:
    """The mean of bytes, as quantized networks have it."""
    builder = GraphBuilder()
    x = builder.value(shape, kind)
    scaled = apply("nearest", apply("mul", apply("to_float32", RESULT), 1 / (shape[1] * shape[2])))
    y = builder.node(Reduce("sum", (1, 2)), [x], builder.value((shape[0], 1, 1, shape[3]), kind), scaled, sources=[4])
    return builder.graph([x], [y])


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
def test_sums_of_bytes_stay_whole_numbers(kind: DType) -> None:
    graph = sums_of(kind, (2, 65, 64, 6))
    assert split_reductions(graph).nodes == graph.nodes
    split = split_reductions(graph, narrow=True)
    assert [n.op for n in split.nodes] == [Reduce("sum", (2,)), Reduce("sum", (1,))]
    assert split.values[split.nodes[0].output].dtype is DType.INT32
    limits = np.iinfo(np.dtype(kind.value))
    x = np.random.default_rng(0).integers(limits.min, limits.max + 1, (2, 65, 64, 6)).astype(kind.value)
    np.testing.assert_array_equal(evaluate_graph(split, [x])[0], evaluate_graph(graph, [x])[0])


def test_few_bytes_and_floats_are_left_alone() -> None:
    for graph in (sums_of(DType.INT8, (1, 28, 28, 24)), graph_of("sum", (1, 2), (2, 65, 64, 6))):
        assert split_reductions(graph, narrow=True).nodes == graph.nodes
