"""Which values decide something where float16 is allowed: a rounding that moves one of them must move all alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    ArgReduce,
    Attention,
    Concat,
    Conv2D,
    Copy,
    Custom,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Expr,
    Gather,
    Graph,
    InvertedConv2D,
    MatMul,
    MeanConv2D,
    MomentsConv2D,
    Node,
    PairConv2D,
    PointwiseConv2D,
    Pool2D,
    PooledConv2D,
    Reduce,
    Resize2D,
    SeparableConv2D,
    Squeeze,
    TransposeConv2D,
    arguments,
    walk,
)

#: Functions whose result jumps where their arguments, which are both computed, change places.
_COMPARING = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "floor_div", "floor_mod"))
#: Functions whose result jumps where their one argument passes a fixed number.
_STEPPING = frozenset(("floor", "ceil", "round", "sign", "to_int32", "to_bool", "nearest")) | _COMPARING
#: Functions whose result is an argument as it is, or as exact in any type.
_CHOOSING = frozenset(("min", "max", "neg", "abs", "select"))
#: Work that float16 is asked for.
PRODUCTS = (
    Conv2D, DepthwiseConv2D, SeparableConv2D, PointwiseConv2D, PairConv2D, PooledConv2D, MomentsConv2D,
    InvertedConv2D, MeanConv2D, Squeeze, TransposeConv2D, MatMul, Attention, Custom,
)  # fmt: skip
_WHY = "it is compared with another value, and both have to be rounded alike"


def values_decided_on(graph: Graph) -> dict[int, str]:
    """The values that must not be stored as float16 for the sake of decisions, and why.

    Two values that are compared, say x and its maximum, or the rows and the columns of one tensor, may have passed
    through memory of different types: inputs and outputs of the graph, vectors and sums are float32 in any case. One of
    them would be rounded then, and be larger than its own maximum. So what is compared stays in float32, with all that
    it is computed from, back to the results of products; these are computed once, and every reader finds the same.
    What is compared with a fixed number, rounded, or searched for its largest element stays so if it is a moved or
    chosen element of what is float32.
    """
    return _Decisions(graph).run()


class _Decisions:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producer = graph.producer()
        self.kept: dict[int, str] = {}

    def run(self) -> dict[int, str]:
        for node in self.graph.nodes:
            for v in self.compared(node):
                self.keep_sources(v)
        for node in self.graph.nodes:
            for v in self.stepped(node):
                self.keep_moved(v)
        return {v: why for v, why in self.kept.items() if v not in self.graph.inputs}

    # ------------------------------------------------------------------------------------ where decisions are

    def expressions(self, node: Node) -> Iterator[tuple[Expr, tuple[tuple[int, ...], ...]]]:
        """The expressions of a node, and for each of their Args the values that it stands for."""
        own = () if isinstance(node.op, Elementwise) else (self.exact_sources(node),)
        yield node.epilogue, (*own, *((v,) for v in node.operands))
        if isinstance(node.op, (Reduce, Pool2D)):
            yield node.op.prologue, tuple((v,) for v in node.inputs)

    def compared(self, node: Node) -> Iterator[int]:
        """The values on both sides of the comparisons of two computed values."""
        for expr, args in self.expressions(node):
            for part in walk(expr):
                if isinstance(part, Apply) and part.fn in _COMPARING:
                    sides = [[v for i in sorted(arguments(a)) for v in self.floats(args[i])] for a in part.args]
                    if all(sides):
                        yield from (v for side in sides for v in side)

        if isinstance(node.op, Custom) and self.graph.values[node.output].dtype is DType.INT32:
            several = self.floats(node.inputs)
            yield from several if len(several) > 1 else ()

    def stepped(self, node: Node) -> Iterator[int]:
        """The values that are compared with fixed numbers, rounded, or searched for the best."""
        for expr, args in self.expressions(node):
            for part in walk(expr):
                if isinstance(part, Apply) and part.fn in _STEPPING:
                    yield from (v for a in part.args for i in sorted(arguments(a)) for v in self.floats(args[i]))
        if isinstance(node.op, (ArgReduce, Custom)) and self.graph.values[node.output].dtype is DType.INT32:
            yield from self.floats(node.inputs)

    def floats(self, values: Iterable[int]) -> list[int]:
        known = self.graph.values
        return [v for v in values if known[v].dtype is DType.FLOAT32 and not known[v].is_constant]

    # ------------------------------------------------------------------------------------ what lies behind them

    def keep_sources(self, v: int) -> None:
        """`v` and what it is computed from, but for the factors of products."""
        waiting = [v]
        while waiting:
            v = waiting.pop()
            if v in self.kept:
                continue
            self.kept[v] = _WHY
            node = self.producer.get(v)
            if node is not None:
                waiting += self.floats(node.operands if isinstance(node.op, PRODUCTS) else node.reads)

    def keep_moved(self, v: int) -> None:
        """`v`, if an element of it is one of a value in float32, and the values on the way."""
        reached, waiting = [v], [v]
        while waiting:
            node = self.producer.get(waiting.pop())
            found = [] if node is None else [u for u in self.floats(self.moved(node)) if u not in reached]
            reached += found
            waiting += found
        if len(reached) > 1 and any(self.is_float32(u) for u in reached):
            for u in reached:
                self.kept.setdefault(u, "its elements, which are compared, come from float32")

    def moved(self, node: Node) -> tuple[int, ...]:
        """The values whose elements a node's result has, as they are."""
        choosing = all(e.fn in _CHOOSING for e in walk(node.epilogue) if isinstance(e, Apply))
        return (*self.exact_sources(node), *node.operands) if choosing else ()

    def exact_sources(self, node: Node) -> tuple[int, ...]:
        """The values whose elements the op's own result has, as they are."""
        match node.op:
            case Copy() | Concat() | Pool2D("max") | Resize2D("nearest"):
                return node.inputs
            case Gather():
                return node.inputs[:1]
            case Reduce("max" | "min", _, prologue) if prologue == RESULT:
                return node.inputs
        return ()

    def is_float32(self, v: int) -> bool:
        """Whether a value is stored in float32 in any case (as passes/layout.py has it)."""
        value, node = self.graph.values[v], self.producer.get(v)
        if v in self.kept or v in self.graph.inputs or v in self.graph.outputs:
            return True
        return value.shape[1] * value.shape[2] == 1 or (node is not None and isinstance(node.op, Reduce))
