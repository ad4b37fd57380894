"""Gather with indices that are known only at run time."""

from __future__ import annotations

from litegpu.gpu.graph import Gather
from litegpu.gpu.kernels.access import COMPUTE, Index, Operands, Position, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.copy import four_channels
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.movement import Coordinate, Quad, before_reshape, reshape_moves_quads
from litegpu.gpu.kernels.stream import streamed
from litegpu.gpu.lang import Kernel, TracedValue, u32, vec


def build(ctx: KernelContext) -> list[Launch]:
    """By output quads; where `inner` is whole quads on both sides, a quad has one index and one load."""
    op = ctx.node.op
    assert isinstance(op, Gather)
    x_shape, index_shape = (ctx.value(v).shape for v in ctx.node.inputs)
    table, rows, taken = (
        (op.batch, op.outer, op.size, op.inner),
        (op.batch, op.count),
        (op.batch, op.outer, op.count, op.inner),
    )
    by_quads = reshape_moves_quads(taken, ctx.output.shape) and reshape_moves_quads(x_shape, table)

    def value_at(k: Kernel, operands: Operands, at: Position) -> TracedValue:
        source, indices = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)

        def fetch(channel: Coordinate) -> TracedValue:
            batch, outer, place, inner = before_reshape(taken, ctx.output.shape, [at.b, at.y, at.x, channel])
            where = [_number(i) for i in before_reshape(index_shape, rows, [batch, place])]
            chosen = k.bitcast(indices.at(where[0], where[1], where[2], where[3]), u32)
            quad = isinstance(channel, Quad)
            scalar = COMPUTE[source.view.dtype]
            exists = chosen < op.size  # a negative index is a huge u32
            # read the first one where there is none, and forget it: a branch would wait here
            b, y, x, c = before_reshape(x_shape, table, [batch, outer, k.select(exists, chosen, 0), inner])
            b, y, x = _number(b), _number(y), _number(x)
            value = source.quad(b, y, x, c.q) if isinstance(c, Quad) else source.at(b, y, x, c)
            return k.select(exists, value, constant(k, 0, vec(scalar, 4) if quad else scalar))

        def element(channel: Index) -> TracedValue:
            return fetch(channel)

        return fetch(Quad(at.q)) if by_quads else four_channels(k, at, element)

    return [streamed(ctx, "gather", value_at)]


def _number(i: Coordinate) -> Index:
    assert not isinstance(i, Quad)
    return i
