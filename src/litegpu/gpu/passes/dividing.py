"""A 1x1 convolution whose channels are taken apart again is one for each part, where that stores less."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.gpu.graph import (
    RESULT,
    Concat,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Node,
    Slice,
    sources_of,
)
from litegpu.gpu.passes.by_channel import GROUP, can_be_divided, with_channels

#: Parts that a convolution is divided into, at most: each reads the whole input.
_MOST = 3


def divide_layers(graph: Graph) -> Graph:
    """The graph with a convolution for each slice of the channels of one, where a part is added to something as large,
    say, and another joined to something else (as in dual path networks): the sum becomes an epilogue then, and the rest
    is written where it belongs. What this saves must be more than what reading the input again takes."""
    search = _Search(graph)
    found: dict[int, list[_Part]] = {}
    for node in reversed(graph.nodes):  # a sum of two such parts is the epilogue of the later one
        parts = search.parts(node)
        if parts:
            found[node.output] = parts
    if not found:
        return graph
    builder = GraphBuilder(dict(graph.values), [])
    gone = {part.copy.output for parts in found.values() for part in parts}
    for node in graph.nodes:
        if node.output in found:
            for part in found[node.output]:
                channels, sources = range(part.begin, part.begin + part.size), sources_of(node, part.copy)
                builder.nodes.append(with_channels(builder, node, channels, part.copy.output, sources))
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


@dataclass(frozen=True, eq=False)
class _Part:
    """A slice of the channels."""

    copy: Node
    begin: int
    size: int


class _Search:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.consumers = graph, graph.consumers()
        self.sums: set[int] = set()  # results that became an epilogue already

    def parts(self, node: Node) -> list[_Part]:
        """The parts that the node is to be divided into, if it is."""
        values = self.graph.values
        if not self.may_be_divided(node):
            return []
        found = [self.part(copy, values[node.output].shape) for copy in self.consumers[node.output]]
        parts = sorted((part for part in found if part is not None), key=lambda part: part.begin)
        if len(parts) != len(found) or not 1 < len(parts) <= _MOST:
            return []
        ends = [0, *(part.begin + part.size for part in parts)]
        whole = ends[-1] == values[node.output].shape[3]
        if not whole or any(part.begin != end for part, end in zip(parts, ends, strict=False)):
            return []
        sums = [result for part in parts if (result := self.sum_of(part)) is not None]
        once = set(sums) - self.sums
        joined = sum(part.size for part in parts if self.is_joined(part))
        saved = 2 * sum(values[v].shape[3] for v in once) + 2 * joined
        again = (len(parts) - 1) * values[node.inputs[0]].shape[3]
        if not once or saved <= again:
            return []
        self.sums |= once
        return parts

    def may_be_divided(self, node: Node) -> bool:
        """Whether it is a convolution 1x1 each of whose channels has its own weights and constants alone."""
        values = self.graph.values
        if not can_be_divided(node, values) or node.output in self.graph.outputs:
            return False
        return values[node.inputs[1]].shape[1:3] == (1, 1) and values[node.output].dtype is DType.FLOAT32

    def part(self, copy: Node, shape: tuple[int, ...]) -> _Part | None:
        if not isinstance(copy.op, Copy) or copy.epilogue != RESULT or len(copy.op.steps) != 1:
            return None
        match copy.op.steps[0]:
            case Slice((0, 0, 0, begin), (1, 1, 1, 1), (b, h, w, size)) if (b, h, w) == shape[:3]:
                return _Part(copy, begin, size) if size % GROUP == 0 else None
        return None

    def sum_of(self, part: _Part) -> int | None:
        """The result of the elementwise node that alone reads the part, together with another value as large."""
        v, values = part.copy.output, self.graph.values
        readers = self.consumers[v]
        if len(readers) != 1 or v in self.graph.outputs or not isinstance(readers[0].op, Elementwise):
            return None
        (node,), shape = readers, values[v].shape
        others = [o for o in node.operands if o != v and values[o].shape == shape and not values[o].is_constant]
        return node.output if others and values[node.output].shape == shape else None

    def is_joined(self, part: _Part) -> bool:
        """Whether all that becomes of it is a part of what others join."""
        readers = self.consumers[part.copy.output]
        return len(readers) == 1 and isinstance(readers[0].op, Concat) and readers[0].op.axis == 3
