"""Weights with a zero point, as files of old have them, as weights without one: native kernels multiply signed bytes as
they are."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_rests
from litegpu.gpu.backends.cuda.kernels.integer import FEW_ROWS
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    Literal,
    Node,
    Pad,
    Slice,
    Step,
    substitute,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lang.features import Features

#: What two signed bytes add up to at most.
MOST = 254
#: Places of a filter with weights that are no bytes up to which what they add is computed beside the sums.
MOST_BESIDE = 3


def part_zero_points(graph: Graph, features: Features) -> Graph:
    """The graph with weights w - z as bytes. Where few are none, what their rests add is added to the sums of the
    bytes next to them. Else there are two parts, each a byte, that are multiplied with the same pixel one after the
    other: a window of two taps at one place. Of larger windows sums of x * (w - z) are made of those of x * w, and z
    times those of x, which all filters share. (Few rows have a kernel of the language.)"""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        op = node.op
        parts = isinstance(op, IntegerConv2D) and op.weights_zero_point and op.groups == 1
        if not parts or math.prod(graph.values[node.output].shape[:3]) <= FEW_ROWS:
            builder.nodes.append(node)
            continue
        assert isinstance(op, IntegerConv2D)
        data = graph.values[node.inputs[1]].data
        assert data is not None
        quanta = data.astype(np.int32) - op.weights_zero_point
        taps = np.argwhere((quanta != byte_rests.held(quanta)).any(axis=0))
        buffers = len({*node.inputs, *node.operands, node.output}) + 2 * len(taps)
        if len(taps) <= MOST_BESIDE and buffers <= features.max_buffers:
            _put_beside(builder, node, op, quanta, taps)
        elif data.shape[1:3] == (1, 1) and quanta.max() <= MOST:
            _put_pair(builder, node, op, quanta)
        else:
            _put_sums(builder, node, op)
    return builder.graph(graph.inputs, graph.outputs)


def _put_beside(builder: GraphBuilder, node: Node, op: IntegerConv2D, quanta: np.ndarray, taps: np.ndarray) -> None:
    """The bytes next to the weights, and beside their sums what the few `taps` add that have others."""
    held = byte_rests.held(quanta)
    weights = builder.constant(held.astype(np.int8), narrow=True)
    operands = list(node.operands)
    total: Expr = RESULT
    for ky, kx, channel in map(tuple, taps):
        seen = _seen(builder, node, op, (int(ky), int(kx)), int(channel))
        rests = (quanta - held)[:, ky, kx, channel].astype(np.int32).reshape(1, 1, 1, -1)
        operands += [seen, builder.constant(rests)]
        less = fn("sub", Arg(len(operands) - 1), Literal(op.zero_point, DType.INT32))
        total = fn("add", total, fn("mul", less, Arg(len(operands))))
    epilogue = substitute(node.epilogue, {0: total, **{i: Arg(i) for i in range(1, 1 + len(node.operands))}})
    plain = dataclasses.replace(op, weights_zero_point=0)
    made = dataclasses.replace(
        node, op=plain, inputs=(node.inputs[0], weights), epilogue=epilogue, operands=tuple(operands)
    )
    builder.nodes.append(made)


def _seen(builder: GraphBuilder, node: Node, op: IntegerConv2D, tap: tuple[int, int], channel: int) -> int:
    """A channel of what each of the convolution's pixels sees under a tap, as a value of one channel."""
    x, y = builder.values[node.inputs[0]], builder.values[node.output]
    first = [t * d - p for t, d, p in zip(tap, op.dilation, op.padding, strict=True)]
    last = [f + s * (n - 1) for f, s, n in zip(first, op.stride, y.shape[1:3], strict=True)]
    before = (0, *(max(0, -f) for f in first), 0)
    after = (0, *(max(0, e - n + 1) for e, n in zip(last, x.shape[1:3], strict=True)), 0)
    shape = (*y.shape[:3], 1)
    begin = (0, *(f + b for f, b in zip(first, before[1:3], strict=True)), channel)
    steps: list[Step] = [Slice(begin, (1, *op.stride, 1), shape)]
    if any(before + after):
        steps.insert(0, Pad(before, after, float(op.zero_point)))
    seen = builder.value(shape, x.dtype, name=x.name)
    return builder.node(Copy(tuple(steps)), [x.id], seen, sources=node.sources)


def _put_pair(builder: GraphBuilder, node: Node, op: IntegerConv2D, quanta: np.ndarray) -> None:
    limits = np.iinfo(np.int8)
    first = quanta.clip(limits.min, limits.max)
    taps = builder.constant(np.concatenate([first, quanta - first], axis=2).astype(np.int8), narrow=True)
    same = dataclasses.replace(op, weights_zero_point=0, dilation=(1, 0))
    builder.nodes.append(dataclasses.replace(node, op=same, inputs=(node.inputs[0], taps)))


def _put_sums(builder: GraphBuilder, node: Node, op: IntegerConv2D) -> None:
    weights, y = (builder.values[v] for v in (node.inputs[1], node.output))
    plain = dataclasses.replace(op, weights_zero_point=0)
    ones = builder.constant(np.ones((1, *weights.shape[1:]), np.int8), narrow=True)
    total = builder.value((*y.shape[:3], 1), DType.INT32, name=y.name)
    builder.node(plain, [node.inputs[0], ones], total, sources=node.sources)
    count = len(node.operands)
    less = fn("sub", RESULT, fn("mul", Arg(1 + count), Literal(op.weights_zero_point, DType.INT32)))
    epilogue = substitute(node.epilogue, {0: less, **{i: Arg(i) for i in range(1, 1 + count)}})
    builder.nodes.append(dataclasses.replace(node, op=plain, epilogue=epilogue, operands=(*node.operands, total)))
