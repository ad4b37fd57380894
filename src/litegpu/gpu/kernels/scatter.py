"""Numbers put where others are, one after the other: each place looks for what is put there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import Expr, Shape
from litegpu.gpu.kernels.access import Operands, Position, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.kernels.stream import streamed
from litegpu.gpu.lang import Kernel, TracedValue, i32

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Scatter:
    """inputs: what is there [1,1,1,P], places [1,1,1,U] INT32, negative for nowhere, and what is put there [1,1,1,U] ->
    [1,1,1,P]: `body` of what is there and what comes, Arg(0) and Arg(1), in the order of the places. Satisfies
    custom.definition.Definition."""

    body: Expr
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        there, places, coming = (x.reshape(-1) for x in inputs)
        result = np.array(there)
        # turn after turn, in each of which no place comes twice
        order = np.argsort(places, kind="stable")
        order = order[places[order] >= 0]
        _, firsts = np.unique(places[order], return_index=True)
        turns = np.arange(order.size) - np.repeat(firsts, np.diff([*firsts, order.size]))
        for turn in range(int(turns.max(initial=-1)) + 1):
            chosen = order[turns == turn]
            at = places[chosen]
            result[at] = evaluate_expr(self.body, [result[at], coming[chosen]])
        return result.reshape(shape)

    def build(self, ctx: KernelContext) -> list[Launch]:
        count = ctx.value(ctx.node.inputs[1]).elements

        def value_at(k: Kernel, operands: Operands, at: Position) -> TracedValue:
            there, places, coming = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)
            found = k.var(there.read(at, spread=False))
            mine = k.bitcast(at.q, i32) if isinstance(at.q, TracedValue) else k.const(at.q, i32)
            lanes = k.vec(*(k.const(j, i32) for j in range(4)))
            with k.loop(count) as u:
                place = places.at(0, 0, 0, u)
                with k.If((place >> 2) == mine):
                    after = evaluate(k, self.body, [found.value, k.splat(coming.at(0, 0, 0, u), 4)])
                    here = lanes == k.splat(place & 3, 4)
                    found.set(k.select(here, after, found.value))
            return found.value

        return [streamed(ctx, "scatter", value_at)]
