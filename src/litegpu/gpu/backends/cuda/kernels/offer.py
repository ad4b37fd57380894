"""Launches that do the same work: the one that is estimated to be the fastest, with others for a tuner to measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Estimated microseconds, what launches the kernel, and with which tile or block.
Option = tuple[float, Callable[..., Launch], object]


def offered(launches: Sequence[Launch]) -> Launch:
    """The first, with the others to choose from."""
    return dataclasses.replace(launches[0], others=tuple(launches[1:]))


def cheapest(
    ctx: KernelContext, layer: Layer, options: Sequence[Option], *more: object, first: Option | None = None
) -> Launch:
    """The cheapest option, or `first`, which is known to be better than by its estimate; with others if the context
    asks for them: the cheapest of each kernel, then what is estimated to take least. `more`: what kernels are launched
    with beside the layer and the tile."""
    ranked = sorted(options, key=lambda option: option[0])
    taken = [first or ranked[0]]
    if ctx.most > 1:
        of_each = {make: (estimate, make, one) for estimate, make, one in reversed(ranked)}
        for option in (*sorted(of_each.values(), key=lambda option: option[0]), *ranked):
            if len(taken) < ctx.most and all(option[1:] != one[1:] for one in taken):
                taken.append(option)
    return offered([make(ctx, layer, one, *more) for _, make, one in taken])
