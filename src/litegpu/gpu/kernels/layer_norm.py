"""Normalisation over the channels: a row is read once, and stays in the registers of the threads that share it."""

from __future__ import annotations

import functools
import math
import operator

from litegpu.gpu.graph import LayerNorm
from litegpu.gpu.kernels.access import Index, Operands, Position, mask, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.per_quad import WORKGROUP
from litegpu.gpu.kernels.reduce import meet
from litegpu.gpu.lang import Kernel, TracedValue, f32x4, trace
from litegpu.gpu.lang.features import Features

_FEW = 4  # quads up to which a thread has a row to itself; otherwise so many are aimed at for each thread
_MOST = 8  # quads that a thread keeps


def build(ctx: KernelContext) -> list[Launch]:
    """A few rows to a subgroup, which is a workgroup, so that the order of its threads does not matter; where it is too
    small, or rows are too long, a workgroup for each row."""
    op = ctx.node.op
    assert isinstance(op, LayerNorm)
    shape = ctx.output.shape
    rows, channels, quads = math.prod(shape[:3]), shape[3], -(-shape[3] // 4)
    width, together = _threads(quads, ctx.features)
    in_group = (WORKGROUP if width == 1 else ctx.features.subgroup_size) // width if together else 1
    turns, groups = -(-quads // width), -(-rows // in_group)
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        source, sink = open_source(ctx, k, ctx.node.inputs[0], operands), open_sink(ctx, k, operands)
        t = k.subgroup_lane() if together and width > 1 else k.local_id()
        lane: Index = t if in_group == 1 else t % width
        row = k.group_id() if in_group == 1 else k.group_id() * in_group + t // width
        whole = groups * in_group == rows
        # Every thread takes part in the exchange: those past the last row have the last one.
        at = Position((*shape[:3], 1), flat=row if whole else k.min(row, rows - 1))
        place = (at.b, at.y, at.x)

        def total(parts: list[TracedValue]) -> TracedValue:
            quad = functools.reduce(operator.add, parts)
            one = (quad[0] + quad[2]) + (quad[1] + quad[3])
            if not together:
                return meet(k, t, 1, width, one, operator.add)[0]
            step = 1
            while step < width:
                one = one + k.subgroup_shuffle_xor(one, step)
                step *= 2
            return one

        where: list[Index] = [lane + i * width if width > 1 else i for i in range(turns)]
        zero = k.const(0.0, f32x4)

        def inside(i: int) -> TracedValue | None:
            """Whether quad i of this thread is one of the row; None if it is in any case."""
            past = (i + 1) * width > quads
            q = where[i]
            return q < quads if past and isinstance(q, TracedValue) else None

        def masked(i: int, value: TracedValue) -> TracedValue:
            holds = inside(i)
            value = mask(k, value, channels, where[i])
            return value if holds is None else k.select(holds, value, zero)

        kept = []
        for i, q in enumerate(where):
            read = q if inside(i) is None else k.min(k.splat(q, 1) if isinstance(q, int) else q, quads - 1)
            kept.append(masked(i, source.quad(*place, read)))
        mean = total(kept) / float(channels)
        left = [masked(i, value - mean) for i, value in enumerate(kept)]
        variance = total([value * value for value in left]) / float(channels)
        factor = k.rsqrt(variance + op.epsilon)
        for i, value in enumerate(left):
            holds = inside(i)
            mine = None if whole else row < rows
            both = holds if mine is None else mine if holds is None else holds & mine
            with k.If(True if both is None else both):
                sink.store(*place, where[i], value * factor)

    traced = trace(kernel, "layer_norm", (width * in_group, 1, 1), (groups, 1, 1))
    return [Launch(traced, operands, "layer_norm")]


def _threads(quads: int, features: Features) -> tuple[int, bool]:
    """(threads for a row, whether all of them are in one subgroup)."""
    subgroup = features.subgroup_size if features.subgroups else 1
    wanted = 1 if quads <= _FEW else 1 << (-(-quads // _FEW) - 1).bit_length()
    together = min(wanted, subgroup)
    if wanted == 1 or (together > 1 and together * _MOST >= quads):
        return together, True
    most = 1 << (min(features.max_threads, 256).bit_length() - 1)
    return min(most, max(wanted, 1 << (-(-quads // _MOST) - 1).bit_length())), False
