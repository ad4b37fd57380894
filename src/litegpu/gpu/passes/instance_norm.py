"""Join what normalises each channel of an image over its pixels into two nodes: the moments, and all that is left."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    InstanceNorm,
    Literal,
    Moments,
    Node,
    Reduce,
    apply,
    substitute,
    walk,
)
from litegpu.gpu.kernels.instance_norm import choose_parts
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.normalised import DEVIATION, MEAN, X, normalised, root

#: What stands for the variance while an expression is looked at.
_VARIANCE = Arg(-4)
#: Functions that an expression may grow to while elementwise nodes are put together.
_LARGEST = 64


def join_instance_norm(graph: Graph, features: Features) -> Graph:
    """The graph with Moments and InstanceNorm for (x - mean) / sqrt(variance + epsilon) over height and width, before
    elementwise nodes are fused; what is computed of that by the same node is its epilogue. Two kernels do then what
    took five or six, each of which waits for the one before; where kernels may overlap (those of native backends),
    that is no gain."""
    if features.native:
        return graph
    search = _Search(graph)
    found = [norm for node in graph.nodes if (norm := search.norm(node)) is not None]
    if not found:
        return graph
    gone = set().union(*(norm.gone for norm in found))
    last = {norm.last.output: norm for norm in found}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in last:
            _put(builder, last[node.output], features)
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


@dataclass(frozen=True)
class _Norm:
    """What was found: x, the node that gives the result, what it computes of that, and the values in between."""

    x: int
    last: Node
    epsilon: float
    epilogue: Expr
    operands: tuple[int, ...]
    gone: frozenset[int]
    sources: tuple[int, ...]


class _Search:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.producer, self.consumers = graph, graph.producer(), graph.consumers()

    def norm(self, node: Node) -> _Norm | None:
        """The normalisation of which `node` is the mean."""
        if _averaged(node) != RESULT or len(node.inputs) != 1:
            return None
        x, mean = node.inputs[0], node.output
        value = self.graph.values[x]
        if value.dtype is not DType.FLOAT32 or value.is_constant or math.prod(value.shape[1:3]) < 2:
            return None
        variance: int | None = None
        found: dict[int, Expr] = {mean: MEAN}  # what is computed of the mean and the variance ...
        before: dict[int, frozenset[int]] = {mean: frozenset()}  # ... and the other values of `found` that it takes
        for later in self.graph.nodes[self.graph.nodes.index(node) + 1 :]:
            taken = [v for v in later.reads if v in found]
            if not taken:
                continue
            through = frozenset(taken).union(*(before[v] for v in taken))
            if isinstance(later.op, Elementwise):
                args = {i: X if v == x else found.get(v, Arg(v)) for i, v in enumerate(later.operands)}
                whole = substitute(later.epilogue, args)
                if sum(isinstance(e, Apply) for e in walk(whole)) > _LARGEST:
                    continue
                if variance is not None and self.graph.values[later.output].shape == value.shape:
                    norm = self.judged(x, later, whole, through)
                    if norm is not None:
                        return norm
                found[later.output], before[later.output] = whole, through
            elif variance is None and (averaged := _averaged(later)) is not None:
                args = {i: X if v == x else found.get(v, Arg(v)) for i, v in enumerate(later.inputs)}
                if root(substitute(averaged, args)) == apply("sub", X, MEAN):
                    variance = later.output
                    found[variance], before[variance] = _VARIANCE, through
        return None

    def judged(self, x: int, last: Node, whole: Expr, gone: frozenset[int]) -> _Norm | None:
        """With `whole` as what `last` computes, of X, MEAN, _VARIANCE and Arg(v) for other values v, by way of the
        values `gone`: if it normalises x, and nobody else reads those."""
        if not all(n is last or n.output in gone for v in gone for n in self.consumers[v]):
            return None
        if not gone.isdisjoint(self.graph.outputs):
            return None
        deviations: set[tuple[str, float]] = set()
        whole = _with_deviation(whole, self.graph, deviations)
        args = {e.index for e in walk(whole) if isinstance(e, Arg)}
        if len(deviations) != 1 or _VARIANCE.index in args:
            return None
        fn, epsilon = deviations.pop()
        operands = sorted(v for v in args if v >= 0)
        places: dict[int, Expr] = {v: Arg(operands.index(v) + 1) if v >= 0 else Arg(v) for v in args}
        found = normalised(substitute(whole, places), operands, x, fn == "rsqrt", True)
        if found is None:
            return None
        sources = {i for v in (*gone, last.output) for i in self.producer[v].sources}
        return _Norm(x, last, epsilon, found[0], tuple(found[1]), gone, tuple(sorted(sources)))


def _averaged(node: Node) -> Expr | None:
    """What the node takes the mean of over the pixels of each image, if it does no more than that."""
    op = node.op
    is_mean = isinstance(op, Reduce) and op.kind == "mean" and set(op.axes) == {1, 2} and node.epilogue == RESULT
    return op.prologue if is_mean and isinstance(op, Reduce) else None


def _with_deviation(expr: Expr, graph: Graph, found: set[tuple[str, float]]) -> Expr:
    """The expression with DEVIATION for the root of the variance and an epsilon, or one divided by that: the function
    and the epsilon are added to `found`."""
    if not isinstance(expr, Apply):
        return expr
    match expr:
        case Apply("rsqrt" | "sqrt" as fn, (Apply("add", (one, other)),)) if _VARIANCE in (one, other):
            epsilon = _number(other if one == _VARIANCE else one, graph)
            if epsilon is not None:
                found.add((fn, epsilon))
                return DEVIATION
    return Apply(expr.fn, tuple(_with_deviation(a, graph, found) for a in expr.args))


def _number(expr: Expr, graph: Graph) -> float | None:
    if isinstance(expr, Literal):
        return float(expr.value)
    data = graph.values[expr.index].data if isinstance(expr, Arg) and expr.index >= 0 else None
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


def _put(builder: GraphBuilder, norm: _Norm, features: Features) -> None:
    b, h, w, c = builder.values[norm.x].shape
    parts = choose_parts((b, h, w, c), features)
    moments = builder.value((b, parts, 2, c), DType.FLOAT32)
    builder.node(Moments(parts), [norm.x], moments, sources=norm.sources)
    builder.nodes.append(
        dataclasses.replace(
            norm.last,
            op=InstanceNorm(norm.epsilon),
            inputs=(norm.x, moments),
            epilogue=norm.epilogue,
            operands=norm.operands,
            sources=norm.sources,
        )
    )
