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
    IntegerConv2D,
    Literal,
    Node,
    Slice,
    Value,
    apply,
    sources_of,
    whole,
)
from litegpu.gpu.kernels.access import byte_bounds
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
        part = None if has_a_place(node.output) else _part(node, graph, producer)
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
    key: Hashable = None  # the same for those that can be joined


def _part(node: Node, graph: Graph, producer: Mapping[int, Node]) -> _Part | None:
    values = graph.values
    if not isinstance(node.op, (Conv2D, IntegerConv2D)) or node.op.groups != 1:
        return None
    weights, output = values[node.inputs[1]].data, values[node.output]
    operands, shape = constants_of(node, values), output.shape
    if weights is None or operands is None or shape[3] % GROUP:
        return None
    part = _Part(node, weights, node.epilogue, tuple(operands))
    found = _of_bytes(part, output) if isinstance(node.op, IntegerConv2D) else _of_floats(part, output, values)
    if found is None:
        return None
    copy = producer.get(node.inputs[0])
    moved = copy is not None and isinstance(copy.op, Copy) and copy.epilogue == RESULT
    read = (copy.op, *copy.inputs) if copy is not None and moved else node.inputs[0]  # each may have a copy of its own
    kinds = tuple(operand.dtype.kind for operand in found.operands)
    alike = shape[:3] if isinstance(node.op, Conv2D) else shape  # of bytes only layers that are as wide as one another
    key = (node.op, read, weights.shape[1:], output.dtype, alike, found.epilogue, kinds)
    return dataclasses.replace(found, key=key)


def _of_floats(part: _Part, output: Value, values: Mapping[int, Value]) -> _Part | None:
    """With a line's factors in the weights."""
    assert isinstance(part.node.op, Conv2D)
    if part.node.op.zero_point is not None or output.dtype is not DType.FLOAT32:
        return None
    line = line_of(part.node, values)
    if line is None:
        return part
    scale, shift = line
    weights = (part.weights * scale.reshape(-1, 1, 1, 1)).astype(np.float32)
    epilogue, operands = apply("add", RESULT, Arg(1)), (shift.astype(np.float32),)
    return dataclasses.replace(part, weights=weights, epilogue=epilogue, operands=operands)


def _of_bytes(part: _Part, output: Value) -> _Part | None:
    """With the zero point as a constant of each channel, where results are limited as bytes are, and no further."""
    bounds = byte_bounds(output.dtype)
    match part.epilogue:
        case Apply("add", (Apply("nearest", (Apply("min", (Apply("max", (x, low)), high)),)), Literal(zero))) if (
            isinstance(low, Literal) and isinstance(high, Literal) and isinstance(x, Apply) and x.fn == "small"
        ):
            if bounds == (low.value + zero, high.value + zero):
                added = apply("add", apply("nearest", x), Arg(len(part.operands) + 1))
                kept = apply("min", apply("max", added, whole(bounds[0])), whole(bounds[1]))
                zeros = np.full(output.shape[3], zero, np.int32)
                return dataclasses.replace(part, epilogue=kept, operands=(*part.operands, zeros))
    return None


def _put(builder: GraphBuilder, family: list[_Part]) -> None:
    """One convolution, and a slice of it for each of the family."""
    first = family[0].node
    shape = builder.values[first.output].shape
    sizes = [builder.values[part.node.output].shape[3] for part in family]
    narrow = builder.values[first.inputs[1]].dtype.is_narrow
    weights = builder.constant(np.concatenate([part.weights for part in family]), narrow=narrow)
    together = zip(*(part.operands for part in family), strict=True)
    operands = [builder.constant(np.concatenate(each)) for each in together]
    channels = (*shape[:3], sum(sizes))
    sources = sources_of(*(part.node for part in family))
    value = builder.value(channels, builder.values[first.output].dtype)
    joined = builder.node(first.op, [first.inputs[0], weights], value, family[0].epilogue, operands, sources)
    begin = 0
    for part, size in zip(family, sizes, strict=True):
        step = Slice((0, 0, 0, begin), (1, 1, 1, 1), (*shape[:3], size))
        builder.nodes.append(dataclasses.replace(
            part.node, op=Copy((step,)), inputs=(joined,), epilogue=RESULT, operands=(),
        ))  # fmt: skip
        begin += size
