"""Softmax over the channels."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator

from litegpu.gpu.graph import Softmax
from litegpu.gpu.kernels.access import Index, Operands, Position, Sink, Source, address, mask, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.per_quad import WORKGROUP
from litegpu.gpu.kernels.reduce import meet
from litegpu.gpu.lang import Kernel, TracedValue, f32x4, trace

_UNROLLED = 8  # quads that a thread keeps in registers
_SHORT_ROW = 64  # quads that one thread may go through three times
_MANY_ROWS = 4096  # so many rows keep a device busy with a thread each


def build(ctx: KernelContext) -> list[Launch]:
    """A thread per pixel for few channels or very many pixels, else a workgroup per pixel. Rows with a NaN, an infinity
    or nothing but -infinity give NaN, as on the CPU."""
    op = ctx.node.op
    assert isinstance(op, Softmax)
    shape = ctx.output.shape
    rows, quads = math.prod(shape[:3]), -(-shape[3] // 4)
    alone = quads <= _UNROLLED or (quads <= _SHORT_ROW and rows >= _MANY_ROWS)
    operands: Operands = {}
    if alone:
        threads = min(WORKGROUP, ctx.features.max_threads)
        groups = -(-rows // threads)
    else:
        threads = 1 << (min(ctx.features.max_threads, 256, quads).bit_length() - 1)
        groups = rows

    def kernel(k: Kernel) -> None:
        t = k.local_id()
        if not alone:
            _Row(ctx, k, operands, op.beta, k.group_id()).run(t, threads)
            return
        row = k.group_id() * threads + t
        with k.If(True if groups * threads == rows else row < rows):
            _Row(ctx, k, operands, op.beta, row).run(0, 1)

    return [Launch(trace(kernel, "softmax", (threads, 1, 1), (groups, 1, 1)), operands, "softmax")]


class _Row:
    """One pixel's channels."""

    def __init__(self, ctx: KernelContext, k: Kernel, operands: Operands, beta: float, row: Index) -> None:
        self.k, self.beta = k, beta
        self.source: Source = open_source(ctx, k, ctx.node.inputs[0], operands)
        self.sink: Sink = open_sink(ctx, k, operands)
        shape = ctx.output.shape
        self.channels, self.quads = shape[3], -(-shape[3] // 4)
        at = Position((*shape[:3], 1), flat=row)
        self.at: tuple[Index, Index, Index] = (at.b, at.y, at.x)

    def run(self, first: Index, threads: int) -> None:
        """Quads first, first + threads, ... of the row by this thread; with several threads they meet twice."""
        k = self.k
        kept = [self.load(q) for q in range(self.quads)] if self.quads <= _UNROLLED and threads == 1 else None
        largest = self.over_row(first, threads, kept, -math.inf, k.max)

        def term(q: Index, v: TracedValue) -> TracedValue:
            """Zero in lanes past the last channel: -infinity there would not do for every beta."""
            scaled = (v - largest) if self.beta == 1.0 else (v - largest) * self.beta
            return mask(k, k.exp(scaled), self.channels, q)

        terms = None if kept is None else [term(q, v) for q, v in enumerate(kept)]
        total = self.over_row(first, threads, terms, 0.0, operator.add, term)
        if terms is not None:
            for q, v in enumerate(terms):
                self.sink.store(*self.at, q, v / total)
            return
        with self.each(first, threads) as here:
            self.sink.store(*self.at, here, term(here, self.load(here)) / total)

    def over_row(
        self,
        first: Index,
        threads: int,
        kept: list[TracedValue] | None,
        start: float,
        combine: Callable[[TracedValue, TracedValue], TracedValue],
        of: Callable[[Index, TracedValue], TracedValue] = lambda _, v: v,
    ) -> TracedValue:
        """Combine of(q, v) over the row, or what is in `kept`; a scalar that all threads get."""
        k = self.k
        if kept is not None:
            quad = functools.reduce(combine, kept)
        else:
            partial = k.var(k.const(start, f32x4))
            with self.each(first, threads) as q:
                partial.set(combine(partial.value, of(q, self.load(q))))
            quad = partial.value
        one = combine(combine(quad[0], quad[2]), combine(quad[1], quad[3]))
        if threads == 1:
            return one
        assert isinstance(first, TracedValue)
        return meet(k, first, 1, threads, one, combine)[0]

    def load(self, q: Index) -> TracedValue:
        """A quad, with -infinity in lanes past the last channel."""
        return mask(self.k, self.source.quad(*self.at, q), self.channels, q, -math.inf)

    @contextlib.contextmanager
    def each(self, first: Index, threads: int) -> Iterator[Index]:
        rounds = -(-self.quads // threads)
        with self.k.loop(rounds) as r:
            q = address(0, [(r, threads), (first, 1)])
            with self.k.If(True if rounds * threads == self.quads else q < self.quads):
                yield q
