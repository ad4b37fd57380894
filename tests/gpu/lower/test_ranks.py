"""Tensors of five and six axes: every operator that takes them, lowered and evaluated in NumPy against the official
runtime, and how their axes are joined."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, on_gpu, require_gpu, run
from lowered_case import check
from op_cases import CASES

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Copy, Elementwise, MatMul, Node, Reduce
from litegpu.gpu.lang import Features
from litegpu.gpu.lower import lower_partition, supported_ops
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.layout import place
from litegpu.model.types import Subgraph, TensorType
from litegpu.model.writer import ModelBuilder

#: The highest rank that the official kernel takes, where that is less than 6.
LIMITS = {"BATCH_MATMUL": 5, "PAD": 5, "PADV2": 5}
OPS = sorted(
    entry.op.name
    for entry in supported_ops()
    if entry.op.name in CASES and entry.gpu.ranks[1] > 4 and not entry.op.custom
)
PER_OP, PER_OP_FULL = 3, 60


@pytest.mark.parametrize("op", OPS)
def test_sample(op: str) -> None:
    _sweep(op, range(PER_OP))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_full(op: str) -> None:
    _sweep(op, range(PER_OP, PER_OP_FULL))


def _sweep(op: str, seeds: range) -> None:
    for rank in range(5, LIMITS.get(op, 6) + 1):
        for seed in seeds:
            check(CASES[op](random.Random(f"{op} {seed}"), most=rank), seed)


def graph_of(
    op: str, inputs: Sequence[Any], shape: tuple[int, ...], options: dict[str, Any] | None = None,
    type: TensorType = TensorType.FLOAT32,
) -> Subgraph:  # fmt: skip
    b = ModelBuilder()
    tensors = [b.constant(x) if isinstance(x, np.ndarray) else b.input(f"x{i}", x) for i, x in enumerate(inputs)]
    b.output(b.op(op, tensors, shape=shape, options=options, type=type))
    return b.graph()


def nodes_of(graph: Subgraph) -> tuple[Node, ...]:
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph
    return optimise(lowered, Features()).nodes


def test_axes_that_nothing_tells_apart_need_no_movement() -> None:
    """(2, 3, 4, 5, 6) is (6, 4, 5, 6) wherever both leading axes are whole, or repeated."""
    whole = (2, 3, 4, 5, 6)
    for other in (whole, (1, 1, 4, 5, 6), (4, 1, 6), (1, 1, 1, 1, 1), ()):
        (node,) = nodes_of(graph_of("ADD", [whole, other], whole))
        assert isinstance(node.op, Elementwise)


def test_repeated_axes_are_joined_with_their_like() -> None:
    """Of (2, 1, 4, 5, 6) the second axis repeats: two runs are told apart, and the rest are reshapes."""
    whole = (2, 3, 4, 5, 6)
    nodes = nodes_of(graph_of("ADD", [whole, (2, 1, 4, 5, 6)], whole))
    assert [type(n.op) for n in nodes].count(Elementwise) == 1
    assert all(isinstance(n.op, Elementwise | Copy) for n in nodes)


def test_what_does_not_fit_is_repeated_first() -> None:
    """Six axes that repeat in turn are six runs, where four fit."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3)))
    graph = graph_of("MUL", [a.shape, b.shape], (2, 3, 2, 3, 2, 3))
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    (got,) = evaluate_graph(lowered.graph, [a, b])
    np.testing.assert_array_equal(got.reshape(2, 3, 2, 3, 2, 3), a * b)


def test_a_reduction_of_alternate_axes_moves_them_together() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 3, 2, 3)).astype(np.float32)
    graph = graph_of("SUM", [x.shape, np.array([0, 2, 4], np.int32)], (3, 3, 3))
    (got,) = evaluate_graph(lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph, [x])
    np.testing.assert_allclose(got.reshape(3, 3, 3), x.sum((0, 2, 4)), rtol=1e-5)
    nodes = nodes_of(graph)
    assert [type(n.op) for n in nodes if isinstance(n.op, Reduce)] == [Reduce]


def test_matrices_keep_their_axes() -> None:
    graph = graph_of("BATCH_MATMUL", [(2, 3, 4, 5, 6), (2, 1, 4, 6, 7)], (2, 3, 4, 5, 7))
    assert sum(isinstance(n.op, MatMul) for n in nodes_of(graph)) == 1


def shuffle(b: ModelBuilder, x: int, shape: tuple[int, ...], groups: int) -> int:
    """ShuffleNet's channel shuffle as converters write it."""
    n, h, w, c = shape
    split, swapped = (n, h, w, groups, c // groups), (n, h, w, c // groups, groups)
    x = b.op("RESHAPE", [x, b.constant(np.array(split, np.int32))], shape=split)
    x = b.op("TRANSPOSE", [x, b.constant(np.array([0, 1, 2, 4, 3], np.int32))], shape=swapped)
    return b.op("RESHAPE", [x, b.constant(np.array(shape, np.int32))], shape=shape)


def shuffled_network() -> ModelBuilder:
    b, shape = ModelBuilder(), (1, 6, 6, 16)
    rng = np.random.default_rng(0)
    options = dict(stride_h=1, stride_w=1, padding="SAME")

    def convolution(x: int) -> int:
        weights = b.constant(rng.standard_normal((16, 1, 1, 16)).astype(np.float32))
        return b.op("CONV_2D", [x, weights, b.constant(np.zeros(16, np.float32))], shape=shape, options=options)

    x = convolution(b.input("x", shape))
    b.output(convolution(shuffle(b, x, shape, 2)))
    return b


def test_a_channel_shuffle_is_one_movement() -> None:
    graph = shuffled_network().graph()
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph
    placed = place(optimise(lowered, Features()), half=False)
    assert sum(isinstance(n.op, Copy) for n in placed.graph.nodes) <= 1
    assert len(placed.graph.nodes) <= 3


def test_a_channel_shuffle_on_the_gpu() -> None:
    require_gpu()
    content = shuffled_network().build()
    x = np.random.default_rng(1).standard_normal((1, 6, 6, 16)).astype(np.float32)
    interpreter = on_gpu(content, max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated
    (want,), (got,) = run(official(content), [x]), run(interpreter, [x])
    assert_agrees(got, want, FLOAT32)


ON_GPU = ("ADD", "BATCH_MATMUL", "CONCATENATION", "GATHER", "MEAN", "PACK", "SELECT_V2", "SOFTMAX", "STRIDED_SLICE",
          "TRANSPOSE", "TILE", "ONE_HOT")  # fmt: skip


@pytest.mark.parametrize("op", ON_GPU)
def test_sample_on_gpu(op: str) -> None:
    _sweep_on_gpu(op, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_full_on_gpu(op: str) -> None:
    _sweep_on_gpu(op, range(1, 12))


def _sweep_on_gpu(op: str, seeds: range) -> None:
    require_gpu()
    for rank in range(5, LIMITS.get(op, 6) + 1):
        for seed in seeds:
            case = CASES[op](random.Random(f"{op} {seed}"), most=rank)
            gpu = on_gpu(case.content, max_delegated_partitions=0)
            assert gpu.delegation_report().fully_delegated, f"{case.name}: {gpu.delegation_report().summary()}"
            wanted = run(official(case.content), case.inputs)
            for got, want in zip(run(gpu, case.inputs), wanted, strict=True):
                assert_agrees(got, want, FLOAT32, case.name)
