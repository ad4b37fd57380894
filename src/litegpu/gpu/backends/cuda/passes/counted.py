"""Quanta that are stored in float16 as counts of its smallest number, 2**-24: whoever stores them rounds them.

The sums of a layer are whole numbers, which a factor makes results of that are rounded, limited, and stored as halves.
A half below 2**-14 is a multiple of 2**-24, of two the even one where the number is halfway. So results that are
2**-24 as large need no rounding of their own. Factors and what is added change by powers of two, which rounds nothing:
the numbers stay the same, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from litegpu.gpu.graph import (
    Apply,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    MeanConv2D,
    Node,
    apply,
    arguments,
    substitute,
)

#: The smallest half, and how many of it are still halves that have neighbours at no other distance.
UNIT, MOST = 2.0**-24, 1024
#: What becomes 0, whose maximum with -0 is not -0.
LITTLE = 0.25
#: Functions of which a multiple is that of multiples of their arguments.
_TERMS = frozenset(("add", "sub", "min", "max"))


def count_smallest(graph: Graph, halves: Collection[int]) -> Graph:
    """The graph in which quanta are counts of the smallest half, where they are stored as halves (`halves`) and read by
    convolutions alone."""
    consumers = graph.consumers()
    found = {
        n.output
        for n in graph.nodes
        if n.output in halves
        and n.output not in graph.outputs
        and _rounded(n) is not None
        and consumers[n.output]
        and all(_multiplies(reader, n.output) for reader in consumers[n.output])
    }
    while found:
        builder = GraphBuilder(dict(graph.values), [])
        for node in graph.nodes:
            put = _put(builder, node, found) if found.intersection((node.output, *node.inputs[:1])) else node
            if put is None:
                found -= {node.output, node.inputs[0]}
                break
            builder.nodes.append(put)
        else:
            return builder.graph(graph.inputs, graph.outputs)
    return graph


def _rounded(node: Node) -> tuple[Expr, float, float] | None:
    """What a layer rounds to even and keeps within two whole numbers, and these, if that is how it ends."""
    if not isinstance(node.op, (Conv2D, DepthwiseConv2D)):
        return None
    match node.epilogue:
        case Apply("min", (Apply("max", (Apply("round", (x,)), Literal(low))), Literal(high))) if all(
            abs(limit) <= MOST and float(limit).is_integer() for limit in (low, high)
        ):
            return x, float(low), float(high)
    return None


def _multiplies(node: Node, v: int) -> bool:
    """Whether value `v` is what the node multiplies, and nothing else of it."""
    return (
        isinstance(node.op, (Conv2D, DepthwiseConv2D, MeanConv2D))
        and node.inputs[0] == v
        and (*node.inputs, *node.operands).count(v) == 1
    )


def _put(builder: GraphBuilder, node: Node, found: Collection[int]) -> Node | None:
    """The node that reads and writes what is `found` as such counts, or None if it cannot."""
    unit = UNIT if node.inputs[0] in found else 1.0
    if isinstance(node.op, MeanConv2D):
        scaled = _Scaled(builder, unit, node.inputs[2:])
        inner = scaled.by(node.op.inner, 1.0)
        if inner is None:
            return None
        inner, operands = scaled.finished(inner)
        op = dataclasses.replace(node.op, inner=inner)
        return dataclasses.replace(node, op=op, inputs=(*node.inputs[:2], *operands))
    scaled = _Scaled(builder, unit, node.operands)
    rounded = _rounded(node) if node.output in found else None
    epilogue = scaled.by(*((node.epilogue, 1.0) if rounded is None else (rounded[0], UNIT)))
    if epilogue is None:
        return None
    if rounded is not None:
        least = rounded[1] or LITTLE
        epilogue = apply("min", apply("max", epilogue, least * UNIT), rounded[2] * UNIT)
    epilogue, operands = scaled.finished(epilogue)
    return dataclasses.replace(node, epilogue=epilogue, operands=operands)


class _Scaled:
    """Multiples of an expression whose Arg(0) is from now on `unit` as large, and the others its operands."""

    def __init__(self, builder: GraphBuilder, unit: float, operands: Sequence[int]) -> None:
        self.builder, self.unit, self.operands = builder, unit, list(operands)
        self._first = list(range(1, len(operands) + 1))  # of which operand each is a multiple
        self._units: dict[Expr, frozenset[float]] = {}
        self._made: dict[tuple[Expr, float], Expr | None] = {}

    def by(self, expr: Expr, factor: float) -> Expr | None:
        """`factor`, a power of two, times what the expression was, or None if that takes another product."""
        key = expr, factor
        if key not in self._made:
            self._made[key] = self._by(expr, factor)
        return self._made[key]

    def finished(self, expr: Expr) -> tuple[Expr, tuple[int, ...]]:
        """A multiple, and the operands that it has, in the order in which they were."""
        used = sorted(arguments(expr) - {0}, key=lambda i: (self._first[i - 1], i))
        places: dict[int, Expr] = {old: Arg(new) for new, old in enumerate((0, *used))}
        return substitute(expr, places), tuple(self.operands[i - 1] for i in used)

    def _by(self, expr: Expr, factor: float) -> Expr | None:
        units = self.units(expr)
        match expr:
            case Arg(i) if units:
                return expr if units == {factor} else None
            case Arg(i) if factor != 1:
                return self._constant(i, factor)
            case Literal(number, DType.FLOAT32) if factor != 1:
                multiple = _multiple(np.array(number, np.float32), factor)
                return None if multiple is None else Literal(float(multiple))
            case Apply(fn, args) if fn in _TERMS:
                return _all(fn, [self.by(a, factor) for a in args])
            case Apply("mul" | "div" as fn, args) if _is_line(fn, [self.units(a) for a in args]) and len(units) == 1:
                (unit,) = units
                other = factor / unit if fn == "mul" else unit / factor
                return _all(fn, [self.by(a, unit if self.units(a) else other) for a in args])
            case Apply(fn, args) if factor == 1:
                return _all(fn, [self.by(a, 1.0) for a in args])
        return expr if factor == 1 else None

    def units(self, expr: Expr) -> frozenset[float]:
        """How large, from now on, what the expression is a multiple of is; none of constants."""
        if expr not in self._units:
            self._units[expr] = self._units_of(expr)
        return self._units[expr]

    def _units_of(self, expr: Expr) -> frozenset[float]:
        match expr:
            case Arg(0):
                return frozenset((self.unit,))
            case Arg(i):
                return frozenset() if self._data(i) is not None else frozenset((1.0,))
            case Apply(fn, args):
                within = [self.units(a) for a in args]
                every = frozenset[float]().union(*within)
                return every if not every or fn in _TERMS or _is_line(fn, within) else frozenset((1.0,))
        return frozenset()

    def _data(self, i: int) -> np.ndarray | None:
        return self.builder.values[self.operands[i - 1]].data

    def _constant(self, i: int, factor: float) -> Expr | None:
        data = self._data(i)
        multiple = None if data is None else _multiple(data, factor)
        if multiple is None:
            return None
        self.operands.append(self.builder.constant(multiple))
        self._first.append(i)
        return Arg(len(self.operands))


def _is_line(fn: str, within: Sequence[Collection[float]]) -> bool:
    """Whether a function of what has these units is a constant times one of its arguments."""
    return (fn == "mul" and not all(within)) or (fn == "div" and not within[1])


def _all(fn: str, args: Sequence[Expr | None]) -> Expr | None:
    known = [a for a in args if a is not None]
    return Apply(fn, tuple(known)) if len(known) == len(args) else None


def _multiple(data: np.ndarray, factor: float) -> np.ndarray | None:
    """Floats times a power of two, if nothing of them is lost."""
    if data.dtype != np.float32:
        return None
    found = data * np.float32(factor)
    return found if np.array_equal(found / np.float32(factor), data) else None
