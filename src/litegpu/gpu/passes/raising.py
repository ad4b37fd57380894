"""Move elementwise work in front of copies and concatenations that are mere views, to the kernels that can do it."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import RESULT, Concat, Copy, DType, Elementwise, Graph, GraphBuilder, Node, Reshape, Transpose
from litegpu.gpu.view import follow, padded


def raise_elementwise(graph: Graph) -> Graph:
    """A function of each element, applied to a float value that one node reads and that reshapes, transposes or joins
    others, is applied to those instead: there it becomes the epilogue of what computes them."""
    return _Raising(graph).run()


class _Raising:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(dict(graph.values), [])
        self.place: dict[int, int] = {}  # value -> index of its producer in nodes
        self.nodes: list[Node | None] = []
        self.readers: dict[int, int] = {v: len(nodes) for v, nodes in graph.consumers().items()}
        for v in graph.outputs:
            self.readers[v] += 1

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.put(node)
        nodes = [n for n in self.nodes if n is not None]
        return GraphBuilder(self.builder.values, nodes).graph(self.graph.inputs, self.graph.outputs)

    def put(self, node: Node) -> None:
        """Add a node, or what does its work with the function in front."""
        producer = self.before(node)
        if producer is None:
            self.place[node.output] = len(self.nodes)
            self.nodes.append(node)
            return
        self.nodes[self.place.pop(producer.output)] = None
        raised = []
        for v in producer.inputs:
            value = self.builder.values[v]
            raised.append(self.builder.value(value.shape, DType.FLOAT32, name=value.name))
            self.readers[raised[-1]] = 1
            self.put(dataclasses.replace(node, operands=(v,), output=raised[-1]))
        sources = tuple(sorted({*producer.sources, *node.sources}))
        self.put(dataclasses.replace(producer, inputs=tuple(raised), output=node.output, sources=sources))

    def before(self, node: Node) -> Node | None:
        """The producer of what `node` reads, if the function of `node` may as well come in front of it."""
        values = self.builder.values
        if not isinstance(node.op, Elementwise) or len(node.operands) != 1 or self.readers[node.operands[0]] != 1:
            return None
        place = self.place.get(node.operands[0])
        producer = None if place is None else self.nodes[place]
        if producer is None or producer.epilogue != RESULT or len(set(producer.inputs)) != len(producer.inputs):
            return None
        read = [*producer.inputs, producer.output, node.output]
        if any(values[v].dtype is not DType.FLOAT32 for v in read) or any(values[v].is_constant for v in read):
            return None
        if values[node.output].shape != values[producer.output].shape:
            return None
        if isinstance(producer.op, Concat):
            shared = sum(self.readers[v] != 1 or v not in self.place for v in producer.inputs)
            return producer if shared <= 1 else None
        if not isinstance(producer.op, Copy) or not all(isinstance(s, (Reshape, Transpose)) for s in producer.op.steps):
            return None
        source = values[producer.inputs[0]]
        is_view = follow(padded(0, source.shape, source.dtype), producer.op.steps) is not None
        return producer if is_view else None
