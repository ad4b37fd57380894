"""Sum, mean, maximum, minimum and product over any of the four axes, of an expression, accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import Reduce, Shape
from litegpu.gpu.kernels.access import (
    COMPUTE,
    Index,
    Operands,
    Position,
    address,
    divide,
    mask,
    open_sink,
    open_sources,
    read_all,
    remainder,
)
from litegpu.gpu.kernels.blocking import both, when
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant, evaluate, result_type
from litegpu.gpu.kernels.powers import power_above
from litegpu.gpu.kernels.team import told
from litegpu.gpu.lang import Kernel, Memory, TracedValue, Type, trace, vec

_SERIAL_ITEMS = 16  # so few items per result are reduced by one thread
_LOADS = 8  # of a thread, under way together
_THREADS = 512  # of a workgroup, at most
_MANY_ITEMS = 4096  # quads of channels, which a warp by itself takes long for
_USUAL_UNITS = 16  # multiprocessors, where nobody knows


def build(ctx: KernelContext) -> list[Launch]:
    """A thread per output quad where it has few items; else several threads, whose partial results meet: through shared
    memory if they are apart (over pixels, where neighbours have other channels), or as a team (over channels)."""
    plan = _plan(ctx)
    operands: Operands = {}
    groups = -(-plan.results // plan.columns)

    def kernel(k: Kernel) -> None:
        t = k.local_id()
        if plan.over_channels:
            column, row = divide(t, plan.rows), remainder(t, plan.rows, plan.columns * plan.rows)
        else:
            column, row = remainder(t, plan.columns, plan.columns * plan.rows), divide(t, plan.columns)
        row = row if plan.rows > 1 else 0
        result = address(0, [(k.group_id(), plan.columns), (column, 1)])
        inside: TracedValue | None = None
        if plan.results % plan.columns and isinstance(result, TracedValue):  # all threads reach the barriers
            inside, result = result < plan.results, k.min(result, plan.results - 1)
        item = _Item(ctx, k, plan, operands, result)
        total = item.reduce(row)
        if plan.over_channels:
            total = item.across_lanes(total)
            total = told(k, ctx.features, plan.rows, total, item.combine) if plan.rows > 1 else total
            stores = row == 0 if isinstance(row, TracedValue) else None
        elif plan.rows > 1:
            total = meet(k, t, plan.columns, plan.rows, total, item.combine)[t % plan.columns]
            stores = t < plan.columns
        else:
            stores = None
        with k.If(when(both(stores, inside))):
            item.store(total)

    return [Launch(trace(kernel, "reduce", (plan.columns * plan.rows, 1, 1), (groups, 1, 1)), operands, "reduce")]


@dataclass(frozen=True)
class _Plan:
    """A workgroup has `columns` neighbouring results side by side, each reduced by `rows` threads, a power of two."""

    domain: Shape  # of the prologue's values
    axes: frozenset[int]  # reduced ones that are longer than 1
    results: int  # output quads
    items: int  # quads reduced to one result
    columns: int
    rows: int

    @property
    def over_channels(self) -> bool:
        return 3 in self.axes

    @property
    def quads(self) -> int:
        return -(-self.domain[3] // 4)

    @property
    def reduces_inner_pixels(self) -> bool:
        """Whether the items of a result are one run of the domain's pixels (of its quads, if over channels)."""
        kept = [a for a in range(3) if self.domain[a] > 1 and a not in self.axes]
        return all(a > max(kept, default=-1) for a in self.axes)


def _plan(ctx: KernelContext) -> _Plan:
    op = ctx.node.op
    assert isinstance(op, Reduce)
    domain = tuple(np.broadcast_shapes(*(ctx.value(v).shape for v in ctx.node.inputs)))
    axes = frozenset(a for a in op.axes if domain[a] > 1)
    in_quads = (*domain[:3], -(-domain[3] // 4))
    items = math.prod(n for a, n in enumerate(in_quads) if a in axes)
    results = math.prod(in_quads) // items
    threads = min(_THREADS, 1 << (ctx.features.max_threads.bit_length() - 1))
    if items <= _SERIAL_ITEMS and 3 not in axes:
        return _Plan(domain, axes, results, items, min(64, threads), 1)
    enough = 2 * (ctx.features.compute_units or _USUAL_UNITS)  # workgroups
    most = power_above(-(-items // _LOADS))  # rows, each of some items
    if 3 in axes:
        few = results < 64 or (items >= _MANY_ITEMS and results < 4 * enough)
        rows = min(threads if few else 32, most)
        columns = max(1, min(threads, 256) // rows)
        while columns > 1 and results // columns < enough:
            columns //= 2
        return _Plan(domain, axes, results, items, columns, rows)
    columns = min(in_quads[3], 32)  # neighbouring quads lie side by side: read them together
    while columns > (8 if 4 * results // columns >= enough else 4) and results // columns < enough:
        columns = max(4, -(-columns // 2))  # 32 bytes of float16 are still read at once
    rows = min(most, 1 << ((threads // columns).bit_length() - 1))
    return _Plan(domain, axes, results, items, columns, rows)


class _Item:
    """One result: where its items are, how they are combined, and where it goes."""

    def __init__(self, ctx: KernelContext, k: Kernel, plan: _Plan, operands: Operands, result: Index) -> None:
        assert isinstance(ctx.node.op, Reduce)
        self.ctx, self.k, self.plan, self.op = ctx, k, plan, ctx.node.op
        self.sources = open_sources(ctx, k, ctx.node.inputs, operands)
        self.sink = open_sink(ctx, k, operands)
        self.type = vec(
            result_type(self.op.prologue, [COMPUTE[s.view.dtype] for s in self.sources if s is not None]), 4
        )
        self.at = at = Position(ctx.output.shape, flat=result)
        _ = (at.pixel, at.q) if plan.reduces_inner_pixels else (at.b, at.y, at.x, at.q)  # made here, used in loops

    def reduce(self, row: Index) -> TracedValue:
        """The items of one thread, several loaded together. Sums go by blocks of about the square root of their number,
        so that rounding errors add up over short sums, not over one long one."""
        k, plan = self.k, self.plan
        loads = max(1, _LOADS // len({id(s) for s in self.sources if s is not None}))
        rounds = plan.items // (plan.rows * loads)
        rest = plan.items - rounds * plan.rows * loads
        is_sum = self.op.kind in ("sum", "mean")
        block = max(1, math.isqrt(rounds)) if is_sum and rounds > 16 else max(1, rounds)
        nothing = constant(k, neutral(self.op.kind, self.type), self.type)
        total = k.var(nothing)

        def several(base: Index, count: int) -> TracedValue:
            indices = [address(j * plan.rows, [(base, 1), (row, 1)]) for j in range(count)]
            return self.combined([self.element(index) for index in indices])

        def go_through(first: Index, count: int) -> None:
            """`count` rounds from number `first` on."""
            partial = k.var(nothing)
            with k.loop(count) as i:
                base = address(0, [(first, plan.rows * loads), (i, plan.rows * loads)])
                partial.set(self.combine(partial.value, several(base, loads)))
            total.set(self.combine(total.value, partial.value))

        if rounds >= block:
            with k.loop(rounds // block) as o:
                go_through(address(0, [(o, block)]), block)
        if rounds % block:
            go_through(rounds // block * block, rounds % block)
        if rest >= plan.rows:
            total.set(self.combine(total.value, several(rounds * plan.rows * loads, rest // plan.rows)))
        if rest % plan.rows:  # too few for all threads
            index = address(plan.items - rest % plan.rows, [(row, 1)])
            last = plan.items - 1
            value = self.element(k.min(index, last) if isinstance(index, TracedValue) else min(index, last))
            inside = _less(index, plan.items)
            value = value if inside is True else k.select(inside, value, nothing)
            total.set(self.combine(total.value, value))
        return total.value

    def combined(self, values: list[TracedValue]) -> TracedValue:
        """All of these, as a tree."""
        while len(values) > 1:
            pairs = [self.combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = pairs + values[len(values) // 2 * 2 :]
        return values[0]

    def across_lanes(self, total: TracedValue) -> TracedValue:
        """The combination of the four lanes."""
        return self.combine(self.combine(total[0], total[2]), self.combine(total[1], total[3]))

    def element(self, index: Index) -> TracedValue:
        """The prologue at item `index`; neutral in lanes past the last channel where lanes will be combined."""
        plan, k = self.plan, self.k
        at = self._position(index)
        value = evaluate(k, self.op.prologue, read_all(self.sources, at), rough=self.ctx.half)
        if not plan.over_channels:
            return value
        return mask(k, value, plan.domain[3], at.q, neutral(self.op.kind, value.type))

    def combine(self, a: TracedValue, b: TracedValue) -> TracedValue:
        return combined(self.k, self.op.kind, a, b)

    def store(self, total: TracedValue) -> None:
        """Store the result, four lanes or one for all of them."""
        k, plan = self.k, self.plan
        total = k.splat(total, 4) if plan.over_channels else total
        if self.op.kind == "mean":
            count = math.prod(plan.domain[a] for a in plan.axes)
            total = total / float(count) if total.type.is_float else k.idiv_trunc(total, count)
        self.sink.write(self.at, total)

    def _position(self, index: Index) -> Position:
        """Item `index` of this result. Items of neighbouring threads are neighbours in memory."""
        plan = self.plan
        if plan.reduces_inner_pixels:
            assert self.at.pixel is not None
            place = address(0, [(self.at.pixel, plan.items), (index, 1)])
            if plan.over_channels:
                return Position(plan.domain, flat=place)
            return Position(plan.domain, pixel=place, q=self.at.q)
        coordinates: list[Index] = [self.at.b, self.at.y, self.at.x, self.at.q]
        extent = plan.items
        for axis in reversed(sorted(plan.axes)):
            n = plan.quads if axis == 3 else plan.domain[axis]
            coordinates[axis] = remainder(index, n, extent)
            index, extent = divide(index, n), extent // n
        b, y, x, q = coordinates
        return Position(plan.domain, coordinates=(b, y, x, q))


def meet(
    k: Kernel,
    t: TracedValue,
    columns: int,
    rows: int,
    value: TracedValue,
    combine: Callable[[TracedValue, TracedValue], TracedValue],
) -> Memory:
    """Shared memory whose first `columns` elements are the combinations of the `value`s of the threads t, t + columns,
    t + 2 * columns ...; `rows` is a power of two."""
    shared = k.shared(value.type, columns * rows)
    shared[t] = value
    k.barrier()
    while rows > 1:
        rows //= 2
        with k.If(t < columns * rows):
            shared[t] = combine(shared[t], shared[t + columns * rows])
        k.barrier()
    return shared


def _less(i: Index, n: int) -> TracedValue | bool:
    return i < n


def combined(k: Kernel, kind: str, a: TracedValue, b: TracedValue) -> TracedValue:
    """Of two numbers, or quads, of a reduction of this kind. Numbers win over NaN, which is also the neutral element of
    the maximum and minimum of floats. (On the CPU, whether a NaN comes through depends on where it stands.)"""
    match kind:
        case "sum" | "mean":
            return a + b
        case "prod":
            return a * b
    extreme = k.max(a, b) if kind == "max" else k.min(a, b)
    return k.select(k.is_nan(a), b, extreme) if a.type.is_float else extreme


def neutral(kind: str, t: Type) -> float | int:
    """What changes nothing when combined with a value of type `t`."""
    if kind in ("sum", "mean"):
        return 0
    if kind == "prod":
        return 1
    if t.is_float:
        return math.nan
    return -(2**31) if kind == "max" else 2**31 - 1
