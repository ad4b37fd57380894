"""How large a graph's values are expected to be: means and variances of channels, followed from the inputs on.

Inputs are taken to be of size one. Sums of products follow from the weights themselves, with neighbouring pixels once
as independent and once as equal, whichever gives more; elementwise work is done on points of normal distributions.
That is no bound, which for deep networks would be useless, but it finds the factor of a million that is in a model's
weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from litegpu.cached import cached_property
from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import (
    RESULT,
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
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerInvertedConv2D,
    IntegerMatMul,
    IntegerSeparableConv2D,
    IntegerSoftmax,
    IntegerTransposeConv2D,
    InvertedConv2D,
    LayerNorm,
    Lookup,
    MatMul,
    Mirror,
    MomentsConv2D,
    Node,
    Pad,
    PairConv2D,
    PointwiseConv2D,
    Pool2D,
    PooledConv2D,
    Reduce,
    Resize2D,
    SeparableConv2D,
    Softmax,
    TransposeConv2D,
    Value,
    apply,
    substitute,
)

Array = np.ndarray[Any, np.dtype[Any]]
Range = tuple[float, float]

_POINTS = 32  # of each distribution
_TAIL = 4.0  # so many deviations from its mean a value goes


@dataclass(frozen=True)
class Size:
    """Of a value's channels: mean and variance of each, or one number for all."""

    mean: Array
    variance: Array

    @property
    def largest(self) -> float:
        """What the largest of many elements comes to."""
        return float(np.max(np.abs(self.mean) + _TAIL * np.sqrt(self.variance), initial=0.0))

    @property
    def usual(self) -> float:
        """The root mean square of the strongest channel."""
        return float(np.sqrt(np.max(self.mean**2 + self.variance, initial=0.0)))

    @cached_property
    def joined(self) -> Size:
        """All channels as one."""
        mean = np.mean(self.mean)
        return Size(np.asarray(mean), np.asarray(np.mean(self.variance) + np.mean((self.mean - mean) ** 2)))


_UNIT = Size(np.zeros(()), np.ones(()))


def expected_sizes(graph: Graph, ranges: Mapping[int, Range] | None = None) -> dict[int, Size]:
    """The sizes of the values of `graph`. `ranges`: of tensors, as calibration found them; inputs are taken to be no
    smaller than one all the same."""
    sizes: dict[int, Size] = {}
    for value in graph.values.values():
        if value.data is not None and value.dtype is DType.FLOAT32:
            sizes[value.id] = _of_constant(value.data)
    for v in graph.inputs:
        sizes[v] = Size(np.zeros(()), np.asarray(_input_deviation(graph.values[v], ranges or {}) ** 2))
    for node in graph.nodes:
        with np.errstate(all="ignore"):
            found = _of_node(graph, node, sizes)
        known = bool(np.all(np.isfinite(found.mean)) and np.all(np.isfinite(found.variance)))
        sizes[node.output] = found if known else _UNIT
    return sizes


def _input_deviation(value: Value, ranges: Mapping[int, Range]) -> float:
    if value.dtype.is_narrow:
        return 128.0
    low, high = ranges.get(-1 if value.tensor is None else value.tensor, (0.0, 0.0))
    return max(1.0, abs(low) / 2, abs(high) / 2)


def _of_constant(data: Array) -> Size:
    finite = np.where(np.isfinite(data), data, 0.0).astype(np.float64).reshape(-1, data.shape[3])
    return Size(finite.mean(0), finite.var(0)) if finite.size else _UNIT


def _of_node(graph: Graph, node: Node, sizes: Mapping[int, Size]) -> Size:
    operands = [_size(graph, v, sizes) for v in node.operands]
    if not isinstance(node.op, Elementwise):
        operands.insert(0, _of_result(graph, node, [_size(graph, v, sizes) for v in node.inputs]))
    types = [graph.values[v].dtype for v in node.operands]
    if not isinstance(node.op, Elementwise):
        types.insert(0, _result_type(graph, node))
    return _of_expression(node.epilogue, operands, types)


def _result_type(graph: Graph, node: Node) -> DType:
    """The type of the op's own result, where it matters: whether it is whole numbers."""
    match node.op:
        case IntegerConv2D() | IntegerDepthwiseConv2D() | IntegerTransposeConv2D() | IntegerMatMul():
            return DType.INT32
        case IntegerSoftmax() | Lookup() | IntegerInvertedConv2D() | IntegerSeparableConv2D():
            return DType.INT32
        case Pool2D() | Copy() | Gather() | Concat() | Resize2D():
            narrow = graph.values[node.inputs[0]].dtype.is_narrow
            return DType.INT32 if narrow else DType.FLOAT32
    return DType.FLOAT32


def _size(graph: Graph, v: int, sizes: Mapping[int, Size]) -> Size:
    return sizes.get(v, _UNIT)


def _of_expression(expr: Expr, args: Sequence[Size], types: Sequence[DType]) -> Size:
    """An expression of independent normal numbers."""
    if isinstance(expr, Arg):
        return args[expr.index]
    width = max((a.mean.size for a in args), default=1)
    points = [_points(a.joined if a.mean.size not in (1, width) else a, i, t)
              for i, (a, t) in enumerate(zip(args, types, strict=True))]  # fmt: skip
    result = np.asarray(evaluate_expr(expr, points), np.float64)
    result = np.where(np.isfinite(result), result, 0.0)
    if result.ndim < 2:
        result = result.reshape(-1, 1)
    return Size(result.mean(0), result.var(0))


def _points(size: Size, number: int, dtype: DType) -> Array:
    """Points of a distribution, in an order of its own."""
    order = np.random.default_rng(number).permutation(_POINTS)
    if dtype is DType.BOOL:
        return np.asarray(order[:, None] % 2 == 0)
    if dtype is not DType.FLOAT32:
        return order[:, None].astype(np.int32)
    normal = _normal_points()[order]
    spread = size.mean.reshape(1, -1) + np.sqrt(size.variance).reshape(1, -1) * normal[:, None]
    return np.asarray(np.clip(spread, -3e38, 3e38), np.float32)


@functools.cache
def _normal_points() -> Array:
    places = (np.arange(_POINTS) + 0.5) / _POINTS
    found = np.array([NormalDist().inv_cdf(float(p)) for p in places])
    return np.asarray(found / found.std())


# --------------------------------------------------------------------------------------------------------- results


def _of_result(graph: Graph, node: Node, inputs: Sequence[Size]) -> Size:
    """What the node's op gives, before the epilogue."""
    x = inputs[0] if inputs else _UNIT
    values = [graph.values[v] for v in node.inputs]
    match node.op:
        case Conv2D() | TransposeConv2D() as op if values[1].data is not None:
            share = 1.0 if isinstance(op, Conv2D) else 1.0 / math.prod(op.stride)
            return _of_convolution(values[1].data, x, op.groups if isinstance(op, Conv2D) else 1, share)
        case PooledConv2D():
            assert values[1].data is not None
            return _of_convolution(values[1].data, x, 1, 1.0)
        case DepthwiseConv2D(multiplier=multiplier) if values[1].data is not None:
            return _of_depthwise(values[1].data, x, multiplier)
        case SeparableConv2D(depthwise, inner):
            assert values[1].data is not None and values[2].data is not None
            within = _of_depthwise(values[1].data, x, depthwise.multiplier)
            types = [DType.FLOAT32] * (len(inputs) - 2)
            return _of_convolution(values[2].data, _of_expression(inner, [within, *inputs[3:]], types), 1, 1.0)
        case PointwiseConv2D(behind=LayerNorm()):
            return _UNIT
        case PointwiseConv2D(prologue):
            assert values[1].data is not None
            x = x if node.op.norm is None else _UNIT
            ready = _of_expression(prologue, [x, *inputs[2:]], [DType.FLOAT32] * (len(inputs) - 1))
            return _of_convolution(values[1].data, ready, 1, 1.0)
        case MomentsConv2D(norm, operand):
            assert values[1].data is not None
            return _of_convolution(values[1].data, x if norm is None or operand else _UNIT, 1, 1.0)
        case PairConv2D(inner, norm):
            assert values[1].data is not None and values[3].data is not None
            within = _of_convolution(values[1].data, x if norm is None else _UNIT, 1, 1.0)
            return _of_convolution(values[3].data, _biased(inner, within, inputs[2]), 1, 1.0)
        case InvertedConv2D(depthwise, expanded, middle):
            weights, taps, *projection = (v.data for v in (values[1], values[3], *values[5:]))
            assert weights is not None and taps is not None
            within = _biased(expanded, _of_convolution(weights, x, 1, 1.0), inputs[2])
            within = _of_depthwise(taps, within, depthwise.multiplier)
            if projection and projection[0] is not None:
                return _of_convolution(projection[0], _biased(middle, within, inputs[4]), 1, 1.0)
            return within
        case Conv2D() | DepthwiseConv2D() | TransposeConv2D():
            return _of_product(math.prod(values[1].shape[1:]), x, inputs[1])
        case MatMul(transpose_a, _):
            return _of_product(values[0].shape[2 if transpose_a else 3], x, inputs[1])
        case Attention():
            return inputs[2].joined
        case LayerNorm() | InstanceNorm() | GroupNorm():
            return _UNIT
        case Softmax():
            share = 1.0 / max(1, values[0].shape[3])
            return Size(np.asarray(share), np.asarray(share))  # as if each row had one peak
        case Pool2D("squares"):
            return _of_expression(apply("mul", RESULT, RESULT), [x], [DType.FLOAT32])
        case Pool2D(prologue=prologue) if prologue != RESULT:
            return _of_expression(prologue, inputs, [v.dtype for v in values])
        case Pool2D() | Resize2D():
            return x
        case Copy(steps):
            kept = values[0].shape[3] == graph.values[node.output].shape[3]
            return x if kept and all(isinstance(s, (Pad, Mirror)) for s in steps) else x.joined
        case Concat(axis):
            return _of_joined(inputs, [v.shape[3] for v in values]) if axis == 3 else inputs[0].joined
        case Gather():
            return x.joined
        case Reduce(kind, axes, prologue):
            each = _of_expression(prologue, inputs, [v.dtype for v in values])
            each = each.joined if 3 in axes else each
            if kind != "sum":
                return each
            count = math.prod(np.broadcast_shapes(*(v.shape for v in values))[a] for a in axes)
            return Size(each.mean * count, each.variance * count)
    return _UNIT


def _of_convolution(weights: Array, x: Size, groups: int, share: float) -> Size:
    """Of weights [O,KH,KW,I]."""
    outputs, _, _, inputs = weights.shape
    w = weights.astype(np.float64)
    taps, squares = w.sum((1, 2)), np.einsum("oyxi,oyxi->oi", w, w)
    mean, variance = (np.broadcast_to(a.reshape(-1), inputs * groups).reshape(groups, 1, inputs)
                      if a.size in (1, inputs * groups) else np.full((groups, 1, inputs), a.mean())
                      for a in (x.mean, x.variance))  # fmt: skip

    def summed(factors: Array, of: Array) -> Array:
        return np.asarray((factors.reshape(groups, outputs // groups, inputs) * of).sum(2).reshape(-1) * share)

    return Size(summed(taps, mean), np.maximum(summed(squares, variance), summed(taps**2, variance)))


def _biased(expr: Expr, x: Size, bias: Size) -> Size:
    """Of an expression of x + bias."""
    types = [DType.FLOAT32, DType.FLOAT32]
    return _of_expression(substitute(expr, {0: apply("add", RESULT, Arg(1))}), [x, bias], types)


def _of_depthwise(weights: Array, x: Size, multiplier: int) -> Size:
    """Of weights [1,KH,KW,C * multiplier]."""
    w = weights.astype(np.float64)
    taps, squares = w.sum((0, 1, 2)), (w * w).sum((0, 1, 2))
    mean, variance = (np.repeat(a, multiplier) if a.size * multiplier == taps.size else a.mean()
                      for a in (x.mean, x.variance))  # fmt: skip
    return Size(taps * mean, np.maximum(squares, taps**2) * variance)


def _of_product(count: int, a: Size, b: Size) -> Size:
    """The sum of `count` products of independent numbers."""
    a, b = a.joined, b.joined
    mean = a.mean * b.mean
    return Size(count * mean, count * ((a.mean**2 + a.variance) * (b.mean**2 + b.variance) - mean**2))


def _of_joined(parts: Sequence[Size], channels: Sequence[int]) -> Size:
    """Several values side by side along the channels."""
    fitting = [p if p.mean.size == p.variance.size == n else p.joined for p, n in zip(parts, channels, strict=True)]

    def whole(each: Sequence[Array]) -> Array:
        return np.concatenate([np.broadcast_to(a.reshape(-1), n) for a, n in zip(each, channels, strict=True)])

    return Size(whole([p.mean for p in fitting]), whole([p.variance for p in fitting]))
