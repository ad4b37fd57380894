"""Keep the channels last where a converter has put them in front, between operations that have them last."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from litegpu.gpu.graph import (
    RESULT,
    Concat,
    Copy,
    Elementwise,
    Graph,
    GraphBuilder,
    Mirror,
    Node,
    Pad,
    Reduce,
    Reshape,
    Slice,
    Step,
    Take,
    Tile,
    Transpose,
)
from litegpu.gpu.passes.movement import join_copies

#: From channels last to channels in front.
_FORWARD = Transpose((0, 3, 1, 2))
#: The axis with channels last, of each with channels in front.
_AXIS = (0, 3, 1, 2)


def keep_channels_last(graph: Graph) -> Graph:
    """The graph with functions of elements, paddings, slices, concatenations and reductions of what was transposed on
    what it was before: transpositions move down until they meet their inverse, as between the convolutions of files
    that were made from ONNX or PyTorch."""
    if not any(isinstance(n.op, Copy) and _FORWARD in n.op.steps for n in graph.nodes):
        return graph
    return join_copies(_Sinking(graph).run())


class _Sinking:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(dict(graph.values), [])
        self.last: dict[int, int] = {}  # value with the channels in front -> the same with the channels last

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if not self.move(node):
                self.builder.nodes.append(node)
        return self.builder.graph(self.graph.inputs, self.graph.outputs)

    def move(self, node: Node) -> bool:
        """Whether the node is computed otherwise now: with the channels last, and then transposed."""
        if isinstance(node.op, Copy):
            return self.move_copy(node)
        if not isinstance(node.op, (Elementwise, Concat, Reduce)) or not any(v in self.last for v in node.reads):
            return False
        if not isinstance(node.op, Elementwise) and node.epilogue != RESULT:
            return False
        moved = [self.channels_last(v) for v in node.reads]
        if None in moved or not any(self.is_whole(v, node) for v in node.reads):
            return False
        found = [v for v in moved if v is not None]
        op = node.op
        if isinstance(op, Concat):
            op = Concat(_AXIS[op.axis])
        elif isinstance(op, Reduce):
            op = dataclasses.replace(op, axes=tuple(sorted(_AXIS[axis] for axis in op.axes)))
        inputs, operands = tuple(found[: len(node.inputs)]), tuple(found[len(node.inputs) :])
        self.put(dataclasses.replace(node, op=op, inputs=inputs, operands=operands))
        return True

    def is_whole(self, v: int, node: Node) -> bool:
        """Whether it is as large as what is computed, or reduced or joined, so that something is gained."""
        shape = self.graph.values[v].shape
        return v in self.last and (
            not isinstance(node.op, Elementwise) or shape == self.graph.values[node.output].shape
        )

    def channels_last(self, v: int) -> int | None:
        """The value with the channels last, if that costs nothing."""
        value = self.builder.values[v]
        if v in self.last or value.elements == 1:
            return self.last.get(v, v)
        b, c, h, w = value.shape
        if value.data is not None:
            return self.builder.constant(
                value.data.transpose(0, 2, 3, 1), name=value.name, narrow=value.dtype.is_narrow
            )
        if h == w == 1 or c == 1:  # nothing moves
            moved = self.builder.value((b, h, w, c), value.dtype, name=value.name)
            self.builder.node(Copy((Reshape(value.shape, (b, h, w, c)),)), [v], moved)
            self.last[v] = moved
            return moved
        return None

    def move_copy(self, node: Node) -> bool:
        assert isinstance(node.op, Copy)
        source, steps = node.inputs[0], node.op.steps
        if source in self.last:
            source, steps = self.last[source], (_FORWARD, *steps)
        if _FORWARD not in steps or node.epilogue != RESULT:
            return False
        if self.builder.values[source].dtype != self.builder.values[node.output].dtype:
            return False
        at = steps.index(_FORWARD)
        first, rest = list(steps[:at]), steps[at + 1 :]
        passed = 0
        for step in rest:
            moved = _moved(step)
            if moved is None:
                break
            first.append(moved)
            passed += 1
        if passed < len(rest):
            steps = (*first, _FORWARD, *rest[passed:])
            self.builder.nodes.append(dataclasses.replace(node, op=Copy(steps), inputs=(source,)))
        elif first:
            self.put(dataclasses.replace(node, op=Copy(tuple(first)), inputs=(source,)))
        else:
            self.last[node.output] = source
            self.builder.nodes.append(dataclasses.replace(node, op=Copy((_FORWARD,)), inputs=(source,)))
        return True

    def put(self, node: Node) -> None:
        """Add the node, whose result has the channels last, and what puts them in front for those that want it so."""
        value = self.builder.values[node.output]
        moved = self.builder.value(_turned(value.shape), value.dtype, name=value.name)
        self.builder.nodes.append(dataclasses.replace(node, output=moved))
        self.builder.node(Copy((_FORWARD,)), [moved], node.output, sources=node.sources)
        self.last[node.output] = moved


def _moved(step: Step) -> Step | None:
    """The movement of what has the channels last that is this one of what has them in front."""
    match step:
        case Pad(before, after, fill):
            return Pad(_turned(before), _turned(after), fill)
        case Mirror(before, after, symmetric):
            return Mirror(_turned(before), _turned(after), symmetric)
        case Slice(begin, stride, target):
            return Slice(_turned(begin), _turned(stride), _turned(target))
        case Tile(multiples):
            return Tile(_turned(multiples))
        case Take(axis, indices):
            return Take(_AXIS[axis], indices)
    return None


def _turned(of_axes: Sequence[int]) -> tuple[int, ...]:
    """Numbers for each axis, the channels' last."""
    b, c, h, w = of_axes
    return b, h, w, c
