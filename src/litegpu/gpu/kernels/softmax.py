"""Softmax over the channels."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator

from litegpu.gpu.graph import Shape, Softmax
from litegpu.gpu.kernels.access import Index, Operands, Position, Sink, Source, address, mask, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.reduce import meet
from litegpu.gpu.kernels.rough_math import LOG2_E, divide
from litegpu.gpu.kernels.rows import MOST, Row, choose_teams
from litegpu.gpu.lang import Kernel, TracedValue, f32x4, trace


def build(ctx: KernelContext) -> list[Launch]:
    """A team of threads for each pixel, which keeps its numbers; a workgroup that goes through them three times where
    they are too many. Rows with a NaN, an infinity or nothing but -infinity give NaN, as on the CPU."""
    op = ctx.node.op
    assert isinstance(op, Softmax)
    shape = ctx.output.shape
    teams = choose_teams(shape, ctx.features)
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        source, sink = open_source(ctx, k, ctx.node.inputs[0], operands), open_sink(ctx, k, operands)
        if teams.turns > MOST:
            _Long(k, source, sink, op.beta, shape, teams.threads).run()
            return
        row = Row(k, ctx.features, teams)
        values = row.load(source, -math.inf)
        largest = row.total(values, k.max)
        # Zero past the last channel: -infinity there would not do for every beta.
        if ctx.half:
            terms = row.masked([k.rough_exp2((v - largest) * (op.beta * LOG2_E)) for v in values])
        else:
            terms = row.masked([_term(k, v, largest, op.beta) for v in values])
        total = row.total(terms, operator.add)
        row.store(sink, [divide(k, term, total) if ctx.half else term / total for term in terms])

    return [Launch(trace(kernel, "softmax", (teams.threads, 1, 1), (teams.groups, 1, 1)), operands, "softmax")]


def _term(k: Kernel, v: TracedValue, largest: TracedValue, beta: float) -> TracedValue:
    return k.exp((v - largest) if beta == 1.0 else (v - largest) * beta)


class _Long:
    """One pixel's channels, for a workgroup."""

    def __init__(self, k: Kernel, source: Source, sink: Sink, beta: float, shape: Shape, threads: int) -> None:
        self.k, self.source, self.sink, self.beta, self.threads = k, source, sink, beta, threads
        self.channels, self.quads = shape[3], -(-shape[3] // 4)
        at = Position((*shape[:3], 1), flat=k.group_id())
        self.at: tuple[Index, Index, Index] = (at.b, at.y, at.x)

    def run(self) -> None:
        """The threads meet twice."""
        k = self.k
        largest = self.over_row(-math.inf, k.max, lambda _, v: v)
        term = functools.partial(self.term, largest)
        total = self.over_row(0.0, operator.add, term)
        with self.each() as q:
            self.sink.store(*self.at, q, term(q, self.load(q)) / total)

    def term(self, largest: TracedValue, q: Index, v: TracedValue) -> TracedValue:
        """Zero in lanes past the last channel."""
        return mask(self.k, _term(self.k, v, largest, self.beta), self.channels, q)

    def over_row(
        self,
        start: float,
        combine: Callable[[TracedValue, TracedValue], TracedValue],
        of: Callable[[Index, TracedValue], TracedValue],
    ) -> TracedValue:
        """Combine of(q, v) over the row; a scalar that all threads get."""
        k = self.k
        partial = k.var(k.const(start, f32x4))
        with self.each() as q:
            partial.set(combine(partial.value, of(q, self.load(q))))
        quad = partial.value
        one = combine(combine(quad[0], quad[2]), combine(quad[1], quad[3]))
        return meet(k, k.local_id(), 1, self.threads, one, combine)[0]

    def load(self, q: Index) -> TracedValue:
        """A quad, with -infinity in lanes past the last channel."""
        return mask(self.k, self.source.quad(*self.at, q), self.channels, q, -math.inf)

    @contextlib.contextmanager
    def each(self) -> Iterator[Index]:
        rounds = -(-self.quads // self.threads)
        with self.k.loop(rounds) as r:
            q = address(0, [(r, self.threads), (self.k.local_id(), 1)])
            with self.k.If(True if rounds * self.threads == self.quads else q < self.quads):
                yield q
