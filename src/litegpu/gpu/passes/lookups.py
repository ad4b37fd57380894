"""Rows of many tables that are joined side by side, as recommenders have a table for each field, are rows of one table:
one kernel instead of two for each field."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Expr,
    Gather,
    Graph,
    GraphBuilder,
    Literal,
    Node,
    Reshape,
    Shape,
    Slice,
    Step,
    Take,
    apply,
    sources_of,
    step_shape,
)
from litegpu.gpu.passes.fold import drop_unused

#: Numbers in the joined table, at most: beside it, its parts lie in host memory while the graph is made.
LARGEST = 1 << 30
#: Tables whose indices are values of their own, at least.
FEWEST = 3
_OTHERS = 4  # buffers of the kernel that joins indices, beside these


def join_lookups(graph: Graph, max_buffers: int) -> Graph:
    """The graph with one Gather for neighbours in a concatenation that are rows of constant tables, each chosen by a
    column of the same value of indices, or by values of their own. `max_buffers`: what a kernel may read and write."""
    producer, consumers = graph.producer(), graph.consumers()
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            rows = [_rows_of(graph, v, node, producer, consumers) for v in node.inputs]
            node = dataclasses.replace(node, inputs=_joined(node, rows, builder, max_buffers))
        builder.nodes.append(node)
    found = len(builder.nodes) > len(graph.nodes)
    return drop_unused(builder.graph(graph.inputs, graph.outputs)) if found else graph


@dataclass(frozen=True)
class _Rows:
    """Rows of a table: which column of which value chooses them, or (None) all of it."""

    node: Node
    op: Gather
    table: int
    source: int
    column: int | None


def _rows_of(
    graph: Graph, v: int, concat: Node, producer: Mapping[int, Node], consumers: Mapping[int, list[Node]]
) -> _Rows | None:
    """What is known of a part of a concatenation, if it is rows that nobody else reads and of which one lies behind
    the other where they are joined."""
    assert isinstance(concat.op, Concat)
    node, values = producer.get(v), graph.values
    if node is None or not isinstance(node.op, Gather) or node.epilogue != RESULT or len(consumers[v]) > 1:
        return None
    op, shape = node.op, values[v].shape
    table, chosen = node.inputs
    if v in graph.outputs or (op.batch, op.outer, op.inner) != (1, 1, shape[3]) or op.size > 1 << 24:
        return None
    if math.prod(shape[concat.op.axis : 3]) != 1 or not values[table].is_constant or len(consumers[table]) > 1:
        return None
    copy = producer.get(chosen)
    if copy is not None and isinstance(copy.op, Copy) and copy.epilogue == RESULT:
        column = _column(copy.op.steps, values[copy.inputs[0]].shape)
        if column is not None:
            return _Rows(node, op, table, copy.inputs[0], column)
    return None if values[chosen].is_constant else _Rows(node, op, table, chosen, None)


def _column(steps: tuple[Step, ...], shape: Shape) -> int | None:
    """Which column, along the last axis, of a value of the shape the steps take, in order and all of it."""
    column: int | None = None
    for step in steps:
        match step:
            case Slice(begin, stride, target) if column is None:
                if target != (*shape[:-1], 1) or any(begin[:-1]) or set(stride[:-1]) - {1}:
                    return None
                column = begin[-1]
            case Reshape() if column is not None or step.target[-1] == shape[-1]:
                pass
            case _:
                return None
        shape = step_shape(step, shape)
    return column


def _joined(concat: Node, rows: list[_Rows | None], builder: GraphBuilder, max_buffers: int) -> tuple[int, ...]:
    """What is to be joined, with new nodes for neighbours that are rows of the same kind."""
    inputs: list[int] = []
    run: list[_Rows] = []

    def finish() -> None:
        if len(run) >= (2 if run and run[0].column is not None else FEWEST):
            inputs.append(_put(concat, run, builder))
        else:
            inputs.extend(one.node.output for one in run)
        run.clear()

    for v, own in zip(concat.inputs, rows, strict=True):
        if own is None or (run and not _alike(run, own, builder, max_buffers)):
            finish()
        if own is None:
            inputs.append(v)
        else:
            run.append(own)
    finish()
    return tuple(inputs)


def _alike(run: list[_Rows], other: _Rows, builder: GraphBuilder, max_buffers: int) -> bool:
    """Whether another one can be joined with these."""
    first = run[0]
    if (first.column is None) != (other.column is None):
        return False
    if (first.source != other.source) if other.column is not None else len(run) + _OTHERS >= max_buffers:
        return False
    size = sum(one.op.size for one in run) + other.op.size
    same = (first.op.inner, first.op.count) == (other.op.inner, other.op.count)
    kinds = {builder.values[one.table].dtype for one in (first, other)}
    return same and len(kinds) == 1 and size * first.op.inner <= LARGEST


def _put(concat: Node, run: list[_Rows], builder: GraphBuilder) -> int:
    """The indices side by side, each moved on by the rows of the tables in front, -1 where there is no such row; then
    the rows."""
    assert isinstance(concat.op, Concat)
    values, first = builder.values, run[0]
    sizes = [one.op.size for one in run]
    tables = [np.asarray(values[one.table].data).reshape(one.op.size, one.op.inner) for one in run]
    table = builder.constant(np.concatenate(tables), name=values[first.table].name)
    count, n = first.op.count, len(run)
    sources = sources_of(*(one.node for one in run))
    taken, operands = (_columns if first.column is not None else _apart)(run, builder)
    before = builder.constant(np.cumsum([0, *sizes[:-1]]))
    chosen = builder.value((1, 1, count, n), DType.INT32)
    operands += [before, builder.constant(np.array(sizes))]
    builder.node(Elementwise(), [], chosen, _moved_on(taken, len(operands)), operands, sources)
    shape = list(values[first.node.output].shape)
    shape[concat.op.axis] *= n
    found = builder.value(shape, values[first.node.output].dtype)
    return builder.node(Gather(1, 1, sum(sizes), first.op.inner, count * n), [table, chosen], found, sources=sources)


def _columns(run: list[_Rows], builder: GraphBuilder) -> tuple[Expr, list[int]]:
    """The columns of one value as one, and what reads it."""
    columns = [one.column for one in run if one.column is not None]
    source, n = builder.values[run[0].source].shape, len(run)
    count = math.prod(source[:3])
    steps: list[Step] = [Take(3, tuple(columns)), Reshape((*source[:3], n), (1, 1, count, n))]
    if columns == list(range(columns[0], columns[0] + n)):
        steps[0] = Slice((0, 0, 0, columns[0]), (1, 1, 1, 1), (*source[:3], n))
    taken = builder.value((1, 1, count, n), DType.INT32)
    builder.node(Copy(tuple(steps)), [run[0].source], taken, sources=sources_of(*(one.node for one in run)))
    return Arg(0), [taken]


def _apart(run: list[_Rows], builder: GraphBuilder) -> tuple[Expr, list[int]]:
    """Values of their own, each where its number is that of the column: there are few, and a kernel for each would
    take longer."""
    count, n = run[0].op.count, len(run)
    operands = [builder.constant(np.arange(n))]
    for one in run:
        column = builder.value((1, 1, count, 1), DType.INT32)
        step = Reshape(builder.values[one.source].shape, (1, 1, count, 1))
        operands.append(builder.node(Copy((step,)), [one.source], column, sources=one.node.sources))
    found: Expr = Arg(n)
    for i in reversed(range(n - 1)):
        found = apply("select", apply("eq", Arg(0), Literal(i, DType.INT32)), Arg(1 + i), found)
    return found, operands


def _moved_on(index: Expr, operands: int) -> Expr:
    """Of an index, what is in front of its table, and the rows that this has: the last two operands."""
    before, rows = Arg(operands - 2), Arg(operands - 1)
    exists = apply("logical_and", apply("ge", index, Literal(0, DType.INT32)), apply("lt", index, rows))
    return apply("select", exists, apply("add", index, before), Literal(-1, DType.INT32))
