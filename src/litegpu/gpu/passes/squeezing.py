"""Means over the pixels of what a 1x1 convolution gives are what it gives of means, if it does nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Node,
    Reduce,
    apply,
    sources_of,
    substitute,
    walk,
)
from litegpu.gpu.passes.by_channel import line_of


def squeeze_first(graph: Graph) -> Graph:
    """The graph with means over height and width taken in front of convolutions 1x1 with a bias rather than behind,
    where these read no more channels than they write, or nobody else reads them: less is summed up, as in residual
    blocks with squeeze-and-excite (SE-ResNet), and the gate is known before the convolution runs, which may multiply by
    it in its epilogue. A convolution 1x1 of such a mean is one with that in front of it."""
    search = _Search(graph, graph.producer(), graph.consumers())
    found = {squeezed.mean.output: squeezed for node in graph.nodes if (squeezed := search.squeezed(node)) is not None}
    if not found:
        return graph
    builder = GraphBuilder(dict(graph.values), [])
    behind = {squeezed.behind.output for squeezed in found.values() if squeezed.behind is not None}
    late = {squeezed.before.output: squeezed.before for squeezed in found.values()}
    moved = set(late)

    def wanted(values: Iterable[int]) -> None:
        """Convolutions come as late as they can, after what their epilogues may read."""
        for v in dict.fromkeys(values):
            if v in late:
                before = late.pop(v)
                wanted(before.reads)
                builder.nodes.append(before)

    for node in graph.nodes:
        if node.output in found:
            squeezed = found[node.output]
            wanted(squeezed.before.inputs)
            _put(builder, squeezed)
        elif node.output not in moved and node.output not in behind:
            wanted(node.reads)
            builder.nodes.append(node)
    wanted(graph.outputs)
    return builder.graph(graph.inputs, graph.outputs)


@dataclass(frozen=True, eq=False)
class _Squeezed:
    """A mean, the convolution before it with its weights, [O,I], and bias, and perhaps the one behind it."""

    mean: Node
    before: Node
    weights: np.ndarray
    bias: np.ndarray
    behind: Node | None


@dataclass(frozen=True)
class _Search:
    graph: Graph
    producer: Mapping[int, Node]
    consumers: Mapping[int, list[Node]]

    def squeezed(self, node: Node) -> _Squeezed | None:
        """What `node` is the mean of, if it may be taken in front of that."""
        if node.op != Reduce("mean", (1, 2)) or node.operands or node.epilogue != RESULT:
            return None
        before = self.producer.get(node.inputs[0])
        layer = self.layer(before) if before is not None else None
        if before is None or layer is None:
            return None
        weights, bias = layer
        shape, alone = self.graph.values[before.inputs[0]].shape, self.readers(before.output) == [node]
        if shape[1] * shape[2] == 1 or (weights.shape[1] > weights.shape[0] and not alone):
            return None
        behind = [n for n in self.readers(node.output) if n is None or self.follows(n, node.output)]
        last = behind[0] if len(self.readers(node.output)) == len(behind) == 1 else None
        return _Squeezed(node, before, weights, bias, last)

    def readers(self, value: int) -> list[Node | None]:
        """Who reads the value; None is the user."""
        return [*self.consumers[value], *([None] if value in self.graph.outputs else [])]

    def follows(self, node: Node, value: int) -> bool:
        """Whether it is a convolution 1x1 of the value, which else reads constants."""
        constants = all(self.graph.values[v].is_constant for v in node.operands)
        return self.weights(node) is not None and node.inputs[0] == value and constants

    def weights(self, node: Node) -> np.ndarray | None:
        """[O,I], of a convolution 1x1 by constants of the value that is its first input."""
        if node.op != Conv2D() or node.inputs[0] == node.inputs[1]:
            return None
        data = self.graph.values[node.inputs[1]].data
        return data[:, 0, 0, :] if data is not None and data.shape[1:3] == (1, 1) else None

    def layer(self, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
        """The weights and the bias of a convolution 1x1 that does nothing else."""
        weights, values = self.weights(node), self.graph.values
        line = None if weights is None else line_of(node, values)
        if weights is None or line is None:
            return None
        x = values[node.inputs[0]]
        if x.is_constant or x.dtype is not DType.FLOAT32:
            return None
        scale, shift = line
        return (weights * scale[:, None]).astype(np.float32), shift.astype(np.float32)


def _put(builder: GraphBuilder, found: _Squeezed) -> None:
    """The mean, and the convolution of that with what comes behind it."""
    x, mean, last = builder.values[found.before.inputs[0]], found.mean, found.behind
    weights, bias = found.weights.astype(np.float64), found.bias.astype(np.float64)
    squeezed = builder.value((x.shape[0], 1, 1, x.shape[3]), x.dtype, name=x.name)
    builder.node(mean.op, [x.id], squeezed, sources=mean.sources)
    if last is None:
        inputs, operands = [squeezed, _weights(builder, weights)], [builder.constant(bias.astype(np.float32))]
        sources = sources_of(found.before, mean)
        builder.node(Conv2D(), inputs, mean.output, apply("add", RESULT, Arg(1)), operands, sources)
        return
    data = builder.values[last.inputs[1]].data
    assert data is not None
    second = data[:, 0, 0, :].astype(np.float64)
    epilogue, behind = _behind(builder, last, (second @ bias).astype(np.float32))
    both = _weights(builder, second @ weights)
    sources = sources_of(found.before, mean, last)
    builder.node(last.op, [squeezed, both], last.output, epilogue, behind, sources)


def _behind(builder: GraphBuilder, node: Node, shift: np.ndarray) -> tuple[Expr, tuple[int, ...]]:
    """What the node does with its result, of a result that `shift` is added to; with its own bias, if it has one."""
    for i, v in enumerate(node.operands):
        data = builder.values[v].data
        uses = [e for e in walk(node.epilogue) if isinstance(e, Apply) and {RESULT, Arg(1 + i)} & set(e.args)]
        if data is not None and data.shape[:3] == (1, 1, 1) and uses == [apply("add", RESULT, Arg(1 + i))]:
            bias = builder.constant((data.reshape(-1).astype(np.float64) + shift).astype(np.float32))
            return node.epilogue, tuple(bias if j == i else v for j, v in enumerate(node.operands))
    operands = (*node.operands, builder.constant(shift))
    replace: dict[int, Expr] = {i: Arg(i) for i in range(1, len(operands))}
    return substitute(node.epilogue, {0: apply("add", RESULT, Arg(len(operands))), **replace}), operands


def _weights(builder: GraphBuilder, weights: np.ndarray) -> int:
    return builder.constant(weights.astype(np.float32)[:, None, None, :])
