"""Whether an expression of x, its mean and its deviation is one of x normalised: sums of products are compared."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.graph import RESULT, Apply, Arg, Expr, Graph, Literal, apply, substitute
from litegpu.gpu.graph.expression import arguments

#: Terms of a sum of products, above which it is no normalisation.
_MOST_TERMS = 16

#: What stands for x, its mean and the deviation while an expression is looked at.
X, MEAN, DEVIATION = Arg(-1), Arg(-2), Arg(-3)

#: Factors, in an order of their own -> the number that their product is multiplied by.
_Sum = dict[tuple[Expr, ...], float]


def numbered(expression: Expr, values: Sequence[int], first: int, graph: Graph) -> Expr:
    """The expression with what is a number in its place; `values` are those of the Args from `first` on."""
    replace: dict[int, Expr] = {0: RESULT}
    for i, v in enumerate(values, first):
        data = graph.values[v].data
        replace[i] = Literal(float(data.reshape(-1)[0])) if data is not None and data.size == 1 else Arg(i)
    return substitute(expression, replace)


def root(expression: Expr) -> Expr | None:
    """What is squared."""
    match expression:
        case Apply("mul", (first, second)) if first == second:
            return first
        case Apply("pow", (first, Literal(number))) if number == 2:
            return first
    return None


def normalised(
    expression: Expr, operands: Sequence[int], x: int, inverse: bool, centred: bool
) -> tuple[Expr, list[int]] | None:
    """The epilogue and operands of a normalisation of the value `x` that is `expression` of X, MEAN, DEVIATION and
    Arg(i + 1) for operand i; None if it is none. `inverse`: the deviation is 1 / sqrt(variance + epsilon)."""
    epilogue, found = _rewritten(expression, inverse, centred), list(operands)
    if epilogue is None:
        return None
    if X.index in arguments(epilogue):  # as a summand of its own
        found = found if x in found else [*found, x]
        place = Arg(found.index(x) + 1)
        epilogue = substitute(epilogue, {i: place if i == X.index else Arg(i) for i in arguments(epilogue)})
    return epilogue, found


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
        if not {MEAN, DEVIATION} & set(factors):
            others[factors] = number
            continue
        which = MEAN if MEAN in factors else X
        if factors.count(DEVIATION) != 1 or factors.count(which) != 1 or {MEAN, X} <= set(factors):
            return None
        rest = tuple(f for f in factors if f not in (which, DEVIATION))
        (of_mean if which == MEAN else of_x)[rest] = number
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
        return {(expression,): 1.0} if inverse or expression != DEVIATION else None
    alone: _Sum | None = None if _is_part(expression) else {(expression,): 1.0}
    if X.index not in arguments(expression) and alone is not None:
        return alone
    match expression:
        case Apply("neg", (inner,)):
            return _product(_sum_of(inner, inverse), {(): -1.0})
        case Apply("div", (above, below)) if below == DEVIATION and not inverse:
            return _product(_sum_of(above, inverse), {(DEVIATION,): 1.0})
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
    return not arguments(expression).isdisjoint((MEAN.index, DEVIATION.index))
