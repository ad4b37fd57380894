"""Gather with indices that are known only at run time."""

from __future__ import annotations

from litegpu.gpu.graph import Gather
from litegpu.gpu.kernels.access import COMPUTE, Index, Operands, Position, Sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.copy import four_channels
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.movement import Coordinate, Quad, before_reshape, reshape_moves_quads
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Kernel, TracedValue, u32, vec


def build(ctx: KernelContext) -> list[Launch]:
    """One thread per output quad; where `inner` is whole quads on both sides, a quad has one index and one load."""
    op = ctx.node.op
    assert isinstance(op, Gather)
    x_shape, index_shape = (ctx.value(v).shape for v in ctx.node.inputs)
    table, rows, taken = (
        (op.batch, op.outer, op.size, op.inner),
        (op.batch, op.count),
        (op.batch, op.outer, op.count, op.inner),
    )
    by_quads = reshape_moves_quads(taken, ctx.output.shape) and reshape_moves_quads(x_shape, table)

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        source, indices = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)

        def fetch(channel: Coordinate) -> TracedValue:
            batch, outer, place, inner = before_reshape(taken, ctx.output.shape, [at.b, at.y, at.x, channel])
            where = [_number(i) for i in before_reshape(index_shape, rows, [batch, place])]
            chosen = k.bitcast(indices.at(where[0], where[1], where[2], where[3]), u32)
            quad = isinstance(channel, Quad)
            scalar = COMPUTE[source.view.dtype]
            result = k.var(constant(k, 0, vec(scalar, 4) if quad else scalar))
            with k.If(chosen < op.size):  # a negative index is a huge u32
                b, y, x, c = before_reshape(x_shape, table, [batch, outer, chosen, inner])
                b, y, x = _number(b), _number(y), _number(x)
                result.set(source.quad(b, y, x, c.q) if isinstance(c, Quad) else source.at(b, y, x, c))
            return result.value

        def element(channel: Index) -> TracedValue:
            return fetch(channel)

        sink.write(at, fetch(Quad(at.q)) if by_quads else four_channels(k, at, element))

    return [per_quad(ctx, "gather", body)]


def _number(i: Coordinate) -> Index:
    assert not isinstance(i, Quad)
    return i
