"""Normalisation over the channels: a row is read once, and stays in the registers of the threads that share it."""

from __future__ import annotations

import operator

from litegpu.gpu.graph import LayerNorm
from litegpu.gpu.kernels.access import Operands, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.movement import Quad, no_table, origin, shapes_along
from litegpu.gpu.kernels.rows import Place, Row, choose_teams
from litegpu.gpu.lang import Kernel, trace


def build(ctx: KernelContext) -> list[Launch]:
    """A team of threads for each row, which exchanges for the mean, and for the variance of what is left."""
    op = ctx.node.op
    assert isinstance(op, LayerNorm)
    shape = ctx.output.shape
    teams = choose_teams(shape, ctx.features)
    operands: Operands = {}
    shapes = shapes_along(op.moved, ctx.value(ctx.node.inputs[0]).shape)

    def came_from(k: Kernel, place: Place) -> Place:
        found = origin(k, op.moved, shapes, [*place, Quad(0)], no_table).coordinates[:3]
        b, y, x = (i for i in found if not isinstance(i, Quad))
        return b, y, x

    def kernel(k: Kernel) -> None:
        row = Row(k, ctx.features, teams)
        kept = row.load(open_source(ctx, k, ctx.node.inputs[0], operands), place=came_from(k, row.place))
        left = kept
        if op.centred:
            mean = row.total(kept, operator.add) / float(shape[3])
            left = row.masked([value - mean for value in kept])
        variance = row.total([value * value for value in left], operator.add) / float(shape[3])
        factor = k.rsqrt(variance + op.epsilon)
        row.store(open_sink(ctx, k, operands), [value * factor for value in left])

    traced = trace(kernel, "layer_norm", (teams.threads, 1, 1), (teams.groups, 1, 1))
    return [Launch(traced, operands, "layer_norm")]
