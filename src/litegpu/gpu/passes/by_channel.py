"""Convolutions channel by channel: the constants and the line that each has behind its sum, and some of them alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.gpu.graph import Apply, Arg, Conv2D, Expr, GraphBuilder, Literal, Node, Value

#: Channels come in groups of so many, so that a part of them is as good to read, and to compute, as the whole.
GROUP = 8


def constants_of(node: Node, values: Mapping[int, Value]) -> list[np.ndarray] | None:
    """The operands of the epilogue, a number for each channel; None if one is no constant or differs between pixels."""
    known, channels = [values[v].data for v in node.operands], values[node.output].shape[3]
    found = [
        np.broadcast_to(data, (1, 1, 1, channels)).reshape(-1)
        for data in known
        if data is not None and data.shape[:3] == (1, 1, 1)
    ]
    return found if len(found) == len(known) else None


def line_of(node: Node, values: Mapping[int, Value]) -> tuple[np.ndarray, np.ndarray] | None:
    """(factor, summand) for each channel, finite, if that is all that the epilogue does."""
    operands = constants_of(node, values)
    parts = None if operands is None else affine(node.epilogue, operands, values[node.output].shape[3])
    return parts if parts is not None and all(np.isfinite(part).all() for part in parts) else None


def affine(expr: Expr, operands: list[np.ndarray], channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(factor, summand) for each channel if the expression does no more than multiply by the one and add the other."""
    match expr:
        case Arg(0):
            return np.ones(channels), np.zeros(channels)
        case Arg(i):
            return np.zeros(channels), operands[i - 1].astype(np.float64)
        case Literal(number):
            return np.zeros(channels), np.full(channels, float(number))
        case Apply(fn, arguments) if fn in ("add", "sub", "mul", "div", "neg"):
            parts = [affine(a, operands, channels) for a in arguments]
            if any(p is None for p in parts):
                return None
            (a, b), *rest = (p for p in parts if p is not None)
            if fn == "neg":
                return -a, -b
            ((c, d),) = rest
            if fn in ("add", "sub"):
                sign = 1 if fn == "add" else -1
                return a + sign * c, b + sign * d
            if fn == "div":
                return None if c.any() or not d.all() else (a / d, b / d)
            return None if a.any() and c.any() else (a * d + b * c, b * d)
    return None


def can_be_divided(node: Node, values: Mapping[int, Value]) -> bool:
    """Whether it is a convolution each of whose channels has its own weights and constants alone."""
    plain = isinstance(node.op, Conv2D) and node.op.groups == 1 and values[node.inputs[1]].data is not None
    return plain and constants_of(node, values) is not None


def with_channels(
    builder: GraphBuilder, node: Node, channels: Sequence[int] | np.ndarray, output: int, sources: tuple[int, ...]
) -> Node:
    """The convolution of these channels alone, of one that can be divided."""

    def own(v: int, axis: int) -> int:
        data = builder.values[v].data
        assert data is not None
        return v if data.shape[axis] == 1 else builder.constant(data.take(channels, axis))

    inputs = (node.inputs[0], own(node.inputs[1], 0))
    operands = tuple(own(v, 3) for v in node.operands)
    return dataclasses.replace(node, inputs=inputs, operands=operands, output=output, sources=sources)
