"""Let large 1x1 convolutions tell what the rows that they store sum up to, so that those which read these normalise
them, instead of a kernel between: transformers at large batches, with norms in front or behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from litegpu.gpu.backends.cuda.kernels import convolution, overlapped, pingpong
from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise, read_channelwise
from litegpu.gpu.backends.cuda.kernels.layer import Layer, ToldNorm, has_functions
from litegpu.gpu.backends.cuda.kernels.pingpong import PingpongTile
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.backends.cuda.passes.in_rows import InRows
from litegpu.gpu.backends.cuda.passes.normed import joined_norms, summands
from litegpu.gpu.backends.cuda.passes.row_norm import is_finite, shifted, taken_in
from litegpu.gpu.graph import (
    Arg,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    MomentsConv2D,
    Node,
    RowMoments,
    apply,
    arguments,
    fits_half,
    is_reshaping,
    sources_of,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

#: Microseconds of a layer norm's kernel, and for each number, at large batches.
NORM, NORM_EACH = 1.3, 0.81e-6


def tell_moments(graph: Graph, features: Features) -> Graph:
    """The graph without LayerNorm nodes between 1x1 convolutions that are MomentsConv2D then: the one which computes
    what was normalised, and those that multiplied it, or whose epilogues read it. Those stay that join_normed() takes
    in, which was measured to be quicker."""
    if features.capability != WARPGROUP_CAPABILITY or not any(isinstance(n.op, LayerNorm) for n in graph.nodes):
        return graph
    if overlapped.will_overlap(graph):
        return graph
    telling = _Telling(graph, features)
    telling.choose()
    nodes = [new for node in graph.nodes for new in telling.instead_of(node)]
    return GraphBuilder(telling.builder.values, nodes).graph(graph.inputs, graph.outputs) if telling.norms else graph


@dataclass(frozen=True, eq=False)
class _Norm:
    node: Node
    affine: Channelwise  # what is done with the normalised numbers
    tile: PingpongTile  # of the kernel that stores what is normalised
    moments: int  # the value


class _Telling:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.features, self.builder = graph, features, GraphBuilder(dict(graph.values), [])
        self.consumers, self.producer, self.rows = graph.consumers(), graph.producer(), InRows(graph)
        self.others = joined_norms(graph, features)
        self.norms: dict[int, _Norm] = {}  # by what they give
        self.told: dict[int, tuple[_Norm, int]] = {}  # by what a reader gives: whose norm it reads, and as which value
        self.tells: dict[int, _Norm] = {}  # by what a convolution stores that they normalise

    def choose(self) -> None:
        for node in self.graph.nodes:
            affine = self.affine(node)
            readers = None if affine is None else self.readers(node.output)
            if affine is None or not readers or any(reader.output in self.told for reader in readers):
                continue
            x = self.stored(node.inputs[0])
            tiles = [] if x is None or x in self.tells else self.tiles(self.producer[x])
            if x is None or not tiles or not self.pays(node, self.producer[x], readers):
                continue
            *lead, channels = self.graph.values[x].shape
            parts = -(-channels // tiles[0].columns)
            found = _Norm(node, affine, tiles[0], self.builder.value((*lead, 2 * parts), DType.FLOAT32))
            self.norms[node.output] = self.tells[x] = found
            self.told |= {reader.output: (found, v) for reader, v in readers.items()}

    def stored(self, v: int) -> int | None:
        """What a convolution stores whose rows are those of a value, one by one; None if it cannot tell of them."""
        source = self.producer.get(v)
        while source is not None and self.is_recounted(source):
            v = source.inputs[0]
            source = self.producer.get(v)
        can = source is not None and self.is_plain(source) and self.rows.is_kept(v) and not self.rows.is_joined(v)
        return v if can else None

    def readers(self, v: int) -> dict[Node, int] | None:
        """The convolutions that read a value or its rows counted in another way, and as which value they do, if all can
        be told of it and nothing else reads it."""
        found: dict[Node, int] = {}
        for node in self.consumers[v]:
            inner = self.readers(node.output) if self.is_recounted(node) else {node: v} if self.takes(node, v) else None
            if inner is None or not found.keys().isdisjoint(inner):
                return None
            found |= inner
        return found

    def is_recounted(self, node: Node) -> bool:
        """Whether it is a copy that counts rows in another way, and no more."""
        if not is_reshaping(node) or node.output in self.graph.outputs:
            return False
        before, after = (self.graph.values[v].shape for v in (node.inputs[0], node.output))
        return before[3] == after[3]

    def affine(self, node: Node) -> Channelwise | None:
        """What a norm's epilogue does with each channel, if that is all and its result is no other's business."""
        if not isinstance(node.op, LayerNorm) or node.op.moved or node.output in {*self.graph.outputs, *self.others}:
            return None
        values = [self.graph.values[v] for v in (node.output, *node.operands)]
        found = read_channelwise(node.epilogue, values)
        return found if found is not None and found.is_linear and found.gate is None else None

    def takes(self, node: Node, v: int) -> bool:
        """Whether a node can be told of `v`: as what it multiplies, or as one operand, as large as its result."""
        if not self.is_plain(node) or not self.rows.is_kept(node.output) or self.rows.is_joined(node.output):
            return False
        if node.reads.count(v) != 1 or not self.tiles(node):
            return False
        return v == node.inputs[0] or self.graph.values[v].shape == self.graph.values[node.output].shape

    def is_plain(self, node: Node) -> bool:
        """Whether it is a 1x1 convolution of rows, whose epilogue reads nothing else but constants and rows."""
        weights = self.graph.values[node.inputs[1]].data if isinstance(node.op, Conv2D) else None
        if node.op != Conv2D() or weights is None or weights.shape[1:3] != (1, 1):
            return False
        x, (*lead, outputs) = node.inputs[0], self.graph.values[node.output].shape
        return (
            is_finite(weights)
            and fits_half(weights)
            and list(self.graph.values[x].shape[:3]) == lead
            and self.rows.lies(x)
            and all(self.reads(v, (*lead, outputs)) for v in node.operands)
        )

    def reads(self, v: int, shape: tuple[int, ...]) -> bool:
        """Whether epilogues can read an operand: a constant of the channels, or what is as large as the result."""
        value = self.graph.values[v]
        if value.is_constant:
            return value.dtype is DType.FLOAT32 and value.shape in ((1, 1, 1, shape[3]), (1, 1, 1, 1))
        return value.shape == shape and self.rows.lies(v)

    def layer(self, node: Node) -> Layer:
        """As the kernels will see it, if nothing lies elsewhere."""
        shape, x = self.graph.values[node.output].shape, self.graph.values[node.inputs[0]]
        rows = math.prod(shape[:3])
        weights = np.broadcast_to(np.float32(0), (shape[3], 1, 1, x.shape[3]))
        residuals = sum(self.graph.values[v].shape == shape for v in node.operands)
        source = padded(0, (1, 1, rows, x.shape[3]), DType.FLOAT16)
        functions = has_functions(node.epilogue)
        return Layer(Conv2D(), source, weights, (1, 1, rows, shape[3]), True, residuals, run=8, functions=functions)

    def tiles(self, node: Node) -> list[PingpongTile]:
        return pingpong.ranked(self.layer(node), self.features.capability, self.features.compute_units)

    def pays(self, node: Node, source: Node, readers: dict[Node, int]) -> bool:
        """Whether a norm's kernel takes longer than what convolutions lose that are to be of a certain kind, and do
        more."""
        (x, *_), numbers = node.inputs, self.graph.values[node.output].elements
        moments = padded(0, self.graph.values[x].shape, DType.FLOAT32)
        lost = self.lost(replace(self.layer(source), tells=moments))
        for reader, v in readers.items():
            at = 0 if v == reader.inputs[0] else reader.operands.index(v) + 1
            assert isinstance(node.op, LayerNorm)
            lost += self.lost(replace(self.layer(reader), told=ToldNorm(node.op, 1, 1, moments, at)))
        return lost < NORM + NORM_EACH * numbers

    def lost(self, layer: Layer) -> float:
        units, alone = self.features.compute_units, replace(layer, told=None, tells=None)
        tile = pingpong.ranked(alone, self.features.capability, units)[0]
        return pingpong.cost(layer, tile, units) - convolution.estimate(alone, self.features)

    def instead_of(self, node: Node) -> list[Node]:
        if node.output in self.norms:
            return []
        if isinstance(node.op, Copy) and node.inputs[0] in self.norms:  # of rows, which are not normalised any more
            return [replace(node, inputs=self.norms[node.inputs[0]].node.inputs)]
        told, tells = self.told.get(node.output), self.tells.get(node.output)
        new = node if told is None and tells is None else self.joined(node, told)
        if tells is None:
            return [new]
        return [new, Node(RowMoments(tells.tile.columns), (node.output,), tells.moments, sources=tells.node.sources)]

    def joined(self, node: Node, told: tuple[_Norm, int] | None) -> Node:
        if told is None:
            return Node(MomentsConv2D(), node.inputs, node.output, node.epilogue, node.operands, node.sources)
        found, v = told
        norm, x = found.node.op, found.node.inputs[0] if v == found.node.output else v
        assert isinstance(norm, LayerNorm)
        inputs: tuple[int, ...]
        if node.inputs[0] == v:
            weights, epilogue, operands = taken_in(self.builder, node, found.affine)
            op, inputs = MomentsConv2D(norm), (x, weights, found.moments)
        else:
            at = node.operands.index(v) + 1
            epilogue, operands = self.with_affine(node, at, found.affine)
            operands = (*operands[: at - 1], x, *operands[at:])
            op, inputs = MomentsConv2D(norm, at), (*node.inputs[:2], found.moments)
        return Node(op, inputs, node.output, epilogue, operands, sources_of(found.node, node))

    def with_affine(self, node: Node, at: int, affine: Channelwise) -> tuple[Expr, tuple[int, ...]]:
        """The epilogue and its operands where operand number `at` has still to be multiplied and added to."""
        term: Expr = Arg(at)
        channels = self.graph.values[node.output].shape[3]
        scale, shift = (None if a is None else np.broadcast_to(a, channels).reshape(1, 1, 1, -1)
                        for a in (affine.scale, affine.shift))  # fmt: skip
        found = summands(node.epilogue)
        if shift is not None and found is not None and found.count(0) == found.count(at) == 1:
            epilogue, operands = shifted(self.builder, node, shift)
        else:
            epilogue, operands = node.epilogue, node.operands
            term = term if shift is None else apply("add", term, Arg(len(operands) + 1))
            operands = operands if shift is None else (*operands, self.builder.constant(shift))
        if scale is not None:
            scaled = apply("mul", Arg(at), Arg(len(operands) + 1))
            term, operands = _replaced(term, at, scaled), (*operands, self.builder.constant(scale))
        return _replaced(epilogue, at, term), operands


def _replaced(expr: Expr, at: int, new: Expr) -> Expr:
    """The expression with something else for an argument."""
    return substitute(expr, {i: Arg(i) for i in arguments(expr)} | {at: new})
