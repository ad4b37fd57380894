"""Attention of bytes in one kernel: two products and a softmax, each of which rounds to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_attention
from litegpu.gpu.graph import (
    Apply,
    Arg,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerAttention,
    IntegerMatMul,
    IntegerSoftmax,
    Literal,
    Node,
    Shape,
    apply,
    sources_of,
    substitute,
    tables,
    whole,
)
from litegpu.gpu.kernels.access import byte_bounds
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.tables import limits_of

_BYTES = (DType.INT8, DType.UINT8)


def join_byte_attention(graph: Graph, features: Features) -> Graph:
    """The graph with IntegerAttention nodes for the product of weights and values, where the softmax and the product
    of queries and keys are for nobody else."""
    consumers, producer = graph.consumers(), graph.producer()
    builder = GraphBuilder(dict(graph.values), [])
    gone: set[int] = set()
    made: dict[int, Node] = {}
    for node in graph.nodes:
        inner = _inner(node, producer)
        if not inner or any(len(consumers[n.output]) > 1 or n.output in graph.outputs for n in inner):
            continue
        joined = _joined(builder, node, inner, features)
        if joined is not None:
            made[node.output] = joined
            gone |= {n.output for n in inner}
    if not made:
        return graph
    nodes = [made.get(n.output, n) for n in graph.nodes if n.output not in gone]
    return GraphBuilder(builder.values, nodes).graph(graph.inputs, graph.outputs)


def _inner(node: Node, producer: Mapping[int, Node]) -> list[Node]:
    """The product of queries and keys, what is computed of the logits behind it, and the softmax, before the product
    `node` of weights and values; [] if there is no such thing."""
    if not isinstance(node.op, IntegerMatMul) or node.op.transpose_a or node.op.transpose_b:
        return []
    softmax = producer.get(node.inputs[0])
    if softmax is None or not isinstance(softmax.op, IntegerSoftmax):
        return []
    found, v = [softmax], softmax.inputs[0]
    while (before := producer.get(v)) is not None:
        found.insert(0, before)
        if isinstance(before.op, IntegerMatMul):
            return found
        if not isinstance(before.op, Copy) or not before.op.keeps_order:
            return []
        v = before.inputs[0]
    return []


@dataclass
class _Logits:
    """What is computed of the products of queries and keys, `expr`, and the values that it reads."""

    expr: Expr
    operands: list[int]

    def then(self, node: Node, operands: list[int]) -> None:
        """The epilogue of `node` behind it, which reads `operands` in place of its own."""
        replace: dict[int, Expr] = {0: self.expr}
        for i, v in enumerate(operands):
            if v not in self.operands:
                self.operands.append(v)
            replace[i + 1] = Arg(self.operands.index(v) + 1)
        self.expr = substitute(node.epilogue, replace)


def _joined(builder: GraphBuilder, node: Node, inner: list[Node], features: Features) -> Node | None:
    """All of them in one node, if there is a kernel for it."""
    values, (product, *between, softmax) = builder.values, inner
    first, last = product.op, node.op
    assert (
        isinstance(first, IntegerMatMul) and isinstance(last, IntegerMatMul) and isinstance(softmax.op, IntegerSoftmax)
    )
    q, k, v = (values[i] for i in (*product.inputs, node.inputs[1]))
    shape, kind = values[product.output].shape, values[softmax.inputs[0]].dtype
    fits = (
        first.transpose_b and not first.transpose_a
        and all(x.dtype in _BYTES and not x.is_constant for x in (q, k, v))
        and q.shape[:2] == k.shape[:2] == v.shape[:2] == values[node.output].shape[:2] == shape[:2]
        and values[softmax.output].shape == shape
        and byte_attention.takes(q.shape, k.shape, v.shape, features)
        and not softmax.operands and _is_limited(softmax.epilogue, last.zero_point)
    )  # fmt: skip
    if not fits:
        return None
    logits = _Logits(Arg(0), [])
    for i, step in enumerate([product, *between]):
        operands = [_as_logits(builder, o, values[step.output].shape, shape, first=i == 0) for o in step.operands]
        if tables(step.epilogue) or None in operands:
            return None
        logits.then(step, [o for o in operands if o is not None])
    bounds, limits = byte_bounds(kind), limits_of(logits.expr)
    if bounds is None:
        return None
    if limits is None or limits[0] < bounds[0] or limits[1] > bounds[1]:
        logits.expr = apply("min", apply("max", logits.expr, whole(bounds[0])), whole(bounds[1]))
    match logits.expr:  # only differences count
        case Apply("add", (quanta, Literal())):
            logits.expr = quanta
    zero_points = first.zero_point, first.other_zero_point, last.other_zero_point
    op = IntegerAttention(logits.expr, softmax.op.scale, zero_points)
    inputs = (*product.inputs, node.inputs[1], softmax.inputs[1], *logits.operands)
    return Node(op, inputs, node.output, node.epilogue, node.operands, sources_of(*inner, node))


def _is_limited(expr: Expr, zero_point: int) -> bool:
    """Whether weights less their zero point are what the softmax gives, kept within 0 and 255."""
    match expr:
        case Apply("add", (inner, Literal(zero))) if zero == zero_point:
            return _is_limited(inner, 0)
    kept = apply("min", apply("max", Arg(0), whole(0)), whole(255))
    return zero_point == 0 and expr == kept


def _as_logits(builder: GraphBuilder, v: int, target: Shape, shape: Shape, *, first: bool) -> int | None:
    """An operand of logits of `shape`, which have the shape `target` where it is read, as one that broadcasts to
    them, or to some of them that come again and again; None for those that are not known to be that."""
    value = builder.values[v]
    if value.data is None:
        return v if first else None
    data = value.data
    if data.size > 1 and not first:
        b, h, m, n = shape
        windows = target[1]
        seen = (1, windows, 1, m * n), (1, windows, h, m * n)
        if target != (b // windows, windows, h, m * n) or data.shape not in seen:
            return None
        data = data.reshape(windows, data.shape[2], m, n)
    if data.dtype == np.int32 and data.size > 1 and np.abs(data).max() < 1 << 15:
        data = data.astype(np.int16)  # half as much to read, for each head of each image
    if data is value.data:
        return v
    return builder.constant(data, name=value.name, narrow=data.dtype == np.int16)
