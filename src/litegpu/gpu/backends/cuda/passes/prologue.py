"""Let 1x1 convolutions do themselves what is done with each channel of their input: a batch norm, a RELU, a gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise, read_channelwise
from litegpu.gpu.graph import (
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Node,
    PointwiseConv2D,
    fits_half,
    substitute,
)

#: Each workgroup does it anew for so many outputs; so many times it takes less than a kernel of its own, which waits
#: for memory.
OUTPUTS, MOST_TIMES = 128, 8
#: Channels up to which gates are worth it: a step waits for those of its channels. (H200, 7x7x1152 to 192 at batch 1
#: 5.3 us, about 4.3 apart.)
MOST_GATED = 320
#: The largest number that kernels keep as halves.
LARGEST = 6e4


@dataclass(frozen=True, eq=False)
class _Prologue:
    """What is done with the value `x`, Arg(0) of `expr`, and `others`."""

    x: int
    expr: Expr
    others: tuple[int, ...]
    sources: tuple[int, ...]


def join_prologues(graph: Graph) -> Graph:
    """The graph without elementwise nodes that only 1x1 convolutions read, of which each is a PointwiseConv2D then."""
    consumers, producer = graph.consumers(), graph.producer()
    joined: dict[int, _Prologue] = {}  # by the results that no longer exist
    for node in graph.nodes:
        v = node.output
        found = _prologue(node, graph, producer) if v not in graph.outputs else None
        readers = consumers[v]
        if found and all(_takes(reader, v, graph) for reader in readers) and _times(readers, graph) <= MOST_TIMES:
            joined[v] = found
    nodes = []
    for node in graph.nodes:
        before = joined.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        if node.output not in joined:
            nodes.append(node if before is None else _join(before, node))
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs)


def _prologue(node: Node, graph: Graph, producer: dict[int, Node]) -> _Prologue | None:
    """What an elementwise node does, if it is channelwise to one of its operands."""
    values, result = graph.values, graph.values[node.output]
    if not isinstance(node.op, Elementwise) or node.epilogue == Arg(0):
        return None
    for v in dict.fromkeys(node.operands):  # one may be there twice
        x = values[v]
        if x.is_constant or x.shape != result.shape or x.dtype is not DType.FLOAT32 or x.dtype is not result.dtype:
            continue
        others = tuple(o for o in node.operands if o != v)
        places: dict[int, Expr] = {
            place: Arg(0 if o == v else 1 + others.index(o)) for place, o in enumerate(node.operands)
        }
        expr = substitute(node.epilogue, places)
        done = read_channelwise(expr, [x, *(values[o] for o in others)])
        deep = done is not None and done.gate is not None and x.shape[3] > MOST_GATED
        if done is not None and not deep and _are_halves(done) and _lies_in_rows(v, graph, producer):
            return _Prologue(v, expr, others, node.sources)
    return None


def _are_halves(done: Channelwise) -> bool:
    """Whether the numbers fit the type, in which kernels keep them in two parts."""
    numbers = [n for n in (done.scale, done.shift) if n is not None]
    return all(bool(np.all(np.abs(n) <= LARGEST)) for n in numbers) and not any(
        LARGEST < abs(bound) < np.inf for bound in done.bounds
    )


def _lies_in_rows(v: int, graph: Graph, producer: dict[int, Node]) -> bool:
    """Whether four channels of a value lie side by side, as kernels copy them."""
    node = producer.get(v)
    if node is None or isinstance(node.op, Copy):
        return False
    return not isinstance(node.op, Concat) or all(graph.values[i].shape[3] % 4 == 0 for i in node.inputs)


def _takes(node: Node, v: int, graph: Graph) -> bool:
    """Whether a kernel can do something with the convolution's input v first."""
    op, values = node.op, graph.values
    if not isinstance(op, Conv2D) or node.inputs[0] != v or v in (*node.inputs[1:], *node.operands):
        return False
    weights, x, y = values[node.inputs[1]], values[v].shape, values[node.output].shape
    inside = all((out - 1) * step < n for out, step, n in zip(y[1:3], op.stride, x[1:3], strict=True))
    return (
        op == Conv2D(op.stride)
        and inside
        and weights.data is not None
        and weights.shape[1:3] == (1, 1)
        and fits_half(weights.data)
    )


def _times(readers: list[Node], graph: Graph) -> int:
    return sum(-(-graph.values[node.output].shape[3] // OUTPUTS) for node in readers)


def _join(before: _Prologue, node: Node) -> Node:
    assert isinstance(node.op, Conv2D)
    return Node(
        PointwiseConv2D(before.expr, node.op.stride),
        (before.x, node.inputs[1], *before.others),
        node.output,
        node.epilogue,
        node.operands,
        tuple(sorted({*before.sources, *node.sources})),
    )
