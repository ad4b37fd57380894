"""Where something comes for the first, the second, the nth time, of how often it came so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.gpu.graph import Shape
from litegpu.gpu.kernels.access import Index, Operands, Position, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.copy import four_channels
from litegpu.gpu.kernels.stream import streamed
from litegpu.gpu.lang import Kernel, TracedValue, i32, u32

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class NthPlace:
    """inputs: how often it came up to each place, [1,1,1,P] INT32 -> [1,1,1,N] INT32, the place at which it came for
    the first time, the second and so on, 0 where it came less often. Satisfies custom.definition.Definition."""

    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        counts = inputs[0].reshape(-1)
        numbers = np.arange(shape[3])
        found = np.searchsorted(counts, numbers, side="right")
        return np.where(numbers < counts[-1], found, 0).astype(np.int32).reshape(shape)

    def build(self, ctx: KernelContext) -> list[Launch]:
        places = ctx.value(ctx.node.inputs[0]).elements

        def value_at(k: Kernel, operands: Operands, at: Position) -> TracedValue:
            counts = open_source(ctx, k, ctx.node.inputs[0], operands)

            def element(number: Index) -> TracedValue:
                """The first place whose count is above the number."""
                wanted = k.bitcast(number, i32) if isinstance(number, TracedValue) else k.const(number, i32)
                first, rest = k.var(k.const(0, u32)), k.var(k.const(places, u32))
                with k.loop(places.bit_length()):
                    half = rest.value >> 1
                    middle = first.value + half
                    above = counts.at(0, 0, 0, k.min(middle, places - 1)) > wanted
                    after = rest.value - half - k.select(rest.value > 0, k.const(1, u32), k.const(0, u32))
                    first.set(k.select(above | (rest.value == 0), first.value, middle + 1))
                    rest.set(k.select(above | (rest.value == 0), half, after))
                there = first.value < places
                return k.select(there, k.bitcast(first.value, i32), k.const(0, i32))

            return four_channels(k, at, element)

        return [streamed(ctx, "nth_place", value_at)]
