"""Join convolutions of the same value, as those of queries, keys and values, into one with the channels of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    Node,
    Slice,
    apply,
    sources_of,
)
from litegpu.gpu.passes.movement import join_copies

#: Channels come in groups of so many, so that a part of them is as good to read as the whole.
_GROUP = 8


def join_siblings(graph: Graph) -> Graph:
    """The graph with one convolution, which reads its input once, in place of several of the same value; what read one
    of them reads a slice. Those that become parts of a concatenation are written there by themselves."""
    parts: dict[Hashable, list[_Part]] = {}
    consumers, producer = graph.consumers(), graph.producer()

    def has_a_place(v: int) -> bool:
        """Whether it is to be written where somebody else says."""
        return v in graph.outputs or any(
            isinstance(n.op, Concat) or (isinstance(n.op, Copy) and has_a_place(n.output)) for n in consumers[v]
        )

    for node in graph.nodes:
        part = _part(node, graph, producer) if isinstance(node.op, Conv2D) and not has_a_place(node.output) else None
        if part is not None:
            parts.setdefault(part.key, []).append(part)
    families = {found[0].node.output: found for found in parts.values() if len(found) > 1}
    if not families:
        return graph
    builder = GraphBuilder(dict(graph.values), [])
    gone = {part.node.output for found in families.values() for part in found}
    for node in graph.nodes:
        if node.output in families:
            _put(builder, families[node.output])
        elif node.output not in gone:
            builder.nodes.append(node)
    return join_copies(builder.graph(graph.inputs, graph.outputs))


@dataclass(frozen=True, eq=False)
class _Part:
    """A convolution with constant weights and a constant for each channel in its epilogue."""

    node: Node
    weights: np.ndarray
    epilogue: Expr
    operands: tuple[np.ndarray, ...]  # one number for each channel
    key: Hashable  # the same for those that can be joined


def _part(node: Node, graph: Graph, producer: Mapping[int, Node]) -> _Part | None:
    values = graph.values
    if not isinstance(node.op, Conv2D) or node.op.groups != 1 or node.op.zero_point is not None:
        return None
    weights, shape = values[node.inputs[1]].data, values[node.output].shape
    known = [values[v].data for v in node.operands]
    if weights is None or shape[3] % _GROUP or values[node.output].dtype is not DType.FLOAT32:
        return None
    operands = [np.broadcast_to(d, (1, 1, 1, shape[3])).reshape(-1) for d in known if d is not None and _flat(d)]
    if len(operands) < len(known):
        return None
    epilogue = node.epilogue
    parts = affine(epilogue, operands, shape[3])
    if parts is not None and all(np.isfinite(a).all() for a in parts):
        scale, shift = parts
        weights = (weights * scale.reshape(-1, 1, 1, 1)).astype(np.float32)
        epilogue, operands = apply("add", RESULT, Arg(1)), [shift.astype(np.float32)]
    copy = producer.get(node.inputs[0])
    moved = copy is not None and isinstance(copy.op, Copy) and copy.epilogue == RESULT
    read = (copy.op, *copy.inputs) if copy is not None and moved else node.inputs[0]  # each may have a copy of its own
    kinds = tuple(operand.dtype.kind for operand in operands)
    key = (node.op, read, weights.shape[1:], shape[:3], epilogue, kinds)
    return _Part(node, weights, epilogue, tuple(operands), key)


def _flat(data: np.ndarray) -> bool:
    return data.shape[:3] == (1, 1, 1)


def affine(expr: Expr, operands: list[np.ndarray], channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(factor, summand) for each channel if the expression does no more than multiply by the one and add the other."""
    match expr:
        case Arg(0):
            return np.ones(channels), np.zeros(channels)
        case Arg(i):
            return np.zeros(channels), operands[i - 1].astype(np.float64)
        case Literal(number):
            return np.zeros(channels), np.full(channels, float(number))
        case Apply(fn, arguments) if fn in ("add", "sub", "mul", "div", "neg"):
            parts = [affine(a, operands, channels) for a in arguments]
            if any(p is None for p in parts):
                return None
            (a, b), *rest = (p for p in parts if p is not None)
            if fn == "neg":
                return -a, -b
            ((c, d),) = rest
            if fn in ("add", "sub"):
                sign = 1 if fn == "add" else -1
                return a + sign * c, b + sign * d
            if fn == "div":
                return None if c.any() or not d.all() else (a / d, b / d)
            return None if a.any() and c.any() else (a * d + b * c, b * d)
    return None


def _put(builder: GraphBuilder, family: list[_Part]) -> None:
    """One convolution, and a slice of it for each of the family."""
    first = family[0].node
    shape = builder.values[first.output].shape
    sizes = [builder.values[part.node.output].shape[3] for part in family]
    weights = builder.constant(np.concatenate([part.weights for part in family]))
    together = zip(*(part.operands for part in family), strict=True)
    operands = [builder.constant(np.concatenate(each)) for each in together]
    whole = (*shape[:3], sum(sizes))
    sources = sources_of(*(part.node for part in family))
    joined = builder.node(
        first.op, [first.inputs[0], weights], builder.value(whole, DType.FLOAT32), family[0].epilogue, operands, sources
    )
    begin = 0
    for part, size in zip(family, sizes, strict=True):
        step = Slice((0, 0, 0, begin), (1, 1, 1, 1), (*shape[:3], size))
        builder.nodes.append(dataclasses.replace(
            part.node, op=Copy((step,)), inputs=(joined,), epilogue=RESULT, operands=(),
        ))  # fmt: skip
        begin += size
