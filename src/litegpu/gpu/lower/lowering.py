"""Operators become nodes of the graph, one after another."""

from __future__ import annotations

import weakref

from litegpu.gpu.graph import Arg, DType, Elementwise, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import NOT_KNOWN, OpContext, check_not_empty
from litegpu.gpu.lower.fixed_point import half, lowest_bits
from litegpu.gpu.lower.parts import refusal
from litegpu.gpu.lower.quantization import Grid, grid_of
from litegpu.gpu.lower.ranks import Rewritten, rewritten
from litegpu.gpu.lower.registry import Entry, find
from litegpu.gpu.lower.spans import beyond_words
from litegpu.gpu.lower.values import Values
from litegpu.gpu.lower.words import Words, moved_inputs
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType


class Lowering(Values):
    """Adds operators to the graph."""

    def lower(self, operator: Operator) -> None:
        """Add the nodes of one operator, none if nothing reads its results. Raises Unsupported."""
        if not self._is_read(operator):
            return
        entry = _entry(operator)
        if entry is None:
            kind = "custom operator" if operator.is_custom else "operator"
            raise Unsupported(f"the {kind} {operator.name} is not among those that the GPU runs")
        if self.parts.concern(operator):
            self._in_parts(operator)
        else:
            self._whole(operator, entry)

    def _whole(self, operator: Operator, entry: Entry) -> None:
        others = rewritten(self.subgraph, operator, entry.gpu)
        if others is None:
            self._add(operator, entry)
            return
        self.add_instead(others)

    def _in_parts(self, operator: Operator) -> None:
        """Add an operator on numbers of two parts. Raises Unsupported."""
        for t in (*operator.inputs, *operator.outputs):
            if t >= 0 and self.subgraph.tensors[t].data is None:
                check_not_empty(self.subgraph.tensors[t])
        if Words(self.parts, operator).lower():
            return
        data = moved_inputs(operator)
        if data is None and not any(t >= 0 and self.parts.has(t) for t in operator.inputs):
            self.parts.widen(operator)
            return
        if data is None:
            paired = (t for t in (*operator.inputs, *operator.outputs) if t >= 0 and self.parts.has(t))
            raise refusal(self.subgraph.tensors[next(paired)])
        self.parts.move(operator, data)

    def plain(self, operator: Operator) -> None:
        self._whole(operator, _known(operator))

    def add_instead(self, others: Rewritten) -> None:
        self.subgraph = self.quantized.subgraph = others.subgraph
        for other in others.operators:
            self._add(other, _known(other))

    def _add(self, operator: Operator, entry: Entry) -> None:
        if operator.version > entry.gpu.max_version:
            raise Unsupported(f"version {operator.version}: versions up to {entry.gpu.max_version} are known")
        ctx = OpContext(self, operator, entry.gpu)
        fewest, most = entry.gpu.count
        if not fewest <= len(operator.inputs) <= most:
            wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise Unsupported(f"{len(operator.inputs)} inputs where the operator takes {wanted}")
        for i in range(len(operator.inputs)):
            if ctx.has(i):
                ctx.check_input(i)
        rank = len(ctx.shape(entry.gpu.data))
        low, high = entry.gpu.ranks
        if not low <= rank <= high:
            wanted = f"rank {low}" if low == high else f"ranks {low} to {high}"
            raise Unsupported(f"input {entry.gpu.data} has rank {rank}: the operator takes {wanted}")
        for tensor in ctx.outputs:
            ctx.check_output(tensor)
        span = beyond_words(self.subgraph, operator)
        if span is not None:
            raise Unsupported(f"its results of INT64 may be from {span[0]} to {span[1]}: the GPU has 32 bits")
        ctx.choose_unit()
        entry.lower(ctx)
        for tensor in ctx.outputs:
            self._settle(ctx, tensor)

    def _require_exact(self, ctx: OpContext, value: int, grid: Grid) -> None:
        """Refuse, in whole numbers, what real numbers give of 16 bits unless it is as the CPU has it."""
        known = ctx.gpu.grids != "" or self.quantized.is_on(value, grid)
        ctx.require(known or not self.integer or grid.bits <= 8, NOT_KNOWN)

    def _is_read(self, operator: Operator) -> bool:
        """Whether anything reads what the operator computes, or a variable keeps it."""
        given = self.given
        if given not in _READ:
            _READ[given] = {*given.outputs, *(t for o in given.operators for t in o.inputs)}
        tensors = self.subgraph.tensors
        return not _READ[given].isdisjoint(operator.outputs) or any(
            t >= 0 and tensors[t].is_variable for t in operator.inputs
        )

    def _settle(self, ctx: OpContext, t: Tensor) -> None:
        """Turn a result in units of `ctx.unit` into what is kept for the tensor."""
        value, grid = self.values[t.index], grid_of(t)
        if grid is not None and ctx.gives_stored:
            del self.values[t.index]
            self.quantized.enter(t.index, value, grid)
        elif grid is not None:
            if self.xnnpack and not ctx.gpu.exact and not ctx.operator.is_custom:
                ctx.require_reals()
                self._require_exact(ctx, value, grid)
            del self.values[t.index]
            self.quantized.settle(t.index, value, grid, ctx.unit, ctx.gpu, ctx.operator.index)
        elif grid is None and (ctx.rounds_to_half(t) or ctx.keeps_bits(t)):
            number = Arg(0) if ctx.unit is None else fn("mul", Arg(0), ctx.unit)
            kept = half(number) if t.type is TensorType.FLOAT16 else lowest_bits(Arg(0), t.type)
            result = self.builder.value(bhwc(t.shape), self.builder.values[value].dtype, name=t.name, tensor=t.index)
            self.builder.node(Elementwise(), (), result, kept, [value], (ctx.operator.index,))
            self.values[t.index] = result
        elif ctx.unit is not None and t.type is TensorType.FLOAT32:
            result = self.builder.value(bhwc(t.shape), DType.FLOAT32, name=t.name, tensor=t.index)
            self.builder.node(Elementwise(), (), result, fn("mul", Arg(0), ctx.unit), [value], (ctx.operator.index,))
            self.values[t.index] = result


def _entry(operator: Operator) -> Entry | None:
    """How an operator is lowered; what a user registered for a custom code comes first."""
    if operator.is_custom:
        from litegpu.gpu.custom.registration import registered  # custom kernels bring the kernel language
        from litegpu.gpu.lower.registered import custom_entry

        registration = registered(operator.name)
        if registration is not None:
            return custom_entry(registration)
    return find(operator)


def _known(operator: Operator) -> Entry:
    entry = find(operator)
    assert entry is not None  # as lowering itself makes it
    return entry


_READ: weakref.WeakKeyDictionary[Subgraph, set[int]] = weakref.WeakKeyDictionary()
