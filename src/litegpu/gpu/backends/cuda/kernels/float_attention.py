"""Attention of floats on tensor cores, each taken for two numbers of TF32: how attention.cu divides it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from litegpu.gpu.backends.cuda.kernels.attention_division import (
    DIVIDED,
    SPLITS,
    AttentionDivision,
    fits_at_once,
    fits_shared,
    keys_of,
    loading,
    padded_widths,
)
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.kernels.context import KernelContext

#: Depth up to which four warps together have queries and what is left of them in registers, and columns of their sums.
MOST_DEPTH, MOST_COLUMNS = 64, 64
#: Those by warps alone: few queries, of which all warps of a workgroup divide the keys, and many.
FEW = tuple(
    AttentionDivision(down, across, step * across) for down, across in ((1, 8), (1, 4), (2, 4)) for step in (16, 32)
)
MANY = (
    *(AttentionDivision(down, 1, step, rests=rests) for down in (4, 8) for step in (16, 32) for rests in (False, True)),
    *(AttentionDivision(down, 1, step, blocks=2) for down in (2, 4) for step in (16, 32)),
    AttentionDivision(2, 1, 32), AttentionDivision(2, 2, 64), AttentionDivision(2, 2, 64, blocks=2),
)  # fmt: skip
#: By four warps together.
TOGETHER = tuple(AttentionDivision(down, 1, step, warpgroups=True) for down in (4, 8) for step in (32, 64))


class AttentionRates(NamedTuple):
    """Microseconds: to start; of a workgroup alone; of a step of its, and for each multiplication of one of its warps;
    of a step in which others are under way as well, and for each multiplication, logit, logit with a mask, and number
    of a key or value that each warp along the queries splits."""

    start: float
    group: float
    step: float
    multiplied: float
    busy: float
    busy_multiplied: float
    logit: float
    masked: float
    split: float


#: From 182 measurements of thirteen attentions on an H100, which they miss by 9, 12 and 12%; what is chosen takes 5%
#: longer than the best on average, and 26% at most (an attention of depth 128).
WARPGROUP_RATES = AttentionRates(3.7, 0.327, 0.0036, 2.57e-5, 0.0756, 4.01e-6, 0.0, 7.49e-5, 4.3e-5)
KEPT_RATES = AttentionRates(5.05, 0.74, 0.434, 2.03e-5, 0.0, 7.76e-6, 0.0, 8.42e-5, 0.0)
WARP_RATES = AttentionRates(3.44, 0.0, 0.628, 3.83e-5, 0.0, 6.92e-6, 6.71e-5, 7.87e-5, 8.24e-6)
#: How sharply the longer of a workgroup's own time and that of all of a multiprocessor decides.
SHARP = 6
#: Warps of a multiprocessor at once.
WARPS = 12


def divisions(ctx: KernelContext, units: int) -> list[AttentionDivision]:
    """Those that make sense, those of the fewest queries first."""
    hopper, (depth, columns) = ctx.features.capability == WARPGROUP_CAPABILITY, padded_widths(ctx)
    together = TOGETHER if hopper and depth <= MOST_DEPTH and columns <= MOST_COLUMNS else ()
    found = [d for d in (*FEW, *MANY, *together) if fits_shared(ctx, d)]
    if hopper:
        clusters = (dataclasses.replace(d, split=n) for d in FEW for n in SPLITS if d.tiles(ctx) < units)
        found += [d for d in clusters if fits_at_once(ctx, d, units)]
    return sorted(found, key=lambda division: division.down)


def cost(ctx: KernelContext, division: AttentionDivision, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: of workgroups that wait for themselves, or for
    others."""
    r = WARPGROUP_RATES if division.warpgroups else KEPT_RATES if division.rests else WARP_RATES
    rows, step, steps = division.rows, division.step, division.steps(keys_of(ctx))
    numbers, warps = step * sum(padded_widths(ctx)), division.down * division.across
    logit = r.logit + (r.masked if len(ctx.node.inputs) > 3 else 0.0)
    split = r.split * numbers * (1 if division.warpgroups or division.rests else division.down)
    alone = steps * (r.step + r.multiplied * rows * numbers / warps + loading(ctx, division)) + r.group
    busy = steps * (r.busy + r.busy_multiplied * rows * numbers + logit * rows * step + split)
    waves = max(1.0, division.groups(ctx) / (units * max(1, WARPS // warps)))
    longer = ((alone * waves) ** SHARP + (busy * division.groups(ctx) / units) ** SHARP) ** (1 / SHARP)
    return float(r.start + longer + (DIVIDED if division.split > 1 else 0.0))
