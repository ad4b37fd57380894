"""Let 1x1 convolutions normalise what they give, with its bias and residual: a transformer that has norms behind."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels import pointwise
from litegpu.gpu.backends.cuda.kernels.specialized import LEAST_HALVES
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.backends.cuda.passes.in_rows import InRows
from litegpu.gpu.graph import (
    Apply,
    Arg,
    Conv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    Node,
    PointwiseConv2D,
    arguments,
    fits_half,
    is_reshaping,
    sources_of,
)
from litegpu.gpu.lang.features import Features


def join_normed(graph: Graph, features: Features) -> Graph:
    """The graph with PointwiseConv2D nodes in place of a convolution, a bias, a residual and the LayerNorm that alone
    reads their sum."""
    if features.capability != WARPGROUP_CAPABILITY or not any(isinstance(n.op, LayerNorm) for n in graph.nodes):
        return graph
    joining = _Joining(graph, features)
    gone = {v for node in joining.norms for v in joining.between(node)}
    norms = {node.output for node in joining.norms}
    nodes = [
        new
        for node in graph.nodes
        if node.output not in gone
        for new in (joining.joined(node) if node.output in norms else [node])
    ]
    return GraphBuilder(joining.builder.values, nodes).graph(graph.inputs, graph.outputs) if gone else graph


def joined_norms(graph: Graph, features: Features) -> set[int]:
    """What the LayerNorm nodes give that join_normed() would take in."""
    if features.capability != WARPGROUP_CAPABILITY:
        return set()
    return {node.output for node in _Joining(graph, features).norms}


class _Joining:
    def __init__(self, graph: Graph, features: Features) -> None:
        self.graph, self.builder, self.features = graph, GraphBuilder(dict(graph.values), []), features
        self.consumers, self.producer = graph.consumers(), graph.producer()
        self.rows = InRows(graph)
        self.norms = [node for node in graph.nodes if self.fits(node)]

    def between(self, node: Node) -> list[int]:
        """What is to be normalised, and what that is another shape of, if it is."""
        found = [node.inputs[0]]
        source = self.producer.get(found[0])
        if source is not None and is_reshaping(source):
            before, after = (self.graph.values[v].shape for v in (source.inputs[0], found[0]))
            if before[3] == after[3]:
                found.append(source.inputs[0])
        return found

    def fits(self, node: Node) -> bool:
        if not isinstance(node.op, LayerNorm) or node.op.moved:
            return False
        between = self.between(node)
        conv = self.producer.get(between[-1])
        if conv is None or conv.op != Conv2D() or any(v in self.graph.outputs for v in between):
            return False
        if any(len(self.consumers[v]) != 1 for v in between) or not self.is_affine(node):
            return False
        shape, weights = self.graph.values[conv.output].shape, self.graph.values[conv.inputs[1]].data
        x = self.graph.values[conv.inputs[0]]
        if weights is None or weights.shape[1:3] != (1, 1) or x.shape[:3] != shape[:3] or x.shape[3] < LEAST_HALVES:
            return False
        return (
            fits_half(weights)
            and self.terms(conv) is not None
            and self.pays(conv)
            and all(self.rows.lies(v) for v in (conv.inputs[0], node.output, *(self.residual(conv))))
        )

    def pays(self, conv: Node) -> bool:
        shape = self.graph.values[conv.output].shape
        inputs, residuals = self.graph.values[conv.inputs[0]].shape[3], len(self.residual(conv))
        return pointwise.normed_pays(math.prod(shape[:3]), inputs, shape[3], residuals, self.features)

    def is_affine(self, node: Node) -> bool:
        """Whether what is done with the normalised numbers needs constants of the channels alone."""
        shape = self.graph.values[node.output].shape
        fitting = ((1, 1, 1, shape[3]), (1, 1, 1, 1))
        values = [self.graph.values[v] for v in node.operands]
        return all(v.is_constant and v.shape in fitting and v.dtype is DType.FLOAT32 for v in values)

    def terms(self, conv: Node) -> tuple[int | None, int | None] | None:
        """The bias and the residual of a convolution, if its epilogue is its result and no more than these."""
        found = summands(conv.epilogue)
        if found is None or found.count(0) != 1 or len(found) != 1 + len(arguments(conv.epilogue) - {0}):
            return None
        shape = self.graph.values[conv.output].shape
        values = [conv.operands[i - 1] for i in found if i]
        biases = [v for v in values if self.graph.values[v].is_constant]
        others = [v for v in values if not self.graph.values[v].is_constant]
        if len(biases) > 1 or len(others) > 1 or any(self.graph.values[v].shape != shape for v in others):
            return None
        if any(self.graph.values[v].shape not in ((1, 1, 1, shape[3]), (1, 1, 1, 1)) for v in biases):
            return None
        return next(iter(biases), None), next(iter(others), None)

    def residual(self, conv: Node) -> list[int]:
        found = self.terms(conv)
        return [] if found is None or found[1] is None else [found[1]]

    def joined(self, node: Node) -> list[Node]:
        between = self.between(node)
        conv = self.producer[between[-1]]
        terms = self.terms(conv)
        assert terms is not None and isinstance(node.op, LayerNorm)
        bias, residual = terms
        value = self.graph.values[conv.output]
        if bias is None:
            bias = self.builder.constant(np.zeros((1, 1, 1, value.shape[3]), np.float32))
        inputs = (*conv.inputs[:2], bias, *(() if residual is None else (residual,)))
        sources = sources_of(conv, node)
        op = PointwiseConv2D(behind=node.op)
        if len(between) == 1:
            return [Node(op, inputs, node.output, node.epilogue, node.operands, sources)]
        rows = self.builder.value(value.shape, value.dtype)
        moved = self.producer[between[0]]
        return [
            Node(op, inputs, rows, node.epilogue, node.operands, sources),
            dataclasses.replace(moved, inputs=(rows,), output=node.output),
        ]


def summands(expr: Expr) -> list[int] | None:
    """The arguments that an expression is the sum of; None if it is something else."""
    match expr:
        case Arg(i):
            return [i]
        case Apply("add", (a, b)):
            left, right = summands(a), summands(b)
            return None if left is None or right is None else left + right
    return None
