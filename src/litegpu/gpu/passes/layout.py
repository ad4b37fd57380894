"""Decide where every value lies: which copies are mere views, which values are slices of a concatenation."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from dataclasses import dataclass

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    JoinedMoments,
    MeanConv2D,
    Moments,
    MomentsConv2D,
    Node,
    Op,
    Reduce,
    RowMoments,
    Slice,
    Squeeze,
    Value,
)
from litegpu.gpu.view import View, follow, inverse, packed, padded

#: Whose results are sums, which may exceed what float16 holds.
_SUMS = (Reduce, Moments, RowMoments, JoinedMoments, Squeeze, MeanConv2D)


@dataclass(frozen=True, eq=False)
class Placed:
    """A graph whose nodes are kernels (no Concat, no copy that is a view) and where its runtime values lie.

    `roots`: elements and storage type of each piece of memory that views refer to.
    """

    graph: Graph
    views: dict[int, View]
    roots: dict[int, tuple[int, DType]]


def place(graph: Graph, half: bool, exact: Container[int] = (), written: Container[int] = ()) -> Placed:
    """Give every value a View. `half`: intermediates of floating point are stored as float16, but not those in `exact`.
    `written`: inputs that are variables, which the kernels write in the end.

    Inputs and outputs of the graph are packed row-major as the user's arrays are; everything else has channels padded
    to a multiple of four. Values are written once, so a view never overlaps what somebody else writes.
    """
    return _Layout(_with_own_outputs(graph), half, exact, written).run()


def _with_own_outputs(graph: Graph) -> Graph:
    """Copy outputs that are inputs, constants or repeated, those that other nodes read lane by lane, and those that a
    node reads whose kernel takes float16 alone, so that each output is written by a node of its own."""
    builder = GraphBuilder.of(graph)
    consumers = graph.consumers()
    outputs: list[int] = []
    for v in graph.outputs:
        value = graph.values[v]
        reread = value.shape[3] % 4 != 0 and any(not isinstance(n.op, (Elementwise, Copy)) for n in consumers[v])
        as_half = any(isinstance(n.op, MeanConv2D) for n in consumers[v])
        if value.is_constant or v in graph.inputs or v in outputs or reread or as_half:
            copy = builder.value(value.shape, value.dtype, name=value.name, tensor=value.tensor)
            if as_half:  # no Copy, for whose sake it would lie there as float32
                builder.node(Elementwise(), (), copy, Arg(0), [v])
            else:
                builder.node(Copy(()), [v], copy)
            v = copy
        outputs.append(v)
    return builder.graph(graph.inputs, outputs)


class _Layout:
    def __init__(self, graph: Graph, half: bool, exact: Container[int], written: Container[int]) -> None:
        self.graph, self.half, self.exact, self.written = graph, half, exact, written
        self.builder = GraphBuilder(dict(graph.values), [])
        self.views: dict[int, View] = {}
        self.roots: dict[int, tuple[int, DType]] = {}
        self.consumers = graph.consumers()
        self.producer = graph.producer()
        self.extra: dict[int, list[Node]] = {}  # index of a node -> copies that come after it

    def run(self) -> Placed:
        for v in (*self.graph.inputs, *self.graph.outputs):
            if v not in self.views:
                value = self.graph.values[v]
                written = v not in self.graph.inputs or v in self.written
                self.root(v, packed(len(self.roots), value.shape, value.dtype, written=written))
        copies: dict[int, list[Node]] = {}
        for node in reversed(self.graph.nodes):
            if isinstance(node.op, Concat):
                copies[node.output] = self.place_inputs(node)
            elif isinstance(node.op, Copy):
                if node.output not in self.views and self.is_better_written(node):
                    self.new_root(node.output)
                if node.output in self.views:
                    self.place_source(node)
        nodes: list[Node] = []
        for node in self.graph.nodes:
            if isinstance(node.op, Concat):
                nodes += copies[node.output]
            elif not self.is_view(node):
                if node.output not in self.views:
                    self.new_root(node.output)
                nodes.append(node)
        graph = GraphBuilder(self.builder.values, nodes).graph(self.graph.inputs, self.graph.outputs)
        return Placed(graph, self.views, self.roots)

    # ------------------------------------------------------------------------------------ from consumers back

    def place_inputs(self, concat: Node) -> list[Node]:
        """Make the inputs of a concatenation slices of its output; returns the copies for those that cannot be."""
        assert isinstance(concat.op, Concat)
        if concat.output not in self.views:
            self.new_root(concat.output, shared=concat.op.axis == 3)
        whole, axis = self.views[concat.output], concat.op.axis
        copies: list[Node] = []
        begin = 0
        for v in concat.inputs:
            value = self.builder.values[v]
            start = tuple(begin if i == axis else 0 for i in range(4))
            view = follow(whole, (Slice(start, (1, 1, 1, 1), value.shape),))
            assert view is not None
            if axis == 3 and not whole.whole_quads:
                view = dataclasses.replace(view, zero_padded=value.shape[3] % 4 == 0)
            if self.may_move(v, view) and concat.inputs.count(v) == 1:
                self.views[v] = view
            else:
                copy = self.builder.value(value.shape, value.dtype, name=value.name)
                self.views[copy] = view
                copies.append(Node(Copy(()), (v,), copy, sources=concat.sources))
            begin += value.shape[axis]
        return copies

    def is_better_written(self, copy: Node) -> bool:
        """Whether a copy that no view stands for, as when heads are joined, costs nothing if its source is written
        where its output is to be."""
        source, target = (self.builder.values[v] for v in (copy.inputs[0], copy.output))
        assert isinstance(copy.op, Copy)
        back = inverse(copy.op.steps)
        if not _is_plain(copy, self.graph) or back is None or len(self.consumers[source.id]) != 1:
            return False
        if source.shape[3] % 4 or target.shape[3] % 4 or isinstance(self.producer_op(source.id), (Copy, Concat)):
            return False
        read = follow(padded(0, source.shape, source.dtype), copy.op.steps)
        written = follow(padded(0, target.shape, target.dtype), back)
        useless = read is None or not _is_good(read, self.consumers[target.id])
        return useless and written is not None and written.vector

    def producer_op(self, v: int) -> Op | None:
        return self.producer[v].op if v in self.producer else None

    def place_source(self, copy: Node) -> None:
        """Where the output's place is given, let the source of a reshape or transposition be written right there."""
        assert isinstance(copy.op, Copy)
        source = self.builder.values[copy.inputs[0]]
        back = inverse(copy.op.steps)
        if not _is_plain(copy, self.graph) or back is None:
            return
        view = follow(self.views[copy.output], back)
        if view is not None and self.may_move(source.id, view):
            self.views[source.id] = view

    def may_move(self, v: int, view: View) -> bool:
        """Whether the producer of `v` may write it at `view`, and all its readers read it there."""
        value = self.builder.values[v]
        if v in self.views or value.is_constant or v not in self.producer or v in self.graph.outputs:
            return False
        if isinstance(self.producer[v].op, MomentsConv2D):
            return False  # its kernel stores rows side by side
        if v in self.exact and view.dtype is DType.FLOAT16:
            return False
        if view.dtype.is_narrow and not (view.vector and view.whole_quads):
            return False  # no thread may write a part of a word
        return len(self.consumers[v]) == 1 or _is_good(view, self.consumers[v])

    # ------------------------------------------------------------------------------------ from producers on

    def is_view(self, node: Node) -> bool:
        """Whether the node is a copy that costs nothing; then its output gets a view of its input's memory."""
        if not isinstance(node.op, Copy) or not _is_plain(node, self.graph):
            return False
        source = self.builder.values[node.inputs[0]]
        if source.is_constant:
            return False
        view = follow(self.views[source.id], node.op.steps)
        if node.output in self.views:
            return view is not None and _same_place(view, self.views[node.output])
        if view is None or not (
            _is_good(view, consumers := self.consumers[node.output]) or _is_byte(view, node, consumers)
        ):
            return False
        self.views[node.output] = view
        return True

    # ------------------------------------------------------------------------------------------------ memory

    def new_root(self, v: int, shared: bool = False) -> None:
        """Memory for value `v`, padded. `shared`: several nodes write its channels, nobody the padding."""
        value = self.builder.values[v]
        reduced = v in self.producer and isinstance(self.producer[v].op, _SUMS)
        small = self.half and not reduced and v not in self.exact and _may_be_half(value)
        dtype = DType.FLOAT16 if small else value.dtype
        view = padded(len(self.roots), value.shape, dtype)
        if shared and value.shape[3] % 4:
            view = dataclasses.replace(view, zero_padded=False)
        self.root(v, view)

    def root(self, v: int, view: View) -> None:
        self.views[v] = view
        self.roots[view.root] = (view.size, view.dtype)


def _may_be_half(value: Value) -> bool:
    """Vectors (one pixel: means, variances, scales, logits) stay in float32, as sums do: they cost nothing, and sums of
    squares exceed what float16 holds."""
    return value.dtype is DType.FLOAT32 and value.shape[1] * value.shape[2] > 1


def _is_plain(copy: Node, graph: Graph) -> bool:
    """Whether a Copy moves its input as it is."""
    return copy.epilogue == RESULT and graph.values[copy.inputs[0]].dtype == graph.values[copy.output].dtype


def _is_good(view: View, consumers: list[Node]) -> bool:
    """Whether reading through `view` costs its readers no more than a copy of their own would."""
    light = all(isinstance(n.op, (Elementwise, Copy, Concat)) for n in consumers)
    return light or (view.vector and (view.strides[2] != 0 or view.shape[2] == 1))


def _is_byte(view: View, node: Node, consumers: list[Node]) -> bool:
    """Whether it is one byte of each pixel that only epilogues read."""
    return view.dtype.is_narrow and view.shape[3] == 1 and not any(node.output in n.inputs for n in consumers)


def _same_place(a: View, b: View) -> bool:
    moving = [i for i in range(4) if a.shape[i] > 1]
    return (a.root, a.shape, a.offset) == (b.root, b.shape, b.offset) and all(
        a.strides[i] == b.strides[i] for i in moving
    )
