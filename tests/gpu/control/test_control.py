"""IF and WHILE on the GPU, beside the official runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import BOOL, F32, I32, Shapes, around, below, branch, loop, one_more, random, scalar, while_lstm

from litegpu import GpuDelegate, Interpreter
from litegpu.gpu.control import trips
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

Graph = SubgraphBuilder
FOUR: tuple[int, ...] = (1, 4)


def compared(content: bytes, *, backend: str = "reference", delegated: bool = True, seeds: int = 3) -> None:
    """Both interpreters on random inputs."""
    delegate = GpuDelegate(backend=backend, max_delegated_partitions=0)
    mine = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    official = Official(model_content=content)
    for one in (mine, official):
        one.allocate_tensors()
    if delegated:
        assert mine.delegation_report().fully_delegated, mine.delegation_report()
    for seed in range(seeds):
        results: list[list[Any]] = []
        for one in (mine, official):
            for detail in one.get_input_details():
                value = random(*detail["shape"], seed=seed) * 3
                one.set_tensor(detail["index"], np.asarray(value).astype(detail["dtype"]))
            one.invoke()
            results.append([one.get_tensor(detail["index"]) for detail in one.get_output_details()])
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def counted(state: Shapes, rounds: int, body: Callable[[Graph, list[int]], list[int]], kinds: type = np.int32) -> bytes:
    """A loop over inputs like `state`, whose outputs are what becomes of them."""
    model = ModelBuilder()
    inputs = [model.input(f"x{i}", shape, type_) for i, (shape, type_) in enumerate(state)]

    def step(graph: Graph, v: list[int]) -> list[int]:
        return [one_more(graph, v[0]), *body(graph, v[1:])]

    made = loop(model, model, [scalar(model, 0), *inputs], [((), I32), *state], below(rounds), step)
    model.output(*made)
    return model.build()


def dense(graph: Graph, x: int, seed: int = 5) -> int:
    return graph.op("FULLY_CONNECTED", [x, graph.constant(random(4, 4, seed=seed)), None], FOUR)


def squashed(graph: Graph, v: list[int]) -> list[int]:
    return [graph.op("TANH", [dense(graph, v[0])], FOUR)]


def swapped(graph: Graph, v: list[int]) -> list[int]:
    return [v[1], graph.op("ADD", [v[0], v[1]], FOUR), v[2]]


def doubled(graph: Graph, v: list[int]) -> list[int]:
    y = graph.op("MUL", [v[0], v[1]], FOUR)
    return [y, y]


def several_kinds(graph: Graph, v: list[int]) -> list[int]:
    real, whole, truth = v
    flipped = graph.op("LOGICAL_NOT", [truth], (4,), type=BOOL)
    more = graph.op("ADD", [whole, graph.constant(np.arange(4, dtype=np.int32))], (4,))
    chosen = graph.op("SELECT_V2", [truth, real, graph.op("NEG", [real], (4,))], (4,), type=F32)
    return [graph.op("ADD", [chosen, scalar(graph, 0.5, np.float32)], (4,)), more, flipped]


def constants(graph: Graph, v: list[int]) -> list[int]:
    return [graph.constant(np.ones(FOUR, np.float32)), graph.op("ADD", [v[1], v[0]], FOUR)]


def nested_if(graph: Graph, v: list[int]) -> list[int]:
    total = graph.op("SUM", [v[0], graph.constant(np.array([0, 1], np.int32))], (), type=F32)
    predicate = graph.op("GREATER", [total, scalar(graph, 0.0, np.float32)], (), type=BOOL)
    model = MODELS[-1]

    def then(g: Graph, w: list[int]) -> list[int]:
        return [g.op("SUB", [w[0], scalar(g, 0.75, np.float32)], FOUR), w[0]]

    def otherwise(g: Graph, w: list[int]) -> list[int]:
        return [g.op("NEG", [w[0]], FOUR), g.op("EXP", [w[0]], FOUR)]

    a, b = branch(model, graph, predicate, [v[0]], [(FOUR, F32)], [(FOUR, F32)] * 2, then, otherwise)
    return [a, graph.op("ADD", [v[1], b], FOUR)]


def nested_loop(graph: Graph, v: list[int]) -> list[int]:
    def body(g: Graph, w: list[int]) -> list[int]:
        return [one_more(g, w[0]), g.op("MUL", [w[1], w[2]], FOUR), w[2]]

    state: Shapes = [((), I32), (FOUR, F32), (FOUR, F32)]
    _, y, _ = loop(MODELS[-1], graph, [scalar(graph, 0), v[0], v[1]], state, below(2), body)
    return [graph.op("TANH", [y], FOUR), graph.op("ADD", [v[1], y], FOUR)]


MODELS: list[ModelBuilder] = []
STATES: dict[Any, Shapes] = {
    squashed: [(FOUR, F32)],
    swapped: [(FOUR, F32)] * 3,
    doubled: [(FOUR, F32)] * 2,
    several_kinds: [((4,), F32), ((4,), I32), ((4,), BOOL)],
    constants: [(FOUR, F32)] * 2,
    nested_if: [(FOUR, F32)] * 2,
    nested_loop: [(FOUR, F32)] * 2,
}


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies add further subgraphs to the model that is being built."""
    plain = ModelBuilder.__init__

    def init(self: ModelBuilder, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        MODELS.append(self)

    monkeypatch.setattr(ModelBuilder, "__init__", init)


@pytest.mark.parametrize("rounds", [0, 1, 5])
@pytest.mark.parametrize("body", STATES, ids=lambda f: f.__name__)
def test_loops_of_known_length(body: Any, rounds: int) -> None:
    compared(counted(STATES[body], rounds, body))


@pytest.mark.parametrize("backend", ["webgpu"])
def test_on_a_driver(backend: str) -> None:
    for body in (swapped, several_kinds, nested_if, nested_loop):
        compared(counted(STATES[body], 4, body), backend=backend, seeds=2)
    compared(while_lstm(), backend=backend)
    compared(around("IF"), backend=backend)


def test_a_recurrent_layer_as_a_loop() -> None:
    compared(while_lstm(steps=7, units=5, features=3))


def test_branches() -> None:
    compared(around("IF"), seeds=6)


@pytest.mark.parametrize("truth", [False, True])
def test_a_branch_that_is_known(truth: bool) -> None:
    model = ModelBuilder()
    x = model.input("x", FOUR)
    known = model.constant(np.array(truth))
    made = branch(
        model, model, known, [x, model.constant(random(1, 4, seed=1))], [(FOUR, F32)] * 2, [(FOUR, F32)] * 3,
        lambda g, v: [g.op("ADD", [v[0], v[1]], FOUR), v[1], v[1]],
        lambda g, v: [g.op("SUB", [v[0], v[1]], FOUR), v[0], v[1]],
    )  # fmt: skip
    model.output(*made)
    compared(model.build())


def test_what_a_loop_was_given_may_be_read_behind_it() -> None:
    """And before, and be an output itself; so may the results of two loops."""
    model = ModelBuilder()
    x = model.input("x", FOUR)
    before = model.op("ABS", [x], FOUR)
    state: Shapes = [((), I32), (FOUR, F32)]

    def step(graph: Graph, v: list[int]) -> list[int]:
        return [one_more(graph, v[0]), graph.op("MUL", [v[1], scalar(graph, 0.5, np.float32)], FOUR)]

    count, first = loop(model, model, [scalar(model, 0), before], state, below(3), step)
    _, second = loop(model, model, [scalar(model, 1), first], state, below(3), step)
    _, third = loop(model, model, [scalar(model, 2), before], state, below(3), step)
    total = model.op("ADD", [model.op("ADD", [first, second], FOUR), model.op("ADD", [before, third], FOUR)], FOUR)
    model.output(total, before, count, second)
    compared(model.build())


def test_how_often_a_loop_runs_may_be_known_in_round_about_ways() -> None:
    """By two counters, of which one counts what the other has made, and a limit that is handed in."""
    model = ModelBuilder()
    x = model.input("x", FOUR)
    state: Shapes = [((), I32), ((1,), F32), ((), I32), (FOUR, F32)]

    def condition(graph: Graph, v: list[int]) -> list[int]:
        few = graph.op("LESS", [v[0], v[2]], (), type=BOOL)
        small = graph.op("LESS", [v[1], graph.constant(np.array([20.0], np.float32))], (1,), type=BOOL)
        small = graph.op("RESHAPE", [small, graph.constant(np.zeros(0, np.int32))], (), type=BOOL)
        return [graph.op("LOGICAL_AND", [few, small], (), type=BOOL)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        wider = graph.op("MUL", [v[1], graph.constant(np.array([1.5], np.float32))], (1,))
        return [one_more(graph, v[0]), wider, v[2], graph.op("ADD", [v[3], wider], FOUR)]

    given = [scalar(model, 0), model.constant(np.array([1.0], np.float32)), scalar(model, 100), x]
    made = loop(model, model, given, state, condition, body)
    model.output(*made)
    compared(model.build())


def test_reasons_for_the_cpu() -> None:
    def reason(content: bytes) -> str:
        delegate = GpuDelegate(backend="reference")
        mine = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
        return next(str(n.reason) for n in mine.delegation_report().nodes if n.op in ("WHILE", "IF"))

    def unknown(graph: Graph, v: list[int]) -> list[int]:
        return graph.custom("NobodyHasThis", [v[0]], [((1, 3), F32)])

    assert "in subgraph 2, which it calls" in reason(counted([((1, 3), F32)], 2, unknown))
    assert reason(counted([(FOUR, F32)], 4000, nested_loop_of_many)) == "None"


def test_rounds_that_would_be_too_long_are_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trips, "MOST_DISPATCHES", 6)
    for rounds in (0, 2, 5):
        compared(counted(STATES[swapped], rounds, swapped), backend="webgpu", seeds=2)
        compared(counted(STATES[nested_loop], rounds, nested_loop), seeds=2)


def nested_loop_of_many(graph: Graph, v: list[int]) -> list[int]:
    def body(g: Graph, w: list[int]) -> list[int]:
        return [one_more(g, w[0]), g.op("NEG", [w[1]], FOUR)]

    state: Shapes = [((), I32), (FOUR, F32)]
    return [loop(MODELS[-1], graph, [scalar(graph, 0), v[0]], state, below(4000), body)[1]]


def test_subgraphs_that_come_to_more_than_there_is_room_for() -> None:
    """IFs that call each other in 2^30 ways."""
    model = ModelBuilder()
    x = model.input("x", FOUR)
    graphs = [model.subgraph(f"g{i}") for i in range(31)]
    for i, graph in enumerate([model, *graphs[:-1]]):
        inner = x if graph is model else graph.input("x", FOUR)
        truth = graph.op("GREATER", [graph.op("SUM", [inner, graph.constant(np.array([0, 1], np.int32))], (), type=F32),
                                     scalar(graph, 0.0, np.float32)], (), type=BOOL)  # fmt: skip
        options = dict(then_subgraph_index=graphs[i].index, else_subgraph_index=graphs[i].index)
        graph.output(*graph.op_multi("IF", [truth, inner], [(FOUR, F32)], options))
    inner = graphs[-1].input("x", FOUR)
    graphs[-1].output(graphs[-1].op("NEG", [inner], FOUR))
    compared(model.build(), delegated=False, seeds=1)


def test_an_endless_loop_is_not_run_before_an_inference() -> None:
    """It would decide how often the loop around it runs."""
    model = ModelBuilder()

    def endless(graph: Graph, v: list[int]) -> list[int]:
        return [graph.op("GREATER_EQUAL", [v[0], v[0]], (), type=BOOL)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        inner = loop(model, graph, [v[0]], [((), I32)], endless, lambda g, w: [one_more(g, w[0])])
        return [inner[0]]

    model.output(*loop(model, model, [scalar(model, 0)], [((), I32)], below(3), body), model.input("x", FOUR))
    delegate = GpuDelegate(backend="reference")
    mine = Interpreter(model_content=model.build(), experimental_delegates=[delegate], fallback="silent")
    mine.preview_delegation()
    mine.allocate_tensors()


def test_parts_of_a_state_change_places() -> None:
    """Three rounds: on the CPU one part overwrites the other."""
    model, shape = ModelBuilder(), (2, 3)
    state: Shapes = [((), I32), (shape, F32), (shape, F32)]
    given = [scalar(model, 0), model.input("x", shape), model.input("y", shape)]
    made = loop(model, model, given, state, below(3), lambda g, v: [one_more(g, v[0]), v[2], v[1]])
    model.output(*made[1:])
    delegate = GpuDelegate(backend="reference", max_delegated_partitions=0)
    gpu = Interpreter(model_content=model.build(), experimental_delegates=[delegate])
    gpu.allocate_tensors()
    assert gpu.delegation_report().fully_delegated
    arrays = [random(2, 3), random(2, 3, seed=1)]
    for detail, array in zip(gpu.get_input_details(), arrays, strict=True):
        gpu.set_tensor(detail["index"], array)
    gpu.invoke()
    for detail, array in zip(gpu.get_output_details(), arrays[::-1], strict=True):
        np.testing.assert_array_equal(gpu.get_tensor(detail["index"]), array)
