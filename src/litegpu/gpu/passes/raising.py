"""Move elementwise work in front of copies and concatenations that are mere views, to the kernels that can do it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerMatMul,
    MatMul,
    Node,
    Reshape,
    Shape,
    Transpose,
    sources_of,
)
from litegpu.gpu.passes.movement import join_copies
from litegpu.gpu.passes.spreading import may_spread
from litegpu.gpu.view import follow, inverse, padded

#: Elements up to which a constant is looked at as a whole, to see what it is behind a reshape.
_LARGEST = 1 << 24
#: Types among which a function may pass what moves its argument.
_KINDS = ((DType.FLOAT32,), (DType.INT8, DType.UINT8))
#: What may have a value of the same elements in another shape in its epilogue.
_PRODUCTS = (Conv2D, MatMul, IntegerConv2D, IntegerMatMul)


def raise_elementwise(graph: Graph) -> Graph:
    """A function of each element, applied to a value, of floats or of bytes, that one node reads and that reshapes,
    transposes or joins others, is applied to those instead: there it becomes the epilogue of what computes them.
    Further operands come along: numbers, parts of constants where values are joined, and through a reshape constants
    and, where a product is reshaped, values of its shape."""
    return join_copies(_Raising(graph).run())


class _Raising:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(dict(graph.values), [])
        self.place: dict[int, int] = {}  # value -> index of its producer in nodes
        self.nodes: list[Node | None] = []
        self.moved: set[int] = set()  # operands that came along, behind reshapes over which nothing goes back
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
        begin = 0
        for v in producer.inputs:
            value = self.builder.values[v]
            made = self.builder.values[node.output].dtype
            raised.append(self.builder.value(value.shape, made, name=value.name))
            self.readers[raised[-1]] = 1
            operands = [v if o == producer.output else self.carried(o, producer, v, begin) for o in node.operands]
            begin += value.shape[producer.op.axis] if isinstance(producer.op, Concat) else 0
            self.put(dataclasses.replace(node, operands=tuple(operands), output=raised[-1]))
        sources = sources_of(producer, node)
        self.put(dataclasses.replace(producer, inputs=tuple(raised), output=node.output, sources=sources))

    def before(self, node: Node) -> Node | None:
        """The producer of what `node` reads, if the function of `node` may as well come in front of it."""
        if not isinstance(node.op, Elementwise):
            return None
        for v in dict.fromkeys(node.operands):
            if v in self.moved:
                continue
            place = self.place.get(v) if self.readers.get(v) == 1 else None
            producer = None if place is None else self.nodes[place]
            others = [o for o in node.operands if o != v]
            if (
                producer is not None
                and self.may_pass(node, producer)
                and all(self.may_come(o, producer) for o in others)
            ):
                return producer
        return None

    def may_pass(self, node: Node, producer: Node) -> bool:
        """Whether `producer` only moves what the function of `node` is of."""
        values = self.builder.values
        if producer.epilogue != RESULT or len(set(producer.inputs)) != len(producer.inputs):
            return False
        read = [*producer.inputs, producer.output, node.output]
        if not any(all(values[v].dtype in kinds for v in read) for kinds in _KINDS):
            return False
        if any(values[v].is_constant for v in read) and not isinstance(producer.op, Concat):
            return False
        if values[node.output].shape != values[producer.output].shape:
            return False
        if isinstance(producer.op, Concat):
            known = [values[v].is_constant for v in producer.inputs]
            others = [v for v, constant in zip(producer.inputs, known, strict=True) if not constant]
            apart = [v for v in others if self.readers[v] != 1 or v not in self.place]  # a kernel of its own is left
            small = all(2 * values[v].elements <= values[producer.output].elements for v in apart)
            return len(apart) <= 1 and small and len(others) > 0
        if not isinstance(producer.op, Copy) or not all(isinstance(s, (Reshape, Transpose)) for s in producer.op.steps):
            return False
        source = values[producer.inputs[0]]
        view = follow(padded(0, source.shape, source.dtype), producer.op.steps)
        return view is not None or self.becomes_pixels(producer) or self.is_written_so(producer)

    def becomes_pixels(self, copy: Node) -> bool:
        """Whether a convolution may write what is copied where it belongs, if nothing else is done on the way."""
        place = self.place.get(copy.inputs[0]) if self.readers[copy.inputs[0]] == 1 else None
        conv = None if place is None else self.nodes[place]
        return conv is not None and may_spread(conv, copy, self.builder.values)

    def is_written_so(self, copy: Node) -> bool:
        """Whether what computes the source may write it where the copy has it, if nothing else is done on the way: as
        an attention writes its heads side by side."""
        values, place = self.builder.values, self.place.get(copy.inputs[0])
        source, target = (values[v] for v in (copy.inputs[0], copy.output))
        computed = None if place is None or self.readers[source.id] != 1 else self.nodes[place]
        if computed is None or isinstance(computed.op, (Copy, Concat)):
            return False
        assert isinstance(copy.op, Copy)
        back = inverse(copy.op.steps)
        written = None if back is None else follow(padded(0, target.shape, target.dtype), back)
        return written is not None and written.vector

    def may_come(self, operand: int, producer: Node) -> bool:
        """Whether a further operand of the function can be had in front of `producer` at no cost."""
        value = self.builder.values[operand]
        if value.is_constant and value.elements == 1:
            return True
        if not value.is_constant and not any(value.dtype in kinds for kinds in _KINDS):
            return False
        if isinstance(producer.op, Concat):
            return value.is_constant and value.elements <= _LARGEST
        if not isinstance(producer.op, Copy) or len(producer.op.steps) != 1:
            return False
        source, target = (self.builder.values[v].shape for v in (producer.inputs[0], producer.output))
        if not isinstance(producer.op.steps[0], Reshape) or 0 in source:
            return False
        if value.data is not None:
            return _behind(value.data, target, source) is not None
        place = self.place.get(producer.inputs[0])
        computed = None if place is None else self.nodes[place]
        free = source[3] == target[3] or source[3] % 4 == target[3] % 4 == 0
        return free and value.shape == target and computed is not None and isinstance(computed.op, _PRODUCTS)

    def carried(self, operand: int, producer: Node, v: int, begin: int) -> int:
        """The operand in front of `producer`, for its input `v`, which what it joins has from `begin` on."""
        value = self.builder.values[operand]
        if value.is_constant and value.elements == 1:
            return operand
        if isinstance(producer.op, Concat):
            axis = producer.op.axis
            if value.data is None or value.shape[axis] == 1:
                return operand
            part = value.data.take(range(begin, begin + self.builder.values[v].shape[axis]), axis)
            return self.builder.constant(part, name=value.name)
        source, target = (self.builder.values[v].shape for v in (producer.inputs[0], producer.output))
        if value.data is not None:
            found = _behind(value.data, target, source)
            assert found is not None
            return self.builder.constant(found, name=value.name)
        moved = self.builder.value(source, value.dtype, name=value.name)
        self.readers[moved] = 1
        self.moved.add(moved)
        self.put(Node(Copy((Reshape(target, source),)), (operand,), moved))
        return moved


def _behind(data: np.ndarray, target: Shape, source: Shape) -> np.ndarray | None:
    """A constant that broadcasts to `target`, for the same elements in the shape `source`; None if it would take more
    room there, or is not worth looking at."""
    target, source = _without_lead(data.shape, target, source)
    if math.prod(target) > _LARGEST:
        return None
    whole = np.broadcast_to(data, target).reshape(source)
    for axis in range(whole.ndim):
        first = whole.take([0], axis)
        if whole.shape[axis] > 1 and np.array_equal(np.broadcast_to(first, whole.shape), whole, equal_nan=True):
            whole = first
    return whole if whole.size <= data.size else None


def _without_lead(shape: Shape, target: Shape, source: Shape) -> tuple[Shape, Shape]:
    """The two shapes with 1 for the axes in front over which a constant of `shape` is the same, a batch mostly."""
    alike = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    for i in range(alike, 0, -1):
        for j in range(len(source), 0, -1):
            if math.prod(source[:j]) == math.prod(target[:i]):
                return (*[1] * i, *target[i:]), (*[1] * j, *source[j:])
    return target, source
