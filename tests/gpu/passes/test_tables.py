"""What is computed from a byte and from what a table has for it is in a table itself, and who computes a byte looks it
up."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    Literal,
    Lookup,
    apply,
    tables,
    whole,
)
from litegpu.gpu.passes.tables import fold_tables, join_tables

SHAPE = (2, 8, 8, 4)
RNG = np.random.default_rng(0)


def product(other: Expr) -> Expr:
    """As a quantized multiplication has it: to int32 and back by float32, rounded, within limits."""
    real = apply("to_float32", apply("mul", apply("sub", RESULT, whole(-32)), apply("sub", other, whole(-100))))
    rounded = apply("to_int32", apply("round", apply("mul", real, Literal(0.00594, DType.FLOAT32))))
    return apply("add", apply("min", apply("max", rounded, whole(-16)), whole(239)), whole(-112))


def graph(kind: DType, *, operand: str = "x", table: np.ndarray | None = None) -> Graph:
    b = GraphBuilder()
    x = b.value(SHAPE, kind)
    others = {"x": x, "other": b.value(SHAPE, kind), "number": b.constant(np.full((1, 1, 1, 1), 7, np.int32))}
    numbers = RNG.integers(-128, 128, 256).astype(np.int32) if table is None else table
    others["channels"] = b.constant(np.arange(4, dtype=np.int32).reshape(1, 1, 1, 4))
    op = Lookup(0 if kind is DType.UINT8 else -128)
    used = [others[operand]]
    y = b.node(op, [x, b.constant(numbers.reshape(1, 1, 1, 256))], b.value(SHAPE, kind), product(Arg(1)), used)
    return b.graph([x, *([used[0]] if operand == "other" else [])], [y])


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("operand", ["x", "number"])
def test_every_byte_has_the_result_that_it_had(kind: DType, operand: str) -> None:
    before = graph(kind, operand=operand)
    (node,) = (after := fold_tables(before)).nodes
    assert node.epilogue == RESULT and node.operands == () and node.inputs[0] == before.inputs[0]
    table = after.values[node.inputs[1]].data
    assert table is not None and table.shape == (1, 1, 1, 256) and table.dtype == np.int32
    dtype = np.int8 if kind is DType.INT8 else np.uint8
    x = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    x = np.resize(RNG.permutation(x), SHAPE)
    want, got = (evaluate_graph(one, [x])[0] for one in (before, after))
    np.testing.assert_array_equal(got, want)


def test_a_result_that_is_the_same_for_all() -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.INT8)
    numbers = b.constant(np.zeros((1, 1, 1, 256), np.int32))
    y = b.node(Lookup(-128), [x, numbers], b.value(SHAPE, DType.INT8), whole(5), [])
    (node,) = (after := fold_tables(b.graph([x], [y]))).nodes
    np.testing.assert_array_equal(after.values[node.inputs[1]].data, np.full((1, 1, 1, 256), 5))


@pytest.mark.parametrize("operand", ["other", "channels"])
def test_what_reads_something_else_stays(operand: str) -> None:
    before = graph(DType.INT8, operand=operand)
    assert fold_tables(before).nodes == before.nodes


def test_there_are_no_tables_of_truth() -> None:
    b = GraphBuilder()
    x = b.value(SHAPE, DType.INT8)
    table = b.constant(np.arange(256, dtype=np.int32).reshape(1, 1, 1, 256))
    y = b.node(Lookup(-128), [x, table], b.value(SHAPE, DType.BOOL), apply("gt", RESULT, whole(77)))
    before = b.graph([x], [y])
    assert fold_tables(before).nodes == before.nodes


MANY_BUFFERS = 16


def convolution(
    kind: DType, *, least: int | None = None, table: np.ndarray | None = None, output: DType | None = None
) -> GraphBuilder:
    """x -> a convolution limited to bytes, or from `least` on -> what a table has for each; values in this order, with
    the convolution's weights and bias before its result."""
    b, rng = GraphBuilder(), np.random.default_rng(1)
    lowest = 0 if kind is DType.UINT8 else -128
    x = b.value(SHAPE, kind)
    weights = b.constant(rng.integers(-127, 128, (4, 1, 1, 4)).astype(np.int8), narrow=True)
    bias = b.constant(rng.integers(-999, 999, (1, 1, 1, 4)).astype(np.int32))
    scaled = apply("mul", apply("to_float32", apply("add", RESULT, Arg(1))), 0.01)
    first = float((lowest if least is None else least) - 7)
    limited = apply("min", apply("max", apply("small", scaled), first), float(lowest + 255 - 7))
    byte = b.value(SHAPE, kind)
    b.node(IntegerConv2D(), [x, weights], byte, apply("add", apply("nearest", limited), whole(7)), [bias])
    numbers = (rng.permutation(256) + lowest).astype(np.int32) if table is None else table
    known = b.constant(numbers.reshape(1, 1, 1, 256))
    b.node(Lookup(lowest), [byte, known], b.value(SHAPE, output or kind))
    return b


def results(graph: Graph) -> np.ndarray:
    kind = graph.values[graph.inputs[0]].dtype
    info = np.iinfo(np.int8 if kind is DType.INT8 else np.uint8)
    x = np.random.default_rng(2).integers(info.min, info.max + 1, SHAPE).astype(info.dtype)
    return evaluate_graph(graph, [x])[0]


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("least", [None, 30, -1000])
def test_who_computes_a_byte_looks_it_up(kind: DType, least: int | None) -> None:
    """Also where only its type limits it."""
    b = convolution(kind, least=least)
    before = b.graph([0], [b.nodes[-1].output])
    (node,) = (after := join_tables(before, MANY_BUFFERS)).nodes
    assert tables(node.epilogue) == {2} and after.outputs == before.outputs
    assert len(np.unique(results(before))) > 20
    np.testing.assert_array_equal(results(after), results(before))


def test_elementwise_work_looks_up() -> None:
    """And what is looked up may be looked up again."""
    b = GraphBuilder()
    x = b.value(SHAPE, DType.INT8)
    doubled = b.node(Elementwise(), [], b.value(SHAPE, DType.INT8), apply("add", Arg(0), Arg(0)), [x])
    for seed in (0, 1):
        numbers = (np.random.default_rng(seed).permutation(256) - 128).astype(np.int32)
        doubled = b.node(Lookup(-128), [doubled, b.constant(numbers.reshape(1, 1, 1, 256))], b.value(SHAPE, DType.INT8))
    before = b.graph([x], [doubled])
    (node,) = (after := join_tables(before, MANY_BUFFERS)).nodes
    assert tables(node.epilogue) == {1, 2}
    np.testing.assert_array_equal(results(after), results(before))


def test_what_others_read_stays_in_memory() -> None:
    b = convolution(DType.INT8)
    byte, last = b.nodes[0].output, b.nodes[1].output
    both = b.node(Concat(3), [byte, last], b.value((*SHAPE[:3], 8), DType.INT8))
    for graph in (b.graph([0], [both]), GraphBuilder(b.values, b.nodes[:2]).graph([0], [last, byte])):
        assert join_tables(graph, MANY_BUFFERS).nodes == graph.nodes


@pytest.mark.parametrize("why", ["buffers", "another type", "beyond bytes", "fractions"])
def test_what_cannot_be_looked_up_there(why: str) -> None:
    numbers = {"beyond bytes": np.full(256, 300, np.int32), "fractions": np.full(256, 0.5, np.float32)}.get(why)
    outputs = {"another type": DType.INT32, "fractions": DType.FLOAT32}
    b = convolution(DType.INT8, table=numbers, output=outputs.get(why))
    graph = b.graph([0], [b.nodes[-1].output])
    fewest = 6  # x, weights, bias, table, the result, and what sums begin with
    assert join_tables(graph, fewest - (why == "buffers")).nodes == graph.nodes
    if why == "buffers":
        assert len(join_tables(graph, fewest).nodes) == 1


def test_bytes_of_another_type_are_looked_up() -> None:
    """The first bytes are signed, what the table has is not."""
    b = convolution(DType.INT8, table=np.random.default_rng(3).permutation(256).astype(np.int32), output=DType.UINT8)
    before = b.graph([0], [b.nodes[-1].output])
    after = join_tables(before, MANY_BUFFERS)
    assert len(after.nodes) == 1
    np.testing.assert_array_equal(results(after), results(before))


def steps(x: Expr, count: int, by: int = 3) -> Expr:
    """A function of a byte, of ten operations a step, each of which wraps and limits."""
    for i in range(count):
        number = apply("mul", apply("to_float32", apply("mul", apply("sub", x, whole(by)), whole(i + 5))), 0.11)
        rounded = apply("nearest", apply("mul", apply("add", number, 1.5), 0.9))
        x = apply("add", apply("min", apply("max", rounded, whole(-120 - i)), whole(119)), whole(i))
    return x


def long_function(kind: DType, count: int, *others: int, made: DType = DType.INT8) -> tuple[GraphBuilder, int, int]:
    b = GraphBuilder()
    x, y = b.value(SHAPE, kind), b.value(SHAPE, made)
    seven = b.constant(np.full((1, 1, 1, 1), 7, np.int32))
    expr = apply("add", steps(Arg(0), count), Arg(1))
    return b, x, b.node(Elementwise(), (), y, apply("max", apply("min", expr, whole(127)), whole(-128)), [x, seven])


def all_bytes(kind: DType) -> np.ndarray:
    dtype = np.int8 if kind is DType.INT8 else np.uint8
    return np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype).repeat(2).reshape(SHAPE)


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
def test_a_long_function_of_a_byte_is_a_table(kind: DType) -> None:
    b, x, y = long_function(kind, 3)
    before = b.graph([x], [y])
    (node,) = (after := fold_tables(before)).nodes
    assert node.op == Lookup(0 if kind is DType.UINT8 else -128) and node.inputs[0] == x
    data = all_bytes(kind)
    np.testing.assert_array_equal(evaluate_graph(after, [data])[0], evaluate_graph(before, [data])[0])


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
def test_a_table_of_what_comes_from_a_table_is_one_of_the_bytes_before(kind: DType) -> None:
    """With what follows, of the table's numbers and of the bytes before: a GELU by way of a hyperbolic tangent."""
    b, x, y = long_function(kind, 3, made=kind)
    table = b.constant(RNG.integers(-100, 100, 256).astype(np.int32).reshape(1, 1, 1, 256))
    low = 0 if kind is DType.UINT8 else -128
    z = b.node(Lookup(low), [y, table], b.value(SHAPE, DType.INT8), product(Arg(1)), [x])
    before = b.graph([x], [z])
    after = fold_tables(before)
    assert [(type(n.op), n.inputs[0], n.epilogue) for n in after.nodes] == [(Lookup, x, RESULT)]
    data = all_bytes(kind)
    np.testing.assert_array_equal(evaluate_graph(after, [data])[0], evaluate_graph(before, [data])[0])
    both = b.graph([x], [y, z])  # who reads what is between has it
    for got, want in zip(evaluate_graph(fold_tables(both), [data]), evaluate_graph(both, [data]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_table_whose_places_are_beyond_the_next_stays() -> None:
    b, x, y = long_function(DType.INT8, 3)
    far = b.constant(np.arange(256, dtype=np.int32).reshape(1, 1, 1, 256))
    z = b.node(Lookup(0), [y, far], b.value(SHAPE, DType.INT8))  # of bytes from 0 on
    assert len(fold_tables(b.graph([x], [z])).nodes) == 2


def test_short_functions_and_those_of_more_than_a_byte_are_computed() -> None:
    b, x, y = long_function(DType.INT8, 1)
    assert [type(n.op) for n in fold_tables(b.graph([x], [y])).nodes] == [Elementwise]
    b, x, y = long_function(DType.INT8, 3)
    (node,) = b.nodes
    other, wide = b.value(SHAPE, DType.INT8), b.value(SHAPE, DType.INT32)
    row = b.value((1, 1, 1, SHAPE[3]), DType.INT8)
    for changed, inputs in (
        (dataclasses.replace(node, operands=(x, other)), [x, other]),
        (dataclasses.replace(node, operands=(wide, node.operands[1])), [wide]),
        (dataclasses.replace(node, operands=(row, node.operands[1])), [row]),
        (dataclasses.replace(node, output=wide), [x]),
    ):
        graph = GraphBuilder(b.values, [changed]).graph(inputs, [changed.output])
        assert [type(n.op) for n in fold_tables(graph).nodes] == [Elementwise]
