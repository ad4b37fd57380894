"""What of 8-bit convolutions can be joined as passes/inverted.py does: in whole numbers that bytes and floats hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_rests
from litegpu.gpu.backends.cuda.kernels.inverted_cost import StemShape
from litegpu.gpu.graph import (
    Apply,
    Arg,
    DepthwiseConv2D,
    Expr,
    FirstWindow,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerInvertedConv2D,
    IntegerSeparableConv2D,
    Literal,
    Node,
)

#: Below 2**24 float32 holds every whole number; one bit to spare.
MOST_SUM = 1 << 23
#: And int32, which the result's sums are, with what makes them such of bytes less a zero point.
MOST_INTEGER = 1 << 29
#: From column to column, as far as the kernel reads pairs of these.
MOST_STRIDE = 2
#: The difference of two bytes at most.
MOST_DIFFERENCE = 255


@dataclass(frozen=True, eq=False)
class Requantization:
    """An epilogue: the whole number nearest to (sum + bias) * scale, from `low` to `high`, and the zero point."""

    bias: np.ndarray
    scale: np.ndarray
    low: float
    high: float
    zero_point: int

    @property
    def most(self) -> float:
        """Of the difference to the zero point."""
        return max(abs(self.low), abs(self.high))


def requantization(node: Node, graph: Graph) -> Requantization | None:
    """The node's epilogue as such, if that is what it is, perhaps with one scale for all channels or without a bias."""
    zero_point = 0
    match node.epilogue:
        case Apply("add", (Apply("nearest", (inside,)), Literal(z))):
            zero_point = int(z)
        case Apply("nearest", (inside,)):
            pass
        case _:
            return None
    match inside:
        case Apply("min", (Apply("max", (scaled, Literal(a))), Literal(b))):
            low, high = float(a), float(b)
        case _:
            return None
    if isinstance(scaled, Apply) and scaled.fn == "small":  # a hint
        (scaled,) = scaled.args
    added: Expr = Literal(0.0)
    match scaled:
        case Apply("mul", (Apply("to_float32", (Apply("add", (Arg(0), added)),)), factor)):
            pass
        case Apply("mul", (Apply("to_float32", (Arg(0),)), factor)):
            pass
        case _:
            return None
    bias, scale = (_numbers(expr, node, graph) for expr in (added, factor))
    if round(high) - round(low) > MOST_DIFFERENCE or bias is None or scale is None:
        return None
    channels = graph.values[node.output].shape[3]
    whole = [np.broadcast_to(d, (1, 1, 1, channels)).astype(np.float32) for d in (bias, scale)]
    return Requantization(whole[0], whole[1], low, high, zero_point)


def _numbers(expr: Expr, node: Node, graph: Graph) -> np.ndarray | None:
    """What that is of an epilogue, if it is known, for each channel or for all."""
    match expr:
        case Literal(value):
            return np.full((1, 1, 1, 1), value)
        case Arg(i) if 0 < i <= len(node.operands):
            data = graph.values[node.operands[i - 1]].data
            fits = data is not None and data.shape in ((1, 1, 1, 1), (1, 1, 1, graph.values[node.output].shape[3]))
            return data if fits else None
    return None


def widens(first: Node, depthwise: Node, graph: Graph) -> bool:
    """Whether `first`, which nothing but `depthwise` reads, and that are such as can be joined."""
    values, op, found = graph.values, depthwise.op, requantization(first, graph)
    if not isinstance(op, IntegerDepthwiseConv2D) or found is None or not _is_pointwise(first, graph):
        return False
    x, wide = values[first.inputs[0]], values[first.output]
    return (
        first.output not in (*graph.outputs, *depthwise.operands)
        and (op.multiplier, op.dilation, op.zero_point) == (1, (1, 1), found.zero_point)
        and op.stride[1] <= MOST_STRIDE
        and wide.shape[3] >= 2 * x.shape[3]
        and x.dtype.is_narrow
        and x.dtype.nbytes == wide.dtype.nbytes == 1
        and not x.is_constant
        and _is_exact(first, graph, MOST_DIFFERENCE, found.bias)
        and _is_exact(depthwise, graph, found.most, np.zeros(1))
    )


def opens(first: Node, depthwise: Node, graph: Graph) -> bool:
    """Whether `first`, a first layer, which nothing but `depthwise` reads, and that are such as can be joined."""
    values, op, found = graph.values, depthwise.op, requantization(first, graph)
    if not isinstance(op, IntegerDepthwiseConv2D) or found is None or not isinstance(first.op, IntegerConv2D):
        return False
    x, wide, weights = values[first.inputs[0]], values[first.output], values[first.inputs[1]]
    if weights.data is None or (first.op.groups, first.op.dilation) != (1, (1, 1)):
        return False
    stem = stem_shape(first, graph)
    return (
        weights.shape[1:3] != (1, 1)
        and stem.fits
        and x.shape[2] * x.shape[3] % 4 == 0
        and all(p < n for p, n in zip(first.op.padding, weights.shape[1:3], strict=True))
        and first.output not in (*graph.outputs, *depthwise.operands)
        and (op.multiplier, op.dilation, op.zero_point) == (1, (1, 1), found.zero_point)
        and op.stride[1] <= MOST_STRIDE
        and x.dtype.is_narrow
        and x.dtype.nbytes == wide.dtype.nbytes == 1
        and not x.is_constant
        and _is_exact(first, graph, MOST_DIFFERENCE, found.bias)
        and _is_exact(depthwise, graph, found.most, np.zeros(1))
    )


def stem_shape(first: Node, graph: Graph) -> StemShape:
    """Of a first layer, if its input's rows lie one behind the other."""
    assert isinstance(first.op, IntegerConv2D)
    x, weights = graph.values[first.inputs[0]].shape, graph.values[first.inputs[1]].shape
    copied = next((n for n in (16, 8) if x[2] * x[3] % n == 0), 4)
    return StemShape((weights[1], weights[2]), first.op.stride, x[3], copied)


def is_window(depthwise: Node, graph: Graph) -> bool:
    """Whether `depthwise` is such as can be joined with what projects it, and nothing in front."""
    op, found = depthwise.op, requantization(depthwise, graph)
    x = graph.values[depthwise.inputs[0]]
    return (
        isinstance(op, IntegerDepthwiseConv2D)
        and found is not None
        and (op.multiplier, op.dilation) == (1, (1, 1))
        and op.stride[1] <= MOST_STRIDE
        and x.dtype.is_narrow
        and x.dtype.nbytes == graph.values[depthwise.output].dtype.nbytes == 1
        and not x.is_constant
        and _is_exact(depthwise, graph, MOST_DIFFERENCE, found.bias)
    )


def projects(depthwise: Node, last: Node, graph: Graph) -> bool:
    """Whether `last`, which alone reads `depthwise`, can be joined as well."""
    found = requantization(depthwise, graph)
    return (
        found is not None
        and _is_pointwise(last, graph)
        and isinstance(last.op, IntegerConv2D)
        and last.op.zero_point == found.zero_point
        and last.inputs[0] == depthwise.output
        and depthwise.output not in (*last.operands, *graph.outputs)
        and _is_exact(depthwise, graph, MOST_DIFFERENCE, found.bias)
        and _is_exact(last, graph, found.most, np.zeros(1), MOST_INTEGER)
    )


def joint(builder: GraphBuilder, graph: Graph, nodes: list[Node]) -> tuple[IntegerInvertedConv2D, list[int]]:
    """One op that does the work of these, and its inputs."""
    first, depthwise, *last = nodes
    found, op = requantization(first, graph), depthwise.op
    assert found is not None and isinstance(first.op, IntegerConv2D) and isinstance(op, IntegerDepthwiseConv2D)
    inputs = [first.inputs[0], *map(builder.constant, (differences(first, graph), found.bias, found.scale))]
    inputs.append(builder.constant(differences(depthwise, graph)))
    bounds = [(found.low, found.high)]
    if last:
        found = requantization(depthwise, graph)
        assert found is not None
        inputs += map(builder.constant, (found.bias, found.scale, differences(last[0], graph)))
        bounds.append((found.low, found.high))
    window = DepthwiseConv2D(op.stride, op.dilation, op.padding)
    opening = None
    if not _is_pointwise(first, graph):
        size = graph.values[first.output].shape[1:3]
        opening = FirstWindow((size[0], size[1]), first.op.stride, first.op.padding)
    return IntegerInvertedConv2D(window, first.op.zero_point, tuple(bounds), opening), inputs


def separable(builder: GraphBuilder, graph: Graph, nodes: list[Node]) -> tuple[IntegerSeparableConv2D, list[int]]:
    """The same without a widening convolution."""
    depthwise, last = nodes
    found, op = requantization(depthwise, graph), depthwise.op
    assert found is not None and isinstance(op, IntegerDepthwiseConv2D)
    data = differences(depthwise, graph), found.bias, found.scale, differences(last, graph)
    window = DepthwiseConv2D(op.stride, op.dilation, op.padding)
    made = IntegerSeparableConv2D(window, op.zero_point, (found.low, found.high))
    return made, [depthwise.inputs[0], *map(builder.constant, data)]


def are_bytes(node: Node, graph: Graph) -> bool:
    """Whether the weights less their zero point are signed bytes, every one."""
    found = differences(node, graph)
    return np.array_equal(found, byte_rests.held(found))


def differences(node: Node, graph: Graph) -> np.ndarray:
    """The weights less their zero point, as floats."""
    data = graph.values[node.inputs[1]].data
    assert data is not None
    zero_point = node.op.weights_zero_point if isinstance(node.op, IntegerConv2D) else 0
    return np.asarray(data, np.float32) - np.float32(zero_point)


def _is_pointwise(node: Node, graph: Graph) -> bool:
    op = node.op
    if not isinstance(op, IntegerConv2D):
        return False
    weights = graph.values[node.inputs[1]]
    if weights.data is None or weights.shape[1:3] != (1, 1):
        return False
    return (op.stride, op.padding, op.groups) == ((1, 1), (0, 0), 1)


def _is_exact(node: Node, graph: Graph, most: float, bias: np.ndarray, most_sum: float = MOST_SUM) -> bool:
    """Whether sums with inputs up to `most` are below `most_sum`, by default whole numbers that float32 holds, and
    weights such that bytes do, but for a few."""
    if graph.values[node.inputs[1]].data is None:
        return False
    signed = differences(node, graph)
    weights = np.abs(signed)
    axes = (1, 2) if isinstance(node.op, IntegerDepthwiseConv2D) else (1, 2, 3)
    sums = weights.sum(axes, dtype=np.float64)
    largest = float(np.max(sums, initial=0.0)) * most + float(np.max(np.abs(bias), initial=0.0))
    return math.isfinite(largest) and largest < most_sum and byte_rests.are_few(signed)
