"""Channels that are shuffled and split stay where they are: weights of 1x1 convolutions find them there.

ShuffleNet's units keep one half of the channels, and put them, shuffled with the results for the other half, in front
of the next unit: two copies in each. Here the first convolution of a unit hands on what is kept, by rows of weights
that are one for one channel, and what reads shuffled channels has its weights in their order, with zeros for all
others. Depthwise layers have as many channels more. Where launches count, products with zeros cost less than copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from litegpu.gpu.backends.cuda.kernels import overlapped
from litegpu.gpu.backends.cuda.kernels.biased import activation, bias_of
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.evaluate.ops import evaluate_op
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    Node,
    Op,
    Shape,
    Slice,
    apply,
    substitute,
)
from litegpu.gpu.lang.features import Features

#: Channels come in groups of so many, which kernels copy at once.
GROUP = 8


def join_shuffles(graph: Graph, features: Features) -> Graph:
    """The graph without copies that only choose channels for units as above, in float16 where kernels overlap. An
    infinite number makes what a zero is multiplied with no number."""
    if features.capability != WARPGROUP_CAPABILITY or not overlapped.will_overlap(graph):
        return graph
    if not any(isinstance(n.op, Concat) for n in graph.nodes) or not any(isinstance(n.op, Copy) for n in graph.nodes):
        return graph
    found = _Shuffles(graph)
    return found.rewritten() if found.units else graph


@dataclass(frozen=True, eq=False)
class _Unit:
    """A concatenation of what is kept and what is new, and the convolution that hands on what is kept."""

    concat: Node
    kept: int
    new: int
    carrier: Node


@dataclass(frozen=True, eq=False)
class _Place:
    """The channels of a value that are another one's: channel i is channel channels[i] of value `v`."""

    v: int
    channels: np.ndarray


@dataclass
class _Shuffles:
    graph: Graph
    units: dict[int, _Unit] = field(default_factory=dict)  # by the concatenation's result

    def __post_init__(self) -> None:
        self.producer, self.consumers = self.graph.producer(), self.graph.consumers()
        self.chosen = {n.output: m for n in self.graph.nodes if (m := self.choice(n)) is not None}
        for node in reversed(self.graph.nodes):
            unit = self.unit(node) if isinstance(node.op, Concat) else None
            if unit is not None:
                self.units[node.output] = unit
        self.carriers = {unit.carrier.output: unit for unit in self.units.values()}
        self.new = {unit.new for unit in self.units.values()}
        self.kept = {unit.kept for unit in self.units.values()}

    def choice(self, node: Node) -> np.ndarray | None:
        """The input's channels that a copy consists of, pixel for pixel."""
        if not isinstance(node.op, Copy) or node.epilogue != RESULT:
            return None
        x, y = (self.graph.values[v] for v in (node.inputs[0], node.output))
        if x.shape[:3] != y.shape[:3] or x.dtype is not DType.FLOAT32 or y.dtype is not DType.FLOAT32 or x.is_constant:
            return None
        places = np.arange(math.prod(x.shape), dtype=np.int32).reshape(x.shape)
        moved = evaluate_op(node.op, [places], y.shape)
        channels = moved[0, 0, 0] % x.shape[3]
        same = np.array_equal(moved, places[..., :1] + channels)
        return channels if same and len(set(channels.tolist())) == len(channels) else None

    def unit(self, concat: Node) -> _Unit | None:
        """Those behind it are known."""
        if len(concat.inputs) != 2 or concat.op != Concat(3) or not self.absorbed(concat.output):
            return None
        for kept, new in (concat.inputs, concat.inputs[::-1]):
            if kept not in self.chosen or self.consumers[kept] != [concat] or self.consumers[new] != [concat]:
                continue
            last, source = self.producer.get(new), self.producer[kept].inputs[0]
            if last is None or not self.is_plain(last) or {kept, new} & set(self.graph.outputs):
                continue
            readers = [*self.consumers[source]]
            readers += [n for c in readers if c.output in self.chosen for n in self.consumers[c.output]]
            carrier = next((n for n in readers if self.carries(n, source)), None)
            if carrier is not None and carrier is not last:
                return _Unit(concat, kept, new, carrier)
        return None

    def carries(self, node: Node, source: int) -> bool:
        """Whether a convolution that reads (some channels of) the value can hand others on."""
        x = node.inputs[0] if node.inputs else None
        before = self.producer.get(x) if x in self.chosen else None
        if not self.is_plain(node) or source not in (x, None if before is None else before.inputs[0]):
            return False
        if x is not None and x != source and not self.absorbed(x):
            return False  # it lies by itself, for others
        found = activation(node, self.graph)
        return found is not None and _limits(found.expr) is not None and self.absorbed(node.output)

    def absorbed(self, v: int) -> bool:
        """Whether all that read a value find its channels anywhere."""
        return v not in self.graph.outputs and all(self.finds(node, v) for node in self.consumers[v])

    def finds(self, node: Node, v: int) -> bool:
        if v in node.operands:
            return False
        if node.output in self.chosen:
            concat = self.consumers[node.output]
            kept = (
                len(concat) == 1 and concat[0].output in self.units and self.units[concat[0].output].kept == node.output
            )
            return kept or self.absorbed(node.output)
        if isinstance(node.op, DepthwiseConv2D):
            weights = self.graph.values[node.inputs[1]].data
            known = (
                weights is not None and bool(np.isfinite(weights).all()) and activation(node, self.graph) is not None
            )
            return known and node.op.multiplier == 1 and self.absorbed(node.output)
        return self.is_plain(node)

    def is_plain(self, node: Node) -> bool:
        """A 1x1 convolution with constant weights, a bias and an activation."""
        if node.op != Conv2D():
            return False
        weights = self.graph.values[node.inputs[1]]
        floating = all(self.graph.values[v].dtype is DType.FLOAT32 for v in (node.inputs[0], node.output))
        return weights.data is not None and weights.shape[1:3] == (1, 1) and floating

    # ------------------------------------------------------------------------------------------------ rewriting

    def rewritten(self) -> Graph:
        self.builder = GraphBuilder(dict(self.graph.values), [])
        self.places: dict[int, _Place] = {}
        for node in self.graph.nodes:
            self.put(node)
        return self.builder.graph(self.graph.inputs, self.graph.outputs)

    def put(self, node: Node) -> None:
        x = node.inputs[0] if node.inputs else -1
        if node.output in self.kept:
            return  # the carrier has it
        if node.output in self.units:
            self.put_concat(self.units[node.output])
        elif node.output in self.chosen and (x in self.places or self.spares(node.output)):
            place = self.place(x)
            self.places[node.output] = _Place(place.v, place.channels[self.chosen[node.output]])
        elif node.output in self.carriers:
            self.put_carrier(node, self.carriers[node.output])
        elif self.is_plain(node) and (x in self.places or node.output in self.new):
            self.put_convolution(node)
        elif x in self.places and isinstance(node.op, DepthwiseConv2D):
            self.put_depthwise(node)
        else:
            self.builder.nodes.append(node)

    def spares(self, v: int) -> bool:
        """Whether a unit begins with these channels of a value that lies as it is."""
        return any(node.output in self.carriers for node in self.consumers[v]) and self.absorbed(v)

    def place(self, v: int) -> _Place:
        return self.places.get(v) or _Place(v, np.arange(self.graph.values[v].shape[3]))

    def shape(self, v: int) -> Shape:
        return self.builder.values[v].shape

    def spread(self, node: Node) -> tuple[_Place, np.ndarray, Expr, np.ndarray]:
        """Where a convolution's input is, its weights for all channels there, its activation and its bias."""
        place, found = self.place(node.inputs[0]), activation(node, self.graph)
        weights = self.graph.values[node.inputs[1]].data
        assert weights is not None
        whole = np.zeros((*weights.shape[:3], self.shape(place.v)[3]), np.float32)
        whole[..., place.channels] = weights
        if found is None:
            return place, whole, node.epilogue, np.zeros(0, np.float32)
        return place, whole, found.expr, bias_of(found, self.graph, self.graph.values[node.output].shape[3])

    def put_convolution(self, node: Node) -> None:
        place, weights, expr, bias = self.spread(node)
        if node.output not in self.new:
            inputs = (place.v, self.builder.constant(weights))
            self.builder.nodes.append(dataclasses.replace(node, inputs=inputs))
            return
        outputs = len(weights)
        out = self.emit(node.op, place.v, _rows(weights, 0), node, expr, _rows(bias, 3))
        self.places[node.output] = _Place(out, np.arange(outputs))

    def put_carrier(self, node: Node, unit: _Unit) -> None:
        place, weights, expr, bias = self.spread(node)
        source = self.place(self.producer[unit.kept].inputs[0])
        assert source.v == place.v
        channels = source.channels[self.chosen[unit.kept]]
        ones = np.zeros((len(channels), 1, 1, weights.shape[3]), np.float32)
        ones[np.arange(len(channels)), 0, 0, channels] = 1
        kept, own = _rows(ones, 0), _rows(weights, 0)
        limits, nothing = _limits(expr), np.zeros((1, 1, 1, len(kept)), np.float32)
        assert limits is not None
        bounds = []
        for limit, free in zip(limits, (-np.inf, np.inf), strict=True):
            each = np.full((1, 1, 1, len(kept) + len(own)), limit, np.float32)
            each[..., : len(kept)] = free
            bounds.append(self.builder.constant(each) if np.isfinite(limit) else None)
        both = np.concatenate([nothing, _rows(bias, 3)], axis=3)
        whole = self.emit(node.op, place.v, np.concatenate([kept, own]), node, RESULT, both, bounds)
        step = Slice((0, 0, 0, len(kept)), (1, 1, 1, 1), (*self.shape(whole)[:3], len(own)))
        part = self.builder.value((*self.shape(whole)[:3], len(own)), DType.FLOAT32)
        self.builder.node(Copy((step,)), [whole], part, sources=node.sources)
        self.places[unit.kept] = _Place(whole, np.arange(len(channels)))
        self.places[node.output] = _Place(part, np.arange(len(weights)))

    def put_depthwise(self, node: Node) -> None:
        place, weights, expr, bias = self.spread(node)
        spread = np.zeros((1, 1, 1, weights.shape[3]), np.float32)
        spread[..., place.channels] = bias
        out = self.emit(node.op, place.v, weights, node, expr, spread)
        self.places[node.output] = _Place(out, place.channels)

    def emit(
        self, op: Op, x: int, weights: np.ndarray, node: Node, expr: Expr, bias: np.ndarray,
        bounds: Sequence[int | None] = (),
    ) -> int:  # fmt: skip
        """A convolution with other weights, and its result; each channel of that perhaps between bounds."""
        shape = (*self.graph.values[node.output].shape[:3], bias.shape[3])
        epilogue, operands = substitute(expr, {0: apply("add", RESULT, Arg(1))}), [self.builder.constant(bias)]
        for fn, bound in zip(("max", "min"), bounds, strict=False):
            if bound is not None:
                operands.append(bound)
                epilogue = apply(fn, epilogue, Arg(len(operands)))
        inputs = [x, self.builder.constant(weights)]
        return self.builder.node(op, inputs, self.builder.value(shape, DType.FLOAT32), epilogue, operands, node.sources)

    def put_concat(self, unit: _Unit) -> None:
        kept, new = self.places[unit.kept], self.places[unit.new]
        first = self.shape(kept.v)
        whole = self.builder.value((*first[:3], first[3] + self.shape(new.v)[3]), DType.FLOAT32)
        self.builder.node(Concat(3), [kept.v, new.v], whole, sources=unit.concat.sources)
        found: Mapping[int, np.ndarray] = {unit.kept: kept.channels, unit.new: first[3] + new.channels}
        self.places[unit.concat.output] = _Place(whole, np.concatenate([found[v] for v in unit.concat.inputs]))


def _limits(expr: Expr) -> tuple[float, float] | None:
    """Between which an activation keeps its argument, if that is all that it does."""
    match expr:
        case Arg(0):
            return -np.inf, np.inf
        case Apply("max", (Arg(0), Literal(low))):
            return float(low), np.inf
        case Apply("min", (Apply("max", (Arg(0), Literal(low))), Literal(high))):
            return float(low), float(high)
    return None


def _rows(a: np.ndarray, axis: int) -> np.ndarray:
    """With zeros to whole groups along the axis."""
    more = -a.shape[axis] % GROUP
    return np.pad(a, [(0, more if i == axis else 0) for i in range(a.ndim)])
