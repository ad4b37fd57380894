"""What is computed from a byte and from what a table has for it is in a table itself."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, DType, Expr, Graph, GraphBuilder, Literal, Lookup, apply
from litegpu.gpu.lower.fixed_point import whole
from litegpu.gpu.passes.tables import fold_tables

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
