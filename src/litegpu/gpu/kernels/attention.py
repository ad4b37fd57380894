"""Attention: a workgroup for each query goes through keys and values once, with a running maximum and sum."""

from __future__ import annotations

import math
import operator

from litegpu.gpu.graph import Attention
from litegpu.gpu.kernels.access import (
    Index,
    Operands,
    Position,
    Source,
    divide,
    mask,
    open_sink,
    open_source,
    remainder,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.reduce import meet
from litegpu.gpu.lang import Kernel, TracedValue, f32, f32x4, trace

#: Threads of a workgroup: each keeps sums for all columns, which meet in shared memory.
_THREADS = 32


def build(ctx: KernelContext) -> list[Launch]:
    """Each thread takes every so-manieth key: the exponentials of its logits are relative to the largest so far, and
    its sums are scaled when a larger one comes. Sums are float32."""
    op, inputs = ctx.node.op, ctx.node.inputs
    assert isinstance(op, Attention)
    shape = ctx.output.shape
    keys, depth = ctx.value(inputs[1]).shape[2:]
    quads, columns = -(-depth // 4), -(-shape[3] // 4)
    room = (ctx.features.max_shared_bytes - 1024) // (16 * columns)
    threads = 1 << (min(_THREADS, ctx.features.max_threads, room, keys).bit_length() - 1)
    rounds = -(-keys // threads)
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        q, key, value = (open_source(ctx, k, v, operands) for v in inputs[:3])
        added = open_source(ctx, k, inputs[3], operands) if len(inputs) > 3 else None
        sink = open_sink(ctx, k, operands)
        t = k.local_id()
        at = Position((*shape[:3], 1), flat=k.group_id())
        place = (at.b, at.y, at.x)
        query = [mask(k, q.quad(*place, i), depth, i) * op.scale for i in range(quads)]
        largest, total = k.var(k.const(-math.inf, f32)), k.var(k.const(0.0, f32))
        sums = k.array(columns, k.const(0.0, f32x4))

        def step(number: TracedValue) -> None:
            b, h = _leading(key, at.b, at.y, shape[1])
            logit = k.dot(query[0], mask(k, key.quad(b, h, number, 0), depth, 0))
            for i in range(1, quads):
                logit = logit + k.dot(query[i], mask(k, key.quad(b, h, number, i), depth, i))
            if added is not None:
                sizes = added.view.shape
                lead = (remainder(at.b, sizes[0], shape[0]), at.y, at.x)
                here = [0 if n == 1 else p for n, p in zip(sizes, (*lead, number), strict=True)]
                logit = logit + added.at(*here) * op.beta
            before = largest.value
            now = k.max(before, logit)
            # where nothing but -infinity came so far there is nothing to scale, and no difference to take
            base = k.select(now == -math.inf, 0.0, now)
            factor, weight = k.exp(before - base), k.exp(logit - base)
            b, h = _leading(value, at.b, at.y, shape[1])
            for i in range(columns):
                sums[i] = k.fma(sums[i], k.splat(factor, 4), value.quad(b, h, number, i) * weight)
            total.set(k.fma(total.value, factor, weight))
            largest.set(now)

        with k.loop(rounds) as r:
            number = r * threads + t
            with k.If(True if rounds * threads == keys else number < keys):
                step(number)
        top = meet(k, t, 1, threads, largest.value, k.max)[0]
        factor = k.exp(largest.value - k.select(top == -math.inf, 0.0, top))
        divisor = meet(k, t, 1, threads, total.value * factor, operator.add)[0]
        parts = k.shared(f32x4, threads * columns)
        for i in range(columns):
            parts[t * columns + i] = sums[i] * factor
        k.barrier()
        turns = -(-columns // threads)
        with k.loop(turns) as r:
            column = r * threads + t
            with k.If(True if turns * threads == columns else column < columns):
                result = k.var(parts[column])
                with k.loop(threads, 1) as other:
                    result.set(result.value + parts[other * columns + column])
                sink.store(*place, column, result.value / divisor)

    traced = trace(kernel, "attention", (threads, 1, 1), (math.prod(shape[:3]), 1, 1))
    return [Launch(traced, operands, "attention")]


def _leading(source: Source, b: Index, h: Index, heads: int) -> tuple[Index, Index]:
    """Where the keys or values are of head `h` of so many."""
    batch, own = source.view.shape[:2]
    return (0 if batch == 1 else b, 0 if own == 1 else divide(h, heads // own))
