"""Let 1x1 convolutions normalise the rows that they multiply, instead of a kernel in front of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.gpu.backends.cuda.kernels import columns, overlapped
from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise, read_channelwise
from litegpu.gpu.backends.cuda.kernels.matvec import MOST_ROWS
from litegpu.gpu.backends.cuda.kernels.row_norm import EACH, INSTRUCTIONS
from litegpu.gpu.backends.cuda.kernels.tile import MEASURED_UNITS, WARPGROUP_CAPABILITY, times_slower
from litegpu.gpu.backends.cuda.passes.patches import squares
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    Copy,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    Node,
    PointwiseConv2D,
    Reshape,
    Shape,
    Step,
    Take,
    Transpose,
    Value,
    apply,
    arguments,
    sources_of,
    substitute,
)
from litegpu.gpu.graph.movement import step_shape
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.decisions import values_decided_on

#: Outputs of a workgroup.
OUTPUTS = 128
#: Microseconds of a layer norm's kernel: at least, and for each number that it reads and writes.
START, MOVED = 1.3, 4 / 3.6e6
#: Channels of a row that were measured to be worth it; and where kernels overlap, each row of which is read in shared
#: memory meanwhile, but not of so few rows that matvec.cu does them.
MOST_DEPTH, MOST_OVERLAPPING_DEPTH = 256, 1536


def join_row_norms(graph: Graph, features: Features) -> Graph:
    """The graph without LayerNorm nodes that only 1x1 convolutions read, of which each is a PointwiseConv2D then, with
    what the normalised channels were multiplied with in its weights, and with what was added to them in its bias.
    What moves whole rows between them moves them before; where kernels overlap, convolutions find them where they were.
    Rows that a copy joins from squares of pixels are windows of a convolution with a stride there."""
    if not any(isinstance(node.op, LayerNorm) for node in graph.nodes):
        return graph
    joining = _Joining(graph, features)
    nodes = [new for node in graph.nodes for new in joining.instead_of(node)]
    return GraphBuilder(joining.builder.values, nodes).graph(graph.inputs, graph.outputs)


class _Joining:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph = graph
        self.keeps_rows = features.capability == WARPGROUP_CAPABILITY  # columns.cu
        self.share = times_slower(features.capability, features.compute_units)
        self.overlapping = self.keeps_rows and overlapped.will_overlap(graph)
        self.builder = GraphBuilder(dict(graph.values), [])
        self.consumers, self.producer = graph.consumers(), graph.producer()
        self.decided = values_decided_on(graph)  # such values stay in float32, of which these kernels know nothing
        #: By what is normalised: the squares that a copy joined, of which nothing is left.
        self.squares: dict[int, Sequence[tuple[int, int]]] = {}
        self.norms: dict[int, tuple[Node, Channelwise]] = {}  # by their results, and by what these are moved to
        self.moved: dict[int, int] = {}  # what is moved -> x in the same places, or
        self.steps: dict[int, tuple[Step, ...]] = {}  # x where it was, and how it is to be moved
        for node in graph.nodes:
            affine = None if node.inputs and node.inputs[0] in self.decided else self.affine(node)
            readers = self.readers(node.output) if affine is not None else None
            if affine is not None and readers and self.pays(node, readers):
                self.norms |= dict.fromkeys(readers, (node, affine))

    def affine(self, node: Node) -> Channelwise | None:
        """What is done with each channel that a node has normalised, if that is all and kernels can read x."""
        if not isinstance(node.op, LayerNorm) or node.output in self.graph.outputs:
            return None
        if self.lies_apart(node.inputs[0]) and not self.is_of_squares(node):
            return None
        values = [self.graph.values[v] for v in (node.output, *node.operands)]
        found = read_channelwise(node.epilogue, values)
        return found if found is not None and found.is_linear and found.gate is None else None

    def lies_apart(self, v: int) -> bool:
        """Whether a value may be a view of channels that do not lie side by side."""
        source = self.producer.get(v)
        if source is None or not isinstance(source.op, Copy) or source.epilogue != RESULT:
            return False
        return not source.op.keeps_order

    def is_of_squares(self, node: Node) -> bool:
        """Whether what is normalised are joined squares, which nothing else reads."""
        x = node.inputs[0]
        copy = self.producer[x]
        if not self.overlapping or self.consumers[x] != [node] or x in self.graph.outputs or x in node.operands:
            return False
        source = copy.inputs[0]
        if source in self.decided or self.graph.values[source].is_constant or self.lies_apart(source):
            return False
        found = squares(copy, self.graph.values[source].shape)
        plain = all(self.takes(reader, node.output) for reader in self.consumers[node.output])
        if found is None or not plain:
            return False
        self.squares[x] = found
        return True

    def readers(self, v: int) -> list[int]:
        """The value, and those in which its rows are moved, if nothing but convolutions reads them."""
        found = [v]
        for node in self.consumers[v]:
            plain = node.epilogue == RESULT and node.output not in self.graph.outputs
            if plain and moves_rows(node, self.graph.values[v].shape):
                inner = self.readers(node.output)
                if not inner:
                    return []
                found += inner
            elif not self.takes(node, v):
                return []
        return found

    def pays(self, node: Node, copies: Sequence[int]) -> bool:
        """Whether it takes less than a kernel of its own: each workgroup sums up its rows anew."""
        numbers = self.graph.values[node.output].elements
        readers = [reader for v in copies for reader in self.consumers[v] if self.takes(reader, v)]
        if not readers:
            return False
        times = sum(-(-self.graph.values[reader.output].shape[3] // OUTPUTS) for reader in readers)
        slower = times * INSTRUCTIONS * EACH / MEASURED_UNITS
        depth = self.graph.values[node.output].shape[3]
        wide = self.keeps_rows and all(self.is_wide(reader, numbers // depth, depth) for reader in readers)
        if depth > MOST_DEPTH and wide:
            return True
        fetched = all(v == node.output or self.fetches(self.producer[v]) for v in copies)
        deep = numbers > MOST_ROWS * depth and fetched and self.overlapping
        few = depth <= (MOST_OVERLAPPING_DEPTH if deep else MOST_DEPTH)
        return few and self.share * numbers * (1.3 * slower - MOVED) < START

    def is_wide(self, reader: Node, rows: int, depth: int) -> bool:
        """Whether a convolution is one that normalises its rows once for all columns."""
        shape = self.graph.values[reader.output].shape
        alone = all(self.graph.values[v].is_constant for v in reader.operands)
        return alone and not self.leaves(reader.output) and columns.normalises(rows, depth, shape[3])

    def leaves(self, v: int) -> bool:
        """Whether a value, or what it is moved to, is a result of the graph, in float32."""
        moved = [node.output for node in self.consumers[v] if isinstance(node.op, Copy)]
        return v in self.graph.outputs or any(map(self.leaves, moved))

    def fetches(self, copy: Node) -> bool:
        """Whether convolutions find rows without that copy."""
        return self.overlapping and isinstance(copy.op, Copy) and is_one_to_one(copy.op)

    def takes(self, node: Node, v: int) -> bool:
        weights = self.graph.values[node.inputs[1]].data if isinstance(node.op, Conv2D) else None
        return (
            node.op == Conv2D()
            and weights is not None
            and weights.shape[1:3] == (1, 1)
            and self.graph.values[v].shape[:3] == self.graph.values[node.output].shape[:3]
            and v not in (*node.inputs[1:], *node.operands)
            and is_finite(weights)
        )

    def instead_of(self, node: Node) -> Sequence[Node]:
        if node.output in self.squares and self.consumers[node.output][0].output in self.norms:
            return []
        if node.output in self.norms:  # what is normalised, or a copy of that
            norm, _ = self.norms[node.output]
            if node is norm:
                self.moved[node.output] = node.inputs[0]
                return []
            source = self.moved[node.inputs[0]]
            if self.fetches(node):
                assert isinstance(node.op, Copy)
                self.moved[node.output] = source
                self.steps[node.output] = (*self.steps.get(node.inputs[0], ()), *node.op.steps)
                return []
            shape, kind = self.graph.values[node.output].shape, self.graph.values[source].dtype
            self.moved[node.output] = self.builder.value(shape, kind)
            return [dataclasses.replace(node, inputs=(source,), output=self.moved[node.output])]
        if not node.inputs or node.inputs[0] not in self.norms or not isinstance(node.op, Conv2D):
            return [node]
        return [self.joined(node, *self.norms[node.inputs[0]])]

    def joined(self, node: Node, norm: Node, affine: Channelwise) -> Node:
        assert isinstance(norm.op, LayerNorm)
        v = node.inputs[0]
        scaled, epilogue, operands = taken_in(self.builder, node, affine)
        sources = sources_of(norm, node)
        op, x = PointwiseConv2D(norm=norm.op, fetched=self.steps.get(v, ())), self.moved[v]
        if x in self.squares:
            scaled = self.builder.constant(self.windows(self.builder.values[scaled].data, self.squares[x]))
            x = self.producer[x].inputs[0]
            side = math.isqrt(len(self.squares[self.moved[v]]))
            op = dataclasses.replace(op, stride=(side, side))
        return Node(op, (x, scaled), node.output, epilogue, operands, sources)

    @staticmethod
    def windows(weights: np.ndarray | None, order: Sequence[tuple[int, int]]) -> np.ndarray:
        """Weights [O,1,1,I] of joined squares as those of windows."""
        assert weights is not None
        side, outputs = math.isqrt(len(order)), len(weights)
        found = np.empty((outputs, side, side, weights.shape[3] // len(order)), weights.dtype)
        parts = weights.reshape(outputs, len(order), -1)
        for i, (y, x) in enumerate(order):
            found[:, y, x] = parts[:, i]
        return found


def taken_in(builder: GraphBuilder, node: Node, affine: Channelwise) -> tuple[int, Expr, tuple[int, ...]]:
    """The weights, the epilogue and its operands of a 1x1 convolution of what `affine` is not done with any more."""
    w = node.inputs[1]
    weights = builder.values[w].data
    assert weights is not None
    exact = weights.astype(np.float64)
    scaled = w if affine.scale is None else builder.constant((exact * affine.scale).astype(np.float32))
    if affine.shift is None or not affine.shift.any():
        return scaled, node.epilogue, node.operands
    return scaled, *shifted(builder, node, (exact * affine.shift).sum(axis=3).reshape(1, 1, 1, -1))


def shifted(builder: GraphBuilder, node: Node, shift: np.ndarray) -> tuple[Expr, tuple[int, ...]]:
    """The node's epilogue of its result and `shift` [1,1,1,O], and the operands: a constant that was added to the
    result takes the shift with it."""
    bias = _bias(node.epilogue, node.operands, builder.values)
    if bias is None:
        added = builder.constant(shift.astype(np.float32))
        behind = apply("add", RESULT, Arg(len(node.operands) + 1))
        return _with_result(node.epilogue, behind), (*node.operands, added)
    data = builder.values[node.operands[bias - 1]].data
    assert data is not None
    added = builder.constant((data.astype(np.float64) + shift).astype(np.float32))
    return node.epilogue, tuple(added if i == bias else v for i, v in enumerate(node.operands, 1))


def _bias(epilogue: Expr, operands: Sequence[int], values: Mapping[int, Value]) -> int | None:
    """The number of the constant that all of the result in an epilogue is a sum with, which is read there alone."""
    sums: set[int] = set()

    def alone(expr: Expr) -> bool:
        """Whether result and biases are nowhere but in sums."""
        match expr:
            case Apply("add", (Arg(0), Arg(i)) | (Arg(i), Arg(0))) if i != 0:
                sums.add(i)
                return True
            case Apply(_, args):
                return all(map(alone, args))
            case Arg(0):
                return False
        return True

    if not alone(epilogue) or len(sums) != 1:
        return None
    (bias,) = sums
    used = _count(epilogue, bias)
    data = values[operands[bias - 1]].data
    plain = data is not None and data.shape[:3] == (1, 1, 1) and used == _count(epilogue, 0)
    return bias if plain else None


def _count(expr: Expr, index: int) -> int:
    """How often an Arg is in an expression."""
    match expr:
        case Apply(_, args):
            return sum(_count(a, index) for a in args)
        case Arg(i):
            return int(i == index)
    return 0


def _with_result(expr: Expr, result: Expr) -> Expr:
    """The expression with something else for RESULT."""
    return substitute(expr, {i: Arg(i) for i in arguments(expr)} | {0: result})


def moves_rows(node: Node, shape: Shape) -> bool:
    """Whether a node puts whole rows of channels somewhere else; of a single one it is not told where it goes."""
    if not isinstance(node.op, Copy) or shape[3] == 1:
        return False
    channels = shape[3]
    for step in node.op.steps:
        shape = step_shape(step, shape)
        last = (isinstance(step, Transpose) and step.perm[-1] != len(step.perm) - 1) or (
            isinstance(step, Take) and step.axis == len(shape) - 1
        )
        if not isinstance(step, Reshape | Transpose | Take) or last or shape[-1] != channels:
            return False
    return True


def is_one_to_one(op: Copy) -> bool:
    """Whether every row has a place, and one alone, that is computed."""
    for step in op.steps:
        if isinstance(step, Take):
            count = len(step.indices)
            if any(index != (step.indices[0] + i) % count for i, index in enumerate(step.indices)):
                return False
    return True


def is_finite(weights: np.ndarray) -> bool:
    return bool(np.isfinite(weights).all())
