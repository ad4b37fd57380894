"""Attention on tensor cores: one kernel that never stores the logits, in float16 with float32 sums, or of floats."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from litegpu.gpu.backends.cuda.functions import ROUGH_FUNCTIONS
from litegpu.gpu.backends.cuda.kernels import float_attention, short_attention, warpgroup_attention
from litegpu.gpu.backends.cuda.kernels.attention_division import (
    DIVIDED,
    SPLITS,
    AttentionDivision,
    fits_at_once,
    keys_of,
    loading,
    padded_widths,
    places,
)
from litegpu.gpu.backends.cuda.kernels.attention_operands import given_mask, side
from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.offer import Option, offered
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import TF32_CAPABILITIES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import Attention, DType, fits_half
from litegpu.gpu.kernels.access import Operands, pack
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

#: Numbers of a query, and of a value, that a warp keeps in registers.
MOST_WIDTH = 128
#: Keys that a workgroup takes at a time.
STEP = 64
#: Warps of a workgroup that goes through the keys in steps; those that divide all keys of few queries.
WARPS, ACROSS = 4, 8
#: Microseconds that a mask takes more, and each of its numbers. (An H200, Swin's windows.)
MASKED, MASKED_EACH = 0.5, 0.65e-6
#: What a mask with rows of its own for each query takes more where keys are few: in networks such attentions (Swin's,
#: of 49 keys) take 4.1 to 5.9 us, by warpgroup_attention.cu 2.5 to 3.4.
WINDOWED = 1.0
#: Keys that a workgroup takes at once.
MOST_AT_ONCE = 512


def fits(depth: int, columns: int, features: Features, half: bool) -> bool:
    """Whether the kernels do attention of these sizes."""
    return (half or features.capability in TF32_CAPABILITIES) and depth <= MOST_WIDTH and columns <= MOST_WIDTH


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch, by the kernel that is estimated, or measured, to be the fastest; None for sizes that do not fit, and
    in float16 for constants that it does not have."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    constant = {v: ctx.value(v) for v in node.inputs[:3] if ctx.value(v).is_constant}
    if ctx.half and not all(x.data is not None and fits_half(x.data) for x in constant.values()):
        return None
    kind, numbers = (DType.FLOAT16, np.float16) if ctx.half else (DType.FLOAT32, np.float32)
    learnt = {v: padded(v, x.shape, kind) for v, x in constant.items()}
    ctx = dataclasses.replace(ctx, views={**ctx.views, **learnt})
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    known = set(LOAD) if ctx.half else {DType.FLOAT32}
    if not fits(k.shape[3], v.shape[3], ctx.features, ctx.half) or not {x.dtype for x in (q, k, v)} <= known:
        return None
    operands: Operands = {
        name: ctx.views[i] if (data := ctx.value(i).data) is None else pack(data).astype(numbers)
        for name, i in zip("qkv", node.inputs[:3], strict=True)
    }
    mask: dict[str, int | str] = {"MASKED": 0, "MASK_PARAMETER": ""}
    if len(node.inputs) > 3:
        found = given_mask(ctx, node.inputs[3], operands)
        if found is None:
            return None
        mask = found
    units, sizes = ctx.features.compute_units or USUAL_UNITS, warpgroup_attention.sizes_of(ctx)
    estimate, divided = (_cost, divisions) if ctx.half else (float_attention.cost, float_attention.divisions)
    options: list[Option] = [(estimate(ctx, one, units), _launch, one) for one in divided(ctx, units)]
    if ctx.half:
        options += [
            (short_attention.cost(sizes, one, units), short_attention.launch, one)
            for one in short_attention.divisions(sizes, units)
        ]
    if ctx.half and warpgroup_attention.readable(ctx):
        cost, make = warpgroup_attention.cost, warpgroup_attention.launch
        tiles = warpgroup_attention.ranked(sizes, ctx.features.capability, units)
        options += [(cost(sizes, tile, units), make, tile) for tile in tiles[: ctx.most]]
    options.sort(key=lambda option: option[0])
    return [offered([make(ctx, one, mask, operands) for _, make, one in options[: ctx.most]])]


def divisions(ctx: KernelContext, units: int) -> list[AttentionDivision]:
    """Those that make sense, those of the fewest queries first."""
    usual = [AttentionDivision(down, WARPS // down, STEP) for down in (4, 2, 1)]
    found = [next((d for d in usual if d.tiles(ctx) >= units), usual[-1])]
    keys = keys_of(ctx)
    parts = SPLITS if ctx.features.capability == WARPGROUP_CAPABILITY else ()
    found += [dataclasses.replace(d, split=n) for d in usual for n in parts if d.tiles(ctx) < units]
    for n in (1, *parts):
        step = -(-keys // (16 * ACROSS * n)) * 16 * ACROSS
        if step <= MOST_AT_ONCE:
            found.append(AttentionDivision(1, ACROSS, step, n))
    found = [d for d in found if (d.split == 1 and d.across != ACROSS) or fits_at_once(ctx, d, units)]
    return sorted(found, key=lambda division: division.down)


def _cost(ctx: KernelContext, division: AttentionDivision, units: int) -> float:
    """Estimated microseconds of attention.cu on a device of `units` multiprocessors, from nine measurements, and
    from ten of all keys at once, which would be lower beside those of warpgroup_attention.py; of a cluster what one of
    its workgroups takes, and DIVIDED."""
    keys, depth = ctx.views[ctx.node.inputs[1]].shape[2:]
    steps, width = division.steps(keys), (depth + ctx.output.shape[3]) / 128
    masked = MASKED + math.prod(ctx.output.shape[:3]) * keys * MASKED_EACH if len(ctx.node.inputs) > 3 else 0.0
    if masked and keys <= STEP and ctx.value(ctx.node.inputs[3]).shape[2] > 1:
        masked += WINDOWED
    more = masked + (DIVIDED if division.split > 1 else 0.0)
    converting = loading(ctx, division)
    if division.across == ACROSS:
        return 2.4 + 0.0045 * division.step * width + converting + more
    each = steps * (0.325 + 0.244 * division.down) * max(width, 0.34 + 0.66 * width)  # narrow ones are exponentials
    alone = (0.75 + converting) * steps
    return float(1.7 + max(alone, -(-division.groups(ctx) // units) * each) + more)


def _launch(ctx: KernelContext, division: AttentionDivision, mask: dict[str, int | str], operands: Operands) -> Launch:
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    batch, heads, queries, columns = ctx.output.shape
    groups, (stages, shared), (depth_padded, columns_padded) = (
        division.groups(ctx),
        places(ctx, division),
        padded_widths(ctx),
    )
    exponent = math.log2(math.e) if ctx.half else 1.0
    constants: dict[str, int | str] = {
        "TF32": int(not ctx.half), "BLOCKS": division.blocks, "RESTS_KEPT": int(division.rests),
        "WARPGROUPS": int(division.warpgroups), "WARPS_M": division.down, "WARPS_K": division.across,
        "STEP": division.step, "STAGES": stages,
        "SPLIT": division.split, "DP": depth_padded, "EP": columns_padded, "HEADS": heads, "QUERIES": queries,
        "KEYS": k.shape[2], "QUADS": -(-columns // 4), "TILES": division.tiles(ctx) // (batch * heads),
        "SCALE": float_text(op.scale * exponent), "BETA": float_text(op.beta * exponent),
        **side("Q", q), **side("K", k), **side("V", v), **mask,
        "K_SHARED": heads // k.shape[1], "V_SHARED": heads // v.shape[1],
    }  # fmt: skip
    warpgroup, cluster = (
        ("warpgroup.cu",) if division.warpgroups else (),
        ("pipeline.cu",) if division.split > 1 else (),
    )
    tf32 = () if ctx.half else ("tf32.cu", "rests.cu")
    return native_launch(
        ctx, "flash_attention", ("device.cu", *warpgroup, *cluster, *tf32, "logits.cu", "attention.cu"), constants,
        operands, label="attention", workgroup=(division.threads, 1, 1), dispatch=(groups, 1, 1), shared_bytes=shared,
        variant=str(division), needed=(ROUGH_FUNCTIONS,),
    )  # fmt: skip
