"""Join convolutions of the same value, as those of queries, keys and values, into one with the channels of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Node,
    Slice,
    apply,
    sources_of,
)
from litegpu.gpu.passes.by_channel import GROUP, constants_of, line_of
from litegpu.gpu.passes.movement import join_copies


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
    if weights is None or shape[3] % GROUP or values[node.output].dtype is not DType.FLOAT32:
        return None
    operands, line, epilogue = constants_of(node, values), line_of(node, values), node.epilogue
    if operands is None:
        return None
    if line is not None:
        scale, shift = line
        weights = (weights * scale.reshape(-1, 1, 1, 1)).astype(np.float32)
        epilogue, operands = apply("add", RESULT, Arg(1)), [shift.astype(np.float32)]
    copy = producer.get(node.inputs[0])
    moved = copy is not None and isinstance(copy.op, Copy) and copy.epilogue == RESULT
    read = (copy.op, *copy.inputs) if copy is not None and moved else node.inputs[0]  # each may have a copy of its own
    kinds = tuple(operand.dtype.kind for operand in operands)
    key = (node.op, read, weights.shape[1:], shape[:3], epilogue, kinds)
    return _Part(node, weights, epilogue, tuple(operands), key)


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
