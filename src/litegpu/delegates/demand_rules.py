"""Shapes of the results of operators that only the official runtime runs, to hold its memory against the limits.

Like those of delegates/shape_rules.py, but estimates: where they are wrong the runtime still computes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from litegpu.delegates.shape_rules import Node, Shape


def _range(node: Node) -> Shape:
    return (len(range(node.integer(0), node.integer(1), node.integer(2))),)


def _filled(node: Node) -> Shape:
    return node.integers(0)


def _sparse(node: Node) -> Shape:
    return node.integers(1)


def _diagonal(node: Node) -> Shape:
    return *node.shape(0), node.shape(0)[-1]


def _segments(node: Node) -> Shape:
    count = node.integer(2) if node.count > 2 else max(node.integers(1), default=-1) + 1
    return count, *node.shape(0)[len(node.shape(1)) :]


def _dilated(node: Node) -> Shape:
    return tuple((n - 1) * factor + 1 for n, factor in zip(node.shape(0), node.integers(1), strict=True))


def _samples(node: Node) -> Shape:
    return node.shape(0)[0], node.integer(1)


def _volume(node: Node) -> Shape:
    batch, *extents, _ = node.shape(0)
    strides = [max(1, node.option(name, 1)) for name in ("stride_d", "stride_h", "stride_w")]
    return batch, *(-(-extent // stride) for extent, stride in zip(extents, strides, strict=True)), node.shape(1)[-1]


def _broadcast(node: Node) -> Shape:
    a, b = node.shape(0), node.shape(1)
    rank = max(len(a), len(b))
    padded = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(0 if 0 in pair else max(pair) for pair in padded)


RULES: Mapping[str, Callable[[Node], Shape]] = {
    "RANGE": _range,
    "RANDOM_UNIFORM": _filled,
    "RANDOM_STANDARD_NORMAL": _filled,
    "CONV_3D_TRANSPOSE": _filled,
    "SPARSE_TO_DENSE": _sparse,
    "MATRIX_DIAG": _diagonal,
    **dict.fromkeys(("SEGMENT_SUM", *(f"UNSORTED_SEGMENT_{n}" for n in ("MAX", "MIN", "PROD", "SUM"))), _segments),
    "DILATE": _dilated,
    "MULTINOMIAL": _samples,
    "CONV_3D": _volume,
    **dict.fromkeys(("BITWISE_XOR", "RIGHT_SHIFT", "LOGICAL_AND", "LOGICAL_OR"), _broadcast),
}
