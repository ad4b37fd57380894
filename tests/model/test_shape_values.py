"""Sizes that follow from shapes become constants; what else is computed stays."""

from __future__ import annotations

import numpy as np
import pytest
from batch_networks import sized_by_shape

from litegpu.model import ModelBuilder, TensorType, read_model
from litegpu.model.shape_values import with_known_shapes
from litegpu.model.types import Subgraph

I32 = TensorType.INT32


def kinds(graph: Subgraph) -> list[str]:
    return [operator.name for operator in graph.operators]


def test_chains_become_constants_and_nodes_are_numbered_anew() -> None:
    graph = with_known_shapes(read_model(sized_by_shape("broadcast arguments")).main)
    left = kinds(graph)
    assert not {"SHAPE", "STRIDED_SLICE", "PACK", "BROADCAST_ARGS"} & set(left)
    assert [operator.index for operator in graph.operators] == list(range(len(left)))
    (broadcast,) = [operator for operator in graph.operators if operator.name == "BROADCAST_TO"]
    data = graph.tensors[broadcast.inputs[1]].data
    assert data is not None and data.tolist() == [1, 1, 8] and data.dtype == np.int32


def arithmetic(name: str, b: ModelBuilder, shape: int) -> int:
    def constant(*numbers: int) -> int:
        return b.constant(np.array(numbers, np.int32))

    match name:
        case "slice":
            return b.op("SLICE", [shape, constant(1), constant(2)], (2,), type=I32)
        case "rest":
            return b.op("SLICE", [shape, constant(2), constant(-1)], (1,), type=I32)
        case "gather":
            return b.op("GATHER", [shape, constant(2, 0)], (2,), {"axis": 0}, type=I32)
        case "product":
            return b.op("REDUCE_PROD", [shape, constant(0)], (), type=I32)
        case "join":
            return b.op("CONCATENATION", [shape, constant(7)], (4,), {"axis": 0}, type=I32)
        case "divide":
            return b.op("FLOOR_DIV", [shape, constant(2)], (3,), type=I32)
        case "split":
            return b.op_multi(
                "SPLIT", [b.constant(np.array(0, np.int32)), shape], [((1,), I32)] * 3, {"num_splits": 3}
            )[1]
        case "parts":
            sizes, parts = constant(-1, 2), [((1,), I32), ((2,), I32)]
            return b.op_multi("SPLIT_V", [shape, sizes, b.constant(np.array(0, np.int32))], parts, {"num_splits": 2})[1]
        case "taken apart":
            return b.op_multi("UNPACK", [shape], [((), I32)] * 3, {"num": 3, "axis": 0})[2]
        case "reversed":
            ends = [shape, constant(-1), constant(0), constant(-1)]
            return b.op("STRIDED_SLICE", ends, (3,), {"end_mask": 1}, type=I32)
    raise KeyError(name)


@pytest.mark.parametrize(("name", "expected"), [
    ("slice", [5, 6]), ("rest", [6]), ("gather", [6, 3]), ("product", 90), ("join", [3, 5, 6, 7]),
    ("divide", [1, 2, 3]), ("split", [5]), ("parts", [5, 6]), ("taken apart", 6), ("reversed", [6, 5, 3]),
])  # fmt: skip
def test_arithmetic(name: str, expected: object) -> None:
    b = ModelBuilder()
    x = b.input("x", (3, 5, 6))
    found = arithmetic(name, b, b.op("SHAPE", [x], (3,), {"out_type": "INT32"}, type=I32))
    b.output(b.op("CAST", [found], (1,), {"out_data_type": "FLOAT32"}, type=TensorType.FLOAT32))
    graph = with_known_shapes(b.model().main)
    assert kinds(graph) == ["CAST"]
    data = graph.tensors[found].data
    assert data is not None and data.tolist() == expected and graph.tensors[found].shape == data.shape


def test_outputs_and_what_values_decide_stay() -> None:
    b = ModelBuilder()
    x, sizes = b.input("x", (3, 5)), b.input("sizes", (2,), I32)
    shape = b.op("SHAPE", [x], (2,), {"out_type": "INT32"}, type=I32)
    b.output(shape, b.op("ADD", [shape, sizes], (2,), type=I32))
    assert kinds(with_known_shapes(b.model().main)) == ["SHAPE", "ADD"]


def test_a_graph_without_sizes_is_the_same_object() -> None:
    b = ModelBuilder()
    b.output(b.op("ABS", [b.input("x", (3, 5))], (3, 5)))
    graph = b.model().main
    assert with_known_shapes(graph) is graph
