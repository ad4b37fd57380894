"""RANDOM_UNIFORM and RANDOM_STANDARD_NORMAL with seeds: the official runtime's numbers, inference after inference."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, on_gpu, require_gpu, run
from control_models import below, branch, loop, one_more, scalar

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

OPERATORS = ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")


def drawn(operator: str, shape: tuple[int, ...], seed: int, seed2: int) -> bytes:
    b = ModelBuilder()
    x = b.input("x", shape)
    numbers = b.op(operator, [b.constant(np.array(shape, np.int32))], shape, dict(seed=seed, seed2=seed2))
    b.output(b.op("ADD", [x, numbers], shape))
    return b.build()


@pytest.mark.parametrize("seeds", [(5, 7), (0, 1), (1 << 40, (1 << 35) + 3)])
@pytest.mark.parametrize("shape", [(6,), (2, 3, 5), (301,)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_equals_the_cpu(operator: str, shape: tuple[int, ...], seeds: tuple[int, int]) -> None:
    require_gpu()
    content = drawn(operator, shape, *seeds)
    gpu, cpu = on_gpu(content, max_delegated_partitions=0), official(content)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    zeros = [np.zeros(shape, np.float32)]
    for i in range(3):
        (got,), (want,) = run(gpu, zeros), run(cpu, zeros)
        assert_agrees(got, want, FLOAT32, f"inference {i}")


@pytest.mark.parametrize("operator", OPERATORS)
def test_in_numpy(operator: str) -> None:
    content, zeros = drawn(operator, (7,), 3, 4), np.zeros(7, np.float32)
    graph, cpu = read_model(content).main, official(content)
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    groups = np.zeros((1, 1, 1, 1), np.int32)
    for _ in range(2):
        found, groups = evaluate_graph(lowered.graph, [zeros, groups])
        assert_agrees(found.reshape(7), run(cpu, [zeros])[0], FLOAT32)
    assert int(groups.reshape(())) == 4


def test_without_a_seed_it_is_left_to_the_cpu() -> None:
    graph = read_model(drawn("RANDOM_UNIFORM", (4,), 0, 0)).main
    assert "without a seed" in str(check_operator(graph, graph.operators[0]))


@pytest.mark.parametrize("kind", ["WHILE", "IF"])
def test_what_a_loop_or_a_branch_draws_is_left_to_the_cpu(kind: str) -> None:
    """The next inference goes on behind it, as often as it was passed."""
    require_gpu()
    model, shape = ModelBuilder(), (2, 3)
    x = model.input("x", shape)
    state: list[tuple[tuple[int, ...], TensorType]] = [((), TensorType.INT32), (shape, TensorType.FLOAT32)]

    def draw(graph: SubgraphBuilder, values: list[int]) -> list[int]:
        sizes = graph.constant(np.array(shape, np.int32))
        return [graph.op("ADD", [values[-1], graph.op("RANDOM_UNIFORM", [sizes], shape, dict(seed=3, seed2=4))], shape)]

    if kind == "WHILE":
        made = loop(model, model, [scalar(model, 0), x], state, below(3), lambda g, v: [one_more(g, v[0]), *draw(g, v)])
        model.output(made[1])
    else:
        predicate = model.op("GREATER", [model.op("REDUCE_MAX", [x, model.constant(np.array([0, 1], np.int32))], ()),
                                         scalar(model, 0.0, np.float32)], (), type=TensorType.BOOL)  # fmt: skip
        model.output(*branch(model, model, predicate, [x], state[1:], state[1:], draw, lambda g, v: v[-1:]))
    gpu, cpu = on_gpu(model.build(), max_delegated_partitions=0), official(model.build())
    assert "goes on from call to call" in gpu.delegation_report().summary()
    for sign in (1, 1, -1, 1):
        given = [np.full(shape, sign, np.float32)]
        assert_agrees(run(gpu, given)[0], run(cpu, given)[0], FLOAT32)


@pytest.mark.parametrize("operator", OPERATORS)
def test_beside_a_loop(operator: str) -> None:
    """Before it and behind it, of inference after inference."""
    require_gpu()
    model, shape = ModelBuilder(), (2, 3)
    state: list[tuple[tuple[int, ...], TensorType]] = [((), TensorType.INT32), (shape, TensorType.FLOAT32)]

    def draw(x: int, seed: int) -> int:
        sizes = model.constant(np.array(shape, np.int32))
        return model.op("ADD", [x, model.op(operator, [sizes], shape, dict(seed=seed, seed2=4))], shape)

    def body(graph: SubgraphBuilder, values: list[int]) -> list[int]:
        return [one_more(graph, values[0]), graph.op("TANH", [values[1]], shape)]

    start, x = model.input("start", (), TensorType.INT32), model.input("x", shape)
    made = loop(model, model, [start, draw(x, 3)], state, below(3), body)
    model.output(draw(made[1], 5))
    gpu, cpu = on_gpu(model.build(), max_delegated_partitions=0), official(model.build())
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    for i in range(4):
        given = [np.array(i, np.int32), np.full(shape, i, np.float32)]
        assert_agrees(run(gpu, given)[0], run(cpu, given)[0], FLOAT32, f"inference {i}")
