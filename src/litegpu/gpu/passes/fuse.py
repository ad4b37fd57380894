"""Fuse elementwise nodes into the kernels around them: as epilogues of their producers, operands of their consumers,
or prologues of reductions."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Copy,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Node,
    Reduce,
    Resize2D,
    sources_of,
    substitute,
    tree_size,
    walk,
)
from litegpu.gpu.kernels.transposition import exchange
from litegpu.gpu.passes.clamp import join_clamps
from litegpu.gpu.view import follow, padded

#: An elementwise node that is smaller than its consumer is recomputed there only if it is at most this many functions.
CHEAP = 8
#: A fused expression larger than this stops growing, so that kernels stay readable and registers suffice.
LARGEST = 64
#: The same with what is shared counted each time, as passes may go through trees.
LARGEST_TREE = 1 << 14


def fuse_elementwise(graph: Graph, max_buffers: int) -> Graph:
    """Merge elementwise nodes into others while each kernel binds at most `max_buffers` buffers."""
    state = _State(graph, max_buffers)
    for node in graph.nodes:
        state.visit(node)
    nodes = [dataclasses.replace(n, epilogue=join_clamps(n.epilogue)) for n in state.nodes if n is not None]
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)


def inlined(graph: Graph, node: Node, value: int, producer: Node, max_buffers: int, most: int) -> Node | None:
    """The elementwise `node` computing the elementwise `producer` of its operand `value` itself, if that is at most so
    many functions, and as many as one kernel has."""
    merged = _inline_operand(node, value, producer)
    fits = _State(graph, max_buffers).fits(merged)
    return merged if fits and _size(producer.epilogue) <= most else None


class _State:
    """The nodes so far; those merged into a later one are None."""

    def __init__(self, graph: Graph, max_buffers: int) -> None:
        self.graph, self.max_buffers = graph, max_buffers
        self.nodes: list[Node | None] = []
        self.place: dict[int, int] = {}  # value -> index of its producer in nodes
        self.readers: dict[int, int] = dict.fromkeys(graph.values, 0)
        for n in graph.nodes:
            for v in set(n.reads):
                self.readers[v] += 1
        for v in graph.outputs:
            self.readers[v] += 2  # never merged away

    def visit(self, node: Node) -> None:
        node = self.take_operands(node)
        if isinstance(node.op, Elementwise):
            node = self.join_producer(node)
        self.place[node.output] = len(self.nodes)
        self.nodes.append(node)

    def take_operands(self, node: Node) -> Node:
        """Compute elementwise operands (of the epilogue, or of a reduction's prologue) inside `node`."""
        changed = True
        while changed:
            changed = False
            for v in node.reads:
                producer = self.sole(v)
                if producer is None or not isinstance(producer.op, Elementwise):
                    continue
                if v in node.operands and v not in node.inputs:
                    merged = _inline_operand(node, v, producer)
                elif isinstance(node.op, Reduce) and v not in node.operands:
                    merged = _inline_prologue(node, v, producer)
                else:
                    continue
                full = self.graph.values[v].shape == self._domain(node)
                cheap = full or _size(producer.epilogue) <= CHEAP
                if cheap and self.fits(merged) and self._domain(merged) == self._domain(node):
                    self.merged(producer, node)
                    node, changed = merged, True
                    break
        return node

    def join_producer(self, node: Node) -> Node:
        """Make an elementwise node the epilogue of the best of the nodes that it reads."""
        shape = self.graph.values[node.output].shape
        candidates = [
            p
            for v in set(node.operands)
            if (p := self.sole(v)) and self.graph.values[v].shape == shape and self.joins(p)
        ]
        for producer in sorted(candidates, key=lambda p: (not isinstance(p.op, Copy), self.place[p.output]))[::-1]:
            merged = _append(producer, node)
            if self.fits(merged):
                self.merged(producer, node)
                return merged
        return node

    def merged(self, producer: Node, node: Node) -> None:
        """`producer` is part of `node` from now on: what both read has a reader less."""
        self.nodes[self.place.pop(producer.output)] = None
        for v in {*producer.reads} & {*node.reads}:
            self.readers[v] -= 1

    def joins(self, producer: Node) -> bool:
        """Whether the producer is a kernel: concatenations and copies that become views are not, unless it takes tiles
        to read those in rows."""
        if isinstance(producer.op, Concat):
            return False
        if isinstance(producer.op, Copy) and producer.epilogue == RESULT:
            source = self.graph.values[producer.inputs[0]]
            view = follow(padded(0, source.shape, source.dtype), producer.op.steps)
            return view is None or exchange(view) is not None
        return True

    def sole(self, value: int) -> Node | None:
        """The producer of `value` if one node alone reads it."""
        if self.readers[value] != 1 or value not in self.place:
            return None
        return self.nodes[self.place[value]]

    def fits(self, node: Node) -> bool:
        values = self.graph.values
        buffers = {v for v in node.reads if values[v].elements > 1 or not values[v].is_constant}
        own = 2 if isinstance(node.op, Resize2D) else 1  # the output; Resize2D also reads a table of coordinates
        return len(buffers) + own <= self.max_buffers and _is_small(node.epilogue)

    def _domain(self, node: Node) -> tuple[int, ...]:
        if isinstance(node.op, Reduce):
            shapes = [self.graph.values[v].shape for v in node.inputs]
            return tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        return self.graph.values[node.output].shape


def first_operand(node: Node) -> int:
    """The number of the Arg that stands for operand 0 of the node's epilogue."""
    return 0 if isinstance(node.op, Elementwise) else 1


def _append(producer: Node, node: Node) -> Node:
    """`producer` with the elementwise `node` as (the rest of) its epilogue."""
    base = first_operand(producer)
    operands = list(producer.operands)
    replace: dict[int, Expr] = {}
    for i, v in enumerate(node.operands):
        if v == producer.output:
            replace[i] = producer.epilogue
        else:
            replace[i] = Arg(_position(operands, v) + base)
    return dataclasses.replace(
        producer,
        epilogue=substitute(node.epilogue, replace),
        operands=tuple(operands),
        output=node.output,
        sources=sources_of(producer, node),
    )


def _inline_operand(node: Node, value: int, producer: Node) -> Node:
    """`node` computing the elementwise `producer` of its operand `value` itself."""
    base = first_operand(node)
    operands = [v for v in node.operands if v != value]
    inner = substitute(
        producer.epilogue, {i: Arg(_position(operands, v) + base) for i, v in enumerate(producer.operands)}
    )
    replace: dict[int, Expr] = {0: RESULT} if base else {}
    for i, v in enumerate(node.operands):
        replace[i + base] = inner if v == value else Arg(operands.index(v) + base)
    return dataclasses.replace(
        node,
        epilogue=substitute(node.epilogue, replace),
        operands=tuple(operands),
        sources=sources_of(producer, node),
    )


def _inline_prologue(node: Node, value: int, producer: Node) -> Node:
    """A reduction computing the elementwise `producer` of its input `value` itself."""
    assert isinstance(node.op, Reduce)
    inputs = [v for v in node.inputs if v != value]
    inner = substitute(producer.epilogue, {i: Arg(_position(inputs, v)) for i, v in enumerate(producer.operands)})
    replace = {i: inner if v == value else Arg(inputs.index(v)) for i, v in enumerate(node.inputs)}
    return dataclasses.replace(
        node,
        op=dataclasses.replace(node.op, prologue=substitute(node.op.prologue, replace)),
        inputs=tuple(inputs),
        sources=sources_of(producer, node),
    )


def _position(operands: list[int], value: int) -> int:
    """Where `value` stands in `operands`, added at the end if it does not."""
    if value not in operands:
        operands.append(value)
    return operands.index(value)


def _is_small(expr: Expr) -> bool:
    return _size(expr) <= LARGEST and tree_size(expr) <= LARGEST_TREE


def _size(expr: Expr) -> int:
    return sum(isinstance(e, Apply) for e in walk(expr))
