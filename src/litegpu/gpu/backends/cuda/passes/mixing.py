"""Networks of skeletons mix joints behind a layer of channels that makes a part for each of several matrices of joints.
The order is of no matter: joints first, nothing is transposed, and with few numbers both are one product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.places import PlacesSizes, can
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    MatMul,
    Node,
    Reshape,
    Shape,
    Step,
    Transpose,
    apply,
    fits_half,
    sources_of,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.by_channel import constants_of, line_of
from litegpu.gpu.passes.fold import drop_unused

#: Joints times channels that are read, up to which one product does both.
FEW = 128


def join_mixing(graph: Graph, features: Features) -> Graph:
    """The graph with products of joints, from the left, in front of those of channels, where copies would have put the
    joints last and back."""
    search = _Search(graph, features)
    found = [mixing for node in graph.nodes if (mixing := search.mixing(node)) is not None]
    if not found:
        return graph
    ends = {mixing.end.output: mixing for mixing in found}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in ends:
            _put(builder, ends[node.output])
        else:
            builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs))


@dataclass(frozen=True)
class _Mixing:
    """Of x [B, H, joints, inputs] to [B, H, new joints, channels]: `channels` [parts, channels, inputs] and what is
    added behind, [parts, channels]; `joints` [new joints, parts, joints]; the layer of joints, the copy behind it."""

    x: int
    channels: np.ndarray
    shift: np.ndarray
    joints: np.ndarray
    layer: Node
    end: Node
    sources: tuple[int, ...]
    small: bool


class _Search:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.features = graph, features
        self.producer, self.consumers = graph.producer(), graph.consumers()

    def mixing(self, layer: Node) -> _Mixing | None:
        """What ends behind this layer of joints."""
        values = self.graph.values
        copy = self.before(layer) if self.is_plain(layer) else None
        if copy is None or not isinstance(copy.op, Copy) or copy.epilogue != RESULT:
            return None
        wide = self.before(copy)
        if wide is None or not self.is_plain(wide):
            return None
        readers = self.consumers[layer.output]
        end = readers[0] if len(readers) == 1 and layer.output not in self.graph.outputs else None
        if end is None or not isinstance(end.op, Copy) or end.epilogue != RESULT:
            return None
        b, h, joints, _ = values[wide.output].shape
        depth, new = values[layer.inputs[0]].shape[3], values[layer.output].shape[3]
        if depth % joints or depth == joints or values[wide.output].shape[3] % (depth // joints):
            return None
        parts = depth // joints
        channels = values[wide.output].shape[3] // parts
        atoms = {"b": b, "h": h, "joints": joints, "parts": parts, "channels": channels, "new": new}
        moved = _moved(["b", "h", "joints", "parts", "channels"], copy.op.steps, atoms)
        if moved is None or len(moved) != 4 or moved[3] != ["parts", "joints"]:
            return None
        back = _moved([[*axis] for axis in (*moved[:3], ["new"])], end.op.steps, atoms)
        if back is None or [name for axis in back for name in axis] != ["b", "h", "new", "channels"]:
            return None
        return self.checked(wide, layer, end, (parts, channels, new, joints), sources_of(wide, copy, layer, end))

    def checked(
        self, wide: Node, layer: Node, end: Node, sizes: tuple[int, int, int, int], sources: tuple[int, ...]
    ) -> _Mixing | None:
        parts, channels, new, joints = sizes
        values = self.graph.values
        x = values[wide.inputs[0]]
        line = line_of(wide, values)
        if line is None or constants_of(layer, values) is None:
            return None
        first, second = (np.asarray(values[n.inputs[1]].data)[:, 0, 0] for n in (wide, layer))
        scale, shift = line
        small = joints * x.shape[3] <= FEW
        positions = x.shape[0] * x.shape[1]
        if not small and not can(PlacesSizes(positions, new * parts, joints, x.shape[3]), self.features.capability):
            return None
        matrices = (first * scale[:, None]).reshape(parts, channels, -1), second.reshape(new, parts, joints)
        if not all(fits_half(matrix) for matrix in matrices):
            return None
        return _Mixing(x.id, matrices[0], shift.reshape(parts, channels), matrices[1], layer, end, sources, small)

    def is_plain(self, node: Node | None) -> bool:
        """Whether the node is a 1x1 convolution of real numbers with constant weights."""
        if node is None or not isinstance(node.op, Conv2D) or node.op != Conv2D():
            return False
        weights = self.graph.values[node.inputs[1]]
        return weights.is_constant and weights.shape[1:3] == (1, 1) and node.inputs[0] not in node.operands

    def before(self, node: Node) -> Node | None:
        """What computes the first input, if nobody else reads that."""
        v = node.inputs[0]
        return self.producer.get(v) if len(self.consumers[v]) == 1 and v not in self.graph.outputs else None


def _moved(
    axes: Sequence[str | list[str]], steps: tuple[Step, ...], sizes: Mapping[str, int]
) -> list[list[str]] | None:
    """Which of the axes, by name, lie in each of the result; None if the steps divide one, or do more than move."""
    found = [[axis] if isinstance(axis, str) else axis for axis in axes]
    for step in steps:
        match step:
            case Reshape(_, target):
                joined = _grouped([name for axis in found for name in axis], target, sizes)
                if joined is None:
                    return None
                found = joined
            case Transpose(perm) if len(perm) == len(found):
                found = [found[i] for i in perm]
            case _:
                return None
    return found


def _grouped(names: list[str], target: Shape, sizes: Mapping[str, int]) -> list[list[str]] | None:
    """The names in their order, in groups of the sizes of `target`."""
    groups: list[list[str]] = []
    left = list(names)
    for n in target:
        group: list[str] = []
        while left and math.prod(sizes[name] for name in group) < n:
            group.append(left.pop(0))
        if math.prod(sizes[name] for name in group) != n:
            return None
        groups.append(group)
    while left and groups and sizes[left[0]] == 1:
        groups[-1].append(left.pop(0))
    return None if left else groups


def _put(builder: GraphBuilder, mixing: _Mixing) -> None:
    """The products, and the copy behind, which moves nothing."""
    values, x = builder.values, builder.values[mixing.x]
    b, h, joints, inputs = x.shape
    parts, channels, _ = mixing.channels.shape
    new = len(mixing.joints)
    added = np.einsum("wkv,kc->wc", mixing.joints, mixing.shift)
    if mixing.small:
        matrix = np.einsum("wkv,kci->wcvi", mixing.joints, mixing.channels).reshape(new * channels, joints * inputs)
        read = builder.value((1, b, h, joints * inputs), DType.FLOAT32)
        builder.node(Copy((Reshape(x.shape, values[read].shape),)), [mixing.x], read, sources=mixing.sources)
        shape: Shape = (1, b, h, new * channels)
        flat = True
    else:
        left = builder.constant(mixing.joints.reshape(1, 1, new * parts, joints))
        mixed = builder.value((b, h, new * parts, inputs), DType.FLOAT32)
        builder.node(MatMul(), [left, mixing.x], mixed, sources=mixing.sources)
        read = builder.value((b, h, new, parts * inputs), DType.FLOAT32)
        builder.node(Copy((Reshape(values[mixed].shape, values[read].shape),)), [mixed], read, sources=mixing.sources)
        matrix = mixing.channels.transpose(1, 0, 2).reshape(channels, parts * inputs)
        shape, flat = (b, h, new, channels), False
    weights = builder.constant(matrix.reshape(len(matrix), 1, 1, -1))
    operands = [builder.constant(_spread(added, flat))]
    replace: dict[int, Expr] = {0: apply("add", RESULT, Arg(1))}
    for i, v in enumerate(mixing.layer.operands):
        data = np.broadcast_to(np.asarray(values[v].data), (1, 1, 1, new)).reshape(new, 1)
        replace[i + 1] = Arg(len(operands) + 1)
        operands.append(builder.constant(_spread(np.broadcast_to(data, (new, channels)), flat)))
    epilogue = substitute(mixing.layer.epilogue, replace)
    done = builder.value(shape, values[mixing.layer.output].dtype)
    builder.node(Conv2D(), [read, weights], done, epilogue, operands, mixing.sources)
    step = Reshape(shape, values[mixing.end.output].shape)
    builder.node(Copy((step,)), [done], mixing.end.output, sources=mixing.sources)


def _spread(numbers: np.ndarray, flat: bool) -> np.ndarray:
    """[new joints, channels] as an operand of the layer of channels."""
    data = numbers.astype(numbers.dtype if numbers.dtype.kind != "f" else np.float32)
    if not flat and not (data - data[:1]).any():
        data = data[:1]
    return data.reshape(1, 1, 1, -1) if flat else data.reshape(1, 1, *data.shape)
