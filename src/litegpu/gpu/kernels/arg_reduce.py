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
    open_sink,
    open_source,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Kernel, TracedValue, Type, i32, i32x4, trace, u32, vec

# A NaN is never chosen over a number. Along the channels that is as TFLite's vector kernel has it, to the letter: it
# keeps the best of each of four lanes, NaN where a lane has no number, and `b > a ? b : a` joins them, two and two, so
# that numbers beside such a lane may be lost. What the last, incomplete quad has is compared with that one by one.

_UNKNOWN = 2**31 - 1  # an index that loses to every other
_FEW_ROWS = 1024  # so few rows of channels get a workgroup each, if they are long
_LONG_ROW = 64  # quads


def build(ctx: KernelContext) -> list[Launch]:
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
            sink.write(at, k.splat(row.index(*row.scan(0, 1)), 4))
        else:
            sink.write(at, _along_pixels(k, source, op.kind, op.axis, at))

    return [per_quad(ctx, "arg_reduce", body)]


def _along_pixels(k: Kernel, source: Source, kind: str, axis: int, at: Position) -> TracedValue:
    places = (at.b, at.y, at.x, at.q)  # made here, used in the loop

    def element(i: Index) -> TracedValue:
        b, y, x, q = (i if a == axis else place for a, place in enumerate(places))
        return source.quad(b, y, x, q)

    worst = constant(k, _worst(kind, COMPUTE[source.view.dtype]), vec(COMPUTE[source.view.dtype], 4))
    best, index = k.var(worst), k.var(k.const(_UNKNOWN, i32x4))
    with k.loop(source.view.shape[axis]) as i:
        value, here = element(i), k.splat(i32(i), 4)
        better = _comes_first(kind, (value, here), (best.value, index.value))
        best.set(k.select(better, value, best.value))
        index.set(k.select(better, here, index.value))
    return _or_first(k, index.value)


@dataclass(frozen=True, eq=False)
class _Row:
    """The channels of one pixel."""

    k: Kernel
    source: Source
    kind: str
    pixel: tuple[Index, Index, Index]

    def scan(self, first: Index, step: int) -> tuple[TracedValue, TracedValue]:
        """The best element of each lane of the whole quads first, first + step, ... and its index. Without any number:
        the worst number there is, and _UNKNOWN."""
        k, quads = self.k, self.channels // 4
        t = COMPUTE[self.source.view.dtype]
        best = k.var(constant(k, _worst(self.kind, t), vec(t, 4)))
        index = k.var(k.const(_UNKNOWN, i32x4))
        rounds = -(-quads // step)
        with k.loop(rounds) as r:
            q = address(0, [(r, step), (first, 1)])
            with k.If(True if rounds * step == quads else q < quads):
                found = self.merge((best.value, index.value), (self.source.quad(*self.pixel, q), self.places(q)))
                best.set(found[0])
                index.set(found[1])
        return best.value, index.value

    def merge(
        self, a: tuple[TracedValue, TracedValue], b: tuple[TracedValue, TracedValue]
    ) -> tuple[TracedValue, TracedValue]:
        """The better one of two (element, index)."""
        k = self.k
        take = _comes_first(self.kind, b, a)
        return k.select(take, b[0], a[0]), k.select(take, b[1], a[1])

    def index(self, best: TracedValue, index: TracedValue) -> TracedValue:
        """The index of the row's best element, from the best of its whole quads' lanes; 0 if there is no number."""
        k = self.k
        unknown = k.const(_UNKNOWN, i32)
        values, places = [best[j] for j in range(4)], [index[j] for j in range(4)]
        left, right = (k.select(self.better(values[j + 1], values[j]), values[j + 1], values[j]) for j in (0, 2))
        joined = k.select(self.better(right, left), right, left)
        value = k.select(places[2] == _UNKNOWN, left, joined)
        lowest = unknown
        for v, i in zip(values, places, strict=True):
            lowest = k.select((v == value) & (i < lowest), i, lowest)
        lost = places[0] == _UNKNOWN
        found = (
            k.select(lost, constant(k, _worst(self.kind, value.type), value.type), value),
            k.select(lost, unknown, lowest),
        )
        rest, last = self.channels % 4, self.channels // 4
        if rest:
            quad = self.source.quad(*self.pixel, last)
            for j in range(rest):
                found = self.merge(found, (quad[j], k.const(4 * last + j, i32)))
        return _or_first(k, found[1])

    def better(self, a: TracedValue, b: TracedValue) -> TracedValue:
        return a > b if self.kind == "max" else a < b

    def places(self, q: Index) -> TracedValue:
        """The indices of a quad's elements."""
        k = self.k
        lanes = k.vec(*(k.const(j, i32) for j in range(4)))
        return k.splat(i32(q if isinstance(q, TracedValue) else k.const(q, u32)) * 4, 4) + lanes

    @property
    def channels(self) -> int:
        return self.source.view.shape[3]


def _workgroup_per_pixel(ctx: KernelContext, kind: str, pixels: int, quads: int) -> Launch:
    operands: Operands = {}
    threads = min(ctx.features.max_threads, 256, 1 << (quads - 1).bit_length())
    threads = 1 << (threads.bit_length() - 1)

    def kernel(k: Kernel) -> None:
        t = k.local_id()
        at = Position(ctx.output.shape, flat=k.group_id())
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        row = _Row(k, source, kind, (at.b, at.y, at.x))
        best, index = row.scan(t, threads)
        values, places = k.shared(best.type, threads), k.shared(i32x4, threads)
        values[t], places[t] = best, index
        k.barrier()
        half = threads
        while half > 1:
            half //= 2
            with k.If(t < half):
                values[t], places[t] = row.merge((values[t], places[t]), (values[t + half], places[t + half]))
            k.barrier()
        with k.If(t == 0):
            open_sink(ctx, k, operands).write(at, k.splat(row.index(values[0], places[0]), 4))

    return Launch(trace(kernel, "arg_reduce", (threads, 1, 1), (pixels, 1, 1)), operands, "arg_reduce")


def _comes_first(kind: str, a: tuple[TracedValue, TracedValue], b: tuple[TracedValue, TracedValue]) -> TracedValue:
    """Whether the (element, index) a is better than b, or as good and of a lower index; never if it is a NaN."""
    better = a[0] > b[0] if kind == "max" else a[0] < b[0]
    return better | ((a[0] == b[0]) & (a[1] < b[1]))


def _or_first(k: Kernel, index: TracedValue) -> TracedValue:
    """The index found; 0 if there was no number."""
    return k.select(index == _UNKNOWN, constant(k, 0, index.type), index)


def _worst(kind: str, t: Type) -> float:
    low, high = (-math.inf, math.inf) if t.is_float else (-(2**31), 2**31 - 1)
    return low if kind == "max" else high
