"""Products, softmaxes and reshapes of leading axes change places: heads that are within the batch, as PyTorch's modules
have them, are an axis of their own wherever something is done for each of the batch."""

from __future__ import annotations

import dataclasses
import math

from litegpu.gpu.graph import RESULT, Copy, Graph, GraphBuilder, MatMul, Node, Reshape, Shape, Softmax, is_reshaping
from litegpu.gpu.passes.movement import join_copies


def part_leads(graph: Graph) -> Graph:
    """The graph in which a product that is reshaped in its first two axes has factors that are, and a softmax, or the
    product behind one, of what was reshaped back is reshaped back itself: between the two the mask of an attention is
    added, or fills in, as if these had been apart all the time."""
    moved = _Moving(graph).run()
    return join_copies(moved) if moved is not graph else graph


class _Moving:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(dict(graph.values), [])
        self.consumers = graph.consumers()
        self.producer: dict[int, Node] = {}  # of the nodes so far
        self.gone: set[int] = set()  # copies whose work the product in front of them does

    def run(self) -> Graph:
        found = False
        for node in self.graph.nodes:
            if node.output in self.gone:
                continue
            done = self.product_in_front(node) or self.softmax_behind(node) or self.product_behind(node)
            found |= done
            if not done:
                self.put(node)
        return self.builder.graph(self.graph.inputs, self.graph.outputs) if found else self.graph

    def put(self, node: Node) -> int:
        self.builder.nodes.append(node)
        self.producer[node.output] = node
        return node.output

    def product_in_front(self, node: Node) -> bool:
        """A product, and the reshape that alone reads it."""
        readers = self.consumers.get(node.output, [])
        if not isinstance(node.op, MatMul) or node.operands or len(readers) != 1:
            return False
        copy, values = readers[0], self.builder.values
        if node.output in self.graph.outputs or not self.is_lead(copy):
            return False
        shape, lead = values[node.output].shape, values[copy.output].shape[:2]
        if any(values[v].shape[:2] not in (shape[:2], (1, 1)) for v in node.inputs):
            return False
        inputs = tuple(self.reshaped(v, lead, node) if values[v].shape[:2] != (1, 1) else v for v in node.inputs)
        self.gone.add(copy.output)
        self.put(dataclasses.replace(node, inputs=inputs, output=copy.output))
        return True

    def softmax_behind(self, node: Node) -> bool:
        copy = self.before(node) if isinstance(node.op, Softmax) and node.epilogue == RESULT else None
        if copy is None:
            return False
        values, source = self.builder.values, copy.inputs[0]
        weights = self.builder.value(values[source].shape, values[node.output].dtype, name=values[node.output].name)
        self.put(dataclasses.replace(node, inputs=(source,), output=weights))
        self.put(self.copied(weights, node.output, node))
        return True

    def product_behind(self, node: Node) -> bool:
        """The product of what a softmax gave and values."""
        copy = self.before(node) if isinstance(node.op, MatMul) and node.epilogue == RESULT else None
        values = self.builder.values
        before = None if copy is None else self.producer.get(copy.inputs[0])
        if copy is None or before is None or not isinstance(before.op, Softmax):
            return False
        left, right = (values[v].shape for v in node.inputs)
        lead, shape = values[copy.inputs[0]].shape[:2], values[node.output].shape
        if left[:2] != right[:2] or shape[:2] != left[:2]:
            return False
        output = self.builder.value((*lead, *shape[2:]), values[node.output].dtype, name=values[node.output].name)
        inputs = (copy.inputs[0], self.reshaped(node.inputs[1], lead, node))
        self.put(dataclasses.replace(node, inputs=inputs, output=output))
        self.put(self.copied(output, node.output, node))
        return True

    def before(self, node: Node) -> Node | None:
        """The reshape of leading axes that the node alone reads."""
        v = node.inputs[0]
        copy = self.producer.get(v)
        alone = copy is not None and len(self.consumers.get(v, [node])) == 1 and v not in self.graph.outputs
        return copy if copy is not None and alone and self.is_lead(copy) else None

    def is_lead(self, node: Node) -> bool:
        """Whether the node does nothing but divide the first two axes otherwise."""
        if not is_reshaping(node):
            return False
        source, target = (self.builder.values[v] for v in (node.inputs[0], node.output))
        one, other = source.shape, target.shape
        alike = source.dtype == target.dtype and one[2:] == other[2:]
        return alike and one != other and math.prod(one[:2]) == math.prod(other[:2])

    def reshaped(self, v: int, lead: Shape, node: Node) -> int:
        value = self.builder.values[v]
        made = self.builder.value((*lead, *value.shape[2:]), value.dtype, name=value.name)
        return self.put(self.copied(v, made, node))

    def copied(self, source: int, target: int, node: Node) -> Node:
        shapes = (self.builder.values[v].shape for v in (source, target))
        return Node(Copy((Reshape(*shapes),)), (source,), target, sources=node.sources)
