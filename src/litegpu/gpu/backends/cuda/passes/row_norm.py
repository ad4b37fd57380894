"""Let 1x1 convolutions normalise the rows that they multiply, instead of a kernel in front of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise, read_channelwise
from litegpu.gpu.backends.cuda.kernels.row_norm import EACH, INSTRUCTIONS
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
    Take,
    Transpose,
    apply,
    arguments,
    substitute,
)
from litegpu.gpu.graph.movement import step_shape
from litegpu.gpu.passes.decisions import values_decided_on

#: Outputs of a workgroup, and multiprocessors.
OUTPUTS, USUAL_UNITS = 128, 132
#: Microseconds of a layer norm's kernel: at least, and for each number that it reads and writes.
START, MOVED = 1.3, 4 / 3.6e6
#: Channels of a row that were measured to be worth it.
MOST_DEPTH = 256


def join_row_norms(graph: Graph) -> Graph:
    """The graph without LayerNorm nodes that only 1x1 convolutions read, of which each is a PointwiseConv2D then, with
    what the normalised channels were multiplied with in its weights, and with what was added to them in its bias.
    What moves whole rows between them moves them before."""
    if not any(isinstance(node.op, LayerNorm) for node in graph.nodes):
        return graph
    joining = _Joining(graph)
    nodes = [new for node in graph.nodes for new in joining.instead_of(node)]
    return GraphBuilder(joining.builder.values, nodes).graph(graph.inputs, graph.outputs)


class _Joining:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = GraphBuilder(dict(graph.values), [])
        self.consumers, self.producer = graph.consumers(), graph.producer()
        decided = values_decided_on(graph)  # such a value stays in float32, of which these kernels know nothing
        self.norms: dict[int, tuple[Node, Channelwise]] = {}  # by their results, and by what these are moved to
        self.moved: dict[int, int] = {}  # what is moved -> x in the same places
        for node in graph.nodes:
            affine = None if node.inputs and node.inputs[0] in decided else self.affine(node)
            readers = self.readers(node.output) if affine is not None else None
            if affine is not None and readers and self.pays(node, readers):
                self.norms |= dict.fromkeys(readers, (node, affine))

    def affine(self, node: Node) -> Channelwise | None:
        """What is done with each channel that a node has normalised, if that is all and kernels can read x."""
        if not isinstance(node.op, LayerNorm) or node.output in self.graph.outputs:
            return None
        if self.lies_apart(node.inputs[0]):
            return None
        values = [self.graph.values[v] for v in (node.output, *node.operands)]
        found = read_channelwise(node.epilogue, values)
        return found if found is not None and found.is_linear and found.gate is None else None

    def lies_apart(self, v: int) -> bool:
        """Whether a value may be a view of channels that do not lie side by side."""
        source = self.producer.get(v)
        if source is None or not isinstance(source.op, Copy) or source.epilogue != RESULT:
            return False
        return not all(isinstance(step, Reshape) for step in source.op.steps)

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
        readers = [reader for v in copies for reader in self.consumers[v] if isinstance(reader.op, Conv2D)]
        times = sum(-(-self.graph.values[reader.output].shape[3] // OUTPUTS) for reader in readers)
        slower = times * INSTRUCTIONS * EACH / USUAL_UNITS
        few = self.graph.values[node.output].shape[3] <= MOST_DEPTH
        return few and numbers * (1.3 * slower - MOVED) < START

    def takes(self, node: Node, v: int) -> bool:
        weights = self.graph.values[node.inputs[1]].data if isinstance(node.op, Conv2D) else None
        return (
            node.op == Conv2D()
            and weights is not None
            and weights.shape[1:3] == (1, 1)
            and self.graph.values[v].shape[:3] == self.graph.values[node.output].shape[:3]
            and v not in (*node.inputs[1:], *node.operands)
            and _is_finite(weights)
        )

    def instead_of(self, node: Node) -> Sequence[Node]:
        if node.output in self.norms:  # what is normalised, or a copy of that
            norm, _ = self.norms[node.output]
            if node is norm:
                self.moved[node.output] = node.inputs[0]
                return []
            source = self.moved[node.inputs[0]]
            shape, kind = self.graph.values[node.output].shape, self.graph.values[source].dtype
            self.moved[node.output] = self.builder.value(shape, kind)
            return [dataclasses.replace(node, inputs=(source,), output=self.moved[node.output])]
        if not node.inputs or node.inputs[0] not in self.norms or not isinstance(node.op, Conv2D):
            return [node]
        return [self.joined(node, *self.norms[node.inputs[0]])]

    def joined(self, node: Node, norm: Node, affine: Channelwise) -> Node:
        assert isinstance(norm.op, LayerNorm)
        (v, w), weights = node.inputs, self.graph.values[node.inputs[1]].data
        assert weights is not None
        exact = weights.astype(np.float64)
        scaled = w if affine.scale is None else self.builder.constant((exact * affine.scale).astype(np.float32))
        epilogue, operands = node.epilogue, node.operands
        if affine.shift is not None and affine.shift.any():
            shift = (exact * affine.shift).sum(axis=3).reshape(1, 1, 1, -1)
            epilogue, operands = self.shifted(node, shift)
        sources = tuple(sorted({*norm.sources, *node.sources}))
        op = PointwiseConv2D(norm=norm.op)
        return Node(op, (self.moved[v], scaled), node.output, epilogue, operands, sources)

    def shifted(self, node: Node, shift: np.ndarray) -> tuple[Expr, tuple[int, ...]]:
        """The node's epilogue of its result and `shift` [1,1,1,O], and the operands: a constant that was added to the
        result takes the shift with it."""
        bias = _bias(node.epilogue, node.operands, self.graph)
        if bias is None:
            added = self.builder.constant(shift.astype(np.float32))
            shifted = apply("add", RESULT, Arg(len(node.operands) + 1))
            return _with_result(node.epilogue, shifted), (*node.operands, added)
        data = self.graph.values[node.operands[bias - 1]].data
        assert data is not None
        added = self.builder.constant((data.astype(np.float64) + shift).astype(np.float32))
        return node.epilogue, tuple(added if i == bias else v for i, v in enumerate(node.operands, 1))


def _bias(epilogue: Expr, operands: Sequence[int], graph: Graph) -> int | None:
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
    data = graph.values[operands[bias - 1]].data
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


def _is_finite(weights: np.ndarray) -> bool:
    return bool(np.isfinite(weights).all())
