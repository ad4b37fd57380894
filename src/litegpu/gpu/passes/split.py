"""Split large reductions to few results in two, so that they keep a whole device busy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.graph import RESULT, DType, Graph, GraphBuilder, Node, Reduce

_FEW_RESULTS = 256  # four channels each; a workgroup each does not fill a large device
_MANY_ITEMS = 4096  # below, one workgroup per result is done soon enough
_MANY_NARROW = 2048  # the same of sums of bytes
_MANY_FOR_ONE = 1 << 15  # of channels too, below which one workgroup for each result is done before two kernels are
_TEAMS = 64  # results from which on fewer threads add up the channels of each (kernels/reduce.py)
_RESULTS_OF_A_GROUP = 8  # at least: with fewer side by side, memory is read in pieces that are too short
_MANY_QUADS = 1 << 21  # of all items: so many take longer on half of the multiprocessors than a second kernel does


def split_reductions(graph: Graph, units: int = 0, *, narrow: bool = False) -> Graph:
    """Reduce over W first and then over H, or over channels and then over W, where a reduction over both has many items
    and few results, on a device of `units` multiprocessors (0: unknown). A mean of the rows' means is the mean, as all
    rows are equally long. `narrow`: sums of bytes and other whole numbers, rather than what is computed of floats."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        taken = isinstance(node.op, Reduce) and (_is_narrow(graph, node) if narrow else _is_float(graph, node))
        last = _last_axis(graph, node, node.op, units, narrow) if taken and isinstance(node.op, Reduce) else None
        if last is not None:
            assert isinstance(node.op, Reduce)
            shape = list(_domain(graph, node))
            for axis in node.op.axes:
                if axis != last:
                    shape[axis] = 1
            rows = builder.value(shape, DType.INT32 if narrow else DType.FLOAT32)
            first = dataclasses.replace(node.op, axes=tuple(a for a in node.op.axes if a != last))
            builder.node(first, node.inputs, rows, sources=node.sources)
            second = Reduce(node.op.kind, (last,))
            builder.node(second, [rows], node.output, node.epilogue, node.operands, node.sources)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _is_float(graph: Graph, node: Node) -> bool:
    return all(graph.values[v].dtype is DType.FLOAT32 for v in node.inputs)


def _is_narrow(graph: Graph, node: Node) -> bool:
    """Whether it is a sum of numbers of a narrow type, as they are."""
    plain = isinstance(node.op, Reduce) and (node.op.kind, node.op.prologue) == ("sum", RESULT)
    return plain and graph.values[node.inputs[0]].dtype.is_narrow


def _last_axis(graph: Graph, node: Node, op: Reduce, units: int, narrow: bool) -> int | None:
    """What is left for the second of two reductions, if there are to be two."""
    b, h, w, c = (*_domain(graph, node)[:3], -(-_domain(graph, node)[3] // 4))
    items = math.prod(n for a, n in enumerate((b, h, w, c)) if a in op.axes)
    results = b * h * w * c // items
    few = items >= (_MANY_NARROW if narrow else _MANY_ITEMS) and results <= _FEW_RESULTS
    alone = items >= _MANY_FOR_ONE or results >= _TEAMS
    if {1, 2} <= set(op.axes):
        idle = results < _RESULTS_OF_A_GROUP * units and items * results >= _MANY_QUADS and 3 not in op.axes
        return 1 if h > 1 and w > 1 and (idle or few) else None
    return 2 if {2, 3} <= set(op.axes) and w > 1 and c > 1 and few and alone else None


def _domain(graph: Graph, node: Node) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(*(graph.values[v].shape for v in node.inputs)))
