"""Let 1x1 convolutions and layer norms put the rows of their results where a copy would move them."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.backends.cuda.passes.row_norm import is_one_to_one, moves_rows
from litegpu.gpu.graph import (
    Arg,
    Conv2D,
    Copy,
    DType,
    Graph,
    GraphBuilder,
    LayerNorm,
    Node,
    Op,
    PointwiseConv2D,
    Value,
    arguments,
    fits_half,
    sources_of,
    substitute,
)
from litegpu.gpu.passes.decisions import values_decided_on


def join_moves(graph: Graph) -> Graph:
    """The graph without copies that move the rows of a 1x1 convolution or of a layer norm which nothing else reads: it
    is a PointwiseConv2D, or a LayerNorm, that stores them there, with what the copy's epilogue does to them. The way
    into shifted windows, and back into the picture, where a residual is added."""
    consumers, producer = graph.consumers(), graph.producer()
    joined: dict[int, tuple[Node, Node]] = {}  # by the copy's result
    for node in graph.nodes:
        if not isinstance(node.op, Copy) or not moves_rows(node, graph.values[node.inputs[0]].shape):
            continue
        first, v = producer.get(node.inputs[0]), node.inputs[0]
        alone = consumers[v] == [node] and v not in graph.outputs and v not in node.operands
        if first is not None and alone and _takes(first, graph) and is_one_to_one(node.op):
            joined[node.output] = first, node
    decided = values_decided_on(graph) if joined else {}  # such a value stays in float32
    joined = {v: pair for v, pair in joined.items() if pair[0].output not in decided and v not in decided}
    gone = {first.output for first, _ in joined.values()}
    nodes = [
        _joined(*joined[node.output]) if node.output in joined else node
        for node in graph.nodes
        if node.output not in gone
    ]
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs) if joined else graph


def _takes(node: Node, graph: Graph) -> bool:
    """Whether it is a norm, or a plain 1x1 convolution, of floats whose epilogue does the same with all rows."""
    values = [graph.values[v] for v in (*node.inputs, node.output)]
    if not isinstance(node.op, LayerNorm) and (node.op != Conv2D() or not _is_pointwise(values[1].data, values[0])):
        return False
    operands = [graph.values[v] for v in node.operands]
    return (
        not values[0].is_constant
        and values[0].dtype is values[-1].dtype is DType.FLOAT32
        and values[0].shape[:3] == values[-1].shape[:3]
        and all(v.is_constant and v.shape[:3] == (1, 1, 1) for v in operands)
    )


def _is_pointwise(weights: np.ndarray | None, x: Value) -> bool:
    if weights is None or weights.shape[1:] != (1, 1, x.shape[3]):
        return False
    return fits_half(weights)


def _joined(first: Node, copy: Node) -> Node:
    assert isinstance(copy.op, Copy)
    operands, places = list(first.operands), dict[int, Arg]()
    for i, v in enumerate(copy.operands, 1):
        if v not in operands:
            operands.append(v)
        places[i] = Arg(operands.index(v) + 1)
    epilogue = substitute(copy.epilogue, {0: first.epilogue, **places})
    assert max(arguments(epilogue), default=0) <= len(operands)
    steps, sources = copy.op.steps, sources_of(first, copy)
    op: Op = PointwiseConv2D(moved=steps)
    if isinstance(first.op, LayerNorm):
        op = dataclasses.replace(first.op, moved=steps)
    return dataclasses.replace(
        first, op=op, output=copy.output, epilogue=epilogue,
        operands=tuple(operands), sources=sources,
    )  # fmt: skip
