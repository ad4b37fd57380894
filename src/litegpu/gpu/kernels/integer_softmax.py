"""Softmax of bytes over the channels, to the last bit as the official runtime sums it up: in float32, in order."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import IntegerSoftmax
from litegpu.gpu.kernels.access import Index, Operands, Position, declare_table, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Kernel, Memory, TracedValue, f32, f32x4, i32, trace, u32

#: Rows up to which each has a workgroup, and channels that it keeps in shared memory.
FEW_ROWS, MOST_SHARED = 4096, 1920
#: Quads of a row that are loaded at a time.
AHEAD = 8
WORKGROUP = 64


def build(ctx: KernelContext) -> list[Launch]:
    """A workgroup per row, where the elements are prepared in parallel and one thread adds them up; a thread per row
    where there are many."""
    op, shape = ctx.node.op, ctx.output.shape
    assert isinstance(op, IntegerSoftmax)
    rows, channels = math.prod(shape[:3]), shape[3]
    shared = rows <= FEW_ROWS and channels <= MOST_SHARED
    threads = min(WORKGROUP, ctx.features.max_threads) if shared else 1
    side = 1 if shared else min(WORKGROUP, ctx.features.max_threads)
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        row = k.group_id() if shared else k.group_id() * side + k.local_id()
        with k.If(True if shared or rows % side == 0 else row < rows):
            body = _in_workgroup if shared else _alone
            body(k, ctx, op, operands, row, threads)

    size = threads if shared else side
    grid = rows if shared else -(-rows // side)
    return [Launch(trace(kernel, "integer_softmax", (size, 1, 1), (grid, 1, 1)), operands, "softmax")]


def _in_workgroup(
    k: Kernel, ctx: KernelContext, op: IntegerSoftmax, operands: Operands, row: Index, threads: int
) -> None:
    source, table = open_source(ctx, k, ctx.node.inputs[0], operands), _table(ctx, k, operands)
    at, t, channels = Position(ctx.output.shape, pixel=row), k.local_id(), ctx.output.shape[3]
    b, y, x = at.b, at.y, at.x
    numbers, best = k.shared(i32, channels), k.shared(i32, threads)
    largest = k.var(k.const(-(1 << 31), i32))
    with k.loop(channels, start=t, step=threads) as c:
        numbers[c] = source.at(b, y, x, c)
        largest.set(k.max(largest.value, numbers[c]))
    best[t] = largest.value
    k.barrier()
    with k.loop(threads) as other:
        largest.set(k.max(largest.value, best[other]))
    quads, total = -(-channels // 4), k.shared(f32, 1)
    whole = -(-quads // AHEAD) * AHEAD
    parts = k.shared(f32x4, whole)
    with k.loop(whole, start=t, step=threads) as q:
        lanes = []
        for j in range(4):
            c = q * 4 + j
            part = table[k.bitcast(largest.value - numbers[k.min(c, channels - 1)], u32)]
            lanes.append(part if whole * 4 == channels else k.select(c < channels, part, k.const(0.0, f32)))
        parts[q] = k.vec(*lanes)
    k.barrier()
    with k.If(t == 0):
        summed = k.var(k.const(0.0, f32))
        with k.loop(whole // AHEAD) as i:  # several are loaded before they are added, one after the other
            loaded = [parts[i * AHEAD + j] for j in range(AHEAD)]
            running = summed.value
            for quad in loaded:
                for lane in range(4):
                    running = running + quad[lane]
            summed.set(running)
        total[0] = reciprocal(k, summed.value * op.scale)
    k.barrier()
    sink = open_sink(ctx, k, operands)
    with k.loop(quads, start=t, step=threads) as q:
        sink.store(b, y, x, q, _share(k, parts[q], total[0]))


def _alone(k: Kernel, ctx: KernelContext, op: IntegerSoftmax, operands: Operands, row: Index, threads: int) -> None:
    source, table = open_source(ctx, k, ctx.node.inputs[0], operands), _table(ctx, k, operands)
    at, channels = Position(ctx.output.shape, pixel=row), ctx.output.shape[3]
    b, y, x = at.b, at.y, at.x
    largest = k.var(k.const(-(1 << 31), i32))
    with k.loop(channels) as c:
        largest.set(k.max(largest.value, source.at(b, y, x, c)))
    summed = k.var(k.const(0.0, f32))
    with k.loop(channels) as c:
        summed.set(summed.value + table[k.bitcast(largest.value - source.at(b, y, x, c), u32)])
    inverse = reciprocal(k, summed.value * op.scale)
    sink = open_sink(ctx, k, operands)
    with k.loop(-(-channels // 4)) as q:
        quad = source.quad(b, y, x, q)
        lanes = [table[k.min(k.bitcast(largest.value - quad[j], u32), 255)] for j in range(4)]
        sink.store(b, y, x, q, _share(k, k.vec(*lanes), inverse))


def _share(k: Kernel, parts: TracedValue, inverse: TracedValue) -> TracedValue:
    product = k.max(parts * k.splat(inverse, 4), -1.0)  # so that it is rounded before the sum is
    return k.nearest(k.floor(product + 0.5))


def _table(ctx: KernelContext, k: Kernel, operands: Operands) -> Memory:
    data = ctx.value(ctx.node.inputs[1]).data
    assert data is not None
    return declare_table(k, "table", data.reshape(-1).astype(np.float32), f32, operands)


def reciprocal(k: Kernel, x: TracedValue) -> TracedValue:
    """1 / x to the nearest float32, of a positive normal number whose reciprocal is one: WGSL's division may be 2.5
    units in the last place off. With x = m * 2**e and m of 24 bits, 2**47 / m is rounded by its remainder."""
    bits = k.bitcast(x, u32)
    m, exponent = k.bitcast((bits & 0x7FFFFF) | 0x800000, i32), bits >> 23
    q = k.nearest(8388608.0 / (f32(m) * (1 / 8388608)) * 2.0)  # 2**47 / m
    rest = -(q * m)  # 2**47 - q * m, which is small, modulo 2**32
    for _ in range(3):
        more, less = rest * 2 > m, rest * 2 < -m
        step = k.select(more, k.const(1, i32), k.select(less, k.const(-1, i32), k.const(0, i32)))
        q, rest = q + step, rest - step * m
    # m = 2**23: q = 2**24, one bit more than a float has
    power = k.bitcast((k.const(254, u32) - exponent) << 23, f32)  # 2**(127 - exponent)
    plain = k.bitcast(((k.const(253, u32) - exponent) << 23) | (k.bitcast(q, u32) & 0x7FFFFF), f32)
    return k.select(m == 8388608, power, plain)
