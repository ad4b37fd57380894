"""Join what normalises each channel of an image over its pixels, or groups of them, into moments and all the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Copy,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    GroupNorm,
    InstanceNorm,
    JoinedMoments,
    Literal,
    Moments,
    Node,
    Reduce,
    Reshape,
    Shape,
    apply,
    is_reshaping,
    substitute,
    walk,
)
from litegpu.gpu.kernels import native
from litegpu.gpu.kernels.instance_norm import choose_parts
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.fold import drop_unused
from litegpu.gpu.passes.normalised import DEVIATION, MEAN, X, normalised, root

#: What stands for the variance while an expression is looked at.
_VARIANCE = Arg(-4)
#: Functions that an expression may grow to while elementwise nodes are put together.
_LARGEST = 64
#: The axes over which x [B,H*W,groups,C/groups] is averaged.
_GROUPED = (1, 3)
#: The same of what has its batch in rows: x [1,B,W,C].
_ROWS = (2, 3)
#: Elements from which on norms of each channel are done so where kernels overlap: they are read twice, not three
#: times, by three kernels in place of five. (At batch 1 style networks 272 to 225 and 171 to 147 us, CycleGAN, with its
#: borders copied, 580 to 476; at batch 16 1.5% less.) The same of norms of all channels: none. (PoolFormer lost 11%,
#: Conv-TasNet at batch 64 0.7%.)
_LARGE, _LARGE_OF_ALL = 250_000, math.inf


def join_instance_norm(graph: Graph, features: Features) -> Graph:
    """The graph with norms for (x - mean) / sqrt(variance + epsilon) over height and width, before elementwise nodes
    are fused; what is computed of that by the same node is its epilogue. Where a native backend has one kernel for it
    that is a GroupNorm, else Moments and an InstanceNorm: two kernels then do what took five or six, each of which
    waits for the one before. Where kernels may overlap (those of native backends) the latter are a gain for images that
    are not small, which are read twice rather than three times, and for groups of channels, whose elements lie apart in
    what is computed of them otherwise; moments of parts and groups are joined by a kernel of their own, JoinedMoments.
    """
    own = native.of(features)
    if own is not None and not own.joins_moments(features):
        return graph
    search = _Search(graph, features)
    found = [norm for node in graph.nodes if (norm := search.norm(node)) is not None]
    if not found:
        return graph
    gone = set().union(*(norm.gone for norm in found))
    last = {norm.last.output: norm for norm in found}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in last:
            _put(builder, last[node.output], features, own)
        elif node.output not in gone:
            builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs))


@dataclass(frozen=True)
class _Norm:
    """What was found: x with its channels in `groups` (None: each by itself), which lie side by side in the value
    `whole`, and perhaps its batch in `rows`, the node that gives the result, what it computes of that, and the values
    in between."""

    x: int
    whole: int | None
    groups: int | None
    rows: bool
    last: Node
    epsilon: float
    epilogue: Expr
    operands: tuple[int, ...]
    gone: frozenset[int]
    sources: tuple[int, ...]


class _Search:
    def __init__(self, graph: Graph, features: Features) -> None:
        """With native kernels (`own`) kernels overlap, and there are some for JoinedMoments."""
        self.graph, self.producer, self.consumers = graph, graph.producer(), graph.consumers()
        self.features, self.own = features, native.of(features)
        copies: dict[tuple[Copy, int], int] = {}  # those who read groups of channels may have a copy each
        self.same = {
            n.output: copies.setdefault((n.op, n.inputs[0]), n.output)
            for n in graph.nodes
            if isinstance(n.op, Copy) and n.epilogue == RESULT
        }

    def norm(self, node: Node) -> _Norm | None:
        """The normalisation of which `node` is the mean."""
        axes = self.axes(node)
        if axes is None:
            return None
        x, mean = self.same.get(node.inputs[0], node.inputs[0]), node.output
        variance: int | None = None
        found: dict[int, Expr] = {mean: MEAN}  # what is computed of the mean and the variance ...
        before: dict[int, frozenset[int]] = {mean: frozenset()}  # ... and the other values of `found` that it takes
        for later in self.graph.nodes[self.graph.nodes.index(node) + 1 :]:
            taken = [v for v in later.reads if v in found]
            if not taken:
                continue
            through = frozenset(taken).union(*(before[v] for v in taken))
            if is_reshaping(later) and self.alike(later.inputs[0], later.output, axes):
                found[later.output], before[later.output] = found[later.inputs[0]], through
            elif isinstance(later.op, Elementwise):
                args = {
                    i: X if self.is_same(v, x, axes) else found.get(v, Arg(v)) for i, v in enumerate(later.operands)
                }
                whole = substitute(later.epilogue, args)
                if sum(isinstance(e, Apply) for e in walk(whole)) > _LARGEST:
                    continue
                if variance is not None and self.alike(later.output, x, axes):
                    norm = self.judged(x, axes, later, whole, through)
                    if norm is not None:
                        return norm
                found[later.output], before[later.output] = whole, through
            elif variance is None and (averaged := _averaged(later, axes)) is not None:
                args = {i: X if self.is_same(v, x, axes) else found.get(v, Arg(v)) for i, v in enumerate(later.inputs)}
                if root(substitute(averaged, args)) == apply("sub", X, MEAN):
                    variance = later.output
                    found[variance], before[variance] = _VARIANCE, through
        return None

    def axes(self, node: Node) -> tuple[int, ...] | None:
        """Over which the node takes a mean, if that is one over the pixels, of channels each by itself, of all, or of
        those of x [B,H*W,groups,C/groups], and kernels for it are worth while."""
        x, axes = node.inputs[0] if len(node.inputs) == 1 else None, node.op.axes if isinstance(node.op, Reduce) else ()
        if x is None or _averaged(node, axes) != RESULT:
            return None
        value = self.graph.values[x]
        if value.dtype is not DType.FLOAT32 or value.is_constant or math.prod(value.shape[i] for i in axes) < 2:
            return None
        image = self.image(x, axes)
        if image is None or self.own is None:
            return axes if image is not None and axes == (1, 2) else None
        shape, groups = image
        least = _LARGE if axes == (1, 2) else 0 if axes == _GROUPED else _LARGE_OF_ALL
        return axes if value.elements >= least or self.own.norms_groups(shape, groups, self.features) else None

    def image(self, x: int, axes: tuple[int, ...]) -> tuple[Shape, int] | None:
        """x as B,H,W,C, and the groups of channels over which a mean over these axes is one with the pixels; None if it
        is none."""
        shape = self.graph.values[x].shape
        if axes == _GROUPED:
            return None if self.whole(x) is None else ((shape[0], 1, shape[1], shape[2] * shape[3]), shape[2])
        if axes == _ROWS:
            return ((shape[1], 1, *shape[2:]), 1) if shape[0] == 1 else None
        return {(1, 2): (shape, shape[3]), (1, 2, 3): (shape, 1)}.get(axes)

    def alike(self, one: int, other: int, axes: tuple[int, ...]) -> bool:
        """Whether both have the same shape, or pixels of the same groups of channels in one axis or two."""
        a, b = self.graph.values[one], self.graph.values[other]
        return a.shape == b.shape or (axes == _GROUPED and a.shape[2:] == b.shape[2:] and a.elements == b.elements)

    def is_same(self, v: int, x: int, axes: tuple[int, ...]) -> bool:
        """Whether v has the elements of x in their order, and is alike."""
        return self.same.get(v, v) == x or (self.alike(v, x, axes) and self.origin(v) == self.origin(x))

    def origin(self, v: int) -> int:
        """The value that has been given another shape, perhaps several times, to become v."""
        while (node := self.producer.get(v)) is not None and is_reshaping(node):
            v = node.inputs[0]
        return v

    def whole(self, x: int) -> int | None:
        """The value, its channels last, whose channels x [B,H*W,groups,C/groups] has in groups."""
        _, _, groups, each = self.graph.values[x].shape
        v = x
        while (node := self.producer.get(v)) is not None and is_reshaping(node):
            v = node.inputs[0]
            source = self.graph.values[v]
            if source.shape[3] == groups * each and source.dtype is DType.FLOAT32 and not source.is_constant:
                return v
        return None

    def judged(self, x: int, axes: tuple[int, ...], last: Node, whole: Expr, gone: frozenset[int]) -> _Norm | None:
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
        if axes == _GROUPED and any(v != x and not self.is_of_channels(v, x) for v in found[1]):
            return None
        if axes == _ROWS and any(v != x and self.graph.values[v].shape[:2] != (1, 1) for v in found[1]):
            return None
        groups = {(1, 2): None, (1, 2, 3): 1, _ROWS: 1, _GROUPED: self.graph.values[x].shape[2]}[axes]
        sources = {i for v in (*gone, last.output) for i in self.producer[v].sources}
        side, rows = self.whole(x) if axes == _GROUPED else None, axes == _ROWS
        return _Norm(x, side, groups, rows, last, epsilon, found[0], tuple(found[1]), gone, tuple(sorted(sources)))

    def is_of_channels(self, v: int, x: int) -> bool:
        """Whether it is a constant of the groups of x, and what is in them, alone."""
        value = self.graph.values[v]
        return value.data is not None and value.shape[:2] == (1, 1)


def _averaged(node: Node, axes: tuple[int, ...]) -> Expr | None:
    """What the node takes the mean of over these axes, if it does no more than that."""
    op = node.op
    is_mean = isinstance(op, Reduce) and op.kind == "mean" and set(op.axes) == set(axes) and node.epilogue == RESULT
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


def _put(builder: GraphBuilder, norm: _Norm, features: Features, own: native.Native | None) -> None:
    values, last = builder.values, norm.last
    x, target = norm.x, values[last.output].shape
    apart = norm.groups is not None and norm.groups > 1  # its channels lie apart
    operands = norm.operands
    if apart:
        x = _with_channels(builder, norm)
        groups, each = target[2:]
        operands = tuple(x if v == norm.x else _of_channels(builder, v, groups, each) for v in operands)
    if norm.rows:
        x = _with_batch(builder, norm)
        operands = tuple(x if v == norm.x else v for v in operands)
    b, h, w, c = values[x].shape
    groups, moved = norm.groups or c, target != (b, h, w, c)
    result = builder.value((b, h, w, c), DType.FLOAT32, name=values[last.output].name) if moved else last.output
    if own is not None and own.norms_groups((b, h, w, c), groups, features):
        builder.node(GroupNorm(groups, norm.epsilon), [x], result, norm.epilogue, operands, norm.sources)
    else:
        moments = _moments(builder, x, groups, norm, features)
        builder.node(InstanceNorm(norm.epsilon), [x, moments], result, norm.epilogue, operands, norm.sources)
    if moved:
        builder.node(Copy((Reshape((b, h, w, c), target),)), [result], last.output, sources=last.sources)


def _moments(builder: GraphBuilder, x: int, groups: int, norm: _Norm, features: Features) -> int:
    b, h, w, c = shape = builder.values[x].shape
    parts = choose_parts(shape, features)
    moments = builder.node(Moments(parts), [x], builder.value((b, parts, 2, c), DType.FLOAT32), sources=norm.sources)
    if features.native and (parts > 1 or norm.groups is not None):
        joined = JoinedMoments(h * w, groups)
        moments = builder.node(joined, [moments], builder.value((b, 1, 2, c), DType.FLOAT32), sources=norm.sources)
    return moments


def _with_channels(builder: GraphBuilder, norm: _Norm) -> int:
    """x [B,H*W,groups,C/groups] as [B,H,W,C]."""
    assert norm.whole is not None
    source = builder.values[norm.whole]
    b, n, groups, each = builder.values[norm.x].shape
    if source.shape[0] == b and source.shape[1] * source.shape[2] == n:
        return source.id
    shape = (b, 1, n, groups * each)
    step = Reshape(source.shape, shape)
    return builder.node(Copy((step,)), [source.id], builder.value(shape, DType.FLOAT32), sources=norm.sources)


def _with_batch(builder: GraphBuilder, norm: _Norm) -> int:
    """x [1,B,W,C] as [B,1,W,C]."""
    _, b, w, c = shape = builder.values[norm.x].shape
    step = Reshape(shape, (b, 1, w, c))
    made = builder.value((b, 1, w, c), DType.FLOAT32)
    return builder.node(Copy((step,)), [norm.x], made, sources=norm.sources)


def _of_channels(builder: GraphBuilder, v: int, groups: int, each: int) -> int:
    data = builder.values[v].data
    assert data is not None
    whole = np.broadcast_to(data, (1, 1, groups, each)).reshape(1, 1, 1, groups * each)
    return v if data.size == 1 else builder.constant(whole, name=builder.values[v].name)
