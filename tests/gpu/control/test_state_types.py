"""What is handed to subgraphs, and comes from them, in every type: beside the official runtime."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import I32, Shapes, branch, loop, scalar

from litegpu import GpuDelegate, Interpreter
from litegpu.model.reader import DTYPES
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

Graph = SubgraphBuilder
T = TensorType
I64 = T.INT64
KINDS = [T.INT64, T.UINT32, T.UINT16, T.INT16, T.INT8, T.UINT8, T.BOOL, T.FLOAT16, T.FLOAT64, T.UINT64, T.COMPLEX64]


def values(kind: TensorType, *shape: int) -> np.ndarray:
    numbers = np.arange(int(np.prod(shape))).reshape(shape) + 1
    return np.asarray(numbers + 2**40 * (kind is I64)).astype(DTYPES[kind]) if kind is not T.BOOL else numbers % 2 == 0


def compared(content: bytes, feeds: list[list[np.ndarray]], backend: str = "reference") -> None:
    delegate = GpuDelegate(backend=backend, max_delegated_partitions=0)
    mine = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    official = Official(model_content=content)
    for one in (mine, official):
        one.allocate_tensors()
    assert mine.delegation_report().fully_delegated, mine.delegation_report()
    for feed in feeds:
        results = []
        for one in (mine, official):
            for detail, value in zip(one.get_input_details(), feed, strict=True):
                one.set_tensor(detail["index"], value)
            one.invoke()
            results.append([one.get_tensor(detail["index"]) for detail in one.get_output_details()])
        for found, wanted in zip(*results, strict=True):
            assert np.asarray(found).dtype == np.asarray(wanted).dtype
            np.testing.assert_array_equal(found, wanted)


def rounds(kind: TensorType, shape: tuple[int, ...], *, known: bool, constant: bool) -> tuple[bytes, list[np.ndarray]]:
    """A loop with a counter of 64 bits, in which two parts of a state change places."""
    model = ModelBuilder()
    count = scalar(model, 2, np.int64) if known else model.input("count", (), I64)
    x = model.input("x", shape, kind)
    data = values(kind, *shape)
    y = model.constant(data[..., ::-1], type=kind) if constant else model.input("y", shape, kind)
    state: Shapes = [((), I64), (shape, kind), (shape, kind), ((), I32)]

    def condition(graph: Graph, v: list[int]) -> list[int]:
        return [graph.op("LESS", [v[0], scalar(graph, 5, np.int64)], (), type=T.BOOL)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        more = graph.op("ADD", [v[0], scalar(graph, 1, np.int64)], ())
        sizes = graph.constant(np.array(shape, np.int32))
        moved = graph.op("RESHAPE", [v[1], sizes], shape, dict(new_shape=shape))
        options = dict(in_data_type="INT64", out_data_type="INT32")
        return [more, v[2], moved, graph.op("CAST", [more], (), options, type=I32)]

    model.output(*loop(model, model, [count, x, y, scalar(model, 0)], state, condition, body))
    return model.build(), [data] if constant else [data, data[..., ::-1]]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_states(kind: TensorType, known: bool, constant: bool) -> None:
    content, arrays = rounds(kind, (3,), known=known, constant=constant)
    feeds = [arrays] if known else [[np.array(n, np.int64), *arrays] for n in (0, 3, 2**33)]
    compared(content, feeds)


@pytest.mark.parametrize("shape", [(2, 3), (2, 4), (1, 2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("kind", [T.INT64, T.INT8, T.INT16], ids=lambda kind: kind.name)
def test_states_of_any_shape(kind: TensorType, shape: tuple[int, ...]) -> None:
    """Bytes are written in whole words."""
    content, arrays = rounds(kind, shape, known=False, constant=False)
    compared(content, [[np.array(n, np.int64), *arrays] for n in (1, 7)], "webgpu")


@pytest.mark.parametrize("known", [False, True])
def test_large_constants_of_64_bits(known: bool) -> None:
    """Their words are next to each other's."""
    content, arrays = rounds(I64, (100,), known=known, constant=True)
    compared(content, [arrays] if known else [[np.array(n, np.int64), *arrays] for n in (0, 3)])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_results_of_branches(kind: TensorType) -> None:
    """Constants of 64 bits, and numbers of 64 bits that one word of 32 holds, among them."""
    model, shape = ModelBuilder(), (4,)
    truth, x, y = model.input("truth", (), T.BOOL), model.input("x", shape, kind), model.input("y", shape)
    state: Shapes = [(shape, kind), (shape, T.FLOAT32)]

    def then(graph: Graph, v: list[int]) -> list[int]:
        numbers = graph.constant(np.array([1, -2, 2**40, 3]), type=I64)
        most = graph.op("ARG_MAX", [v[1], scalar(graph, 0)], (), dict(output_type="INT64"), type=I64)
        return [v[0], numbers, most]

    def otherwise(graph: Graph, v: list[int]) -> list[int]:
        whole = graph.op("CAST", [v[1]], shape, dict(in_data_type="FLOAT32", out_data_type="INT64"), type=I64)
        return [v[0], whole, scalar(graph, -7, np.int64)]

    model.output(*branch(model, model, truth, [x, y], state, [(shape, kind), (shape, I64), ((), I64)], then, otherwise))
    reals = np.array([1.5, -2e9, 3e10, 7], np.float32)
    compared(model.build(), [[np.array(t), values(kind, 4), reals] for t in (False, True)])


def test_a_place_of_64_bits() -> None:
    """What a loop counts with 64 bits says where a row is; what has no form of two words is left to the CPU."""
    model = ModelBuilder()
    count, x = model.input("count", (), I64), model.input("x", (3,))
    state: Shapes = [((), I64), ((3,), T.FLOAT32)]

    def condition(graph: Graph, v: list[int]) -> list[int]:
        return [graph.op("LESS", [v[0], scalar(graph, 3, np.int64)], (), type=T.BOOL)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        one = graph.op("GATHER", [v[1], v[0]], (), type=T.FLOAT32)
        return [graph.op("ADD", [v[0], scalar(graph, 1, np.int64)], ()), graph.op("ADD", [v[1], one], (3,))]

    model.output(*loop(model, model, [count, x], state, condition, body))
    compared(model.build(), [[np.array(n, np.int64), np.arange(3, dtype=np.float32)] for n in (0, 2)])


@pytest.mark.parametrize("backend", ["reference", "webgpu"])
@pytest.mark.parametrize("known", [False, True])
def test_choices_by_number(known: bool, backend: str) -> None:
    """As JAX writes `switch`; what is no number of a branch stands for the last one."""
    for number in (-1, 0, 1, 2, 7):
        model = ModelBuilder()
        place = scalar(model, number) if known else model.input("number", (), I32)
        x = model.input("x", (3,))
        names = ("NEG", "ABS", "SQUARE")
        graphs = []
        for name in names:
            graph = model.subgraph(name)
            graph.output(graph.op(name, [graph.input("x", (3,))], (3,)))
            graphs.append(graph.index)
        options = dict(branch_subgraph_indices=graphs)
        made = model.op_multi("STABLEHLO_CASE", [place, x], [((3,), T.FLOAT32)], options)
        model.output(model.op("ADD", [made[0], x], (3,)))
        array = np.array([-1, 2, -3], np.float32)
        compared(model.build(), [[array] if known else [np.array(number, np.int32), array]], backend)
