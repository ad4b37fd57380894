"""Loops that set elements of lists as TensorFlow writes them, and shapes that only what is called tells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import BOOL, F32, I32, Shapes, below, branch, loop, one_more, random, scalar

from litegpu import GpuDelegate, Interpreter
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

Graph = SubgraphBuilder
ROUNDS = 4


def vector(graph: Graph, number: int, rest: Sequence[int]) -> int:
    lifted = graph.op("RESHAPE", [number, graph.constant(np.array([1], np.int32))], (1,), dict(new_shape=(1,)))
    if not rest:
        return lifted
    return graph.op("CONCATENATION", [lifted, graph.constant(np.array(rest, np.int32))], (1 + len(rest),), dict(axis=0))


def set_element(graph: Graph, row: int, x: int, i: int, element: Sequence[int], step: int = 1, behind: int = -1) -> int:
    """What is in front of an element, the element, and what is behind it: of sizes that are not known."""
    rank = 1 + len(element)
    zeros, ones = (graph.constant(np.full(rank, n, np.int32)) for n in (0, behind))
    following = graph.op("ADD", [i, scalar(graph, step)], ())
    open_ = (-1,) * rank
    front = graph.op("SLICE", [x, zeros, vector(graph, i, [-1] * (rank - 1))], open_, type=F32)
    back = graph.op("SLICE", [x, vector(graph, following, [0] * (rank - 1)), ones], open_, type=F32)
    sizes = graph.constant(np.array([1, *element], np.int32))
    lifted = graph.op("RESHAPE", [row, sizes], (1, *element), dict(new_shape=(1, *element)), type=F32)
    return graph.op("CONCATENATION", [front, lifted, back], (-1, *element), dict(axis=0), type=F32)


def listing(element: Sequence[int], begin: int = 0, open_list: bool = True, **odd: int) -> bytes:
    """A loop that sums rows up and lists the sums; the list has no known length in what is called."""
    model, element = ModelBuilder(), tuple(element)
    x = model.input("x", (ROUNDS, *element))
    length = -1 if open_list else ROUNDS
    state: Shapes = [((), I32), ((ROUNDS, *element), F32), (element, F32), ((length, *element), F32)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        i, rows, total, made = v
        row = graph.op("GATHER", [rows, i], element, dict(axis=0), type=F32)
        total = graph.op("ADD", [total, row], element)
        return [one_more(graph, i), rows, total, set_element(graph, total, made, i, element, **odd)]

    zeros = [model.constant(np.zeros(shape, np.float32)) for shape in (element, (ROUNDS, *element))]
    made = loop(model, model, [scalar(model, begin), x, *zeros], state, below(ROUNDS), body)
    model.output(model.op("TANH", [made[3]], (-1, *element), type=F32), made[2])
    return model.build()


def compared(content: bytes, backend: str = "reference", *, delegated: bool = True) -> None:
    delegate = GpuDelegate(backend=backend, max_delegated_partitions=0)
    mine = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    official = Official(model_content=content)
    for seed in range(2):
        results = []
        for one in (mine, official):
            one.allocate_tensors()
            for detail in one.get_input_details():
                value = random(*detail["shape"], seed=seed) * 3
                one.set_tensor(detail["index"], np.asarray(value).astype(detail["dtype"]))
            one.invoke()
            results.append([one.get_tensor(detail["index"]) for detail in one.get_output_details()])
        for found, wanted in zip(*results, strict=True):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    report = mine.delegation_report()
    loops = [n.reason for n in report.nodes if n.op in ("IF", "WHILE")]
    assert report.fully_delegated is delegated, report
    assert all((reason is None) is delegated for reason in loops)


@pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("open_list", [False, True])
def test_lists_are_updated(element: tuple[int, ...], open_list: bool) -> None:
    compared(listing(element, open_list=open_list))


def test_on_a_driver() -> None:
    compared(listing((3,)), "webgpu")


def test_what_is_no_update_is_left_as_it_is() -> None:
    """An element is inserted, so that the list grows; what is behind is not all of it, so that it ends there."""
    compared(listing((3,), step=0), delegated=False)
    compared(listing((), begin=ROUNDS - 1, behind=0), delegated=False)


def test_shapes_of_loops_and_branches_that_the_runtime_does_not_tell() -> None:
    """A single element at a computed place: the runtime does not look into what is called."""
    model, shape = ModelBuilder(), (6,)
    x = model.input("x", shape)

    def chosen(graph: Graph, v: list[int]) -> list[int]:
        begin, end = (vector(graph, i, []) for i in (v[0], one_more(graph, v[0])))
        ones = graph.constant(np.ones(1, np.int32))
        element = graph.op("STRIDED_SLICE", [v[1], begin, end, ones], (), dict(shrink_axis_mask=1), type=F32)
        return [graph.op("ABS", [element], ())]

    def nothing(graph: Graph, v: list[int]) -> list[int]:
        return [scalar(graph, 0.5, np.float32)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        positive = graph.op("GREATER", [v[2], scalar(graph, 1.0, np.float32)], (), type=BOOL)
        given: Shapes = [((), I32), (shape, F32)]
        (one,) = branch(model, graph, positive, v[:2], given, [((), F32)], chosen, nothing)
        return [one_more(graph, v[0]), v[1], graph.op("ADD", [v[2], one], ())]

    state: Shapes = [((), I32), (shape, F32), ((), F32)]
    made = loop(model, model, [scalar(model, 0), x, scalar(model, 0.0, np.float32)], state, below(6), body)
    model.output(model.op("EXP", [made[2]], ()))
    compared(model.build())


def test_branches_of_different_shapes_are_left_to_the_cpu() -> None:
    model = ModelBuilder()
    truth, x = model.input("truth", (), BOOL), model.input("x", (4, 3))

    def first(graph: Graph, v: list[int]) -> list[int]:
        numbers = [graph.constant(np.array(n, np.int32)) for n in ([0, 0], [2, 3])]
        return [graph.op("SLICE", [v[0], *numbers], (2, 3), type=F32)]

    def all_(graph: Graph, v: list[int]) -> list[int]:
        return [graph.op("NEG", [v[0]], (4, 3))]

    untrue = model.op("LOGICAL_NOT", [truth], (), type=BOOL)
    made = branch(model, model, untrue, [x], [((4, 3), F32)], [((-1, 3), F32)], first, all_)
    model.output(model.op("TANH", [made[0]], (-1, 3), type=F32))
    compared(model.build(), delegated=False)


def test_composites_in_loops() -> None:
    """They run as what they stand for, also where they are called."""
    model = ModelBuilder()
    x = model.input("x", (2, 3))
    silu = model.subgraph("silu")
    inner = silu.input("x", (2, 3))
    silu.output(silu.op("MUL", [inner, silu.op("LOGISTIC", [inner], (2, 3))], (2, 3)))
    attributes = dict(composite_attributes=(0, 0, 0x24, 1))  # an empty map

    def body(graph: Graph, v: list[int]) -> list[int]:
        options = dict(name="odml.silu", decomposition_subgraph_index=silu.index, version=1, **attributes)
        return [one_more(graph, v[0]), graph.op("STABLEHLO_COMPOSITE", [v[1]], (2, 3), options, type=F32)]

    state: Shapes = [((), I32), ((2, 3), F32)]
    model.output(loop(model, model, [scalar(model, 0), x], state, below(3), body)[1])
    compared(model.build())
