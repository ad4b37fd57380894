"""Movement of elements (pad, slice, transpose, reshape, mirror, tile, constant gather), with an epilogue."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import numpy as np

from litegpu.gpu.graph import Copy
from litegpu.gpu.kernels.access import COMPUTE, Index, Operands, Position, Source, declare_table, is_last, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.movement import Origin, Quad, moves_quads, origin, shapes_along
from litegpu.gpu.kernels.stream import streamed
from litegpu.gpu.kernels.transposition import transposed, transposition
from litegpu.gpu.lang import Kernel, TracedValue, u32, vec


def build(ctx: KernelContext) -> list[Launch]:
    """For each output quad a quad is fetched where channels stay together, else up to four elements; tiles where the
    channels and another axis are exchanged."""
    op = ctx.node.op
    assert isinstance(op, Copy)
    shapes = shapes_along(op.steps, ctx.value(ctx.node.inputs[0]).shape)
    in_place = op.keeps_order and all(s[3] % 4 == 0 for s in (shapes[0], shapes[-1]))
    by_quads = moves_quads(op.steps, shapes)

    exchange = None if in_place or by_quads else transposed(ctx)
    if exchange is not None:
        return [transposition(ctx, *exchange)]

    def value_at(k: Kernel, operands: Operands, at: Position) -> TracedValue:
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        look = functools.partial(_look, k, operands)
        if not op.steps:
            return source.read(at, spread=False)
        if in_place:  # quads keep their order
            return source.read(Position(source.view.shape, flat=at.flat), spread=False)
        if by_quads:
            return fetch(k, source, origin(k, op.steps, shapes, [at.b, at.y, at.x, Quad(at.q)], look))
        return four_channels(
            k,
            at,
            lambda c: fetch(k, source, origin(k, op.steps, shapes, [at.b, at.y, at.x, c], look)),
        )

    return [streamed(ctx, "copy", value_at)]


def fetch(k: Kernel, source: Source, found: Origin) -> TracedValue:
    """The quad or the element at `found`, or what is there instead where that is outside."""
    b, y, x, c = found.coordinates
    assert not (isinstance(b, Quad) or isinstance(y, Quad) or isinstance(x, Quad))
    scalar = COMPUTE[source.view.dtype]
    kind = vec(scalar, 4) if isinstance(c, Quad) else scalar
    inside = [(condition, fill) for condition, fill in found.inside if condition is not True]
    fallback: TracedValue | None = None
    conditions: list[TracedValue] = []
    for condition, fill in reversed(inside):
        filled = constant(k, fill, kind)
        if isinstance(condition, bool):
            fallback, conditions = filled, []
            continue
        fallback = filled if fallback is None or fallback is filled else k.select(condition, fallback, filled)
        conditions.append(condition)
    if fallback is None:
        return source.quad(b, y, x, c.q) if isinstance(c, Quad) else source.at(b, y, x, c)
    if any(condition is False for condition, _ in inside):
        return fallback
    exists = functools.reduce(operator.and_, conditions)
    b, y, x = (_where(k, exists, i) for i in (b, y, x))  # read the first one, and forget it: a branch would wait here
    value = (
        source.quad(b, y, x, _where(k, exists, c.q))
        if isinstance(c, Quad)
        else source.at(b, y, x, _where(k, exists, c))
    )
    return k.select(exists, value, fallback)


def _where(k: Kernel, exists: TracedValue, i: Index) -> Index:
    return k.select(exists, i, 0) if isinstance(i, TracedValue) else i


def four_channels(k: Kernel, at: Position, element: Callable[[Index], TracedValue]) -> TracedValue:
    """A quad whose lanes are element(c) for its channels c; lanes past the last channel are arbitrary."""
    channels = at.shape[3]
    quads = -(-channels // 4)
    rest = channels % 4 or 4
    if quads == 1:
        lanes = [element(j) for j in range(rest)]
        return k.vec(*lanes, *[lanes[0]] * (4 - rest))
    assert isinstance(at.q, TracedValue)
    first = at.q * 4
    last = is_last(at.q, quads)
    assert isinstance(last, TracedValue)
    lanes = [element(first + j if j < rest else k.select(last, first, first + j)) for j in range(4)]
    return k.vec(*lanes)


def _look(k: Kernel, operands: Operands, table: tuple[int, ...], index: Index) -> TracedValue:
    return declare_table(k, f"t{len(k.buffers)}", np.array(table, np.uint32), u32, operands)[index]
