"""The index of the largest or smallest element along one axis; the first of equals wins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.graph import ArgReduce
from litegpu.gpu.kernels.access import (
    COMPUTE,
    Index,
    Operands,
    Position,
    Sink,
    Source,
    address,
    mask,
    open_sink,
    open_source,
)
from litegpu.gpu.kernels.context import Context, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Kernel, Type, Value, i32, i32x4, trace, u32, vec

# TFLite's ARG_MAX compares each element with the best so far, beginning with element 0. So a NaN is never chosen over
# a number, except that a NaN in element 0 stays: nothing compares above it.

_FEW_ROWS = 1024  # so few rows of channels get a workgroup each, if they are long
_LONG_ROW = 64  # quads


def build(ctx: Context) -> list[Launch]:
    """Along B, H or W each lane of a thread goes its own way. Along C one thread, or for few long rows one workgroup,
    looks through a pixel's channels."""
    op = ctx.node.op
    assert isinstance(op, ArgReduce)
    shape = ctx.value(ctx.node.inputs[0]).shape
    pixels, quads = math.prod(shape[:3]), -(-shape[3] // 4)
    if op.axis == 3 and pixels <= _FEW_ROWS and quads >= _LONG_ROW:
        return [_workgroup_per_pixel(ctx, op.kind, pixels, quads)]

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        if op.axis == 3:
            row = _Row(k, source, op.kind, (at.b, at.y, at.x))
            sink.write(at, k.splat(row.unless_first_is_nan(row.scan(0, 1)[1]), 4))
        else:
            sink.write(at, _along_pixels(k, source, op.kind, op.axis, at))

    return [per_quad(ctx, "arg_reduce", body)]


def _along_pixels(k: Kernel, source: Source, kind: str, axis: int, at: Position) -> Value:
    def element(i: Index) -> Value:
        b, y, x = (i if a == axis else place for a, place in enumerate((at.b, at.y, at.x)))
        return source.quad(b, y, x, at.q)

    best, index = k.var(element(0)), k.var(k.const(0, i32x4))
    with k.loop(source.view.shape[axis], 1) as i:
        value = element(i)
        better = _better(kind, value, best.value)
        best.set(k.select(better, value, best.value))
        index.set(k.select(better, k.splat(i32(i), 4), index.value))
    return index.value


@dataclass(frozen=True, eq=False)
class _Row:
    """The channels of one pixel."""

    k: Kernel
    source: Source
    kind: str
    pixel: tuple[Index, Index, Index]

    def scan(self, first: Index, step: int) -> tuple[Value, Value]:
        """The best element of quads first, first + step, ... and its index. Without any number: the worst number there
        is, and an index that no other loses to."""
        k, quads = self.k, self.source.view.quads
        t = COMPUTE[self.source.view.dtype]
        worst = _worst(self.kind, t)
        best = k.var(constant(k, worst, vec(t, 4)))
        index = k.var(k.const(2**31 - 1, i32x4))
        channel = k.vec(*(k.const(j, i32) for j in range(4)))
        rounds = -(-quads // step)
        with k.loop(rounds) as r:
            q = address(0, [(r, step), (first, 1)])
            with k.If(True if rounds * step == quads else q < quads):
                value = mask(k, self.source.quad(*self.pixel, q), self.source.view.shape[3], q, worst)
                here = k.splat(i32(q if isinstance(q, Value) else k.const(q, u32)) * 4, 4) + channel
                better = _better(self.kind, value, best.value)
                best.set(k.select(better, value, best.value))
                index.set(k.select(better, here, index.value))
        lanes = [(best.value[j], index.value[j]) for j in range(4)]
        return self.merge(self.merge(lanes[0], lanes[1]), self.merge(lanes[2], lanes[3]))

    def merge(self, a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
        """The better one of two (element, index); the lower index of equals."""
        k = self.k
        take = _better(self.kind, b[0], a[0]) | ((b[0] == a[0]) & (b[1] < a[1]))
        return k.select(take, b[0], a[0]), k.select(take, b[1], a[1])

    def unless_first_is_nan(self, index: Value) -> Value:
        """The index found; 0 if no element was better than the worst number."""
        k = self.k
        found = k.select(index == 2**31 - 1, k.const(0, i32), index)
        first = self.source.at(*self.pixel, 0)
        return k.select(k.is_nan(first), k.const(0, i32), found) if first.type.is_float else found


def _workgroup_per_pixel(ctx: Context, kind: str, pixels: int, quads: int) -> Launch:
    operands: Operands = {}
    threads = min(ctx.features.max_threads, 256, 1 << (quads - 1).bit_length())
    threads = 1 << (threads.bit_length() - 1)

    def kernel(k: Kernel) -> None:
        t = k.local_id()
        at = Position(ctx.output.shape, flat=k.group_id())
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        row = _Row(k, source, kind, (at.b, at.y, at.x))
        best, index = row.scan(t, threads)
        values, places = k.shared(best.type, threads), k.shared(i32, threads)
        values[t], places[t] = best, index
        k.barrier()
        half = threads
        while half > 1:
            half //= 2
            with k.If(t < half):
                values[t], places[t] = row.merge((values[t], places[t]), (values[t + half], places[t + half]))
            k.barrier()
        with k.If(t == 0):
            open_sink(ctx, k, operands).write(at, k.splat(row.unless_first_is_nan(places[0]), 4))

    return Launch(trace(kernel, "arg_reduce", (threads, 1, 1), (pixels, 1, 1)), operands, "arg_reduce")


def _better(kind: str, a: Value, b: Value) -> Value:
    return a > b if kind == "max" else a < b


def _worst(kind: str, t: Type) -> float:
    low, high = (-math.inf, math.inf) if t.is_float else (-(2**31), 2**31 - 1)
    return low if kind == "max" else high
