"""Join the two reductions and the elementwise work of a normalisation over the channels into one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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
    LayerNorm,
    Literal,
    Node,
    Reduce,
    apply,
    substitute,
)
from litegpu.gpu.graph.expression import arguments

#: Channels that a workgroup keeps in its registers.
MOST_CHANNELS = 8192
#: Terms of a sum of products, above which it is no normalisation.
_MOST_TERMS = 16


def join_layer_norm(graph: Graph) -> Graph:
    """The graph with LayerNorm nodes for (x - mean) / sqrt(variance + epsilon), whatever way it was written in, with
    what is computed of that as their epilogue: both moments in one go over x. So it is with x / sqrt(mean of squares +
    epsilon)."""
    producer, consumers = graph.producer(), graph.consumers()
    gone: set[int] = set()
    joined: dict[int, Node] = {}
    for node in graph.nodes:
        moments = _moments(node, graph, producer)
        if moments is None:
            continue
        after = {n.output for v in moments.values for n in consumers[v]} - set(moments.values)
        last = producer[after.pop()] if len(after) == 1 else None
        if last is None or any(v in graph.outputs for v in moments.values):
            continue
        found = _normalised(last, moments, graph)
        if found is not None:
            joined[last.output] = found
            gone |= set(moments.values)
    nodes = [joined.get(node.output, node) for node in graph.nodes if node.output not in gone]
    return GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs) if gone else graph


@dataclass(frozen=True)
class _Moments:
    """The values x, its mean, what is left of it (perhaps), and the deviation or what is left is multiplied by."""

    x: int
    mean: int | None  # None: x is not centred
    centred: int | None
    deviation: int
    inverse: bool  # `deviation` is 1 / sqrt(variance + epsilon)
    epsilon: float
    sources: tuple[int, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """What a LayerNorm makes superfluous."""
        return tuple(v for v in (self.mean, self.centred, self.deviation) if v is not None)


def _moments(node: Node, graph: Graph, producer: Mapping[int, Node]) -> _Moments | None:
    """The moments, if `node` is the second of the reductions."""
    if not isinstance(node.op, Reduce) or (node.op.kind, node.op.axes) != ("mean", (3,)):
        return None
    match _numbered(node.epilogue, node.operands, 1, graph):
        case Apply("rsqrt" | "sqrt" as fn, (Apply("add", (Arg(0), Literal(number)) | (Literal(number), Arg(0))),)):
            epsilon = float(number)
        case _:
            return None
    squared, centred = _root(_numbered(node.op.prologue, node.inputs, 0, graph)), None
    inputs = node.inputs
    sources = set(node.sources)
    plain = None
    if isinstance(squared, Arg):
        x = inputs[squared.index]
        if _is_real(x, graph):
            plain = _Moments(x, None, None, node.output, fn == "rsqrt", epsilon, tuple(sources))
        left = producer.get(x)
        if left is None or not isinstance(left.op, Elementwise):
            return plain
        centred, squared, inputs = x, left.epilogue, left.operands
        sources |= set(left.sources)
    match squared:
        case Apply("sub", (Arg(first), Arg(second))):
            x, mean = inputs[first], inputs[second]
        case _:
            return plain
    average = producer.get(mean)
    if average is None or average.op != Reduce("mean", (3,)) or average.epilogue != RESULT or average.inputs != (x,):
        return plain
    if not _is_real(x, graph):
        return None
    sources |= set(average.sources)
    return _Moments(x, mean, centred, node.output, fn == "rsqrt", epsilon, tuple(sources))


def _is_real(x: int, graph: Graph) -> bool:
    value = graph.values[x]
    return value.dtype is DType.FLOAT32 and not value.is_constant and 1 < value.shape[3] <= MOST_CHANNELS


def _numbered(expression: Expr, values: Sequence[int], first: int, graph: Graph) -> Expr:
    """The expression with what is a number in its place; `values` are those of the Args from `first` on."""
    replace: dict[int, Expr] = {0: RESULT}
    for i, v in enumerate(values, first):
        data = graph.values[v].data
        replace[i] = Literal(float(data.reshape(-1)[0])) if data is not None and data.size == 1 else Arg(i)
    return substitute(expression, replace)


def _root(expression: Expr) -> Expr | None:
    """What is squared."""
    match expression:
        case Apply("mul", (first, second)) if first == second:
            return first
        case Apply("pow", (first, Literal(number))) if number == 2:
            return first
    return None


def _normalised(last: Node, moments: _Moments, graph: Graph) -> Node | None:
    """`last` as LayerNorm with an epilogue, if it is a function of what is left of x divided by the deviation."""
    if not isinstance(last.op, Elementwise) or graph.values[last.output].shape != graph.values[moments.x].shape:
        return None
    operands = [v for v in last.operands if v not in (*moments.values, moments.x)]
    replace: dict[int, Expr] = {}
    roles: dict[int | None, Expr] = {
        moments.centred: apply("sub", _X, _MEAN), moments.mean: _MEAN, moments.deviation: _DEVIATION, moments.x: _X
    }  # fmt: skip
    for i, v in enumerate(last.operands):
        replace[i] = roles[v] if v in roles else Arg(operands.index(v) + 1)
    epilogue = _rewritten(substitute(last.epilogue, replace), moments.inverse, moments.mean is not None)
    if epilogue is None:
        return None
    if _X.index in arguments(epilogue):  # as a summand of its own
        position = operands.index(moments.x) if moments.x in operands else len(operands)
        operands = [*operands, moments.x] if position == len(operands) else operands
        epilogue = substitute(
            epilogue, {i: Arg(position + 1) if i == _X.index else Arg(i) for i in arguments(epilogue)}
        )
    sources = tuple(sorted({*moments.sources, *last.sources}))
    op = LayerNorm(moments.epsilon, moments.mean is not None)
    return dataclasses.replace(
        last, op=op, inputs=(moments.x,), epilogue=epilogue, operands=tuple(operands), sources=sources
    )


# -------------------------------------------------------------------------------------------------- sums of products

#: What stands for x, its mean and the deviation while an expression is looked at.
_X, _MEAN, _DEVIATION = Arg(-1), Arg(-2), Arg(-3)

#: Factors, in an order of their own -> the number that their product is multiplied by.
_Sum = dict[tuple[Expr, ...], float]


def _rewritten(expression: Expr, inverse: bool, centred: bool) -> Expr | None:
    """The expression with RESULT for (x - mean) / deviation, or x / deviation; None if there is more in it of the mean
    or deviation."""
    found = _sum_of(expression, inverse)
    if found is not None:
        return _of_result(found, centred)
    if not isinstance(expression, Apply):
        return None
    inside = [i for i, a in enumerate(expression.args) if _is_part(a)]
    parts = {id(expression.args[i]): expression.args[i] for i in inside}
    if len(parts) != 1:
        return None
    inner = _rewritten(next(iter(parts.values())), inverse, centred)
    if inner is None:
        return None
    return Apply(expression.fn, tuple(inner if i in inside else a for i, a in enumerate(expression.args)))


def _of_result(terms: _Sum, centred: bool) -> Expr | None:
    of_x: _Sum = {}
    of_mean: _Sum = {}
    others: _Sum = {}
    for factors, number in terms.items():
        if not {_MEAN, _DEVIATION} & set(factors):
            others[factors] = number
            continue
        which = _MEAN if _MEAN in factors else _X
        if factors.count(_DEVIATION) != 1 or factors.count(which) != 1 or {_MEAN, _X} <= set(factors):
            return None
        rest = tuple(f for f in factors if f not in (which, _DEVIATION))
        (of_mean if which == _MEAN else of_x)[rest] = number
    if not of_x or (centred and of_x != {rest: -number for rest, number in of_mean.items()}):
        return None
    scale = _expression(of_x)
    result = RESULT if scale == Literal(1.0) else apply("mul", RESULT, scale)
    return apply("add", result, _expression(others)) if others else result


def _expression(terms: _Sum) -> Expr:
    total: Expr | None = None
    for factors, number in terms.items():
        product: Expr | None = None if number == 1 and factors else Literal(float(number))
        for factor in factors:
            product = factor if product is None else apply("mul", product, factor)
        assert product is not None
        total = product if total is None else apply("add", total, product)
    assert total is not None
    return total


def _sum_of(expression: Expr, inverse: bool) -> _Sum | None:
    """The expression as a sum of products; None if it is none as far as mean and deviation are concerned. A standard
    deviation may be a divisor only, its inverse a factor."""
    if isinstance(expression, Literal):
        return {(): float(expression.value)}
    if isinstance(expression, Arg):
        return {(expression,): 1.0} if inverse or expression != _DEVIATION else None
    alone: _Sum | None = None if _is_part(expression) else {(expression,): 1.0}
    if _X.index not in arguments(expression) and alone is not None:
        return alone
    match expression:
        case Apply("neg", (inner,)):
            return _product(_sum_of(inner, inverse), {(): -1.0})
        case Apply("div", (above, below)) if below == _DEVIATION and not inverse:
            return _product(_sum_of(above, inverse), {(_DEVIATION,): 1.0})
        case Apply("mul", (one, other)):
            return _product(_sum_of(one, inverse), _sum_of(other, inverse))
        case Apply("add" | "sub" as fn, (one, other)):
            first, second = _sum_of(one, inverse), _sum_of(other, inverse)
            if first is None or second is None:
                return None
            total = dict(first)
            for factors, number in second.items():
                total[factors] = total.get(factors, 0.0) + (number if fn == "add" else -number)
            return total
    return alone


def _product(one: _Sum | None, other: _Sum | None) -> _Sum | None:
    if one is None or other is None or len(one) * len(other) > _MOST_TERMS:
        return None
    total: _Sum = {}
    for first, number in one.items():
        for second, times in other.items():
            factors = tuple(sorted((*first, *second), key=repr))
            total[factors] = total.get(factors, 0.0) + number * times
    return total


def _is_part(expression: Expr) -> bool:
    """Whether the mean or the deviation is in it."""
    return not arguments(expression).isdisjoint((_MEAN.index, _DEVIATION.index))
