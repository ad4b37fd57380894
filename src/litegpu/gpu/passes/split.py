"""Split large reductions to few results in two, so that they keep a whole device busy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.graph import DType, Graph, GraphBuilder, Node, Reduce

_FEW_RESULTS = 256  # four channels each; a workgroup each does not fill a large device
_MANY_ITEMS = 4096  # below, one workgroup per result is done soon enough
_RESULTS_OF_A_GROUP = 8  # at least: with fewer side by side, memory is read in pieces that are too short
_MANY_QUADS = 1 << 21  # of all items: so many take longer on half of the multiprocessors than a second kernel does


def split_reductions(graph: Graph, units: int = 0) -> Graph:
    """Reduce over W first and then over H, where a reduction over both has many items and few results, on a device of
    `units` multiprocessors (0: unknown). A mean of the rows' means is the mean, as all rows are equally long."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if isinstance(node.op, Reduce) and _is_worth_it(graph, node, node.op, units):
            shape = list(_domain(graph, node))
            for axis in node.op.axes:
                if axis != 1:
                    shape[axis] = 1
            rows = builder.value(shape, DType.FLOAT32)
            first = dataclasses.replace(node.op, axes=tuple(a for a in node.op.axes if a != 1))
            builder.node(first, node.inputs, rows, sources=node.sources)
            second = Reduce(node.op.kind, (1,))
            builder.node(second, [rows], node.output, node.epilogue, node.operands, node.sources)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def _is_worth_it(graph: Graph, node: Node, op: Reduce, units: int) -> bool:
    if not {1, 2} <= set(op.axes) or any(graph.values[v].dtype is not DType.FLOAT32 for v in node.inputs):
        return False
    b, h, w, c = (*_domain(graph, node)[:3], -(-_domain(graph, node)[3] // 4))
    items = math.prod(n for a, n in enumerate((b, h, w, c)) if a in op.axes)
    results = b * h * w * c // items
    idle = results < _RESULTS_OF_A_GROUP * units and items * results >= _MANY_QUADS and 3 not in op.axes
    return h > 1 and w > 1 and (idle or (items >= _MANY_ITEMS and results <= _FEW_RESULTS))


def _domain(graph: Graph, node: Node) -> tuple[int, ...]:
    return tuple(np.broadcast_shapes(*(graph.values[v].shape for v in node.inputs)))
