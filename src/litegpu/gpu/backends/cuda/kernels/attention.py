"""Attention on tensor cores: one kernel that never stores the logits, in float16 with float32 sums."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.functions import ROUGH_FUNCTIONS
from litegpu.gpu.backends.cuda.kernels import short_attention, warpgroup_attention
from litegpu.gpu.backends.cuda.kernels.attention_operands import given_mask, side
from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.matmul import copied
from litegpu.gpu.backends.cuda.kernels.offer import Option, offered
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, WARPGROUP_CAPABILITY, most_shared_bytes
from litegpu.gpu.graph import Attention, DType, fits_half
from litegpu.gpu.kernels.access import Operands, pack
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import padded

#: Numbers of a query, and of a value, that a warp keeps in registers.
MOST_WIDTH = 128
#: Keys that a workgroup takes at a time.
STEP = 64
#: Of them under way at once, at most.
MOST_STAGES = 4
#: Warps of a workgroup that goes through the keys in steps; those that divide all keys of few queries.
WARPS, ACROSS = 4, 8
#: Microseconds that a mask takes more, and each of its numbers. (An H200, Swin's windows.)
MASKED, MASKED_EACH = 0.5, 0.65e-6
#: What a mask with rows of its own for each query takes more where keys are few: in networks such attentions (Swin's,
#: of 49 keys) take 4.1 to 5.9 us, by warpgroup_attention.cu 2.5 to 3.4.
WINDOWED = 1.0
#: Keys that a workgroup takes at once.
MOST_AT_ONCE = 512
#: Workgroups of a cluster, which divide the keys: as many as clusters can have on every device.
SPLITS = (2, 4, 8)
#: Multiprocessors of a GPC, or two less, among which clusters of four and more workgroups find their places.
NEIGHBOURS = 16
#: Microseconds that a cluster takes more, for its start, two barriers, and reading of what others have; as in
#: specialized.py. (With 0.9 ViT tiny's 197 keys would be divided, which take 3.0 us at once.)
DIVIDED = 1.2
#: Microseconds that a thread takes for eight numbers that it loads and converts. (An H100: 512 float32 keys of depth 64
#: in eight steps of four warps 12.5 us, when some loads of a step waited for others.)
CONVERTED = 0.075


def fits(depth: int, columns: int) -> bool:
    """Whether the kernels do attention of these sizes, in float16."""
    return depth <= MOST_WIDTH and columns <= MOST_WIDTH


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch, by the kernel that is estimated, or measured, to be the fastest; None in float32, for sizes that do
    not fit, and for constants that float16 does not have."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    constant = {v: ctx.value(v) for v in node.inputs[:3] if ctx.value(v).is_constant}
    if not ctx.half or not all(x.data is not None and fits_half(x.data) for x in constant.values()):
        return None
    learnt = {v: padded(v, x.shape, DType.FLOAT16) for v, x in constant.items()}
    ctx = dataclasses.replace(ctx, views={**ctx.views, **learnt})
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    if not fits(k.shape[3], v.shape[3]) or not {x.dtype for x in (q, k, v)} <= set(LOAD):
        return None
    operands: Operands = {
        name: ctx.views[i] if (data := ctx.value(i).data) is None else pack(data).astype(np.float16)
        for name, i in zip("qkv", node.inputs[:3], strict=True)
    }
    mask: dict[str, int | str] = {"MASKED": 0, "MASK_PARAMETER": ""}
    if len(node.inputs) > 3:
        found = given_mask(ctx, node.inputs[3], operands)
        if found is None:
            return None
        mask = found
    units, sizes = ctx.features.compute_units or USUAL_UNITS, warpgroup_attention.sizes_of(ctx)
    options: list[Option] = [(_cost(ctx, one, units), _launch, one) for one in divisions(ctx, units)]
    options += [
        (short_attention.cost(sizes, one, units), short_attention.launch, one)
        for one in short_attention.divisions(sizes, units)
    ]
    if warpgroup_attention.readable(ctx):
        cost, make = warpgroup_attention.cost, warpgroup_attention.launch
        tiles = warpgroup_attention.ranked(sizes, ctx.features.capability, units)
        options += [(cost(sizes, tile, units), make, tile) for tile in tiles[: ctx.most]]
    options.sort(key=lambda option: option[0])
    return [offered([make(ctx, one, mask, operands) for _, make, one in options[: ctx.most]])]


@dataclass(frozen=True)
class AttentionDivision:
    """Of attention.cu: `down` warps of a workgroup divide the queries, `across` warps the `step` keys that it takes at
    a time; `split` workgroups, a cluster, divide all keys."""

    down: int
    across: int
    step: int
    split: int = 1

    def __str__(self) -> str:
        more = f"/{self.split}" if self.split > 1 else ""
        return f"{self.down}x{self.across}x{self.step}{more}"

    def tiles(self, ctx: KernelContext) -> int:
        """Of queries, of all heads: clusters, or workgroups."""
        batch, heads, queries, _ = ctx.output.shape
        return -(-queries // (16 * self.down)) * batch * heads

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    def groups(self, ctx: KernelContext) -> int:
        return self.tiles(ctx) * self.split

    def steps(self, keys: int) -> int:
        """Of a workgroup."""
        return -(-keys // (self.step * self.split))


def divisions(ctx: KernelContext, units: int) -> list[AttentionDivision]:
    """Those that make sense, the cheapest first."""
    usual = [AttentionDivision(down, WARPS // down, STEP) for down in (4, 2, 1)]
    found = [next((d for d in usual if d.tiles(ctx) >= units), usual[-1])]
    keys = _keys(ctx)
    parts = SPLITS if ctx.features.capability == WARPGROUP_CAPABILITY else ()
    found += [dataclasses.replace(d, split=n) for d in usual for n in parts if d.tiles(ctx) < units]
    for n in (1, *parts):
        step = -(-keys // (16 * ACROSS * n)) * 16 * ACROSS
        if step <= MOST_AT_ONCE:
            found.append(AttentionDivision(1, ACROSS, step, n))
    found = [d for d in found if _fits(ctx, d, units)]
    return sorted(found, key=lambda division: (_cost(ctx, division, units), division.down))


def _fits(ctx: KernelContext, division: AttentionDivision, units: int) -> bool:
    """Whether there is shared memory for it, and whether workgroups that are to run at once find multiprocessors, and
    keys."""
    if division.split == 1 and division.across != ACROSS:
        return True
    together = units if division.split <= 2 else units // NEIGHBOURS * NEIGHBOURS
    few = division.groups(ctx) <= together and (division.split - 1) * division.step < _keys(ctx)
    return few and _places(ctx, division)[1] <= _most(ctx)


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
    converting = _converting(ctx, division)
    if division.across == ACROSS:
        return 2.4 + 0.0045 * division.step * width + converting + more
    each = steps * (0.325 + 0.244 * division.down) * max(width, 0.34 + 0.66 * width)  # narrow ones are exponentials
    alone = (0.75 + converting) * steps
    return float(1.7 + max(alone, -(-division.groups(ctx) // units) * each) + more)


def _converting(ctx: KernelContext, division: AttentionDivision) -> float:
    """Microseconds that a step takes more for keys and values that do not come as they are multiplied."""
    views = [ctx.views[i] for i in ctx.node.inputs[1:3]]
    loaded = sum(n for view, n in zip(views, _padded(ctx), strict=True) if not copied(view, True, False))
    return CONVERTED * division.step * loaded / 8 / division.threads


def _keys(ctx: KernelContext) -> int:
    return ctx.views[ctx.node.inputs[1]].shape[2]


def _most(ctx: KernelContext) -> int:
    return most_shared_bytes(ctx.features.capability)


def _padded(ctx: KernelContext) -> tuple[int, int]:
    """Numbers of a key and of a value as they lie in shared memory."""
    depth, columns = ctx.views[ctx.node.inputs[1]].shape[3], ctx.output.shape[3]
    return max(16, 1 << (depth - 1).bit_length()), max(16, 1 << (columns - 1).bit_length())


def _places(ctx: KernelContext, division: AttentionDivision) -> tuple[int, int]:
    """Steps that may be under way at once, or multiplied, and bytes of shared memory."""
    depth, columns = _padded(ctx)
    rows, stage = 16 * division.down, 2 * division.step * (depth + columns)
    steps = division.steps(_keys(ctx))
    # with one workgroup on a multiprocessor nothing else hides how long copies take
    alone = division.groups(ctx) <= (ctx.features.compute_units or USUAL_UNITS) and not _converting(ctx, division)
    fitting = (_most(ctx) - 2 * rows * depth) // stage
    stages = max(2, min(MOST_STAGES, steps, fitting)) if alone else 2
    sums = 4 * division.across * rows * (columns + 8 + 2)
    return stages, max(2 * rows * depth + min(stages, steps) * stage, sums)


def _launch(ctx: KernelContext, division: AttentionDivision, mask: dict[str, int | str], operands: Operands) -> Launch:
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    batch, heads, queries, columns = ctx.output.shape
    groups, (stages, shared), (depth_padded, columns_padded) = (
        division.groups(ctx),
        _places(ctx, division),
        _padded(ctx),
    )
    constants: dict[str, int | str] = {
        "WARPS_M": division.down, "WARPS_K": division.across, "STEP": division.step, "STAGES": stages,
        "SPLIT": division.split, "DP": depth_padded, "EP": columns_padded, "HEADS": heads, "QUERIES": queries,
        "KEYS": k.shape[2], "QUADS": -(-columns // 4), "TILES": division.tiles(ctx) // (batch * heads),
        "SCALE": float_text(op.scale * math.log2(math.e)), "BETA": float_text(op.beta * math.log2(math.e)),
        **side("Q", q), **side("K", k), **side("V", v), **mask,
        "K_SHARED": heads // k.shape[1], "V_SHARED": heads // v.shape[1],
    }  # fmt: skip
    return native_launch(
        ctx, "flash_attention",
        ("device.cu", *(("pipeline.cu",) if division.split > 1 else ()), "logits.cu", "attention.cu"), constants,
        operands, label="attention", workgroup=(division.threads, 1, 1), dispatch=(groups, 1, 1), shared_bytes=shared,
        variant=str(division), needed=(ROUGH_FUNCTIONS,),
    )  # fmt: skip
