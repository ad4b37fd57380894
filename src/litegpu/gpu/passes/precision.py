"""Which values of a graph need float32 where float16 is allowed, by what is known of their size and their readers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Attention,
    Concat,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Expr,
    Gather,
    Graph,
    GroupNorm,
    InstanceNorm,
    InvertedConv2D,
    LayerNorm,
    Literal,
    MatMul,
    MomentsConv2D,
    Node,
    PairConv2D,
    PointwiseConv2D,
    Pool2D,
    PooledConv2D,
    Reduce,
    Resize2D,
    SeparableConv2D,
    Softmax,
    TransposeConv2D,
    apply,
    walk,
)
from litegpu.gpu.passes.sizes import expected_sizes

#: The largest and smallest absolute value that a tensor measured, or known, to be so large may have in float16, which
#: ends at 65504 and loses digits below 6e-5.
LARGEST, SMALLEST = 3e4, 1e-4
#: What is expected to be larger, of inputs of size one, is taken to overflow with others. (In real networks nothing
#: comes near: the largest of those that litegpu is tested with is 2e3.)
MOST_EXPECTED = 1e4
#: Weights that are all smaller have few digits in float16.
SMALL_WEIGHTS = 5e-4
#: How much larger than inputs and results of convolutions sums and multiples of them may grow: those are taken to be
#: below 100.
MOST_GAIN = LARGEST / 100
#: Sums of so many roundings one after the other lose more than a digit.
DEEPEST = 32

Range = tuple[float, float]
Growth = tuple[float, float, int]
_SAFE = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "erf": (-1.0, 1.0)}
_ANYTHING = (-math.inf, math.inf)
_LINEAR = (
    Conv2D, DepthwiseConv2D, SeparableConv2D, PointwiseConv2D, PairConv2D, PooledConv2D, MomentsConv2D,
    InvertedConv2D, TransposeConv2D, MatMul,
)  # fmt: skip


def values_in_float32(graph: Graph, ranges: Mapping[int, Range] | None = None) -> dict[int, str]:
    """The values that must not be stored as float16, and why. `ranges`: the least and largest element that tensors of
    the model had on inputs for calibration."""
    return _Precision(graph, ranges or {}).run()


class _Precision:
    def __init__(self, graph: Graph, ranges: Mapping[int, Range]) -> None:
        self.graph, self.ranges = graph, ranges
        self.kept: dict[int, str] = {}
        self.limits: dict[int, Range] = {}
        self.gain: dict[int, float] = {}
        self.depth: dict[int, int] = {}
        self.consumers = graph.consumers()
        self.sizes = expected_sizes(graph, self.ranges)

    def run(self) -> dict[int, str]:
        for value in self.graph.values.values():
            if value.data is not None and value.dtype is DType.FLOAT32:
                finite = value.data[np.isfinite(value.data)]
                self.limits[value.id] = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        for v in self.graph.inputs:
            self.limits[v] = self.measured(v) or _ANYTHING
            self.gain[v], self.depth[v] = 1.0, 0
        for node in self.graph.nodes:
            self.visit(node)
        for node in self.graph.nodes:
            self.normalisation(node)
            self.exponential(node)
            self.small_weights(node)
        self.follow_movement()
        return {v: reason for v, reason in self.kept.items() if self.graph.values[v].dtype is DType.FLOAT32}

    def measured(self, v: int) -> Range | None:
        """Twice what was seen: other inputs may give more."""
        tensor = self.graph.values[v].tensor
        found = None if tensor is None else self.ranges.get(tensor)
        return None if found is None else (2 * min(found[0], 0.0), 2 * max(found[1], 0.0))

    def keep(self, v: int, reason: str) -> None:
        if not self.graph.values[v].is_constant:
            self.kept.setdefault(v, reason)

    # ------------------------------------------------------------------------------------ sizes, in order

    def visit(self, node: Node) -> None:
        base = [] if isinstance(node.op, Elementwise) else [self.result(node)]
        args = base + [self.limits.get(v, _ANYTHING) for v in node.operands]
        limits = _limits(node.epilogue, args)
        first = 0 if not base else 1
        gains = {i + first: self.gain.get(v, 1.0) for i, v in enumerate(node.operands)}
        depths = {i + first: self.depth.get(v, 0) for i, v in enumerate(node.operands)}
        for i, v in enumerate(node.operands):
            if self.graph.values[v].is_constant:
                gains[i + first] = max(map(abs, self.limits.get(v, (0.0, 1.0))))
                depths[i + first] = -1
        if base:
            moves = isinstance(node.op, (Copy, Concat, Gather, Pool2D, Resize2D))
            gains[0] = max((self.gain.get(v, 1.0) for v in node.inputs), default=1.0) if moves else 1.0
            depths[0] = max((self.depth.get(v, 0) for v in node.inputs), default=0) if moves else 0
        degree, gain, depth = _growth(node.epilogue, args, gains, depths)
        measured = self.measured(node.output)
        self.limits[node.output] = measured or limits
        self.gain[node.output] = 1.0 if measured or math.isfinite(max(map(abs, limits))) else gain
        self.depth[node.output] = depth
        self.judge(node.output, measured, limits, degree, gain, depth)

    def judge(self, v: int, measured: Range | None, limits: Range, degree: float, gain: float, depth: int) -> None:
        if measured is not None:
            largest = max(map(abs, measured)) / 2
            if 2 * largest > LARGEST:
                self.keep(v, f"it reached {largest:.3g} in calibration, and float16 ends at 65504")
            elif 0 < largest < SMALLEST:
                self.keep(v, f"it stayed below {largest:.3g} in calibration, where float16 has few digits")
            else:  # on inputs of another size it may be much larger
                self.judge_expected(v)
        elif math.isfinite(max(map(abs, limits))):
            if max(map(abs, limits)) > LARGEST:
                self.keep(v, f"it can reach {max(map(abs, limits)):.3g}, and float16 ends at 65504")
        elif degree > 1:
            self.keep(v, "it is a power, a quotient or an exponential of numbers without a known limit")
        elif gain > MOST_GAIN:
            self.keep(v, f"it is {gain:.3g} times as large as what it is computed from")
        else:
            self.judge_expected(v)
        if depth > DEEPEST:
            self.keep(v, f"it is the last of {depth} sums one after the other, each of which would be rounded")

    def judge_expected(self, v: int) -> None:
        """By what the weights make of inputs of size one."""
        size = self.sizes[v]
        if size.largest > MOST_EXPECTED:
            self.keep(v, f"the weights can make it about {size.largest:.2g}, and float16 ends at 65504")
        elif 0 < size.usual < SMALLEST:
            self.keep(v, f"the weights make it about {size.usual:.2g}, where float16 has few digits")

    def follow_movement(self) -> None:
        """What is only moved keeps its type: the sources of what is kept, and what they are joined with."""
        for node in reversed(self.graph.nodes):
            if isinstance(node.op, Concat) and any(v in self.kept for v in node.inputs):
                self.keep(node.output, next(self.kept[v] for v in node.inputs if v in self.kept))
            if isinstance(node.op, (Copy, Concat)) and node.output in self.kept:
                for v in node.inputs:
                    self.keep(v, self.kept[node.output])

    def result(self, node: Node) -> Range:
        """What Arg(0) of the epilogue can be."""
        match node.op:
            case Pool2D("squares"):
                return _limits(apply("mul", RESULT, RESULT), [self.limits.get(node.inputs[0], _ANYTHING)])
            case Pool2D(prologue=prologue) if prologue != RESULT:
                least, most = _limits(prologue, [self.limits.get(v, _ANYTHING) for v in node.inputs])
                return min(0.0, least), max(0.0, most)
            case Copy() | Concat() | Gather() | Pool2D() | Resize2D():
                found = [
                    self.limits.get(v, _ANYTHING) for v in node.inputs[: 1 if isinstance(node.op, Gather) else None]
                ]
                return min(0.0, *(lo for lo, _ in found)), max(0.0, *(hi for _, hi in found))
            case Softmax():
                return 0.0, 1.0
            case LayerNorm():
                largest = math.sqrt(self.graph.values[node.inputs[0]].shape[3])
                return -largest, largest
            case InstanceNorm():
                largest = math.sqrt(math.prod(self.graph.values[node.inputs[0]].shape[1:3]))
                return -largest, largest
            case GroupNorm(groups):
                largest = math.sqrt(math.prod(self.graph.values[node.inputs[0]].shape[1:]) / groups)
                return -largest, largest
            case Reduce(kind, axes, prologue):
                inner = _limits(prologue, [self.limits.get(v, _ANYTHING) for v in node.inputs])
                if kind in ("max", "min", "mean"):
                    return inner
                shape = np.broadcast_shapes(*(self.graph.values[v].shape for v in node.inputs))
                count = math.prod(shape[a] for a in axes)
                return (inner[0] * count, inner[1] * count) if kind == "sum" else _ANYTHING
        return _ANYTHING

    # ------------------------------------------------------------------------------------ readers

    def normalisation(self, node: Node) -> None:
        """A value from which its own mean, or a sum of it, is taken away: what is left may be a small part of it."""
        if isinstance(node.op, (LayerNorm, InstanceNorm, GroupNorm)):
            self.keep(node.inputs[0], "its mean is subtracted from it, or it is divided by its own size")
        if not isinstance(node.op, Reduce) or node.op.kind not in ("mean", "sum"):
            return
        for v in node.inputs:
            value = self.graph.values[v]
            if value.is_constant or value.elements <= self.graph.values[node.output].elements:
                continue
            reached, waiting = {node.output}, [node.output]
            while waiting:
                for reader in self.consumers[waiting.pop()]:
                    if v in reader.reads and reader is not node:
                        self.keep(v, "its mean is subtracted from it, or it is divided by its own size")
                        if isinstance(reader.op, Reduce):
                            continue
                        if self.graph.values[reader.output].elements == value.elements:
                            self.keep_centred(reader)
                    small = self.graph.values[reader.output].elements <= self.graph.values[node.output].elements
                    if small and reader.output not in reached:
                        reached.add(reader.output)
                        waiting.append(reader.output)

    def keep_centred(self, node: Node) -> None:
        """What is left after a mean was taken away, if more is computed from it: it may be tiny."""
        if any(isinstance(reader.op, Reduce) for reader in self.consumers[node.output]):
            self.keep(node.output, "its squares are summed to normalise it")

    def exponential(self, node: Node) -> None:
        """Logits: an exponential turns the rounding of a large number into an error of many percent."""
        op = node.op
        if isinstance(op, Attention):
            for v in node.inputs[:2]:
                self.keep(v, "its products are logits of a softmax")
            return
        sums = isinstance(op, Reduce) and any(isinstance(e, Apply) and e.fn == "exp" for e in walk(op.prologue))
        if not (isinstance(op, Softmax) or sums):
            return
        logits = node.inputs
        reason = "exponentials of it are taken, which turn its rounding into errors of percents"
        producers = self.graph.producer()
        for v in logits:
            if self.is_small(v):
                continue
            self.keep(v, reason)
            waiting = [v]
            while waiting:
                producer = producers.get(waiting.pop())
                if producer is None:
                    continue
                if isinstance(producer.op, MatMul):
                    for factor in producer.inputs:
                        self.keep(factor, "its products are logits of a softmax")
                elif not isinstance(producer.op, _LINEAR):
                    waiting += [
                        u for u in producer.reads if not self.graph.values[u].is_constant and u not in self.kept
                    ]

    def small_weights(self, node: Node) -> None:
        """A product whose weights float16 would spoil is computed in float32, which goes by its input."""
        data = self.graph.values[node.inputs[1]].data if isinstance(node.op, _LINEAR) else None
        largest = 0.0 if data is None else float(np.max(np.abs(data), initial=0.0))
        if 0 < largest < SMALL_WEIGHTS:
            self.keep(node.inputs[0], f"its weights are at most {largest:.2g}, where float16 has few digits")

    def is_small(self, v: int) -> bool:
        """Whether what is known of the value says that its rounding to float16 does not matter before an exp."""
        largest = max(map(abs, self.limits.get(v, _ANYTHING)))
        return largest <= 8


# ---------------------------------------------------------------------------------------------- expressions


def _limits(expr: Expr, args: list[Range]) -> Range:
    """The interval that `expr` lies in when Arg(i) lies in args[i]."""
    return _all_limits(expr, args)[id(expr)]


def _all_limits(expr: Expr, args: list[Range]) -> dict[int, Range]:
    """The same for all its parts, by their ids."""
    found: dict[int, Range] = {}
    for e in walk(expr):
        match e:
            case Arg(i):
                found[id(e)] = args[i]
            case Literal(value):
                found[id(e)] = float(value), float(value)
            case Apply(fn, arguments):
                found[id(e)] = _apply(fn, [found[id(a)] for a in arguments])
    return found


def _apply(fn: str, a: list[Range]) -> Range:
    if fn in _SAFE:
        return _SAFE[fn]
    match fn:
        case "add":
            return _range(a[0][0] + a[1][0], a[0][1] + a[1][1])
        case "sub":
            return _range(a[0][0] - a[1][1], a[0][1] - a[1][0])
        case "mul":
            return _range(*(x * y for x in a[0] for y in a[1]))
        case "div" if a[1][0] > 0 or a[1][1] < 0:
            return _range(*(x / y for x in a[0] for y in a[1]))
        case "min":
            return min(a[0][0], a[1][0]), min(a[0][1], a[1][1])
        case "max":
            return max(a[0][0], a[1][0]), max(a[0][1], a[1][1])
        case "neg":
            return -a[0][1], -a[0][0]
        case "abs":
            low = 0.0 if a[0][0] <= 0 <= a[0][1] else min(map(abs, a[0]))
            return low, max(map(abs, a[0]))
        case "exp":
            return _range(*(math.exp(min(x, 700.0)) for x in a[0]))
        case "sqrt":
            return math.sqrt(max(a[0][0], 0.0)), math.sqrt(max(a[0][1], 0.0))
        case "rsqrt" if a[0][0] > 0:
            return 1 / math.sqrt(a[0][1]), 1 / math.sqrt(a[0][0])
        case "floor" | "ceil" | "round" | "nearest":
            return a[0][0] - 1, a[0][1] + 1
        case "sign":
            return -1.0, 1.0
        case "select":
            return min(a[1][0], a[2][0]), max(a[1][1], a[2][1])
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne" | "logical_and" | "logical_or" | "logical_not" | "to_bool":
            return 0.0, 1.0
        case "to_float32" | "to_int32":
            return a[0]
    return _ANYTHING


def _range(*ends: float) -> Range:
    return _ANYTHING if any(math.isnan(e) for e in ends) else (min(ends), max(ends))


def _growth(expr: Expr, args: list[Range], gains: Mapping[int, float], depths: Mapping[int, int]) -> Growth:
    """How `expr` grows with its unlimited arguments: the degree (1 for sums and multiples of them, 0 for what is
    limited, infinite for exponentials), by how much larger than theirs its numbers can be, and how many sums deep."""
    limits = _all_limits(expr, args)
    found: dict[int, Growth] = {}
    for e in walk(expr):
        found[id(e)] = _grown(e, limits[id(e)], found, gains, depths)
    return found[id(expr)]


def _grown(
    expr: Expr, limits: Range, known: Mapping[int, Growth], gains: Mapping[int, float], depths: Mapping[int, int]
) -> Growth:
    """The same of an expression whose parts are known."""
    if all(map(math.isfinite, limits)):
        return 0.0, max(map(abs, limits)), 0
    match expr:
        case Arg(i):
            return 1.0, gains.get(i, 1.0), max(depths.get(i, 0), 0)
        case Apply(fn, arguments):
            parts = [known[id(a)] for a in arguments]
            degrees, sizes = [p[0] for p in parts], [p[1] for p in parts]
            depth = max((p[2] for p in parts), default=0)
            match fn:
                case "add" | "sub":
                    both = all(d > 0 for d in degrees)
                    moving = [p for p, d in zip(parts, degrees, strict=True) if d > 0]
                    return max(degrees), sum(p[1] for p in moving), depth + both
                case "mul":
                    return sum(degrees), math.prod(sizes), depth
                case "div":
                    return degrees[0] + (math.inf if degrees[1] or sizes[1] == 0 else 0), sizes[0], depth
                case "pow" | "exp" | "expm1" | "rsqrt":
                    return math.inf, max(sizes), depth
                case "select":
                    return max(degrees[1:]), max(sizes[1:]), depth
                case _:
                    return max(degrees, default=0.0), max(sizes, default=1.0), depth
    return 0.0, 1.0, 0
